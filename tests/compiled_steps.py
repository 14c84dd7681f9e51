"""A small model with its optimizer, and comparisons with the plain step, for the tests of
`spmd.compile`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import spmd

Step = Callable[..., Any]


class Net(nn.Module):
    """A layer, dropout, normalisation over the batch, and a number that forward reads."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.dropout = nn.Dropout(dropout)
        self.scale = 1.0
        self.hidden: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.dropout(self.norm(self.first(x)).relu())) * self.scale


@dataclass
class Training:
    """A model on xla with its optimizer; `extra` is whatever a test adds."""

    model: Any
    optimizer: torch.optim.Optimizer
    scheduler: Any = None
    extra: dict[str, Any] = field(default_factory=dict)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """A training step, as people write it."""
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.scheduler is not None:
            self.scheduler.step()
        return loss.detach()


def training(
    optimizer: Any = torch.optim.AdamW,
    *,
    dropout: float = 0.2,
    scheduler: Any = None,
    **kwargs: Any,
) -> Training:
    torch.manual_seed(0)
    model = Net(dropout).to("xla")
    made = optimizer(model.parameters(), **{"lr": 0.05, **kwargs})
    return Training(model, made, None if scheduler is None else scheduler(made))


def scaled_step(own: Training, scaler: torch.amp.GradScaler) -> Step:
    """A step whose loss a gradient scaler scales."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(own.model(x), y)
        scaler.scale(loss).backward()
        scaler.step(own.optimizer)
        scaler.update()
        own.optimizer.zero_grad()
        return loss.detach()

    return step


def batches(count: int, *, size: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(size, 4), torch.randint(0, 3, (size,))) for _ in range(count)]


def run(
    step: Step, count: int, *, before: Sequence[tuple[int, Callable[[], Any]]] = (), size: int = 8
) -> list[float]:
    """The losses of so many steps. before: what is done before which step."""
    data = batches(count, size=size)
    torch.manual_seed(2)
    losses = []
    for i, (x, y) in enumerate(data):
        for place, change in before:
            if place == i:
                change()
        loss = step(x.to("xla"), y.to("xla"))
        spmd.sync()
        losses.append(loss.item())
    return losses


def both(
    make: Callable[[], Training],
    change: Callable[[Training], Any] = lambda training: None,
    *,
    count: int = 8,
    at: int = 5,
    step: Callable[[Training], Step] = lambda training: training.step,
) -> Any:
    """Compares the losses and the state of a compiled training with the plain one's, bit for bit;
    `change` is called before step `at`. Returns the compiled function."""
    plain = make()
    expected = run(step(plain), count, before=[(at, lambda: change(plain))])
    own = make()
    compiled = spmd.compile(step(own))
    seen: list[int] = []
    before = [(at, lambda: seen.append(compiled.num_replayed)), (at, lambda: change(own))]
    assert run(compiled, count, before=before) == expected
    for mine, its in zip(
        own.model.state_dict().values(), plain.model.state_dict().values(), strict=True
    ):
        assert torch.equal(mine.cpu(), its.cpu())
    assert seen[0] >= 2, compiled.explain()  # it was replayed before the change
    return compiled


def caused(compiled: Any, text: str) -> None:
    assert any(text in cause for cause in compiled.causes), compiled.explain()

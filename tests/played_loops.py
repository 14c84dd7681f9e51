"""Training loops that are played (`config.replay_steps`) beside the same loops that are not:
`compare` demands equal bits of all that they read."""

import collections
import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import spmd
from spmd.steps.segments import segment_calls

WIDTH, CLASSES, ROWS, STEPS = 8, 4, 8, 8


@contextlib.contextmanager
def played(is_on: bool = True) -> Iterator[None]:
    """Has loops played, or not."""
    before, spmd.config.replay_steps = spmd.config.replay_steps, is_on
    try:
        yield
    finally:
        spmd.config.replay_steps = before


class Block(nn.Module):
    """A normed layer with a residual connection."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout, self.scale = nn.Dropout(dropout), 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(torch.tanh(self.layer(self.norm(x)))) * self.scale


class Net(nn.Module):
    """Blocks and a head."""

    def __init__(self, *, num_blocks: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks: Any = nn.ModuleList(Block(dropout) for _ in range(num_blocks))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Trace:
    """The values that a loop reads, and its modules and optimizers."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []
        self.names: list[str] = []
        self.parts: list[Any] = []
        self.num_compiles = 0  # of the played loop, behind the recorded one
        self.generator = torch.Generator().manual_seed(1)

    def watch(self, *parts: Any) -> Any:
        """Reads the gradients of these modules at each step, and their state and that of these
        optimizers at the end."""
        self.parts += parts
        return parts[0] if len(parts) == 1 else parts

    def batch(self, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
        """New inputs and classes."""
        x = torch.randn(rows, WIDTH, generator=self.generator)
        return x.to("xla"), torch.randint(0, CLASSES, (rows,), generator=self.generator).to("xla")

    def read(self, name: str, tensor: Any) -> None:
        """Reads a value."""
        self.names.append(name)
        is_tensor = isinstance(tensor, torch.Tensor)
        self.values.append(tensor.detach().cpu().clone() if is_tensor else torch.tensor(tensor))

    def step(self, loss: torch.Tensor) -> None:
        """Reads a loss, and the gradients as they are."""
        self.read("loss", loss)
        for module in self._modules():
            for name, parameter in module.named_parameters():
                if parameter.grad is not None:
                    self.read(f"{name}.grad", parameter.grad)

    def end(self) -> None:
        """Reads the state."""
        for module in self._modules():
            for name, value in module.state_dict().items():
                self.read(name, value)
        for optimizer in self.parts:
            if isinstance(optimizer, torch.optim.Optimizer):
                for entry in optimizer.state.values():
                    for name, value in entry.items():
                        for leaf in tree_leaves(value):
                            if leaf is not None:
                                self.read(name, leaf)

    def _modules(self) -> list[nn.Module]:
        return [part for part in self.parts if isinstance(part, nn.Module)]

    def segment(self, part: Any) -> Any:
        """The segment of a module or of an optimizer."""
        return segment_calls.segment_of(part)

    def explain(self) -> str:
        """What became of the segments."""
        return "\n".join(explain(self.segment(part)) for part in self.parts)


def explain(segment: Any) -> str:
    """What became of a segment, each cause once."""
    if segment is None:
        return "no segment"
    causes = collections.Counter(re.sub("^recorded at .*: ", "", x) for x in segment.causes)
    return "\n".join([repr(segment), *(f"{count} x {cause}" for cause, count in causes.items())])


Loop = Callable[[Trace], Any]


def trace_of(loop: Loop, *, is_played: bool) -> Trace:
    """Runs a loop from the start of the streams of random numbers."""
    trace = Trace()
    torch.manual_seed(0)
    spmd.manual_seed(0)
    with played(is_played):
        loop(trace)
        trace.end()
    return trace


def compare(loop: Loop) -> Trace:
    """Runs a loop recorded and played, which must read the same bits; returns the trace of the
    played one."""
    recorded = trace_of(loop, is_played=False)
    num_compiles = spmd.metrics.num_compiles()
    replayed = trace_of(loop, is_played=True)
    replayed.num_compiles = spmd.metrics.num_compiles() - num_compiles
    assert all(recorded.segment(part) is None for part in recorded.parts)
    assert recorded.names == replayed.names and recorded.names
    for place, (name, old, new) in enumerate(
        zip(recorded.names, recorded.values, replayed.values, strict=True)
    ):
        assert old.dtype is new.dtype and old.shape == new.shape, (place, name)
        assert torch.equal(_bits(old), _bits(new)), (
            f"value {place}, {name}: {old}, played {new}\n{replayed.explain()}"
        )
    return replayed


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def check_played(loop: Loop, *, but: int = 0) -> Trace:
    """Compares, and demands that all segments were replayed; but: calls fewer than all that a
    segment of eight replays."""
    trace = compare(loop)
    for part in trace.parts:
        segment = trace.segment(part)
        assert segment is not None, f"{type(part).__name__} is no segment"
        assert segment.num_replayed >= STEPS - 4 - but, explain(segment)
    return trace


def check_same_programs(loop: Loop, *, but: int = 0) -> Trace:
    """`check_played`, and the played loop compiles no program that the recorded one has not."""
    trace = check_played(loop, but=but)
    assert trace.num_compiles == 0, trace.explain()
    return trace


def classify(
    trace: Trace,
    model: nn.Module,
    optimizer: Any,
    *,
    steps: int = STEPS,
    logits: Callable[[torch.Tensor], torch.Tensor] | None = None,
    before: Callable[[int], Any] = lambda _: None,
    after: Callable[[int], Any] = lambda _: None,
    place: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
    to_none: bool = True,
) -> None:
    """Trains a classifier. before, after: called in each step before its forward and after its
    optimizer's step. place: shards a batch."""
    trace.watch(model, optimizer)
    called = model if logits is None else logits
    for number in range(steps):
        before(number)
        x, y = map(place, trace.batch())
        loss = nn.functional.cross_entropy(called(x), y)
        loss.backward()
        optimizer.step()
        trace.step(loss)
        after(number)
        optimizer.zero_grad(set_to_none=to_none)

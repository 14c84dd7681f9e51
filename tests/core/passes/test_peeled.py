"""A layer whose backward is no turn of the loop: its weights, gradients and moments are rows of the
others' stacks."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fsdp
import spmd
from spmd.core.programs import cache

WIDTH, LAYERS = 16, 9
ADAM = partial(torch.optim.AdamW, lr=1e-2)
MOMENTUM = partial(torch.optim.SGD, lr=1e-2, momentum=0.9)


@pytest.fixture(autouse=True)
def scanned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    spmd.sync()
    monkeypatch.setattr(spmd.config, "scan_layers", "always")
    cache.clear_cache()
    yield
    spmd.sync()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Hooked(Layer):
    """The same forward, a backward of more ops."""

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.tanh(self.up(x))
        if wide.requires_grad:
            wide.register_hook(lambda grad: grad.clamp(-1, 1))
        return x + self.down(wide)


def alone() -> nn.Sequential:
    """Layers and nothing else: the input of the first needs no gradient."""
    return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def last_hooked() -> nn.Sequential:
    return nn.Sequential(*(Layer() for _ in range(LAYERS - 1)), Hooked())


def both_ends() -> nn.Sequential:
    return nn.Sequential(Hooked(), *(Layer() for _ in range(LAYERS - 2)), Hooked())


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, on_xla: bool, clip: bool = False
) -> list[Tensor]:
    draws, losses = torch.Generator().manual_seed(1), []
    for _ in range(3):
        x = torch.randn(8, WIDTH, generator=draws)
        loss = model(x.to("xla") if on_xla else x).square().mean()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        spmd.sync()
    return losses


def same(
    make: Callable[[], nn.Module],
    wrap: Any,
    optimizer: Any,
    *,
    offloads: bool = False,
    clip: bool = False,
) -> Any:
    """Trains rolled on the devices and on the CPU; the line of the ledger."""
    torch.manual_seed(0)
    reference, model = make(), make()
    model.load_state_dict(reference.state_dict())
    model = wrap(model)
    made = optimizer(model.parameters())
    if offloads:
        spmd.offload_optimizer(made)
    spmd.metrics.clear()
    wanted = train(reference, optimizer(reference.parameters()), on_xla=False, clip=clip)
    torch.testing.assert_close(
        [x.cpu() for x in train(model, made, on_xla=True, clip=clip)], wanted
    )
    for got, one in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(got.detach().cpu(), one.detach(), rtol=2e-5, atol=2e-5)
    return [record for record in spmd.metrics.compiles() if record.nodes > 60][-1]


def units(**given: Any) -> Callable[[nn.Module], nn.Module]:
    """FSDP over eight devices, a unit for each layer."""
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Layer, Hooked})
    mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
    return lambda model: fsdp.FullyShardedDataParallel(
        model, mesh=mesh, auto_wrap_policy=policy, **given
    )


def rows_in_stores(record: Any) -> tuple[int, int]:
    """The number of inputs that are rows, and of their stores."""
    found = re.search(r"(\d+) of \d+ inputs are rows of (\d+) stores", record.cause)
    assert found is not None, record.cause
    return int(found[1]), int(found[2])


@pytest.mark.parametrize("clip", [False, True], ids=["plain", "clipped"])
@pytest.mark.parametrize(
    ("optimizer", "state"), [(ADAM, 3), (MOMENTUM, 2)], ids=["adamw", "momentum"]
)
def test_the_first_layer_is_a_row_of_the_others_stacks(optimizer, state, clip):
    record = same(alone, units(), optimizer, clip=clip)
    assert {iterations for iterations, _ in record.loops} == {LAYERS - 1}
    assert rows_in_stores(record) == (4 * state * LAYERS, 4 * state)


@pytest.mark.parametrize("make", [alone, last_hooked, both_ends])
def test_without_a_mesh_the_numbers_are_torchs(make):
    record = same(make, lambda model: model.to("xla"), ADAM)
    assert record.loops


@pytest.mark.parametrize("make", [last_hooked, both_ends])
def test_what_is_made_before_the_loop_is_a_row_too(make):
    record = same(make, units(), ADAM)
    assert record.loops and rows_in_stores(record) == (12 * LAYERS, 12)


@pytest.mark.parametrize("make", [alone, both_ends])
def test_state_on_the_host(make):
    """Gradients there are written by the loop itself, with no row beside: the other layers' updates
    stand alone."""
    record = same(make, units(offload_policy=fsdp.CPUOffloadPolicy()), ADAM, offloads=True)
    assert record.loops and rows_in_stores(record) == (12 * LAYERS, 12)
    record = same(make, units(), ADAM, offloads=True)
    assert rows_in_stores(record) == (12 * LAYERS, 12)

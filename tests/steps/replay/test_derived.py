"""Arguments that the host changes before a program takes them: padded, moved to another mesh,
copied into state."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import spmd

Step = Callable[..., torch.Tensor]


def losses(
    batches: list[Any], *, compiled: bool, make: Callable[[], Step]
) -> tuple[list[float], Any]:
    torch.manual_seed(0)
    step = make()
    function: Any = spmd.compile(step) if compiled else step
    found = []
    for batch in batches:
        loss = function(*batch())
        spmd.sync()
        found.append(loss.item())
    return found, function


def compare(make: Callable[[], Step], batches: list[Any], *, replayed: int) -> None:
    expected, _ = losses(batches, compiled=False, make=make)
    found, function = losses(batches, compiled=True, make=make)
    assert found == expected
    assert function.num_replayed >= replayed, function.explain()


def training(module: nn.Module, mesh: spmd.Mesh | None = None) -> Step:
    model = module.to("xla")
    if mesh is not None:
        for parameter in model.parameters():
            spmd.mark_sharding(parameter, mesh, (None,) * parameter.dim())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def test_alternating_lengths() -> None:
    """The second length makes lengths operands: the host pads each batch, that of a replay, too."""
    draw = torch.Generator().manual_seed(0)
    tokens = [
        torch.randint(50, (4, length), generator=draw)
        for length in (64, 96, 64, 64, 96, 96, 80, 96, 80, 64)
    ]
    batches = [lambda one=one: (one.to("xla"),) for one in tokens]
    compare(
        lambda: training(nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 4))), batches, replayed=7
    )


@pytest.mark.parametrize("uploaded", [False, True])
def test_batches_of_another_mesh(uploaded: bool) -> None:
    """A batch that is sharded over four devices is taken to the eight of the parameters inside the
    step."""
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randn(8, 8, generator=draw) for _ in range(5)]
    here, there = spmd.Mesh(range(8), (8,), ("a",)), spmd.Mesh(range(4), (4,), ("a",))

    def batch(one: torch.Tensor) -> tuple[torch.Tensor]:
        x = spmd.mark_sharding(one.to("xla"), there, ("a", None))
        if uploaded:
            spmd.local_shards(x)
        return (x,)

    def make() -> Step:
        inner = training(nn.Linear(8, 4), here)
        return lambda x: inner(spmd.mark_sharding(x, here, ("a", None)))

    compare(make, [lambda one=one: batch(one) for one in rows], replayed=0)


def test_arguments_copied_into_state() -> None:
    """An argument's host data become those of a buffer, without a program."""
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randn(4, 8, generator=draw) for _ in range(5)]

    def make() -> Step:
        last = torch.zeros(4, 8, device="xla")
        inner = training(nn.Linear(8, 4))

        def step(x: torch.Tensor) -> torch.Tensor:
            difference = (x - last).abs().sum()
            last.copy_(x)
            return inner(x) + difference

        return step

    compare(make, [lambda one=one: (one.to("xla"),) for one in rows], replayed=0)

"""Steps on one device of several: one line and a hint with the mark to write, and neither for steps
on all of them."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import spmd
from spmd import P
from spmd.tools.explain import idle_devices


def hints() -> list[spmd.profiler.Hint]:
    return [hint for hint in spmd.profiler.hints() if hint.kind == "idle"]


def loop(
    steps: int, mark: Callable[[torch.Tensor], torch.Tensor] = lambda x: x, compiles: bool = False
) -> None:
    spmd.metrics.clear()
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run = spmd.compile(step) if compiles else step
    for _ in range(steps):
        run(mark(torch.randn(64, 16).to("xla")))
        spmd.sync()


class TestLine:
    """Once, at the fiftieth step, with the tensor, its axis and its line."""

    @pytest.mark.parametrize("compiles", [False, True])
    def test_mark(self, compiles: bool, capsys: pytest.CaptureFixture[str]) -> None:
        loop(idle_devices.STEPS - 1, compiles=compiles)
        assert not hints() and "1 of 8 devices" not in capsys.readouterr().err
        idle_devices.forget()
        loop(2 * idle_devices.STEPS, compiles=compiles)
        said = capsys.readouterr().err
        assert said.count("50 steps ran on 1 of 8 devices") == 1
        assert (
            "spmd.mark_sharding(x, spmd.Mesh(range(8), (8,), ('data',)), P('data', None))" in said
        )
        (hint,) = hints()
        assert hint.count == idle_devices.STEPS and __file__ in hint.line
        assert "x is float32[64,16]; aten." in hint.cause and "model(x)" in hint.cause
        assert (
            "uses one device of several 50 times" in str(hint) and "fsdp.fully_shard" in hint.advice
        )

    def test_rows_that_do_not_divide(self, capsys: pytest.CaptureFixture[str]) -> None:
        for _ in range(idle_devices.STEPS):
            x = torch.randn(60, 16).to("xla")
            for _ in range(idle_devices.LEAST_OPS):
                x = x.sin()
            spmd.sync()
        assert "with dim 0 a multiple of 8" in capsys.readouterr().err


class TestNone:
    """Neither line nor hint for steps on all devices, on a device that was named, or for small
    programs."""

    def test_marked(self, capsys: pytest.CaptureFixture[str]) -> None:
        mesh = spmd.Mesh(range(8), (8,), ("data",))
        loop(60, lambda x: spmd.mark_sharding(x, mesh, P("data", None)))
        one = spmd.Mesh([0], (1,), ("data",))
        loop(60, lambda x: spmd.mark_sharding(x, one, P(None, None)))
        assert not hints() and "of 8 devices" not in capsys.readouterr().err

    def test_small_programs_and_those_among_others(self) -> None:
        mesh = spmd.Mesh(range(8), (8,), ("data",))
        spmd.metrics.clear()
        for _ in range(60):
            torch.ones(8, device="xla").sum().item()
        for _ in range(60):
            x = y = torch.randn(8, device="xla")
            for _ in range(idle_devices.LEAST_OPS):
                x = x.sin()
            spmd.sync()
            y = spmd.mark_sharding(torch.randn(8).to("xla"), mesh, P("data")).exp()
            spmd.sync()
        assert not hints() and y.shape == (8,)

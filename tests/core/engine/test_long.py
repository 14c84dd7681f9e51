"""A graph of very many ops is cut into programs; where its layers are alike, they count once and it stays whole."""

import pytest
import torch
from support import check
from torch import nn

import spmd

WIDTH, LAYERS = 8, 16


def tower() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)))


def num_programs() -> int:
    before = spmd.metrics.counter("runs")
    spmd.sync()
    return spmd.metrics.counter("runs") - before


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is long here has more ops than half of the layers."""
    monkeypatch.setattr(spmd.config, "max_program_ops", LAYERS)


@pytest.mark.parametrize(("roll_layers", "is_one"), [("always", True), ("never", False)])
class TestLong:
    def test_forward(self, roll_layers: str, is_one: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "roll_layers", roll_layers)
        cpu, model = tower(), tower().to("xla")
        x = torch.randn(4, WIDTH)
        spmd.sync()
        with torch.no_grad():
            output = model(x.to("xla"))
        assert (num_programs() == 1) is is_one
        check(output, cpu(x).detach())

    def test_step(self, roll_layers: str, is_one: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "roll_layers", roll_layers)
        cpu, model = tower(), tower().to("xla")
        x = torch.randn(4, WIDTH)
        spmd.sync()
        model(x.to("xla")).sum().backward()
        assert (num_programs() == 1) is is_one
        cpu(x).sum().backward()
        for one, other in zip(model.parameters(), cpu.parameters(), strict=True):
            check(one.grad, other.grad)

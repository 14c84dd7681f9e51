"""`torch.autograd.graph.save_on_cpu` on the device: what is saved goes to the host within the
program."""

import pytest
import torch
from torch import nn

import spmd
from spmd.core.programs import cache


@pytest.fixture(params=["gspmd", "shardy"], autouse=True)
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    spmd.sync()
    monkeypatch.setattr(spmd.config, "partitioner", request.param)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))


def gradients(module: nn.Module, batch: torch.Tensor, pin_memory: bool) -> list[torch.Tensor]:
    batch.requires_grad_()
    with torch.autograd.graph.save_on_cpu(pin_memory=pin_memory):
        loss = module(batch).square().sum()
    loss.backward()
    return [batch.grad, *(weight.grad for weight in module.parameters())]  # type: ignore[list-item]


@pytest.mark.parametrize("pin_memory", [False, True])
class TestGradients:
    """They are torch's, of one program."""

    def test_one_program(self, pin_memory: bool, mesh8: spmd.Mesh) -> None:
        placed = model().to("xla")
        for weight in placed.parameters():
            spmd.mark_sharding(weight, mesh8, ("fsdp", *[None] * (weight.dim() - 1)))
        batch = torch.linspace(-1, 1, 64).reshape(8, 8)
        spmd.sync()
        cache.clear_cache()
        before = spmd.metrics.num_compiles()
        found = gradients(
            placed, spmd.mark_sharding(batch.to("xla"), mesh8, ("fsdp", None)), pin_memory
        )
        spmd.sync()
        assert spmd.metrics.num_compiles() == before + 1
        for one, wanted in zip(found, gradients(model(), batch.clone(), pin_memory), strict=True):
            torch.testing.assert_close(one.cpu(), wanted, rtol=1e-4, atol=1e-5)

    def test_it_lies_on_the_host_between_two_programs(self, pin_memory: bool) -> None:
        x = torch.linspace(-1, 1, 4).to("xla").requires_grad_()
        with torch.autograd.graph.save_on_cpu(pin_memory=pin_memory):
            made = (x * 2).exp().sum()
        spmd.sync()
        program = cache.last_program()
        assert program is not None
        assert "pinned_host" in {sharding.memory for sharding in program.results}
        made.backward()
        y = torch.linspace(-1, 1, 4).requires_grad_()
        (y * 2).exp().sum().backward()
        torch.testing.assert_close(x.grad.cpu(), y.grad)  # type: ignore[union-attr]

    def test_a_value_written_later(self, pin_memory: bool) -> None:
        """A saved value is the value as it was, as in torch's copy of another device's."""
        data = torch.linspace(-1, 1, 4)
        x = data.to("xla").requires_grad_()
        with torch.autograd.graph.save_on_cpu(pin_memory=pin_memory):
            y = x.exp()
            z = (y * y).sum()
        with torch.no_grad():
            y.add_(1)
        z.backward()
        torch.testing.assert_close(x.grad.cpu(), 2 * torch.exp(2 * data))  # type: ignore[union-attr]

    def test_a_parameter_written_between_the_passes(self, pin_memory: bool) -> None:
        layer = nn.Linear(4, 4).to("xla")
        x = torch.ones(2, 4, device="xla", requires_grad=True)
        with torch.autograd.graph.save_on_cpu(pin_memory=pin_memory):
            loss = layer(x).sum()
        with torch.no_grad():
            layer.weight.mul_(2)
        with pytest.raises(
            RuntimeError,
            match=r"save_on_cpu: a parameter or buffer .* modified by an inplace operation",
        ):
            loss.backward()

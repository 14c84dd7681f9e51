"""Modules whose weight a hook computes: `torch.nn.utils.weight_norm` and `spectral_norm`, before
parametrizations."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import spmd

FORMS = {
    "weight_norm": lambda module: nn.utils.weight_norm(module),
    "weight_norm of all": lambda module: nn.utils.weight_norm(module, dim=None),
    "spectral_norm": lambda module: nn.utils.spectral_norm(module),
}


def make(form: Callable[[nn.Module], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of the older form
        return nn.Sequential(
            form(nn.Linear(4, 3)), nn.ReLU(), form(nn.Conv1d(3, 2, 2)), nn.Linear(2, 2)
        )


def run(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model[3](model[2](model[1](model[0](x)).transpose(0, 1)[None]).mean(2)).sum()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
class TestMoves:
    """The module moves onto the device and off it, before and after a step, and trains as on
    CPU."""

    def test_training(self, form: Callable[[nn.Module], nn.Module], mesh8: spmd.Mesh) -> None:
        x = torch.randn(8, 4)
        losses = []
        for device in ("cpu", "xla"):
            model = make(form).to(device)
            names = [name for name, _ in model.named_parameters()]
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            given = x if device == "cpu" else spmd.mark_sharding(x.to("xla"), mesh8, ("fsdp", None))
            seen = []
            for _ in range(3):
                loss = run(model, given)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen.append(loss.detach())
            losses.append(torch.stack(seen).cpu())
            assert [name for name, _ in model.named_parameters()] == names
        torch.testing.assert_close(losses[1], losses[0], rtol=2e-5, atol=2e-5)

    def test_there_and_back(self, form: Callable[[nn.Module], nn.Module]) -> None:
        x = torch.randn(8, 4)
        model = make(form)
        parameters = list(model.parameters())
        model.eval()
        expected = run(model, x)  # a forward: the computed weights have graphs
        expected = expected.item()
        model.to("xla")
        assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
        # as with cuda: what a hook computes moves with the next forward
        assert model[0].weight.device.type == "cpu"
        assert run(model, x.to("xla")).item() == pytest.approx(expected, rel=1e-5)
        assert model[0].weight.device.type == "xla" and model[0].weight.grad_fn is not None
        model.to("cpu")
        assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
        assert run(model, x).item() == pytest.approx(expected, rel=1e-5)
        run(model.double(), x.double()).backward()
        assert model[0].weight.dtype == torch.float64

    def test_a_state_dict_of_another(self, form: Callable[[nn.Module], nn.Module]) -> None:
        model, other = make(form).eval(), make(form).to("xla").eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1)
        other.load_state_dict(model.state_dict())
        x = torch.randn(8, 4)
        assert run(other, x.to("xla")).item() == pytest.approx(run(model, x).item(), rel=1e-5)

"""PyTorch/XLA's names about products and barriers: nothing changes but the order of what XLA
does."""

import copy

import pytest
import torch
from torch import nn

import spmd


class TestEinsumLinear:
    def test_dims_stay_apart(self, mesh2x4: spmd.Mesh) -> None:
        """A batch and a sequence dim that are split stay so in the output, and no collective is in
        the product."""
        layer, other = (
            kind(8, 4, device="xla") for kind in (spmd.torch_xla.EinsumLinear, nn.Linear)
        )
        other.load_state_dict(layer.state_dict())
        x = spmd.mark_sharding(torch.randn(4, 8, 8).to("xla"), mesh2x4, ("data", "fsdp", None))
        for module in (layer, other):
            y = module(torch.tanh(x))
            spmd.sync()
            sharding = spmd.get_sharding(y)
            assert sharding is not None and sharding.partition_spec(3) == ("data", "fsdp", None)
            assert not spmd.metrics.compiles()[-1].traffic

    def test_gradients(self, mesh2x4: spmd.Mesh) -> None:
        """The weight's gradient is one sum over both axes; the input's lies as the input does."""
        layer, x = nn.Linear(8, 4), torch.randn(4, 8, 8)
        expected = copy.deepcopy(layer)
        whole, split = x.clone().requires_grad_(), x.to("xla").requires_grad_()
        spmd.mark_sharding(split, mesh2x4, ("data", "fsdp", None))
        layer.to("xla")(split).square().sum().backward()
        spmd.sync()
        expected(whole).square().sum().backward()
        assert {row.kind for row in spmd.metrics.compiles()[-1].traffic} == {"all-reduce"}
        for got, wanted in (
            (split, whole),
            (layer.weight, expected.weight),
            (layer.bias, expected.bias),
        ):
            assert got.grad is not None and wanted.grad is not None
            torch.testing.assert_close(got.grad.cpu(), wanted.grad)

    def test_patch(self) -> None:
        class Mine(nn.Linear):
            pass

        model = nn.Sequential(nn.Linear(4, 4), nn.ModuleDict({"a": nn.Linear(4, 4)}), Mine(4, 4))
        weight = model[0].weight
        assert spmd.torch_xla.apply_xla_patch_to_nn_linear(model) is model
        assert [type(module) for module in (model[0], model[1]["a"], model[2])] == [
            spmd.torch_xla.EinsumLinear
        ] * 2 + [Mine]
        assert model[0].weight is weight and isinstance(model[0], nn.Linear)
        one = spmd.torch_xla.apply_xla_patch_to_nn_linear(nn.Linear(2, 2))
        assert type(one) is spmd.torch_xla.EinsumLinear


class TestBarrier:
    def test_values_stay(self) -> None:
        x = torch.arange(4.0, device="xla")
        y = (x + 1).view(2, 2)
        spmd.torch_xla.optimization_barrier_([x, y])
        assert "optimization_barrier" in spmd.get_stablehlo([x])
        assert x.tolist() == [0.0, 1.0, 2.0, 3.0] and y.tolist() == [[1.0, 2.0], [3.0, 4.0]]
        spmd.torch_xla.optimization_barrier_([])
        with pytest.raises(
            TypeError, match="optimization_barrier_: expected a tensor on xla, got one on cpu"
        ):
            spmd.torch_xla.optimization_barrier_([torch.ones(2)])

    def test_backward(self) -> None:
        """Gradients are those of the module without."""
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        expected, x = copy.deepcopy(model), torch.randn(2, 4)
        model.to("xla")
        for layer in model:
            spmd.torch_xla.apply_backward_optimization_barrier(layer)
        model(x.to("xla").requires_grad_()).square().sum().backward()
        expected(x).square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad.cpu(), expected.get_parameter(name).grad)

"""Regions between marked tensors are StableHLO composites, in programs and in exports, with the
values and gradients of their ops."""

import copy
import re
from pathlib import Path

import pytest
import torch
from support import check
from torch import nn

import spmd
from spmd.torch_xla.composite_builder import StableHLOCompositeBuilder, serialize_composite_attr


def count(text: str, name: str) -> int:
    return text.count(f'stablehlo.composite "{name}"')


class Scaled(nn.Module):
    """A linear layer of which the activation and its scale are a composite with two results."""

    def __init__(self, name: str = "my.scaled", p: float = 0.0):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.dropout = nn.Dropout(p)
        self.builder = StableHLOCompositeBuilder(name, {"by": 2.5, "dims": [1, 2], "kind": "relu"})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, residual = self.builder.mark_inputs(self.linear(x), x)
        hidden = self.dropout(hidden.relu() * 2.5)
        total, product = self.builder.mark_outputs(hidden + residual, hidden * self.linear.bias)
        return total - product.tanh()


@pytest.fixture(params=["gspmd", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(spmd.config, "partitioner", request.param)
    return str(request.param)


class TestComposites:
    """In programs that run."""

    def test_training(self, partitioner: str, mesh8: spmd.Mesh) -> None:
        """Three steps of four layers, on eight devices and on the CPU."""
        torch.manual_seed(0)
        model = nn.Sequential(*(Scaled() for _ in range(4)))
        moved = copy.deepcopy(model).to("xla")
        for parameter in moved.parameters():
            if parameter.dim() == 2:
                spmd.mark_sharding(parameter, mesh8, ("fsdp", None))
        optimizers = [torch.optim.AdamW(m.parameters()) for m in (model, moved)]
        for _ in range(3):
            x = torch.randn(16, 8)
            y = spmd.mark_sharding(x.to("xla"), mesh8, ("fsdp", None))
            losses = [m(value).square().mean() for m, value in ((model, x), (moved, y))]
            assert count(spmd.get_stablehlo([losses[1]]), "my.scaled") == 4
            for loss, optimizer in zip(losses, optimizers, strict=True):
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            check(losses[1], losses[0])
        for ours, theirs in zip(moved.parameters(), model.parameters(), strict=True):
            check(ours, theirs)

    def test_operands(self) -> None:
        """The marked inputs come first, by their positions; then what else is read."""
        x, y, w = (torch.randn(shape) for shape in ((4, 3), (4, 2), (2, 3)))
        a, b, c = x.to("xla"), y.to("xla"), w.to("xla")
        first = torch.ops.xla.mark_tensor(b, "my.op", 1, "0", True)
        second = torch.ops.xla.mark_tensor(a, "my.op", 0, "0", True)
        attributes = serialize_composite_attr({"is_on": True, "scales": [0.5, 1.0], "n": 2})
        result = torch.ops.xla.mark_tensor(second + first @ c, "my.op", 0, "0", False, attributes)
        text = spmd.get_stablehlo([result])
        shapes = r"tensor<4x3xf32>, tensor<4x2xf32>, tensor<2x3xf32>\) -> tensor<4x3xf32>"
        assert re.search(rf'composite "my.op".*: \({shapes}', text)
        assert "is_on = true, n = 2 : i64" in text
        assert "scales = dense<[5.000000e-01, 1.000000e+00]> : tensor<2xf32>" in text
        check(result, x + y @ w)

    def test_without_results(self) -> None:
        """Marks of one kind alone are their operands."""
        builder = StableHLOCompositeBuilder("my.op")
        x = torch.randn(4)
        result = builder.mark_inputs(x.to("xla")) * 3
        assert count(spmd.get_stablehlo([result]), "my.op") == 0
        check(result, x * 3)

    def test_outer_of_two(self) -> None:
        outer, inner = StableHLOCompositeBuilder("my.outer"), StableHLOCompositeBuilder("my.inner")
        x = torch.randn(4)
        y = outer.mark_inputs(x.to("xla")) + 1
        y = outer.mark_outputs(inner.mark_outputs(inner.mark_inputs(y) * 3) - 2)
        text = spmd.get_stablehlo([y])
        assert (count(text, "my.outer"), count(text, "my.inner")) == (1, 0)
        check(y, (x + 1) * 3 - 2)

    def test_draws(self) -> None:
        """A random draw inside of a composite is that of the stream."""
        model = Scaled(p=0.5).to("xla")
        x = torch.randn(16, 8).to("xla")
        spmd.manual_seed(3)
        marked = model(x)
        assert count(spmd.get_stablehlo([marked]), "my.scaled") == 1
        spmd.manual_seed(3)
        hidden = model.dropout(model.linear(x).relu() * 2.5)
        check(marked, (hidden + x - (hidden * model.linear.bias).tanh()).cpu())

    def test_equal_layers_are_scanned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each has a builder of its own."""
        monkeypatch.setattr(spmd.config, "scan_layers", "always")
        model, x = nn.Sequential(*(Scaled() for _ in range(10))), torch.randn(4, 8)
        expected = model(x)
        result = model.to("xla")(x.to("xla"))
        assert count(spmd.get_stablehlo([result]), "my.scaled") < 5
        check(result, expected)

    def test_refusals(self) -> None:
        with pytest.raises(ValueError, match=r"expected a name with a namespace.*, got 'op'"):
            StableHLOCompositeBuilder("op")
        with pytest.raises(ValueError, match="StableHLOCompositeBuilder: expected tensors, got a"):
            StableHLOCompositeBuilder("my.op").mark_inputs(2.0)
        for value in (None, [1, 2.0], ["a"], []):
            with pytest.raises(ValueError, match=r"a composite's attributes .*; got 'a': "):
                StableHLOCompositeBuilder("my.op", {"a": value})

    def test_on_the_cpu(self) -> None:
        model, x = Scaled(), torch.randn(4, 8, requires_grad=True)
        model(x).sum().backward()
        assert x.grad is not None
        hidden = model.linear(x).relu() * 2.5
        check(model(x), hidden + x - (hidden * model.linear.bias).tanh())


class TestExports:
    """In exports, whose numbers are constants inside of the composite."""

    @pytest.mark.parametrize("is_traced", [True, False])
    def test_of_a_module(self, is_traced: bool, tmp_path: Path) -> None:
        model, x = Scaled().eval(), torch.randn(4, 8)
        program = torch.export.export(model, (x,)) if is_traced else model
        expected = model(x)
        exported = spmd.export(program, (x,))
        text = exported.stablehlo()
        assert count(text, "my.scaled") == 1
        operands = re.search(r'composite "my.scaled".*\} : \((.*)\) ->', text)
        assert operands is not None
        assert operands[1] == "tensor<4x8xf32>, tensor<4x8xf32>, tensor<8xf32>"
        exported.save(tmp_path)
        check(spmd.load_exported(tmp_path)(x.to("xla")), expected)

    def test_of_a_step(self) -> None:
        """A training step with a draw: the gradients read values from inside."""
        torch.manual_seed(0)
        model = Scaled(p=0.25).to("xla")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        x = torch.randn(16, 8).to("xla")
        exported = spmd.export(step, (x,))
        assert count(exported.stablehlo(), "my.scaled") == 1
        loaded = spmd.load_exported(exported)
        spmd.manual_seed(5)
        got = [loaded(x).item() for _ in range(3)]
        spmd.manual_seed(5)
        expected = [step(x).item() for _ in range(3)]
        assert got == pytest.approx(expected, rel=1e-5)

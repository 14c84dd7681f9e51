"""Debug texts are the locations of the ops that make the tensors, in the StableHLO of exports."""

import copy
import json
import re
from pathlib import Path

import pytest
import torch
from jax.interpreters.mlir import ir, make_ir_context
from support import check
from torch import nn
from torch.export import Dim

import spmd
from spmd.torch_xla import (
    StableHLOExportOptions,
    StableHLOGraphModule,
    exported_program_to_stablehlo,
    save_torch_model_as_stablehlo,
)
from spmd.torch_xla.mlir_debuginfo import write_mlir_debuginfo

TEXT = '{"layer": "a\\b\n"}'
OPTIONS = StableHLOExportOptions(export_node_metadata=True)


class Marked(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = torch.ops.xla.write_mlir_debuginfo(x + y, "MY_ADD")
        return write_mlir_debuginfo(x - y.exp(), TEXT)


def located(text: str) -> list[tuple[str, str]]:
    """The ops of a program whose location is a text alone, with it."""
    found = []

    def note(operation: ir.Operation) -> ir.WalkResult:
        name = re.fullmatch(r'loc\("((?:[^"\\]|\\.)*)"\)', str(operation.location))
        if name is not None:  # its quotes and new lines are written as \22 and \0A
            escape = r"\\([0-9A-F]{2}|\\)"
            text = re.sub(escape, lambda code: chr(int(code[1].replace("\\", "5C"), 16)), name[1])
            found.append((operation.name, text))
        return ir.WalkResult.ADVANCE

    with make_ir_context():
        ir.Module.parse(text).operation.walk(note)
    return found


class TestTexts:
    """`torch.ops.xla.write_mlir_debuginfo`."""

    @pytest.mark.parametrize("is_traced", [True, False])
    def test_of_an_export(self, is_traced: bool) -> None:
        x, y = torch.randn(4), torch.randn(4)
        program = torch.export.export(Marked(), (x, y)) if is_traced else Marked()
        exported = spmd.export(program, (x, y))
        marks = [("stablehlo.add", "MY_ADD"), ("stablehlo.subtract", TEXT)]
        assert located(exported.stablehlo()) == marks
        check(spmd.load_exported(exported)(x.to("xla"), y.to("xla")), Marked()(x, y))

    def test_of_a_graph_module(self, tmp_path: Path) -> None:
        """It stands on the op's line; the text can be parsed."""
        x, y = torch.randn(4), torch.randn(4)
        module = exported_program_to_stablehlo(torch.export.export(Marked(), (x, y)))
        module.save(tmp_path)
        for one in (module, StableHLOGraphModule.load(tmp_path)):
            text = one.get_stablehlo_text()
            assert re.search(r'stablehlo\.add .* loc\("MY_ADD"\)\n', text)
            assert [mark for _, mark in located(text)] == ["MY_ADD", TEXT]
            check(one(x, y), Marked()(x, y))

    def test_of_open_sizes(self) -> None:
        dims = {0: Dim("rows")}
        x, y = torch.randn(4), torch.randn(4)
        program = torch.export.export(Marked(), (x, y), dynamic_shapes=(dims, dims))
        module = exported_program_to_stablehlo(program)
        marks = {("stablehlo.add", "MY_ADD"), ("stablehlo.subtract", TEXT)}
        assert marks <= {*located(module.get_stablehlo_text())}
        check(module(x[:3], y[:3]), Marked()(x[:3], y[:3]))

    def test_of_an_argument(self) -> None:
        """No op of the program makes it."""
        x = torch.randn(4)
        exported = spmd.export(lambda x: write_mlir_debuginfo(x, "MY_ARGUMENT"), (x,))
        assert located(exported.stablehlo()) == []
        check(spmd.load_exported(exported)(x.to("xla")), x)

    def test_in_programs(self, mesh8: spmd.Mesh) -> None:
        """Values and gradients, sharded; the text is the name of the op in the compiled program."""
        x, y = torch.randn(16, requires_grad=True), torch.randn(16, requires_grad=True)
        Marked()(x, y).square().sum().backward()
        a, b = (spmd.mark_sharding(one.detach().to("xla"), mesh8, ("fsdp",)) for one in (x, y))
        a.requires_grad_(), b.requires_grad_()
        result = Marked()(a, b)
        program = spmd.get_hlo([result])
        assert 'op_name="MY_ADD"' in program and "all-gather" not in program
        result.square().sum().backward()
        check(result, Marked()(x, y).detach())
        for ours, theirs in ((a, x), (b, y)):
            assert ours.grad is not None and theirs.grad is not None
            check(ours.grad, theirs.grad)

    def test_equal_layers_are_scanned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "scan_layers", "always")
        layers, x = [nn.Linear(4, 4) for _ in range(10)], torch.randn(2, 4)

        def forward(x: torch.Tensor) -> torch.Tensor:
            for layer in layers:
                x = write_mlir_debuginfo(layer(x), "MY_LAYER").tanh()
            return x

        expected = forward(x).detach()
        for layer in layers:
            layer.to("xla")
        check(forward(x.to("xla")).detach(), expected)


class Counting(nn.Module):
    """Layers that write a buffer, and a view."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.register_buffer("total", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.linear(x)
        self.total.add_(y.sum(0))
        y[:, :3].mul_(2)
        return y.sort(-1)[0], self.total + 1


class TestNodeMetadata:
    """StableHLOExportOptions(export_node_metadata=True)."""

    @pytest.mark.parametrize("strict", [True, False])
    def test_of_a_program(self, strict: bool) -> None:
        model, x = Counting().eval(), torch.randn(5, 4)
        program = torch.export.export(model, (x,), strict=strict)
        module = exported_program_to_stablehlo(program, OPTIONS)
        rows = [
            json.loads(text)
            for name, text in located(module.get_stablehlo_text())
            if text[0] == "{"
        ]
        [product] = [row for row in rows if "linear" in row["source_fn_stack"]][-1:]
        assert "y = self.linear(x)" in product["stack_trace"]
        assert "Counting" in product["nn_module_stack"]
        reference = copy.deepcopy(model)
        for _ in range(2):
            for ours, theirs in zip(module(x), reference(x), strict=True):
                check(ours, theirs.detach())

    def test_of_open_sizes(self) -> None:
        model, x = nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2)), torch.randn(3, 4)
        program = torch.export.export(model, (x,), dynamic_shapes=({0: Dim("rows")},))
        module = exported_program_to_stablehlo(program, OPTIONS)
        assert "nn_module_stack" in module.get_stablehlo_text()
        check(module(x[:2]), model(x[:2]).detach())

    def test_of_a_module(self, tmp_path: Path) -> None:
        model, x = nn.Linear(4, 2), torch.randn(3, 4)
        save_torch_model_as_stablehlo(model, (x,), tmp_path, OPTIONS)
        module = StableHLOGraphModule.load(tmp_path)
        assert "stack_trace" in module.get_stablehlo_text()
        check(module(x), model(x).detach())
        exported = exported_program_to_stablehlo(torch.export.export(model, (x,)))
        assert "stack_trace" not in exported.get_stablehlo_text()

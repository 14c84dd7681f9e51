"""Rewritten programs with open sizes compute the same, in torch and as StableHLO."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import check
from torch import nn
from torch.export import Dim, ExportedProgram, export
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

import spmd.names.torch_xla.unbounded_dynamism as rewrites
from spmd.torch_xla import exported_program_to_stablehlo

aten, xla = torch.ops.aten, torch.ops.xla
ROWS = Dim("rows", min=1)


class Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def opened(function: Callable[..., Any], *args: Any, dims: dict[int, Any]) -> ExportedProgram:
    """A program whose last argument has open dims."""
    shapes = (*(None for _ in args[1:]), dims)
    return export(Function(function), args, dynamic_shapes=(shapes,))


def targets(program: ExportedProgram) -> set[Any]:
    program.graph_module.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return {node.target for node in program.graph_module.graph.nodes if node.op == "call_function"}


def check_at_sizes(program: ExportedProgram, function: Callable[..., Any], *args: Any) -> None:
    """With the last argument of the given size and of a larger one."""
    for x in (args[-1], torch.cat([args[-1], args[-1].flip(0)])):
        expected = function(*args[:-1], x)
        result = program.module()(*args[:-1], x)
        for ours, theirs in zip(tree_leaves(result), tree_leaves(expected), strict=True):
            torch.testing.assert_close(ours, theirs)
        module = exported_program_to_stablehlo(program)
        for ours, theirs in zip(
            tree_leaves(module(*args[:-1], x)), tree_leaves(expected), strict=True
        ):
            check(ours, theirs)


x = torch.randn(3, 4, 6)
w, b = torch.randn(6), torch.randn(6)
norm, group_norm = aten.native_layer_norm.default, aten.native_group_norm.default
# What each rewrite replaces, what it puts there, and a function of that op.
CASES: dict[str, tuple[Callable[[GraphModule], None], Any, Any, Callable[..., Any], Any]] = {
    "select": (
        rewrites.decompose_dynamic_shape_select, aten.select.int, aten.view.default,
        lambda x: x[:, 1] + x[:, -1], (x,),
    ),
    "split": (
        rewrites.decompose_split_with_sizes, aten.split_with_sizes.default, aten.slice.Tensor,
        lambda x: aten.split_with_sizes(x, [1, 2, 3], -1), (x,),
    ),
    "slice": (
        rewrites.remove_no_op_slice, aten.slice.Tensor, aten.mul.Tensor,
        lambda x: aten.slice(x * 2, 1, 0, torch.iinfo(torch.int64).max), (x,),
    ),
    "layer norm": (
        rewrites.decompose_dynamic_native_layer_norm, norm, aten.rsqrt.default,
        lambda w, b, x: norm(x, [6], w, b, 1e-5)[0], (w, b, x),
    ),
    "layer norm of two dims": (
        rewrites.decompose_dynamic_native_layer_norm, norm, aten.rsqrt.default,
        lambda x: norm(x, [4, 6], None, None, 1e-5)[0], (x,),
    ),
    "group norm": (
        rewrites.decompose_dynamic_native_group_norm, group_norm, aten.rsqrt.default,
        lambda w, b, x: group_norm(x, w[:4], b[:4], x.shape[0], 4, 6, 2, 1e-5)[0], (w, b, x),
    ),
    "unsqueeze": (
        rewrites.dynamic_unsqueeze_to_view, aten.unsqueeze.default, aten.view.default,
        lambda x: x.unsqueeze(1) + x.unsqueeze(-1).sum(), (x,),
    ),
    "embedding": (
        rewrites.flatten_embedding_indices_tensor, None, aten.reshape.default,
        lambda w, i: nn.functional.embedding(i, w), (x[0], torch.tensor([[0, 3, 1], [2, 2, 1]])),
    ),
    "expand": (
        rewrites.replace_dynamic_expand_with_xla_op, aten.expand.default,
        xla.dynamic_expand.default, lambda w, x: w.expand(x.shape[0], -1), (w, x),
    ),
    "view": (
        rewrites.replace_dynamic_view_with_xla_op, aten.view.default, xla.dynamic_view.default,
        lambda x: x.view(x.shape[0] * 4, 6), (x,),
    ),
    "reshape": (
        rewrites.replace_dynamic_view_with_xla_op, aten.reshape.default, xla.dynamic_view.default,
        lambda x: x.mT.reshape(x.shape[0], 24), (x,),
    ),
}  # fmt: skip


class TestRewrites:
    """Each by itself."""

    @pytest.mark.parametrize("name", CASES)
    def test_is_replaced(self, name: str) -> None:
        rewrite, old, new, function, args = CASES[name]
        program = opened(function, *args, dims={0: ROWS})
        assert old is None or old in targets(program)
        rewrite(program.graph_module)
        assert old not in targets(program) and new in targets(program)
        check_at_sizes(program, function, *args)

    @pytest.mark.parametrize("name", ["select", "split", "layer norm", "unsqueeze", "expand"])
    def test_closed_sizes_stay(self, name: str) -> None:
        rewrite, _, _, function, args = CASES[name]
        program = export(Function(function), args)
        ops = targets(program)
        rewrite(program.graph_module)
        assert targets(program) == ops

    @pytest.mark.parametrize(
        ("rewrite", "function"),
        [
            (rewrites.decompose_dynamic_native_layer_norm, lambda x: norm(x, [6], w, b, 1e-5)),
            (
                rewrites.replace_dynamic_view_with_xla_op,
                lambda x: x.view(x.shape[0], x.shape[1] * 3, 2),
            ),
            (
                rewrites.replace_dynamic_view_with_xla_op,
                lambda x: x.view(x.shape[0] * x.shape[1], 6),
            ),
            (rewrites.remove_no_op_slice, lambda x: aten.slice(x, 2, 0, None, 2) + x[:, :, 3:]),
        ],
    )
    def test_what_stays(self, rewrite: Callable[..., None], function: Callable[..., Any]) -> None:
        """A norm whose statistics are read, sizes that are no multiple of one, slices of less."""
        program = opened(function, x, dims={0: ROWS, 1: Dim("length", min=3)})
        ops = targets(program)
        rewrite(program.graph_module)
        assert targets(program) == ops
        check_at_sizes(program, function, x)


class Layers(nn.Module):
    """All that the rewrites are for."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear, self.norm = (
            nn.Embedding(10, 8),
            nn.Linear(8, 6),
            nn.LayerNorm(6),
        )
        self.first = nn.Parameter(torch.randn(1, 6))

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.norm(self.linear(self.embedding(ids)))
        first = self.first.expand(ids.shape[0], -1)
        a, b = y.split([2, 4], -1)
        return y[:, -1] + first, a[:, :, :].unsqueeze(1), b.reshape(ids.shape[0] * 5, 4)


class TestPrograms:
    """All rewrites together, and the ops that they put in."""

    @pytest.mark.parametrize("is_core", [True, False])
    def test_all(self, is_core: bool) -> None:
        model, ids = Layers(), torch.randint(10, (3, 5))
        program = export(model, (ids,), dynamic_shapes=({0: ROWS},))
        program = program.run_decompositions() if is_core else program
        rewrites.process_exported_program_with_symbolic_input(program)
        ops = targets(program)
        assert {xla.dynamic_view.default, xla.dynamic_expand.default} <= ops
        assert not ops & {
            aten.select.int,
            aten.split_with_sizes.default,
            aten.unsqueeze.default,
            norm,
        }
        check_at_sizes(program, model, ids)

    def test_metadata_is_that_of_the_replaced_op(self) -> None:
        program = opened(lambda x: x[:, 1], x, dims={0: ROWS})
        [select] = program.graph.find_nodes(op="call_function", target=aten.select.int)
        rewrites.decompose_dynamic_shape_select(program.graph_module)
        [view] = program.graph.find_nodes(op="call_function", target=aten.view.default)
        assert view.meta["stack_trace"] == select.meta["stack_trace"]
        assert view.meta["val"].shape == select.meta["val"].shape

    def test_ops_on_the_device(self) -> None:
        image, moved = torch.randn(5, 2), x.to("xla").requires_grad_()
        wide = xla.dynamic_expand(moved[:, :1], [3, -1, 6], image.to("xla"), 0, 1)
        flat = xla.dynamic_view(wide, [-1, 6], moved, 0, 0, 5)
        expected = x[:, :1].expand(3, 5, 6).reshape(15, 6)
        check(flat, expected)
        (flat * expected.to("xla")).sum().backward()
        check(moved.grad, torch.cat([x[:, :1] * 5, torch.zeros(3, 3, 6)], 1))

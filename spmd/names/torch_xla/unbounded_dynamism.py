"""Rewrites of programs of torch.export with open sizes, and the two ops that they put in:
`torch_xla.experimental.unbounded_dynamism_export` and `xla_dynamic_reshape_ops`.

`exported_program_to_stablehlo` needs none of them: it lowers the ops that they replace.
"""

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from .xla_ops import XLA_LIB

aten = torch.ops.aten
Rewrite = Callable[[GraphModule], None]


def dynamic_expand(
    input: torch.Tensor,
    size: Sequence[int],
    src_tensor: torch.Tensor,
    src_dim: int,
    target_dim: int,
) -> torch.Tensor:
    """`input.expand(size)`, in which dim `target_dim` has the size of dim `src_dim` of another
    tensor.

    Source: `torch.ops.xla.dynamic_expand`.

    >>> import torch
    >>> from spmd.torch_xla.unbounded_dynamism import dynamic_expand
    >>> dynamic_expand(torch.ones(1, 2), [-1, 2], torch.ones(5, 3), 0, 0).shape
    torch.Size([5, 2])
    """
    return input.expand(_with_size(size, target_dim, src_tensor.shape[src_dim]))


def dynamic_view(
    input: torch.Tensor,
    size: Sequence[int],
    src_tensor: torch.Tensor,
    src_dim: int,
    target_dim: int,
    mul_scaler: float,
) -> torch.Tensor:
    """`input.reshape(size)`, in which dim `target_dim` has `mul_scaler` times the size of dim
    `src_dim` of another tensor.

    Source: `torch.ops.xla.dynamic_view`.

    >>> import torch
    >>> from spmd.torch_xla.unbounded_dynamism import dynamic_view
    >>> x = torch.ones(5, 2, 3)
    >>> dynamic_view(x, [-1, 3], x, 0, 0, 2).shape
    torch.Size([10, 3])
    """
    return input.reshape(_with_size(size, target_dim, src_tensor.shape[src_dim] * int(mul_scaler)))


def _with_size(size: Sequence[int], dim: int, open_size: int) -> list[int]:
    return [*size[:dim], open_size, *size[dim + 1 :]]


# Each is made of ops that have rules and gradients.
for _schema, _function in {
    "dynamic_expand(Tensor input, SymInt[] size, Tensor src_tensor, int src_dim, int target_dim) "
    "-> Tensor": dynamic_expand,
    "dynamic_view(Tensor input, SymInt[] size, Tensor src_tensor, int src_dim, int target_dim, "
    "float mul_scaler) -> Tensor": dynamic_view,
}.items():
    XLA_LIB.define(_schema)
    XLA_LIB.impl(_schema.partition("(")[0], _function, "CompositeImplicitAutograd")


def native_layer_norm_impl(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """The normalized tensor of `torch.native_layer_norm`, by ops without its name.

    >>> import torch
    >>> from spmd.torch_xla.unbounded_dynamism import native_layer_norm_impl
    >>> native_layer_norm_impl(torch.tensor([[1.0, 3.0]]), [2], None, None, 0.0)
    tensor([[-1.,  1.]])
    """
    return _scaled(_normalized(input, [*range(-len(normalized_shape), 0)], eps), weight, bias)


def native_group_norm_impl(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> torch.Tensor:
    """The normalized tensor of `torch.native_group_norm`, by ops without its name.

    >>> import torch
    >>> from spmd.torch_xla.unbounded_dynamism import native_group_norm_impl
    >>> native_group_norm_impl(torch.tensor([[[1.0, 3.0]]]), None, None, 1, 1, 2, 1, 0.0)
    tensor([[[-1.,  1.]]])
    """
    groups = _normalized(input.reshape(N, group, C // group * HxW), [-1], eps)
    rows = [C, *[1] * (input.dim() - 2)]
    factors = (None if one is None else one.reshape(rows) for one in (weight, bias))
    return _scaled(groups.reshape(input.shape), *factors)


def _normalized(x: torch.Tensor, dims: list[int], eps: float) -> torch.Tensor:
    variance = torch.var(x, dims, correction=0, keepdim=True)
    return (x - torch.mean(x, dims, keepdim=True)) * torch.rsqrt(variance + eps)


def _scaled(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _select(x: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    shape = [*x.shape]
    del shape[dim]
    return aten.view(aten.slice(x, dim, index, index + 1 or None), shape)


def _unsqueeze(x: torch.Tensor, dim: int) -> torch.Tensor:
    place = dim % (x.dim() + 1)
    return aten.view(x, [*x.shape[:place], 1, *x.shape[place:]])


def _embedding(weight: torch.Tensor, indices: torch.Tensor, *settings: Any) -> torch.Tensor:
    rows = aten.embedding(weight, aten.reshape(indices, [math.prod(indices.shape)]), *settings)
    return aten.reshape(rows, [*indices.shape, weight.shape[-1]])


def _replacing(target: Any, function: Callable[..., torch.Tensor]) -> Rewrite:
    """Returns the rewrite of the calls of an op that read a tensor with open sizes: the ops of a
    function of its arguments take their place. Of an op with several results it is the first."""

    def rewrite(gm: GraphModule) -> None:
        for node in gm.graph.find_nodes(op="call_function", target=target):
            is_tensor = isinstance(node.meta["val"], torch.Tensor)
            reads = [node] if is_tensor else [*node.users]
            if any(map(_is_open, node.all_input_nodes)) and (
                is_tensor or all(read.args[1] == 0 for read in reads)
            ):
                result = _put(gm, node, function)
                for read in reads:
                    read.replace_all_uses_with(result)
                for read in dict.fromkeys([*reads, node]):
                    gm.graph.erase_node(read)

    return rewrite


def _is_open(node: Node) -> bool:
    shape = getattr(node.meta["val"], "shape", ())
    return any(not isinstance(size, int) for size in shape)


def _put(gm: GraphModule, node: Node, function: Callable[..., torch.Tensor]) -> Node:
    """Puts the ops of a function of a call's arguments before the call; returns their result."""
    inputs = node.all_input_nodes

    def call(*values: Any) -> torch.Tensor:
        value_of = dict(zip(inputs, values, strict=True))
        args, kwargs = map_arg((node.args, dict(node.kwargs)), value_of.__getitem__)
        return function(*args, **kwargs)

    # With pre_dispatch an op that torch composes of others stays one.
    body: Any = make_fx(call, pre_dispatch=True)(*(one.meta["val"] for one in inputs)).graph
    copies = dict(zip(body.find_nodes(op="placeholder"), inputs, strict=True))
    with gm.graph.inserting_before(node):
        result: Any = gm.graph.graph_copy(body, copies)
    for copy in [*copies.values()][len(inputs) :]:
        copy.meta = {**node.meta, "val": copy.meta["val"]}
    return result


decompose_dynamic_shape_select = _replacing(aten.select.int, _select)
decompose_dynamic_native_group_norm = _replacing(
    aten.native_group_norm.default, native_group_norm_impl
)
decompose_dynamic_native_layer_norm = _replacing(
    aten.native_layer_norm.default, native_layer_norm_impl
)
dynamic_unsqueeze_to_view = _replacing(aten.unsqueeze.default, _unsqueeze)
flatten_embedding_indices_tensor = _replacing(aten.embedding.default, _embedding)


def decompose_split_with_sizes(gm: GraphModule) -> None:
    """Makes slices of the results of splits of tensors with open sizes. The splits stay, without
    readers."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.split_with_sizes.default):
        args: Any = node.args
        x, sizes, *dim = args
        if _is_open(x) and all(isinstance(size, int) for size in sizes):
            ends = [*itertools.accumulate(sizes)]
            for read in [*node.users]:
                end, size = ends[read.args[1]], sizes[read.args[1]]
                read.target, read.args = aten.slice.Tensor, (x, *(dim or [0]), end - size, end)


def remove_no_op_slice(gm: GraphModule) -> None:
    """Removes slices of whole dims."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.slice.Tensor):
        settings: list[Any] = [*node.args[2:], *[None, None, 1][len(node.args) - 2 :]]
        start, end, step = settings
        if not start and end in (None, torch.iinfo(torch.int64).max) and step == 1:
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)


def _naming(op: Any, is_scaled: bool, *targets: Any) -> Rewrite:
    """Returns the rewrite of calls with one open size, the size of a tensor's dim or a multiple of
    it, as calls of an op that takes that tensor and dim."""

    def rewrite(gm: GraphModule) -> None:
        for node in gm.graph.nodes:
            sizes: Any = node.args[1] if node.target in targets else ()
            dims = [dim for dim, size in enumerate(sizes) if isinstance(size, Node)]
            if len(dims) == 1:
                source, factors = sizes[dims[0]], [1]
                if is_scaled and source.target is operator.mul:
                    factors = [one for one in source.args if isinstance(one, int)]
                    source = source.all_input_nodes[0]
                if source.target is aten.sym_size.int and factors:
                    node.args = (*node.args[:2], *source.args, *dims, *factors[:is_scaled])
                    node.target = op

    return rewrite


replace_dynamic_expand_with_xla_op = _naming(
    torch.ops.xla.dynamic_expand.default, False, aten.expand.default
)
replace_dynamic_view_with_xla_op = _naming(
    torch.ops.xla.dynamic_view.default,
    True,
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
)


def process_exported_program_with_symbolic_input(ep: ExportedProgram) -> None:
    """Applies all rewrites of this file to a program, in place; it computes the same.

    Source: `torch_xla.experimental.unbounded_dynamism_export`.

    >>> import torch
    >>> from spmd.torch_xla.unbounded_dynamism import process_exported_program_with_symbolic_input
    >>> rows = {0: torch.export.Dim("rows")}
    >>> module = torch.nn.Flatten()
    >>> ep = torch.export.export(module, (torch.ones(3, 2, 2),), dynamic_shapes=(rows,))
    >>> process_exported_program_with_symbolic_input(ep)
    >>> ep.module()(torch.ones(5, 2, 2)).shape
    torch.Size([5, 4])
    """
    for rewrite in (
        decompose_dynamic_shape_select,
        decompose_split_with_sizes,
        remove_no_op_slice,
        decompose_dynamic_native_group_norm,
        decompose_dynamic_native_layer_norm,
        dynamic_unsqueeze_to_view,
        flatten_embedding_indices_tensor,
        replace_dynamic_expand_with_xla_op,
        replace_dynamic_view_with_xla_op,
    ):
        rewrite(ep.graph_module)
    ep.graph_module.graph.eliminate_dead_code()
    ep.graph_module.graph.lint()
    ep.graph_module.recompile()

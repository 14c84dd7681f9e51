"""PyTorch/XLA's collectives (`xm.all_reduce` and its like): inside per-shard code those of
`spmd.manual`, outside it over one replica, the logical device."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ...loops.vma import Tracker, tracker
from ...manual import collectives
from ...manual.manual_steps import untracked

Groups = Sequence[Sequence[int]] | None

REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX = (
    "sum",
    "mul",
    "and",
    "or",
    "min",
    "max",
)


def all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: Groups = None) -> Any:
    """Reduces a tensor, or each of a list in place, over the shards of per-shard code; outside of
    it only `scale` acts.

    groups: positions of devices in the mesh, equal to the shards along some of its axes; None: all
    shards.
    A tensor's result is another tensor. Raises as `spmd.manual.all_reduce` does, and ValueError for
    other groups. Source: `torch_xla.core.xla_model.all_reduce`.

    >>> import torch, spmd
    >>> spmd.torch_xla.xla_collectives.all_reduce(
    ...     "sum", torch.ones(2, device="xla"), scale=0.5
    ... ).tolist()
    [0.5, 0.5]
    """
    if isinstance(inputs, torch.Tensor):
        return _reduced(reduce_type, inputs, scale, groups)
    with torch.no_grad():
        for tensor in inputs:
            tensor.copy_(_reduced(reduce_type, tensor, scale, groups))
    return inputs


def _reduced(op: str, tensor: torch.Tensor, scale: float, groups: Groups) -> Any:
    axes = _axes(tensor, groups, "all_reduce")
    reduced = collectives.all_reduce(tensor, op, axes) if axes else tensor.clone()
    return reduced if scale == 1 else reduced * scale


def all_gather(value: Any, dim: int = 0, groups: Groups = None, output: Any = None) -> Any:
    """Concatenates the shards' tensors along a dim in per-shard code; outside of it the value
    itself.

    Args: as of `all_reduce`; value: a tensor, or a list of them. output: is given the result; a
    list for a list. Source: `torch_xla.core.xla_model.all_gather`.

    >>> import torch, spmd
    >>> spmd.torch_xla.xla_collectives.all_gather(torch.ones(2, device="xla")).shape
    torch.Size([2])
    """
    if not isinstance(value, torch.Tensor):
        return [all_gather(tensor, dim, groups, into) for tensor, into in _pairs(value, output)]
    axes = _axes(value, groups, "all_gather")
    result = collectives.all_gather(value, dim, axes) if axes else value
    return result if output is None else output.copy_(result)


def reduce_scatter(
    reduce_type: str,
    input: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Any = None,
) -> Any:
    """Reduces the shards' tensors in per-shard code, each shard keeping its part along a dim.

    Args: as of `all_reduce`; shard_count: the number of shards; 1 outside of per-shard code. Raises
    ValueError for another number. Source: `torch_xla.core.xla_model.reduce_scatter`.

    >>> import torch, spmd
    >>> x = torch.ones(2, device="xla")
    >>> spmd.torch_xla.xla_collectives.reduce_scatter("sum", x, 1.0, 0, 1).tolist()
    [1.0, 1.0]
    """
    if not isinstance(input, torch.Tensor):
        how = scale, scatter_dim, shard_count, groups
        return [
            reduce_scatter(reduce_type, tensor, *how, into)
            for tensor, into in _pairs(input, output)
        ]
    axes = _axes(input, groups, "reduce_scatter", shard_count)
    result = collectives.reduce_scatter(input, reduce_type, scatter_dim, axes) if axes else input
    result = result if scale == 1 else result * scale
    return result if output is None else output.copy_(result)


def _pairs(tensors: Sequence[Any], outputs: Sequence[Any] | None) -> Iterator[tuple[Any, Any]]:
    return zip(
        tensors,
        outputs if outputs is not None else itertools.repeat(None, len(tensors)),
        strict=True,
    )


# XLA combines collectives by itself.
all_gather_bucketized, reduce_scatter_bucketized = all_gather, reduce_scatter


def all_reduce_bucketized_gradients(
    gradients: Any, scale: float, groups: Groups, pin_layout: bool
) -> None:
    """`all_reduce` of a list, in place: XLA combines collectives. pin_layout: has no meaning here.

    >>> import torch, spmd
    >>> gradient = torch.ones(2, device="xla")
    >>> spmd.torch_xla.xla_collectives.all_reduce_bucketized_gradients([gradient], 0.5, None, True)
    >>> gradient.tolist()
    [0.5, 0.5]
    """
    all_reduce(REDUCE_SUM, gradients, scale, groups)


def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Groups = None,
) -> Any:
    """Exchanges parts of the shards' tensors in per-shard code; outside of it the value itself.

    Args: as of `all_reduce`; split_count: the number of shards; 1 outside of per-shard code. Raises
    ValueError for another number. Source: `torch_xla.core.xla_model.all_to_all`.

    >>> import torch, spmd
    >>> spmd.torch_xla.xla_collectives.all_to_all(torch.ones(2, 3, device="xla"), 0, 1, 1).shape
    torch.Size([2, 3])
    """
    axes = _axes(value, groups, "all_to_all", split_count)
    return collectives.all_to_all(value, split_dimension, concat_dimension, axes) if axes else value


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> Any:
    """Sends shards' tensors from source to target in per-shard code; outside of it the pairs are
    [[0, 0]].

    Raises as `spmd.manual.collective_permute` does, and ValueError for other pairs outside of
    per-shard code. Source: `torch_xla.core.xla_model.collective_permute`.

    >>> import torch, spmd
    >>> spmd.torch_xla.xla_collectives.collective_permute(
    ...     torch.ones(2, device="xla"), [[0, 0]]
    ... ).shape
    torch.Size([2])
    """
    axes = _axes(value, None, "collective_permute")
    numbers = [(int(source), int(target)) for source, target in pairs]
    if axes:
        return collectives.collective_permute(value, numbers, axes)
    if numbers != [(0, 0)]:
        raise ValueError(
            "collective_permute: expected [[0, 0]] of the one logical device, got "
            f"{pairs!r}{_INSIDE}"
        )
    return value


def collective_broadcast(
    tensors: Sequence[torch.Tensor], root_ordinal: int = 0, groups: Groups = None
) -> None:
    """Gives each shard the tensors of one of them, in place, in per-shard code; outside of it they
    stay as they are.

    Args: as of `all_reduce`. Source: `torch_xla.core.xla_model.collective_broadcast`.

    >>> import torch, spmd
    >>> spmd.torch_xla.xla_collectives.collective_broadcast([torch.ones(2, device="xla")])
    """
    with torch.no_grad():
        for tensor in tensors:
            axes = _axes(tensor, groups, "collective_broadcast")
            if axes:
                tensor.copy_(collectives.broadcast(tensor, root_ordinal, axes))


_INSIDE = "; shards exist inside spmd.shard_map, and after enable_manual_sharding"


def _axes(
    tensor: torch.Tensor, groups: Groups, caller: str, count: int | None = None
) -> tuple[str, ...]:
    """The mesh axes of the shards of these groups; () outside of per-shard code. count: the shards
    of a group that the caller expects."""
    manual = tracker() or untracked(tensor)
    if manual is None and groups and [list(group) for group in groups] != [[0]]:
        raise ValueError(
            f"{caller}: expected groups of the one logical device, [[0]], got {groups!r}{_INSIDE}"
        )
    axes = (
        () if manual is None else _axes_of(manual, groups, caller) if groups else tuple(manual.axes)
    )
    shards = 1 if manual is None else manual.size(axes)
    if count not in (None, shards):
        raise ValueError(
            f"{caller}: expected a count of {shards} shard(s) here, got "
            f"{count}{'' if axes else _INSIDE}"
        )
    return axes


def _axes_of(manual: Tracker, groups: Sequence[Sequence[int]], caller: str) -> tuple[str, ...]:
    grid = np.arange(manual.size(manual.sizes)).reshape([*manual.sizes.values()])
    dims = {axis: dim for dim, axis in enumerate(manual.sizes)}
    expected = sorted(list(group) for group in groups)
    for count in range(1, len(manual.axes) + 1):
        for axes in itertools.combinations(manual.axes, count):
            last = np.moveaxis(grid, [dims[axis] for axis in axes], range(-count, 0))
            if sorted(last.reshape(-1, manual.size(axes)).tolist()) == expected:
                return axes
    raise ValueError(
        f"{caller}: expected groups of shards along axes of the mesh {dict(manual.sizes)}, got "
        f"{groups!r}"
    )

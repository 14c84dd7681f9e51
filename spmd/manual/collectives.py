"""Collectives over mesh axes, for functions of one shard (`spmd.shard_map`): all of them differentiable."""

import difflib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..core.control.varying import Tracker, collective, index, tracker
from ..core.ir.source import user_line
from ..core.lazy.tensor import XlaTensor
from ..core.manual.manual_steps import Untracked, untracked

AxisNames = str | int | Sequence[str | int]


def all_reduce(tensor: Any, op: str = "sum", axis: AxisNames = ()) -> Any:
    """Reduces the shards' tensors element by element over mesh axes; all shards get the same result.

    Args:
        tensor: one shard's, any shape. op: "sum", "mean", "max", "min", "product"; "and", "or" of bools (bit by bit of
            integers). axis: an axis of the mesh, or several.

    The gradient of a sum is the gradient that arrives; a maximum's goes to the shard that has the maximum, divided
    evenly between equal ones. Raises ValueError for an axis that is unknown or not manual, or another op, TypeError for
    a dtype that the op does not take, RuntimeError outside `spmd.shard_map`.
    Source: `jax.lax.psum`, `torch.distributed.all_reduce`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> total = spmd.shard_map(lambda x: spmd.all_reduce(x.sum(), "sum", "data"), mesh, spmd.P("data"), spmd.P())
    >>> total(torch.ones(4, device="xla")).item()
    4.0
    """
    now, axes = _where("all_reduce", axis, tensor)
    _check_tensor("all_reduce", tensor)
    return _reduced("all_reduce", now, tensor, op, axes)


def all_gather(tensor: Any, dim: int = 0, axis: AxisNames = (), tiled: bool = True) -> Any:
    """Concatenates the shards' tensors along a dim, in the order of the axes; all shards get the same result.

    tiled=False: along a new dim, as `torch.stack` does. Its gradient is a reduce-scatter. Raises as `all_reduce` does,
    and IndexError for a dim that is out of range.
    Source: `jax.lax.all_gather`, `torch.distributed.all_gather_into_tensor`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> gather = spmd.shard_map(lambda x: spmd.all_gather(x, 0, "data"), mesh, spmd.P("data"), spmd.P())
    >>> gather(torch.arange(3.0).to("xla")).tolist()
    [0.0, 1.0, 2.0]
    """
    now, axes = _where("all_gather", axis, tensor)
    _check_tensor("all_gather", tensor)
    dim = _dim("all_gather", tensor, dim, tensor.dim() + (not tiled))
    given = tensor if tiled else tensor.unsqueeze(dim)
    return _Gather.apply(now.varied(given, frozenset(axes)), dim, axes, now.size(axes))


def reduce_scatter(tensor: Any, op: str = "sum", dim: int = 0, axis: AxisNames = ()) -> Any:
    """Reduces the shards' tensors over mesh axes; each shard keeps its part of the result along a dim.

    Raises as `all_reduce` does, and ValueError where the number of shards does not divide the dim.
    Source: `jax.lax.psum_scatter`, `torch.distributed.reduce_scatter_tensor`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> scatter = spmd.shard_map(lambda x: spmd.reduce_scatter(x, "sum", 0, "data"), mesh, spmd.P(), spmd.P("data"))
    >>> scatter(torch.arange(3.0).to("xla")).tolist()
    [0.0, 1.0, 2.0]
    """
    now, axes = _where("reduce_scatter", axis, tensor)
    _check_tensor("reduce_scatter", tensor)
    dim = _dim("reduce_scatter", tensor, dim, tensor.dim())
    count = _divided("reduce_scatter", now, tensor, dim, axes)
    if _check_op("reduce_scatter", tensor, op) in ("sum", "mean"):
        made = _Scatter.apply(now.varied(tensor, frozenset(axes)), dim, axes, count)
        return made / count if op in _MEAN else made
    stack = _exchanged(now, tensor.unflatten(dim, (count, tensor.shape[dim] // count)), dim, dim, axes)
    return _folded(stack, op, dim)


def all_to_all(tensor: Any, split_dim: int, concat_dim: int, axis: AxisNames = ()) -> Any:
    """Splits each shard's tensor along `split_dim`, sends the k-th part to the k-th shard, and concatenates the parts
    that arrive along `concat_dim`, in the senders' order.

    Raises as `reduce_scatter` does. Source: `jax.lax.all_to_all(tiled=True)`, `torch.distributed.all_to_all_single`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("expert",))
    >>> swap = spmd.shard_map(lambda x: spmd.all_to_all(x, 0, 1, "expert"), mesh, spmd.P("expert"), spmd.P("expert"))
    >>> swap(torch.ones(2, 3, device="xla")).shape
    torch.Size([2, 3])
    """
    now, axes = _where("all_to_all", axis, tensor)
    _check_tensor("all_to_all", tensor)
    split_dim = _dim("all_to_all", tensor, split_dim, tensor.dim())
    concat_dim = _dim("all_to_all", tensor, concat_dim, tensor.dim())
    _divided("all_to_all", now, tensor, split_dim, axes)
    return _exchanged(now, tensor, split_dim, concat_dim, axes)


def collective_permute(tensor: Any, pairs: Sequence[tuple[int, int]], axis: AxisNames = ()) -> Any:
    """Sends each shard's tensor from `source` to `target` for every pair; a shard that gets none has zeros.

    Raises as `all_reduce` does, and ValueError for an index that is out of range, or that is a source or a target
    twice.
    Source: `jax.lax.ppermute`.

    >>> import torch, spmd
    >>> mesh, spec = spmd.Mesh([0], (1,), ("ring",)), spmd.P("ring")
    >>> shift = spmd.shard_map(lambda x: spmd.collective_permute(x, [(0, 0)], "ring"), mesh, spec, spec)
    >>> shift(torch.ones(2, device="xla")).tolist()
    [1.0, 1.0]
    """
    now, axes = _where("collective_permute", axis, tensor)
    _check_tensor("collective_permute", tensor)
    count = now.size(axes)
    found = tuple((int(source), int(target)) for source, target in pairs)
    for what, places in (("source", [s for s, _ in found]), ("target", [t for _, t in found])):
        for place in places:
            if not 0 <= place < count:
                raise ValueError(
                    f"spmd.collective_permute: {what} {place} of {list(found)} is out of range; {_named(axes)} has the "
                    f"indices 0 to {count - 1}"
                )
            if places.count(place) > 1:
                raise ValueError(f"spmd.collective_permute: {place} is used twice as {what} in {list(found)}")
    return _Permute.apply(now.varied(tensor, frozenset(axes)), found, axes)


def broadcast(tensor: Any, source: int = 0, axis: AxisNames = ()) -> Any:
    """Sends the tensor of the shard `source` to all shards along the axes. Its gradient arrives there, summed.

    Raises as `all_reduce` does, and ValueError for a source that is out of range.
    Source: `jax.lax.pbroadcast`, `torch.distributed.broadcast`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> first = spmd.shard_map(lambda x: spmd.broadcast(x, 0, "data"), mesh, spmd.P("data"), spmd.P())
    >>> first(torch.ones(2, device="xla")).tolist()
    [1.0, 1.0]
    """
    now, axes = _where("broadcast", axis, tensor)
    _check_tensor("broadcast", tensor)
    if not 0 <= source < now.size(axes):
        raise ValueError(f"spmd.broadcast: source {source} is out of range; {_named(axes)} has {now.size(axes)} shards")
    own = torch.where(index(axes) == source, tensor, torch.zeros((), dtype=tensor.dtype, device="xla"))
    return _reduced("broadcast", now, own, "or" if tensor.dtype is torch.bool else "sum", axes)


def axis_index(axis: AxisNames) -> Any:
    """The index of the shard along an axis, or along several (the first is the outermost): an int64 scalar tensor.

    Raises as `all_reduce` does. Source: `jax.lax.axis_index`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> spmd.shard_map(lambda: spmd.axis_index("data").reshape(1), mesh, (), spmd.P("data"))().tolist()
    [0]
    """
    return index(_where("axis_index", axis)[1])


def axis_size(axis: AxisNames) -> int:
    """The number of shards along an axis, or along several. Raises as `all_reduce` does.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> scaled = spmd.shard_map(lambda x: x * spmd.axis_size("data"), mesh, spmd.P(), spmd.P())
    >>> scaled(torch.ones(1, device="xla")).item()
    1.0
    """
    now, axes = _where("axis_size", axis)
    return now.size(axes)


# --- arguments --------------------------------------------------------------------------------------------------------


def _where(name: str, axis: AxisNames, tensor: Any = None) -> tuple[Tracker | Untracked, tuple[str, ...]]:
    """The manual computation being recorded, and the names of the given axes."""
    now = tracker() or untracked(tensor)
    if now is None:
        raise RuntimeError(
            f"spmd.{name} at {user_line()} was called outside spmd.shard_map: only inside it a tensor is one shard's. "
            "Outside, a tensor is all of the value; shard it with spmd.mark_sharding"
        )
    names = tuple(now.sizes)
    given = (axis,) if isinstance(axis, (str, int)) else tuple(axis)
    if not given:
        raise ValueError(f"spmd.{name}: expected an axis, one of {_listed(now.axes)}")
    axes = []
    for one in given:
        if isinstance(one, int) and not isinstance(one, bool) and 0 <= one < len(names):
            one = names[one]
        if one not in names:
            near = difflib.get_close_matches(str(one), names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"spmd.{name}: there is no axis {one!r} in the mesh (axes: {_listed(names)}){hint}")
        if one not in now.axes:
            raise ValueError(
                f"spmd.{name}: axis {one!r} is left to the partitioner here (manual: {_listed(now.axes)}); name it in "
                "axis_names of spmd.shard_map to make it manual"
            )
        if one in axes:
            raise ValueError(f"spmd.{name}: axis {one!r} is used twice in {given!r}")
        axes.append(str(one))
    return now, tuple(axes)


def _check_tensor(name: str, tensor: Any) -> None:
    if type(tensor) is not XlaTensor:
        what = f"one on {tensor.device}" if isinstance(tensor, torch.Tensor) else repr(tensor)
        raise TypeError(f'spmd.{name}: expected a tensor on xla, got {what}; move it with .to("xla") first')


_MEAN = ("mean", "avg")
_SAME = {"avg": "mean", "prod": "product", "mul": "product"}
_OPS = ("sum", "mean", "max", "min", "product", "and", "or")


def _check_op(name: str, tensor: Any, op: str) -> str:
    known = _SAME.get(op, op)
    if known not in _OPS:
        near = difflib.get_close_matches(str(op), _OPS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"spmd.{name}: there is no op {op!r} (ops: {_listed(_OPS)}){hint}")
    dtype = tensor.dtype
    exact = not (dtype.is_floating_point or dtype.is_complex)
    if known == "mean" and exact:
        raise TypeError(f"spmd.{name}: a mean of {dtype} is no {dtype}; convert it first, with .float()")
    if known in ("sum", "product") and dtype is torch.bool:
        raise TypeError(f"spmd.{name}: a {known} of bools; use 'or' or 'and', or convert it first, with .int()")
    if known in ("max", "min") and dtype.is_complex:
        raise TypeError(f"spmd.{name}: complex numbers have no {known}")
    if known in ("and", "or") and not exact:
        raise TypeError(f"spmd.{name}: {known!r} takes bools and integers, got {dtype}")
    return known


def _dim(name: str, tensor: Any, dim: int, rank: int) -> int:
    if not -rank <= dim < rank:
        raise IndexError(f"spmd.{name}: a shard of shape {list(tensor.shape)} has no dim {dim}")
    return dim % rank


def _divided(name: str, now: Tracker | Untracked, tensor: Any, dim: int, axes: tuple[str, ...]) -> int:
    count = now.size(axes)
    if tensor.shape[dim] % count:
        raise ValueError(
            f"spmd.{name}: dim {dim} of a shard of shape {list(tensor.shape)} has {tensor.shape[dim]} elements, which "
            f"the {count} shards along {_named(axes)} do not divide; pad it first (torch.nn.functional.pad)"
        )
    return count


def _named(axes: Sequence[str]) -> str:
    return repr(axes[0]) if len(axes) == 1 else repr(tuple(axes))


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(map(repr, names))


# --- with their gradients ---------------------------------------------------------------------------------------------


def _reduced(name: str, now: Tracker | Untracked, tensor: Any, op: str, axes: tuple[str, ...]) -> Any:
    known = _check_op(name, tensor, op)
    own = now.varied(tensor, frozenset(axes))
    if known in ("sum", "mean"):
        made = now.again(_Sum.apply(own, axes), axes)
        return made / now.size(axes) if known == "mean" else made
    if known in ("and", "or") and tensor.dtype is torch.bool:
        return collective("all_reduce", own, axes, own.shape, "min" if known == "and" else "max")
    if known in ("max", "min"):
        return now.again(_Extreme.apply(own, known, axes), axes)
    whole = _Gather.apply(own.unsqueeze(0), 0, axes, now.size(axes))
    made = _folded(whole, known, 0)
    return now.again(now.reduced(made, frozenset(axes)), axes) if made.requires_grad else made


_BITS: dict[str, Callable[[Any, Any], Any]] = {"and": torch.bitwise_and, "or": torch.bitwise_or}


def _folded(stack: Any, op: str, dim: int) -> Any:
    """The rows of a stack reduced to one row."""
    op = _SAME.get(op, op)
    if op in _BITS:
        return functools.reduce(_BITS[op], stack.unbind(dim))
    if op == "product":
        return stack.prod(dim, dtype=stack.dtype)
    return stack.amax(dim) if op == "max" else stack.amin(dim)


def _exchanged(now: Tracker | Untracked, tensor: Any, split_dim: int, concat_dim: int, axes: tuple[str, ...]) -> Any:
    own = now.varied(tensor, frozenset(axes))
    return _Exchange.apply(own, split_dim, concat_dim, axes, now.size(axes))


def _times(shape: Sequence[int], dim: int, count: int) -> list[int]:
    return [size * count if i == dim else size for i, size in enumerate(shape)]


def _part(shape: Sequence[int], dim: int, count: int) -> list[int]:
    return [size // count if i == dim else size for i, size in enumerate(shape)]


class _Sum(torch.autograd.Function):
    """The sum over shards; the gradient that arrives is the gradient of each summand."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, axes: tuple[str, ...]) -> Any:
        return collective("all_reduce", tensor, axes, tensor.shape, "sum")

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, None


class _Extreme(torch.autograd.Function):
    """The maximum or minimum over shards; the gradient goes to the shards that have it."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, op: str, axes: tuple[str, ...]) -> Any:
        made = collective("all_reduce", tensor, axes, tensor.shape, op)
        ctx.axes = axes
        ctx.save_for_backward(tensor, made)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        tensor, made = ctx.saved_tensors
        has = (tensor == made).to(gradient.dtype)
        count = collective("all_reduce", has, ctx.axes, has.shape, "sum")
        return gradient * has / count, None, None


class _Gather(torch.autograd.Function):
    """The shards' tensors concatenated; the gradients of all copies are summed, and each shard gets its part."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, dim: int, axes: tuple[str, ...], count: int) -> Any:
        ctx.of = dim, axes, count
        return collective("all_gather", tensor, axes, _times(tensor.shape, dim, count), dim)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        dim, axes, count = ctx.of
        return collective("reduce_scatter", gradient, axes, _part(gradient.shape, dim, count), dim), None, None, None


class _Scatter(torch.autograd.Function):
    """The shards of the sum; the gradients of all shards are concatenated."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, dim: int, axes: tuple[str, ...], count: int) -> Any:
        ctx.of = dim, axes, count
        return collective("reduce_scatter", tensor, axes, _part(tensor.shape, dim, count), dim)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        dim, axes, count = ctx.of
        return collective("all_gather", gradient, axes, _times(gradient.shape, dim, count), dim), None, None, None


class _Exchange(torch.autograd.Function):
    """The all-to-all; the gradients go back the same way."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, split_dim: int, concat_dim: int, axes: tuple[str, ...], count: int) -> Any:
        ctx.of = split_dim, concat_dim, axes, count
        shape = _times(_part(tensor.shape, split_dim, count), concat_dim, count)
        return collective("all_to_all", tensor, axes, shape, split_dim, concat_dim)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        split_dim, concat_dim, axes, count = ctx.of
        shape = _times(_part(gradient.shape, concat_dim, count), split_dim, count)
        return collective("all_to_all", gradient, axes, shape, concat_dim, split_dim), None, None, None, None


class _Permute(torch.autograd.Function):
    """The permutation from sources to targets; the gradients go back."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, pairs: tuple[tuple[int, int], ...], axes: tuple[str, ...]) -> Any:
        ctx.of = pairs, axes
        return collective("permute", tensor, axes, tensor.shape, pairs)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        pairs, axes = ctx.of
        back = tuple((target, source) for source, target in pairs)
        return collective("permute", gradient, axes, gradient.shape, back), None, None

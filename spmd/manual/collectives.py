"""Collectives over mesh axes, for functions of one shard (`spmd.shard_map`): all of them
differentiable."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..core import ends_at_user_line, user_line
from ..loops.body_calls import noted
from ..loops.vma import Tracker, collective, index, summed, tracker
from ..mesh.hints import did_you_mean, listed
from ..tensors.annotate import on_device
from .manual_steps import untracked

AxisNames = str | int | Sequence[str | int]


@ends_at_user_line
@noted
def all_reduce(tensor: Any, op: str = "sum", axis: AxisNames = ()) -> Any:
    """Reduces the shards' tensors element by element over mesh axes; all shards get the same
    result.

    Args:
        tensor: one shard's, any shape. op: "sum", "mean", "max", "min", "product"; "and", "or" of
            bools (bit by bit of integers). axis: an axis of the mesh, or several.

    The gradient of a sum is the gradient that arrives; a maximum's goes to the shard that has the
    maximum, divided evenly between equal ones. Raises ValueError for an axis that is unknown or not
    manual, or another op, TypeError for a dtype that the op does not take, RuntimeError outside
    `spmd.shard_map`.
    Source: `jax.lax.psum`, `torch.distributed.all_reduce`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> total = spmd.shard_map(
    ...     lambda x: spmd.manual.all_reduce(x.sum(), "sum", "data"), mesh, spmd.P("data"), spmd.P()
    ... )
    >>> total(torch.ones(4, device="xla")).item()
    4.0
    """
    scope, axes = _where("all_reduce", axis, tensor)
    return _reduced("all_reduce", scope, tensor, op, axes)


@ends_at_user_line
@noted
def all_gather(tensor: Any, dim: int = 0, axis: AxisNames = (), tiled: bool = True) -> Any:
    """Concatenates the shards' tensors along a dim, in the order of the axes; all shards get the
    same result.

    tiled=False: along a new dim, as `torch.stack` does. Its gradient is a reduce-scatter. Raises as
    `all_reduce` does, and IndexError for a dim that is out of range.
    Source: `jax.lax.all_gather`, `torch.distributed.all_gather_into_tensor`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> gather = spmd.shard_map(
    ...     lambda x: spmd.manual.all_gather(x, 0, "data"), mesh, spmd.P("data"), spmd.P()
    ... )
    >>> gather(torch.arange(3.0).to("xla")).tolist()
    [0.0, 1.0, 2.0]
    """
    scope, axes = _where("all_gather", axis, tensor)
    dim = _dim("all_gather", tensor, dim, tensor.dim() + (not tiled))
    return _linear(scope, tensor if tiled else tensor.unsqueeze(dim), axes, "all_gather", dim)


@ends_at_user_line
@noted
def reduce_scatter(tensor: Any, op: str = "sum", dim: int = 0, axis: AxisNames = ()) -> Any:
    """Reduces the shards' tensors over mesh axes; each shard keeps its part of the result along a
    dim.

    Raises as `all_reduce` does, and ValueError where the number of shards does not divide the dim.
    Source: `jax.lax.psum_scatter`, `torch.distributed.reduce_scatter_tensor`.

    >>> import torch, spmd
    >>> mesh, spec = spmd.Mesh([0], (1,), ("data",)), spmd.P("data")
    >>> scatter = spmd.shard_map(
    ...     lambda x: spmd.manual.reduce_scatter(x, "sum", 0, "data"), mesh, spmd.P(), spec
    ... )
    >>> scatter(torch.arange(3.0).to("xla")).tolist()
    [0.0, 1.0, 2.0]
    """
    scope, axes = _where("reduce_scatter", axis, tensor)
    dim = _dim("reduce_scatter", tensor, dim, tensor.dim())
    count = _divided("reduce_scatter", scope, tensor, dim, axes)
    reduction = _check_op("reduce_scatter", tensor, op)
    if reduction in ("sum", "mean"):
        result = _linear(scope, tensor, axes, "reduce_scatter", dim)
        return result / count if reduction == "mean" else result
    stack = tensor.unflatten(dim, (count, tensor.shape[dim] // count))
    return _folded(_linear(scope, stack, axes, "all_to_all", dim, dim), reduction, dim)


@ends_at_user_line
@noted
def all_to_all(tensor: Any, split_dim: int, concat_dim: int, axis: AxisNames = ()) -> Any:
    """Splits each shard's tensor along `split_dim`, sends the k-th part to the k-th shard, and
    concatenates the parts that arrive along `concat_dim`, in the senders' order.

    Raises as `reduce_scatter` does. Source: `jax.lax.all_to_all(tiled=True)`,
    `torch.distributed.all_to_all_single`.

    >>> import torch, spmd
    >>> mesh, spec = spmd.Mesh([0], (1,), ("expert",)), spmd.P("expert")
    >>> swap = spmd.shard_map(lambda x: spmd.manual.all_to_all(x, 0, 1, "expert"), mesh, spec, spec)
    >>> swap(torch.ones(2, 3, device="xla")).shape
    torch.Size([2, 3])
    """
    scope, axes = _where("all_to_all", axis, tensor)
    split_dim = _dim("all_to_all", tensor, split_dim, tensor.dim())
    concat_dim = _dim("all_to_all", tensor, concat_dim, tensor.dim())
    _divided("all_to_all", scope, tensor, split_dim, axes)
    return _linear(scope, tensor, axes, "all_to_all", split_dim, concat_dim)


@ends_at_user_line
@noted
def collective_permute(tensor: Any, pairs: Sequence[tuple[int, int]], axis: AxisNames = ()) -> Any:
    """Sends each shard's tensor from `source` to `target` for every pair; a shard that gets none
    has zeros.

    Raises as `all_reduce` does, and ValueError for an index that is out of range, or that is a
    source or a target twice.
    Source: `jax.lax.ppermute`.

    >>> import torch, spmd
    >>> mesh, spec = spmd.Mesh([0], (1,), ("ring",)), spmd.P("ring")
    >>> shift = spmd.shard_map(
    ...     lambda x: spmd.manual.collective_permute(x, [(0, 0)], "ring"), mesh, spec, spec
    ... )
    >>> shift(torch.ones(2, device="xla")).tolist()
    [1.0, 1.0]
    """
    scope, axes = _where("collective_permute", axis, tensor)
    count = scope.size(axes)
    routes = [(int(source), int(target)) for source, target in pairs]
    for end, shards in (("source", [s for s, _ in routes]), ("target", [t for _, t in routes])):
        for shard in shards:
            if not 0 <= shard < count:
                raise ValueError(
                    f"spmd.manual.collective_permute: {end} {shard} of {routes} is out of range; "
                    f"{_named(axes)} has the indices 0 to {count - 1}"
                )
            if shards.count(shard) > 1:
                raise ValueError(
                    f"spmd.manual.collective_permute: {shard} is used twice as {end} in {routes}"
                )
    return _linear(scope, tensor, axes, "permute", tuple(routes))


@ends_at_user_line
@noted
def broadcast(tensor: Any, source: int = 0, axis: AxisNames = ()) -> Any:
    """Sends the tensor of the shard `source` to all shards along the axes. Its gradient arrives
    there, summed.

    Raises as `all_reduce` does, and ValueError for a source that is out of range.
    Source: `jax.lax.pbroadcast`, `torch.distributed.broadcast`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> first = spmd.shard_map(
    ...     lambda x: spmd.manual.broadcast(x, 0, "data"), mesh, spmd.P("data"), spmd.P()
    ... )
    >>> first(torch.ones(2, device="xla")).tolist()
    [1.0, 1.0]
    """
    scope, axes = _where("broadcast", axis, tensor)
    if not 0 <= source < scope.size(axes):
        raise ValueError(
            f"spmd.manual.broadcast: source {source} is out of range; {_named(axes)} has "
            f"{scope.size(axes)} shards"
        )
    of_source = torch.where(
        index(axes) == source, tensor, torch.zeros((), dtype=tensor.dtype, device="xla")
    )
    return _reduced(
        "broadcast", scope, of_source, "or" if tensor.dtype is torch.bool else "sum", axes
    )


@ends_at_user_line
def axis_index(axis: AxisNames) -> Any:
    """The index of the shard along an axis, or along several (the first is the outermost): an int64
    scalar tensor.

    Raises as `all_reduce` does. Source: `jax.lax.axis_index`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> spmd.shard_map(
    ...     lambda: spmd.manual.axis_index("data").reshape(1), mesh, (), spmd.P("data")
    ... )().tolist()
    [0]
    """
    return index(_where("axis_index", axis)[1])


@ends_at_user_line
def axis_size(axis: AxisNames) -> int:
    """The number of shards along an axis, or along several. Raises as `all_reduce` does.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> scaled = spmd.shard_map(
    ...     lambda x: x * spmd.manual.axis_size("data"), mesh, spmd.P(), spmd.P()
    ... )
    >>> scaled(torch.ones(1, device="xla")).item()
    1.0
    """
    scope, axes = _where("axis_size", axis)
    return scope.size(axes)


# --- arguments ------------------------------------------------------------------------------------


def _where(name: str, axis: AxisNames, *tensors: Any) -> tuple[Tracker, tuple[str, ...]]:
    """The manual computation being recorded, and the names of the given axes, for a collective of
    this tensor."""
    scope = tracker() or (untracked(*tensors) if tensors else None)
    if scope is None:
        raise RuntimeError(
            f"spmd.manual.{name} at {user_line()} was called outside spmd.shard_map: only inside "
            "it a tensor is one shard's. Outside, a tensor is all of the value; shard it with "
            "spmd.mark_sharding"
        )
    names = tuple(scope.sizes)
    entries = (axis,) if isinstance(axis, (str, int)) else tuple(axis)
    if not entries:
        raise ValueError(f"spmd.manual.{name}: expected an axis, one of {listed(scope.axes)}")
    axes = []
    for entry in entries:
        if isinstance(entry, int) and not isinstance(entry, bool) and 0 <= entry < len(names):
            entry = names[entry]
        if entry not in names:
            hint = did_you_mean(entry, names)
            raise ValueError(
                f"spmd.manual.{name}: there is no axis {entry!r} in the mesh (axes: "
                f"{listed(names)}){hint}"
            )
        if entry not in scope.axes:
            raise ValueError(
                f"spmd.manual.{name}: axis {entry!r} is left to the partitioner here (manual: "
                f"{listed(scope.axes)}); name it in axis_names of spmd.shard_map to make it "
                "manual"
            )
        if entry in axes:
            raise ValueError(f"spmd.manual.{name}: axis {entry!r} is used twice in {entries!r}")
        axes.append(str(entry))
    for tensor in tensors:
        on_device(tensor, f"spmd.manual.{name}")
    return scope, tuple(axes)


# torch.distributed's names
_SAME = {"avg": "mean", "prod": "product", "mul": "product", "band": "and", "bor": "or"}
_OPS = ("sum", "mean", "max", "min", "product", "and", "or")


def _check_op(name: str, tensor: Any, op: str) -> str:
    reduction = _SAME.get(op, op)
    if reduction not in _OPS:
        raise ValueError(
            f"spmd.manual.{name}: there is no op {op!r} (ops: "
            f"{listed(_OPS)}){did_you_mean(op, _OPS)}"
        )
    dtype, caller = tensor.dtype, f"spmd.manual.{name}"
    exact = not (dtype.is_floating_point or dtype.is_complex)
    if reduction == "mean" and exact:
        raise TypeError(
            f"{caller}: a mean of {dtype} is no {dtype}; convert it first, with .float()"
        )
    if reduction in ("sum", "product") and dtype is torch.bool:
        raise TypeError(
            f"{caller}: a {reduction} of bools; use 'or' or 'and', or convert it first, with .int()"
        )
    if reduction in ("max", "min") and dtype.is_complex:
        raise TypeError(f"{caller}: complex numbers have no {reduction}")
    if reduction in ("and", "or") and not exact:
        raise TypeError(f"{caller}: {reduction!r} takes bools and integers, got {dtype}")
    return reduction


def _dim(name: str, tensor: Any, dim: int, rank: int) -> int:
    if not -rank <= dim < rank:
        raise IndexError(
            f"spmd.manual.{name}: a shard of shape {list(tensor.shape)} has no dim {dim}"
        )
    return dim % rank


def _divided(name: str, scope: Tracker, tensor: Any, dim: int, axes: tuple[str, ...]) -> int:
    count = scope.size(axes)
    if tensor.shape[dim] % count:
        raise ValueError(
            f"spmd.manual.{name}: dim {dim} of a shard of shape {list(tensor.shape)} has "
            f"{tensor.shape[dim]} elements, which the {count} shards along {_named(axes)} do not "
            "divide; pad it first (torch.nn.functional.pad)"
        )
    return count


def _named(axes: Sequence[str]) -> str:
    return repr(axes[0]) if len(axes) == 1 else repr(tuple(axes))


# --- with their gradients -------------------------------------------------------------------------


def _reduced(name: str, scope: Tracker, tensor: Any, op: str, axes: tuple[str, ...]) -> Any:
    reduction = _check_op(name, tensor, op)
    if reduction in ("sum", "mean"):
        result = scope.again(_linear(scope, tensor, axes, "all_reduce", "sum"), axes)
        return result / scope.size(axes) if reduction == "mean" else result
    shard = scope.varied(tensor, frozenset(axes))
    if reduction in ("and", "or") and tensor.dtype is torch.bool:
        return collective("all_reduce", shard, axes, "min" if reduction == "and" else "max")
    if reduction in ("max", "min"):
        return scope.again(_Extreme.apply(shard, reduction, axes), axes)
    result = _folded(_linear(scope, shard.unsqueeze(0), axes, "all_gather", 0), reduction, 0)
    return (
        scope.again(scope.reduced(result, frozenset(axes)), axes)
        if result.requires_grad
        else result
    )


_BITS: dict[str, Callable[[Any, Any], Any]] = {"and": torch.bitwise_and, "or": torch.bitwise_or}


def _folded(stack: Any, op: str, dim: int) -> Any:
    """The rows of a stack reduced to one row."""
    if op in _BITS:
        return functools.reduce(_BITS[op], stack.unbind(dim))
    if op == "product":
        return stack.prod(dim, dtype=stack.dtype)
    return stack.amax(dim) if op == "max" else stack.amin(dim)


# The transpose of each linear collective, by its static arguments: the collective that its gradient
# takes. None: of a sum, each shard's gradient is the one that arrives.
_TRANSPOSES: dict[str, Callable[..., tuple[Any, ...] | None]] = {
    "all_reduce": lambda op: None,
    "all_gather": lambda dim: ("reduce_scatter", dim),
    "reduce_scatter": lambda dim: ("all_gather", dim),
    "all_to_all": lambda split_dim, concat_dim: ("all_to_all", concat_dim, split_dim),
    "permute": lambda pairs: ("permute", tuple((target, source) for source, target in pairs)),
}


class _Linear(torch.autograd.Function):
    """A collective that is linear in its tensor; the gradient takes its transpose."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Any, axes: tuple[str, ...], count: int, kind: str, *statics: Any
    ) -> Any:
        ctx.of = axes, count, kind, statics
        return _recorded(tensor, axes, count, kind, *statics)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        axes, count, kind, statics = ctx.of
        transpose = _TRANSPOSES[kind](*statics)
        result = gradient if transpose is None else _recorded(gradient, axes, count, *transpose)
        return result, None, None, None, *[None] * len(statics)


def _linear(scope: Tracker, tensor: Any, axes: tuple[str, ...], kind: str, *statics: Any) -> Any:
    return _Linear.apply(
        scope.varied(tensor, frozenset(axes)), axes, scope.size(axes), kind, *statics
    )


def _recorded(tensor: Any, axes: tuple[str, ...], count: int, kind: str, *statics: Any) -> Any:
    shape = list(tensor.shape)
    if kind in ("reduce_scatter", "all_to_all"):
        shape[statics[0]] //= count
    if kind in ("all_gather", "all_to_all"):
        shape[statics[-1]] *= count
    return collective(kind, tensor, axes, *statics, shape=shape)


class _Extreme(torch.autograd.Function):
    """The maximum or minimum over shards; the gradient goes to the shards that have it."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, op: str, axes: tuple[str, ...]) -> Any:
        result = collective("all_reduce", tensor, axes, op)
        ctx.axes = axes
        ctx.save_for_backward(tensor, result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        tensor, result = ctx.saved_tensors
        has = (tensor == result).to(gradient.dtype)
        count = summed(has, ctx.axes)
        return gradient * has / count, None, None

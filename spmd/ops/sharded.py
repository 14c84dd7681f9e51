"""Known shardings of the arrays that a rule is called with, and facts on the program that is being
traced.

A kernel and a loop of our own are placed on devices by hand (`jax.shard_map`), which needs the mesh
axes that shard a dim before any partitioner has run. They are known from a walk over the recorded
graph (`core.propagation`). A wrong answer costs communication, never a result: `shard_map` reshards
its operands as its specs require.
"""

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from .held import held
from .jax_internals import is_reordered

AnyMesh = Mesh | AbstractMesh
Axes = tuple[str, ...]
# The parts of a dim that a reshape has merged, the major one first: (size, axes that shard it),
# none of size 1. Empty: no axis is known to shard the dim.
Factors = tuple[tuple[int, Axes], ...]
Dims = tuple[Factors, ...]  # the factors of each dim of an array, of one at least with axes


class NeedsShardyError(BaseException):
    """A program that GSPMD cannot partition; its compiler takes Shardy, and says why. No failure of
    an op, which the lowering would name."""


class Facts(NamedTuple):
    """Facts on the program that is being traced.

    mesh: that with most devices among the inputs'; None where all are on one device, or in another
    order than the program's. num_devices: of its inputs. platform: of these devices, which need not
    be this host's. capability: the compute capability of GPUs, (major, minor).
    document_length: tokens by which documents are counted whose ids are data; 0: a sequence.
    is_exported: it is lowered for stated platforms, which may be others.
    """

    mesh: AnyMesh | None = None
    num_devices: int = 1
    platform: str | None = None
    capability: tuple[int, ...] | None = None
    document_length: int = 0
    is_exported: bool = False

    @staticmethod
    def of(
        shardings: Sequence[NamedSharding], document_length: int = 0, is_exported: bool = False
    ) -> "Facts":
        """The facts on a program whose inputs have these shardings."""
        largest, num_devices = None, 1
        for sharding in shardings:
            size = sharding.mesh.size
            num_devices = max(num_devices, size)
            if size > (1 if largest is None else largest.size) and not is_reordered(sharding):
                largest = sharding.mesh
        if not shardings:
            return Facts()
        device = shardings[0].mesh.devices.flat[0]
        version = getattr(device, "compute_capability", None)
        capability = version and tuple(map(int, version.split(".")))
        return Facts(
            largest, num_devices, device.platform, capability, document_length, is_exported
        )


class Values(NamedTuple):
    """The dims of the values of a graph that have known axes, by their op (or data) and place among
    its results; and the same of each region, by its op and index."""

    dims: dict[tuple[Any, int], Dims]
    regions: "dict[tuple[Any, int], Values]"


class _Tracing(threading.local):
    facts: Facts = Facts()
    # By id, the arrays of the op that is lowered, themselves (which keeps the ids theirs) and their
    # dims.
    arrays: dict[int, tuple[object, Dims]] | None = None
    op: Any = None
    # By (kind, sentence), the place of the op: axes that an op cannot use, exchanges.
    unused: dict[tuple[str, str], str] | None = None
    # By id, arrays that are sums over devices or flips, and what of.
    sources: dict[int, tuple[object, Any]] | None = None


_thread = _Tracing()


def tracing(facts: Facts) -> AbstractContextManager[None]:
    """A context in which a program is traced."""
    return held(_thread, facts=facts, sources={})


def call(
    operands: Sequence[object], dims: Sequence[Dims | None], op: object = None
) -> AbstractContextManager[None]:
    """A context in which an op is lowered, with the known dims of its operands."""
    pairs = zip(operands, dims, strict=True)
    arrays = {id(array): (array, of_array) for array, of_array in pairs if of_array is not None}
    return held(_thread, arrays=arrays, op=op)


def facts() -> Facts:
    """The facts on the program that is being traced."""
    return _thread.facts


def num_devices() -> int:
    """The number of devices of the program's inputs; 1 where it has none."""
    return _thread.facts.num_devices


def mesh() -> AnyMesh | None:
    """The mesh with most devices among those of the program's inputs; None where all are on one
    device."""
    return _thread.facts.mesh


def platform() -> str | None:
    """The platform of the program that is being traced, by its inputs' devices: "cpu", "tpu"; None
    without inputs."""
    return _thread.facts.platform


def by_platform(*operands: Any, default: Callable[..., Any], **forms: Callable[..., Any]) -> Any:
    """The result of the form for the program's platform, "tpu" or "cuda".

    A program for TPUs alone has their form; jax traces those of all platforms, and lowers one.
    """
    facts = _thread.facts
    if facts.platform == "tpu" and not facts.is_exported:
        return forms.get("tpu", default)(*operands)
    return (
        lax.platform_dependent(*operands, default=default, **forms) if forms else default(*operands)
    )


def loses_nan(dtype: Any) -> bool:
    """True where a maximum over devices may lose NaN: XLA's CPU collectives compare numbers (jaxlib
    0.10.2)."""
    return platform() == "cpu" and num_devices() > 1 and jnp.issubdtype(dtype, jnp.floating)


# --- the dims of arrays ---------------------------------------------------------------------------


def dims_of(array: object) -> Dims | None:
    """The known dims of an operand of the op that is lowered, or of what its rule made of one;
    None: unknown."""
    entry = (_thread.arrays or {}).get(id(array))
    return entry[1] if entry is not None else None


def op() -> Any:
    """The op that is lowered, the innermost one that has regions or known axes."""
    return _thread.op


def note(array: jax.Array, dims: Dims | None) -> jax.Array:
    """The array, which the rule of an op has made, with its known dims."""
    if dims is not None and _thread.arrays is not None:
        _thread.arrays[id(array)] = array, dims
    return array


def same(array: jax.Array, source: jax.Array) -> jax.Array:
    """The array, its dims known as those of its source: a cast, or a part of it."""
    dims = dims_of(source)
    if array is source or dims is None or array.ndim != source.ndim:
        return array
    sizes = zip(dims, source.shape, array.shape, strict=True)
    return note(
        array, tuple(factors if source_size == size else () for factors, source_size, size in sizes)
    )


def reshaped(array: jax.Array, source: jax.Array) -> jax.Array:
    """The array, a reshape of its source, known as that is."""
    dims = dims_of(source)
    if array is source or dims is None:
        return array
    return note(array, reshaped_dims(dims, source.shape, array.shape))


def axes_of_dims(
    *dims: tuple[jax.Array, int], uneven: int | None = None
) -> tuple[AnyMesh, list[Axes]] | None:
    """The mesh, and the axes that shard each of these dims; None where no axis is known.

    An axis is assigned to the first dim that it shards. uneven: the place of the dim whose shards
    need not be equal.
    """
    axes = list(itertools.starmap(axes_at, dims))
    mesh = _thread.facts.mesh
    if mesh is None or not any(axes):
        return None
    used_axes: set[str] = set()
    split: list[Axes] = []
    for index, ((array, dim), of_dim) in enumerate(zip(dims, axes, strict=True)):
        fits = index == uneven or array.shape[dim] % num_shards(mesh, of_dim) == 0
        split.append(of_dim if fits and used_axes.isdisjoint(of_dim) else ())
        used_axes.update(split[-1])
    return mesh, split


def axes_of(array: jax.Array) -> tuple[AnyMesh, list[Axes]] | None:
    """The mesh, and the axes that shard each dim of an array; None where no axis is known."""
    return axes_of_dims(*zip(itertools.repeat(array), range(array.ndim), strict=False))


def is_split_inside(array: object, dim: int) -> bool:
    """True if a dim is merged from several of which a later one is known to be sharded."""
    dims = dims_of(array)
    return dims is not None and any(axes for _, axes in dims[dim][1:])


def axes_at(array: object, dim: int) -> Axes:
    """The known axes of a dim of an array, of its first part: only their shards are shards of the
    whole dim."""
    dims = dims_of(array)
    return dims[dim][0][1] if dims is not None and dims[dim] else ()


def dims_in(sharding: NamedSharding, shape: Sequence[int]) -> Dims | None:
    """The dims of an array in a sharding.

    None without axes, and on a reordered mesh: `shard_map` takes none of it.
    """
    if is_reordered(sharding):
        return None
    dims = tuple(map(_factors, shape, itertools.chain(sharding.spec, itertools.repeat(None))))
    return dims if any(dims) else None


def _factors(size: int, entry: str | Axes | None) -> Factors:
    """The factors of an unmerged dim, its axes as an entry of jax's PartitionSpec."""
    if size == 1 or entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return ((size, entry if isinstance(entry, tuple) else (entry,)),)


def reshaped_dims(dims: Dims, old_shape: Sequence[int], new_shape: Sequence[int]) -> Dims | None:
    """The dims of a reshape. Of a dim that is split the major part has its axes."""
    result: list[Factors] = [()] * len(new_shape)
    sources = [dim for dim, size in enumerate(old_shape) if size != 1]
    targets = [dim for dim, size in enumerate(new_shape) if size != 1]
    # An operand is cut first, as padded ones are.
    if 0 in new_shape or math.prod(old_shape) != math.prod(new_shape):
        return None
    while sources and targets:
        merged, split = [sources.pop(0)], [targets.pop(0)]
        of_merged, of_split = old_shape[merged[0]], new_shape[split[0]]
        while of_merged != of_split:
            if of_merged < of_split:
                merged.append(sources.pop(0))
                of_merged *= old_shape[merged[-1]]
            else:
                split.append(targets.pop(0))
                of_split *= new_shape[split[-1]]
        parts = [part for dim in merged for part in dims[dim] or ((old_shape[dim], ()),)]
        for dim in split:
            result[dim], parts = _taken(parts, new_shape[dim])
    return tuple(result) if any(result) else None


def _taken(parts: Sequence[tuple[int, Axes]], size: int) -> tuple[Factors, list[tuple[int, Axes]]]:
    """The factors of a dim of this size, of the first parts of a dim that is split; and the parts
    that are left."""
    factors, remaining_parts, has_axes = list[tuple[int, Axes]](), list(parts), False
    while size != 1 and remaining_parts:
        part, axes = remaining_parts.pop(0)
        common = part if size % part == 0 else size
        factors.append((common, axes))
        has_axes |= bool(axes)
        size //= common
        if part % common:
            remaining_parts = []  # neither divides the other: nothing is known of the rest
        elif part > common:
            remaining_parts.insert(0, (part // common, ()))
    return tuple(factors) if has_axes else (), remaining_parts


# --- axes that an op cannot use -------------------------------------------------------------------


@contextmanager
def unused_axes() -> Iterator[dict[tuple[str, str], str]]:
    """A context in which sentences on axes that an op cannot use are collected, each with the place
    of its op."""
    unused = dict[tuple[str, str], str]()
    with held(_thread, unused=unused):
        yield unused


def note_unused(sentence: str, mesh: AnyMesh | None, axes: Axes) -> None:
    """Notes axes that an op cannot use. sentence: with {axes} and {devices}, which are inserted."""
    if axes and mesh is not None:
        note_finding(
            sentence.format(axes=" x ".join(map(repr, axes)), devices=num_shards(mesh, axes))
        )


def note_finding(sentence: str, kind: str = "unused axis") -> None:
    """Notes why an op is not computed per shard, or, as another kind of finding, how it is."""
    if _thread.unused is not None:
        _thread.unused.setdefault((kind, sentence), "")


def place_unused(describe: Callable[[Any], str], op: Any) -> None:
    """Notes the location of the op whose axes were noted last."""
    if _thread.unused:
        _thread.unused |= {
            key: location or describe(op) for key, location in _thread.unused.items()
        }


# --- specs ----------------------------------------------------------------------------------------


def num_shards(mesh: AnyMesh, axes: Axes) -> int:
    return math.prod(map(mesh.shape.__getitem__, axes))


def spec(*dims: Axes) -> PartitionSpec:
    """The axes of each dim as jax's PartitionSpec."""
    return PartitionSpec(*(axes or None for axes in dims))


def placed(array: jax.Array, mesh: AnyMesh, *dims: Axes) -> jax.Array:
    """The array, each dim sharded over these axes."""
    sharding = NamedSharding(mesh, spec(*dims))
    return note(jax.lax.with_sharding_constraint(array, sharding), dims_in(sharding, array.shape))


def in_front(array: jax.Array, mesh: AnyMesh, axes: Axes) -> jax.Array:
    """The array, its first dim sharded over these axes; the partitioner chooses for the others."""
    spec = PartitionSpec(axes, *[PartitionSpec.UNCONSTRAINED] * (array.ndim - 1))
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, spec))


# --- what an array was computed from --------------------------------------------------------------


class Flipped(NamedTuple):
    """The array of which another is the flip along these dims."""

    array: jax.Array
    dims: tuple[int, ...]


def note_source(array: jax.Array, source: Any) -> jax.Array:
    """The array, known as a sum over devices (`partial_sums`) or a flip; None: it is neither."""
    if source is not None and _thread.sources is not None:
        _thread.sources[id(array)] = array, source
    return array


def source_of(array: object) -> Any:
    """What an array of this program is the sum or the flip of; None: it is not known as one."""
    entry = (_thread.sources or {}).get(id(array))
    return None if entry is None else entry[1]


# --- sums over dims that may be sharded, in the promised dtype ------------------------------------


# The results that are sums over the batch: the gradients of weights, say. Narrow ones accumulate in
# float32.
SUMS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            "aten.mm",
            "aten.bmm",
            "aten.embedding_dense_backward",
            "aten.sum",
            "aten.sum.dim_IntList",
        ),
        (0,),
    ),
    **dict.fromkeys(("aten.linear_backward", "aten.convolution_backward"), (1, 2)),
    **{f"aten.native_{kind}_norm_backward": (1, 2) for kind in ("layer", "group", "batch")},
    "aten._fused_rms_norm_backward": (1,),
}


def is_narrowed(operand, dtype):
    """True if an op's sum is to be narrower than its operand: devices then exchange the narrow
    partial sums."""
    is_floating = all(jnp.issubdtype(kind, jnp.floating) for kind in (operand.dtype, dtype))
    return is_floating and jnp.dtype(dtype).itemsize < operand.dtype.itemsize and num_devices() > 1


def is_rounded(operand, dtype):
    """True if an op's sum is to be narrower than its accumulator: each device's is rounded, and
    then exchanged."""
    return (operand.dtype == dtype == jnp.bfloat16 and num_devices() > 1) or is_narrowed(
        operand, dtype
    )


def shards(array, mesh, axes):
    """An array whose first dims are sharded over these axes, one entry a dim, as its shards:
    [shards, ...]."""
    count = len(axes)
    cut = [num_shards(mesh, of_dim) for of_dim in axes]
    sizes = [
        size
        for ways, whole in zip(cut, array.shape, strict=False)
        for size in (ways, whole // ways)
    ]
    apart = array.reshape(*sizes, *array.shape[count:])
    order = (*range(0, 2 * count, 2), *range(1, 2 * count, 2), *range(2 * count, apart.ndim))
    return apart.transpose(order).reshape(math.prod(cut), *sizes[1::2], *array.shape[count:])


def exchanged(parts, dtype):
    """The sum of parts [shards, ...], each on its device, rounded before devices exchange it, as a
    product is."""
    ones = jnp.ones(parts.shape[0], parts.dtype)
    return lax.dot_general(ones, parts, (((0,), (0,)), ((), ())), preferred_element_type=dtype)


def total(x, axes, operand, dtype):
    """The sum of x over axes, in the dtype of the op's result. Where that is narrower than its
    operand the sum is a product, which rounds each device's sum of its own part once, before
    devices exchange it."""
    if not is_narrowed(operand, dtype) or not axes:
        return jnp.sum(x, axis=axes)
    outer_axes = [axis for axis in range(x.ndim) if axis not in axes]
    rows = jnp.transpose(x, (*axes, *outer_axes)).reshape(
        math.prod(x.shape[axis] for axis in axes), -1
    )
    ones = jnp.ones((1, rows.shape[0]), x.dtype)
    result = jnp.matmul(ones, rows, preferred_element_type=dtype)
    return result.reshape([x.shape[axis] for axis in outer_axes])

"""Shardings of arrays while a program is traced, as far as the equations that made them are known.

A kernel and a loop of our own are placed on devices by hand (`jax.shard_map`), which needs the mesh axes that shard a
dim before any partitioner has run. Shardings are known at annotations and at the program's inputs; from an array the
path back to these leads through the operations that made it. A wrong answer costs communication, never a result:
`shard_map` reshards its operands as its specs require.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from ..base.jax_private import is_reordered

Axes = tuple[str, ...]
_Step = tuple[Any, int]  # an array and one of its dims

# .inputs: by the array's id, the array (which keeps the id its own) and its sharding. .without: the same by id and dim,
# of the dims behind which no axis is; a long program has one call for each of its products, and most dims are of
# this kind.
_known = threading.local()


@contextlib.contextmanager
def inside(arrays: Sequence[Any], shardings: Sequence[NamedSharding | None]) -> Iterator[None]:
    """A context in which a program, or a region of it, is traced, with the shardings of its inputs. None: unknown."""
    before, without = getattr(_known, "inputs", {}), getattr(_known, "without", {})
    known = ((array, sharding) for array, sharding in zip(arrays, shardings, strict=True) if sharding is not None)
    _known.inputs = before | {id(array): (array, sharding) for array, sharding in known}
    _known.without = {}
    try:
        yield
    finally:
        _known.inputs, _known.without = before, without


def axes_of_dims(*dims: tuple[jax.Array, int], uneven: int | None = None) -> tuple[Any, list[Axes]] | None:
    """The mesh, and the axes that shard each of these dims; None where no sharding is known.

    An axis is assigned to the first dim that it shards. uneven: the place of the dim whose shards need not be equal.
    """
    found = [_find(array, dim) for array, dim in dims]
    mesh = next((sharding.mesh for sharding, _ in filter(None, found)), None)
    if mesh is None:
        return None
    taken: set[str] = set()
    split: list[Axes] = []
    for index, ((array, dim), one) in enumerate(zip(dims, found, strict=True)):
        axes = one[1] if one is not None and one[0].mesh == mesh else ()
        fits = index == uneven or array.shape[dim] % num_shards(mesh, axes) == 0
        split.append(axes if fits and taken.isdisjoint(axes) else ())
        taken.update(split[-1])
    return mesh, split


def axes_of(array: jax.Array) -> tuple[Any, list[Axes]] | None:
    """The mesh, and the axes that shard each dim of an array; None where no sharding is known."""
    return axes_of_dims(*((array, dim) for dim in range(array.ndim)))


def sharding_of(array: jax.Array) -> NamedSharding | None:
    """The sharding of an array, as far as it is known here."""
    known = axes_of(array)
    return NamedSharding(known[0], spec(*known[1])) if known is not None else None


def row_sharding(stack: jax.Array) -> NamedSharding | None:
    """The sharding of one row of a stack. An axis that shards the rows is noted: each iteration reads one of them."""
    known = sharding_of(stack)
    if known is not None:
        sentence = f"the stack {[*stack.shape]} of a scan is gathered over {{axes}}, as each iteration reads one row"
        note_unused(sentence, known.mesh, _axes(known, 0))
    return NamedSharding(known.mesh, PartitionSpec(*known.spec[1:])) if known is not None else None


def behind_rows(sharding: NamedSharding | None) -> NamedSharding | None:
    """The sharding of a stack of rows with this sharding."""
    return NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec)) if sharding is not None else None


def note(array: jax.Array, sharding: NamedSharding | None) -> None:
    """Records the sharding of an array that has no equation, until the end of the trace."""
    if sharding is not None and hasattr(_known, "inputs"):
        _known.inputs[id(array)] = array, sharding
        _known.without = {}


@contextlib.contextmanager
def unused_axes() -> Iterator[dict[str, str]]:
    """A context in which sentences on axes that an op cannot use are collected, each with the place of its op."""
    before, _known.unused = getattr(_known, "unused", {}), {}
    try:
        yield _known.unused
    finally:
        _known.unused = before


def note_unused(sentence: str, mesh: Any, axes: Axes) -> None:
    """Notes axes that an op cannot use. sentence: with {axes} and {devices}, which are inserted."""
    if axes and hasattr(_known, "unused"):
        words = sentence.format(axes=" x ".join(map(repr, axes)), devices=num_shards(mesh, axes))
        _known.unused.setdefault(words, "")


def place_unused(describe: Callable[[Any], str], op: Any) -> None:
    """Notes the place of the op whose axes were noted last."""
    unused: dict[str, str] = getattr(_known, "unused", {})
    unused.update((words, describe(op)) for words, place in unused.items() if not place)


def num_devices() -> int:
    """The number of devices of the program's inputs; 1 where it has none."""
    return max((sharding.mesh.size for _, sharding in getattr(_known, "inputs", {}).values()), default=1)


def mesh() -> Any:
    """The mesh with most devices among those of the program's inputs; None where all are on one device."""
    found = [sharding.mesh for _, sharding in getattr(_known, "inputs", {}).values() if not is_reordered(sharding)]
    return max((one for one in found if one.size > 1), key=lambda one: one.size, default=None)


def platform() -> str | None:
    """The platform of the program that is being traced, by its inputs' devices: "cpu", "tpu"; None without inputs."""
    found = getattr(_known, "inputs", {}).values()
    return next((sharding.mesh.devices.flat[0].platform for _, sharding in found), None)


def num_shards(mesh: Any, axes: Axes) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def spec(*dims: Axes) -> PartitionSpec:
    """The axes of each dim as jax's PartitionSpec."""
    return PartitionSpec(*(axes or None for axes in dims))


def placed(array: jax.Array, mesh: Any, *dims: Axes) -> jax.Array:
    """The array, each dim sharded over these axes."""
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, spec(*dims)))


def in_front(array: jax.Array, mesh: Any, axes: Axes) -> jax.Array:
    """The array, its first dim sharded over these axes; the partitioner chooses for the others."""
    spec = PartitionSpec(axes, *[PartitionSpec.UNCONSTRAINED] * (array.ndim - 1))
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, spec))


def _find(array: Any, dim: int) -> tuple[NamedSharding, Axes] | None:
    """The sharding of the nearest annotation or input that shards a source of this dim, and its axes there."""
    without: dict[tuple[int, int], Any] = getattr(_known, "without", {})
    if (id(array), dim) in without:
        return None
    queue, seen = [(array, dim)], {(id(array), dim): array}
    for here, at in queue:
        sharding = _sharding(here)
        if sharding is not None:
            axes = _axes(sharding, at)
            if axes:
                return sharding, axes
            continue
        for step in _sources(here, at):
            name = id(step[0]), step[1]
            if name not in seen and name not in without:
                seen[name] = step[0]
                queue.append(step)
    without.update(seen)
    return None


def _sharding(array: Any) -> NamedSharding | None:
    _, its_sharding = getattr(_known, "inputs", {}).get(id(array), (None, None))
    made_by = getattr(array, "parent", None)
    if made_by is not None and made_by.primitive.name == "sharding_constraint":
        its_sharding = made_by.params["sharding"]
    if not isinstance(its_sharding, NamedSharding) or is_reordered(its_sharding):
        return None  # shard_map cannot take the other order of devices that a mesh among several has
    return its_sharding


def _axes(sharding: NamedSharding, dim: int) -> Axes:
    entry = sharding.spec[dim] if dim < len(sharding.spec) else None
    return () if entry in (None, PartitionSpec.UNCONSTRAINED) else entry if isinstance(entry, tuple) else (entry,)


def _sources(array: Any, dim: int) -> Iterator[_Step]:
    """The dims of operands that become this dim, in a partitioner's propagation, too."""
    made_by = getattr(array, "parent", None)
    if made_by is None:
        return
    operands, params = made_by.in_tracers, made_by.params
    match made_by.primitive.name:
        case "transpose":
            yield operands[0], params["permutation"][dim]
        case "reshape":
            source = _reshaped(operands[0].shape, array.shape, dim)
            if source is not None:
                yield operands[0], source
        case "squeeze":
            yield operands[0], [i for i in range(operands[0].ndim) if i not in params["dimensions"]][dim]
        case "broadcast_in_dim":
            places = params["broadcast_dimensions"]
            if dim in places:
                yield operands[0], places.index(dim)
        case "dot_general":
            yield _of_product(operands, params["dimension_numbers"], dim)
        case "gather":  # rows that are looked up are sharded as their indices
            offsets = params["dimension_numbers"].offset_dims
            if dim not in offsets:
                yield operands[1], dim - sum(offset < dim for offset in offsets)
        case _:  # an elementwise op, or an op that leaves this dim alone
            for operand in operands:
                if getattr(operand, "ndim", -1) == array.ndim and operand.shape[dim] == array.shape[dim]:
                    yield operand, dim


def _reshaped(before: tuple[int, ...], after: tuple[int, ...], dim: int) -> int | None:
    """The dim of `before` whose shards are shards of this dim: both come first among the merged or split dims."""
    done = math.prod(after[:dim])
    if after[dim] == 1:
        return None
    product = 1
    for index, size in enumerate(before):
        if product == done and size != 1:
            return index
        product *= size
    return None


def _of_product(operands: Sequence[Any], numbers: Any, dim: int) -> _Step:
    """The operand and dim that become a dim of a product: batch dims, then free dims of the left, then of the right."""
    (left_sum, right_sum), (left_batch, right_batch) = numbers
    if dim < len(left_batch):
        return operands[0], left_batch[dim]
    left_free = [i for i in range(operands[0].ndim) if i not in (*left_sum, *left_batch)]
    right_free = [i for i in range(operands[1].ndim) if i not in (*right_sum, *right_batch)]
    place = dim - len(left_batch)
    if place < len(left_free):
        return operands[0], left_free[place]
    return operands[1], right_free[place - len(left_free)]

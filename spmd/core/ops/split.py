"""How an array of the program that is being traced is split over devices, as far as what made it tells.

A kernel and a loop of our own are placed on devices by hand (`jax.shard_map`), which needs to know the mesh axes over
which a dim is split before any partitioner has run. What is asked for is known at annotations and at the program's
inputs; from an array the way back to these leads through the operations that made it. To be wrong costs communication,
never a result: `shard_map` lays its operands out as it was told.
"""

import contextlib
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from ..jax_private import is_reordered

Axes = tuple[str, ...]
_Step = tuple[Any, int]  # an array and one of its dims

_known = threading.local()  # .inputs: by the array's id, the array (which keeps the id its own) and how it lies


@contextlib.contextmanager
def inside(arrays: Sequence[Any], shardings: Sequence[NamedSharding | None]) -> Iterator[None]:
    """While a program, or a region of it, is traced inside: its inputs lie so. None: nothing is known."""
    before = getattr(_known, "inputs", {})
    known = ((array, lies) for array, lies in zip(arrays, shardings, strict=True) if lies is not None)
    _known.inputs = before | {id(array): (array, lies) for array, lies in known}
    try:
        yield
    finally:
        _known.inputs = before


def layout(*asked: tuple[jax.Array, int], uneven: int | None = None) -> tuple[Any, list[Axes]] | None:
    """The mesh, and the axes over which each of these dims is split; None where nothing is known of any.

    An axis is given to the first that asks for it. uneven: of which of them the pieces need not be equal.
    """
    found = [_find(array, dim) for array, dim in asked]
    mesh = next((lies.mesh for lies, _ in filter(None, found)), None)
    if mesh is None:
        return None
    taken: set[str] = set()
    split: list[Axes] = []
    for place, ((array, dim), one) in enumerate(zip(asked, found, strict=True)):
        axes = one[1] if one is not None and one[0].mesh == mesh else ()
        fits = place == uneven or array.shape[dim] % num_pieces(mesh, axes) == 0
        split.append(axes if fits and taken.isdisjoint(axes) else ())
        taken.update(split[-1])
    return mesh, split


def layout_of(array: jax.Array) -> tuple[Any, list[Axes]] | None:
    """The mesh, and the axes over which each dim of an array is split; None where nothing is known of any."""
    return layout(*((array, dim) for dim in range(array.ndim)))


def lies(array: jax.Array) -> NamedSharding | None:
    """How all of an array is split, as far as it is known here."""
    known = layout_of(array)
    return NamedSharding(known[0], spec(*known[1])) if known is not None else None


def row_lies(stack: jax.Array) -> NamedSharding | None:
    """How one row of a stack is split."""
    whole = lies(stack)
    return NamedSharding(whole.mesh, PartitionSpec(*whole.spec[1:])) if whole is not None else None


def behind_rows(lies: NamedSharding | None) -> NamedSharding | None:
    """How a stack of rows that are split so is."""
    return NamedSharding(lies.mesh, PartitionSpec(None, *lies.spec)) if lies is not None else None


def note(array: jax.Array, lies: NamedSharding | None) -> None:
    """From here to the end of what is traced: the array, which no way back leads from, lies so."""
    if lies is not None and hasattr(_known, "inputs"):
        _known.inputs[id(array)] = array, lies


def num_devices() -> int:
    """How many devices its inputs lie on; 1 where it has none."""
    return max((lies.mesh.size for _, lies in getattr(_known, "inputs", {}).values()), default=1)


def mesh() -> Any:
    """The mesh of most devices that its inputs lie on; None where all lie on one."""
    found = [lies.mesh for _, lies in getattr(_known, "inputs", {}).values() if not is_reordered(lies)]
    return max((one for one in found if one.size > 1), key=lambda one: one.size, default=None)


def platform() -> str | None:
    """What the program that is being traced is for, by its inputs' devices: "cpu", "tpu"; None where it has none."""
    found = getattr(_known, "inputs", {}).values()
    return next((lies.mesh.devices.flat[0].platform for _, lies in found), None)


def num_pieces(mesh: Any, axes: Axes) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def spec(*dims: Axes) -> PartitionSpec:
    """The axes of each dim as jax writes them."""
    return PartitionSpec(*(axes or None for axes in dims))


def placed(array: jax.Array, mesh: Any, *dims: Axes) -> jax.Array:
    """The array, each dim split over these axes."""
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, spec(*dims)))


def in_front(array: jax.Array, mesh: Any, axes: Axes) -> jax.Array:
    """The array, its first dim split over these axes; of the others the partitioner chooses."""
    spec = PartitionSpec(axes, *[PartitionSpec.UNCONSTRAINED] * (array.ndim - 1))
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, spec))


def _find(array: Any, dim: int) -> tuple[NamedSharding, Axes] | None:
    """The nearest annotation or input that splits what becomes this dim, and its axes there."""
    queue, seen = [(array, dim)], {(id(array), dim)}
    for here, at in queue:
        lies = _lies(here)
        if lies is not None:
            axes = _axes(lies, at)
            if axes:
                return lies, axes
            continue
        for step in _sources(here, at):
            name = id(step[0]), step[1]
            if name not in seen:
                seen.add(name)
                queue.append(step)
    return None


def _lies(array: Any) -> NamedSharding | None:
    _, lies = getattr(_known, "inputs", {}).get(id(array), (None, None))
    made_by = getattr(array, "parent", None)
    if made_by is not None and made_by.primitive.name == "sharding_constraint":
        lies = made_by.params["sharding"]
    if not isinstance(lies, NamedSharding) or is_reordered(lies):
        return None  # the other order of devices that a mesh among several has cannot be told to shard_map
    return lies


def _axes(lies: NamedSharding, dim: int) -> Axes:
    entry = lies.spec[dim] if dim < len(lies.spec) else None
    return () if entry in (None, PartitionSpec.UNCONSTRAINED) else entry if isinstance(entry, tuple) else (entry,)


def _sources(array: Any, dim: int) -> Iterator[_Step]:
    """The dims of operands that become this dim, as a partitioner would have it, too."""
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
        case "gather":  # rows that are looked up lie as their indices
            offsets = params["dimension_numbers"].offset_dims
            if dim not in offsets:
                yield operands[1], dim - sum(offset < dim for offset in offsets)
        case _:  # an op of elements, or one that leaves this dim alone
            for operand in operands:
                if getattr(operand, "ndim", -1) == array.ndim and operand.shape[dim] == array.shape[dim]:
                    yield operand, dim


def _reshaped(before: tuple[int, ...], after: tuple[int, ...], dim: int) -> int | None:
    """The dim of `before` whose pieces are pieces of this dim: both come first in what is merged or divided."""
    done = math.prod(after[:dim])
    if after[dim] == 1:
        return None
    product = 1
    for place, size in enumerate(before):
        if product == done and size != 1:
            return place
        product *= size
    return None


def _of_product(operands: Sequence[Any], numbers: Any, dim: int) -> _Step:
    """Where a dim of a product comes from: batch dims, then what is free on the left, then on the right."""
    (left_sum, right_sum), (left_batch, right_batch) = numbers
    if dim < len(left_batch):
        return operands[0], left_batch[dim]
    left_free = [i for i in range(operands[0].ndim) if i not in (*left_sum, *left_batch)]
    right_free = [i for i in range(operands[1].ndim) if i not in (*right_sum, *right_batch)]
    place = dim - len(left_batch)
    if place < len(left_free):
        return operands[0], left_free[place]
    return operands[1], right_free[place - len(left_free)]

"""Dims that a reshape merges, as (batch, sequence) to rows, kept apart over several devices.

No sharding of a merged dim can shard two of its parts over different axes, or the later part alone:
a partitioner would all-gather them. A reshape that merges is therefore the last step of a
computation, so that an op that reads it finds the dims from before the merge, computes in these and
merges its own result; a reshape that splits the merged dim again begins with them, too.
"""

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from . import sharded

# for each dim of an array, the dims of another array that are merged in it
Groups = tuple[tuple[int, ...], ...]


def reshaped(array: jax.Array, shape: Sequence[int]) -> jax.Array:
    """array.reshape(shape), from the dims before a merge; dims are split first and merged last."""
    shape = tuple(shape)
    if array.shape == shape or sharded.num_devices() == 1:
        return array.reshape(shape)
    for source in (unmerged(array)[0], array):
        common = _common(source.shape, shape)
        if common is not None:
            made_of, makes = _groups(common, source.shape), _groups(common, shape)
            if (
                made_of
                and makes
                and any(len(g) > 1 for g in made_of)
                and any(len(g) > 1 for g in makes)
            ):
                source = source.reshape(common)
            return source.reshape(shape)
    return array.reshape(shape)


def unmerged(array: jax.Array) -> tuple[jax.Array, Groups]:
    """The array before a reshape merged its dims, and for each dim the dims of that array that are
    merged in it."""
    alone = tuple(zip(range(array.ndim), strict=True))
    equation = getattr(array, "parent", None)
    name = "" if equation is None else equation.primitive.name
    if (
        equation is None
        or name not in ("reshape", "convert_element_type")
        or sharded.num_devices() == 1
    ):
        return array, alone
    source = equation.in_tracers[0]
    if name == "convert_element_type":
        origin, groups = unmerged(source)
        return (array, alone) if origin is source else (origin.astype(array.dtype), groups)
    merged = _groups(source.shape, array.shape)
    if merged is None or all(sum(source.shape[i] != 1 for i in group) < 2 for group in merged):
        return array, alone
    return source, merged


def _is_whole(array: jax.Array) -> bool:
    """True if no reshape has merged dims of an array."""
    return unmerged(array)[0] is array


def apart(array: jax.Array, *dims: int) -> tuple[jax.Array, list[tuple[int, ...]]]:
    """The array with these dims as they were before a merge, and for each of its own dims the sizes
    of its parts."""
    source, groups = unmerged(array)
    split_dims = {dim % array.ndim for dim in dims}
    sizes = [
        tuple(map(source.shape.__getitem__, group)) if dim in split_dims else (array.shape[dim],)
        for dim, group in enumerate(groups)
    ]
    shape = list(itertools.chain(*sizes))
    return array if tuple(shape) == array.shape else source.reshape(shape), sizes


def transposed(array: jax.Array, order: Sequence[int]) -> jax.Array:
    """The array with its dims in another order."""
    source, groups = unmerged(array)
    order = [dim % array.ndim for dim in order]
    if source is array:
        return jnp.transpose(array, order)
    return source.transpose([i for dim in order for i in groups[dim]]).reshape(
        [array.shape[dim] for dim in order]
    )


def summed(array: jax.Array, dims: Sequence[int], keepdims: bool) -> jax.Array:
    """The sum over dims, and so over all dims that are merged in these."""
    source, groups = unmerged(array)
    if source is array:
        return jnp.sum(array, axis=tuple(dims), keepdims=keepdims)
    shape = [
        1 if dim in dims else size
        for dim, size in enumerate(array.shape)
        if keepdims or dim not in dims
    ]
    return jnp.sum(source, axis=tuple(i for dim in dims for i in groups[dim])).reshape(shape)


def elementwise(function: Callable[..., jax.Array], *arrays: jax.Array) -> jax.Array:
    """An elementwise function of arrays that broadcast, in the dims from before a merge of one of
    them."""
    return along((), function, *arrays)


def called(
    rule: Callable[..., jax.Array],
    arguments: Sequence[object],
    keywords: Mapping[str, object],
    shape: tuple[int, ...],
) -> jax.Array:
    """`elementwise` of a rule with all its arguments; a rule that only looks elementwise is called
    as it is."""
    arrays = [value for value in arguments if isinstance(value, jax.Array)]
    if all(map(_is_whole, arrays)):
        return rule(*arguments, **keywords)

    def function(*arrays: jax.Array) -> jax.Array:
        remaining = iter(arrays)
        values = (next(remaining) if isinstance(value, jax.Array) else value for value in arguments)
        return rule(*values, **keywords)

    is_elementwise = all(_broadcasts(array.shape, shape) for array in arrays) and shape in map(
        jnp.shape, arrays
    )
    return elementwise(function, *arrays) if is_elementwise else function(*arrays)


def _broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    return len(shape) <= len(to) and all(
        size in (1, wide) for size, wide in zip(reversed(shape), reversed(to), strict=False)
    )


def along(dims: Sequence[int], function: Callable[..., jax.Array], *arrays: jax.Array) -> jax.Array:
    """`elementwise` of a function that goes along these dims, counted from the end. They and those
    behind them stay merged, so that each has the same number."""
    shape = jnp.broadcast_shapes(*map(jnp.shape, arrays))
    parts_of: dict[int, tuple[int, ...]] = {}
    for array in arrays:
        source, groups = unmerged(array)
        for dim, group in enumerate(groups if source is not array else ()):
            index = dim - array.ndim
            sizes = tuple(source.shape[i] for i in group)
            is_before = all(index < other for other in dims)
            if len(group) > 1 and is_before and array.shape[dim] == shape[index]:
                parts_of[index] = max(parts_of.get(index, ()), sizes, key=len)
    if not parts_of:
        return function(*arrays)

    def fine(of: Sequence[int]) -> list[int]:
        """The sizes of an array's dims, with those in `parts_of` as their parts: ones where it is
        broadcast."""
        sizes: list[int] = []
        for index, size in enumerate(of, -len(of)):
            parts = parts_of.get(index, (size,))
            sizes += parts if math.prod(parts) == size else [1] * len(parts)
        return sizes

    result = function(*(reshaped(array, fine(array.shape)) for array in arrays))
    return result.reshape(shape)


def _common(source: Sequence[int], target: Sequence[int]) -> tuple[int, ...] | None:
    """The fewest dims, none of size 1, that are a refinement of both shapes; None where there are
    none."""
    ends = sorted(
        {*itertools.accumulate(source, operator.mul), *itertools.accumulate(target, operator.mul)}
    )
    if not ends or 0 in ends:
        return None
    sizes = []
    for start, end in zip([1, *ends], ends, strict=False):
        if end % start:
            return None
        sizes.append(end // start)
    return tuple(size for size in sizes if size != 1)


def _groups(parts: Sequence[int], shape: Sequence[int]) -> Groups | None:
    """The indices of the parts, in order, that make each dim of a shape; None where its dims are no
    merges of them."""
    groups: list[tuple[int, ...]] = []
    end = 0
    for size in shape:
        begin, product = end, 1
        while product != size and end < len(parts):
            product *= parts[end]
            end += 1
        if product != size:
            return None
        groups.append(tuple(range(begin, end)))
    if any(size != 1 for size in parts[end:]) or not groups:
        return None
    groups[-1] = (*groups[-1], *range(end, len(parts)))
    return tuple(groups)

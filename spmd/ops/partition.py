"""The table of partition rules: ops that are computed on each device's shards, where their
operands' sharding is known.

A partitioner shards what it can express; a kernel, a loop and an exchange of our own it replicates.
A partition rule computes such an op under `jax.shard_map`, over the axes that it names; the other
axes stay the partitioner's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import lax
from torch._ops import OpOverload

from . import sharded
from .registry import Function
from .sharded import Axes

Results = jax.Array | tuple[jax.Array | None, ...]  # of a rule
Arrays = jax.Array | Sequence[jax.Array] | None

# By overload, the partition rules, of packages and of users, in the order in which they are tried:
# the latest first.
PARTITION_RULES: dict[OpOverload, list[Function]] = {}
NAMES: list[str] = []  # of all of them, in the key of programs
FOREIGN: set[OpOverload] = set()  # those with a rule that is none of this library


def partition(*overloads: OpOverload) -> Callable[[Function], Function]:
    """Registers a function as a partition rule of overloads, tried before those that are there.

    A program of the op is compiled once more; with a rule from outside `spmd` it is not kept on
    disk.

    It is called as the op's lowering rule is, and `sharded` has the axes of its arrays. It returns
    the results; None to leave the op to the next rule, in the end to the partitioner; or a sentence
    that says why it does so, which the compile log and a plan show with the op's line.
    """

    for overload in overloads:
        if not isinstance(overload, OpOverload):
            raise TypeError(
                f"partition: expected an overload such as aten.add.Tensor, got {overload!r}"
            )

    def register(function: Function) -> Function:
        for overload in overloads:
            PARTITION_RULES.setdefault(overload, []).insert(0, function)
            NAMES.append(f"{overload}: {function.__module__}.{function.__qualname__}")
            if not function.__module__.startswith("spmd."):
                FOREIGN.add(overload)
        return function

    return register


def partitioned(
    overload: OpOverload, arguments: Sequence[object], keywords: Mapping[str, object]
) -> Results | None:
    """The results of an op by the first partition rule that takes it; None where none does."""
    for rule in PARTITION_RULES.get(overload, ()):
        answer = rule(*arguments, **keywords)
        if isinstance(answer, str):
            sharded.note_finding(answer)
        elif answer is not None:
            return answer
    return None


def per_shard(
    body: Callable[..., Sequence[jax.Array | None]],
    words: str,
    mesh: sharded.AnyMesh,
    over: Mapping[str, Axes],
    results: Sequence[Sequence[int]],
    scattered: Mapping[str, str] | None = None,
) -> Callable[..., tuple[Any, ...]]:
    """A function that computes `body` on each device, of its shards of the arguments.

    words: the dims of arguments and results, as "b h s d, b h t d -> b h s d". over: the axes that
    shard the dims of a word. A dim without one, or of size 1, is unsharded. results: their shapes.
    A result whose dims lack an axis is the sum over it: of a word in `scattered` by a
    reduce-scatter along the dim of that word, where the shards divide it.
    """
    of_operands, of_results = (
        [part.split() for part in side.split(",")] for side in words.split("->")
    )

    def axes_of(names: Sequence[str], shape: Sequence[int]) -> list[Axes]:
        return [
            over.get(name, ()) if size != 1 else ()
            for name, size in zip(names, shape, strict=False)
        ]

    outs = [axes_of(names, shape) for names, shape in zip(of_results, results, strict=True)]
    scatters: list[dict[int, Axes]] = []
    for names, shape, axes in zip(of_results, results, outs, strict=True):
        lacking = {
            word: source for word, source in (scattered or {}).items() if source not in names
        }
        sums = {dim: over.get(lacking.get(name, ""), ()) for dim, name in enumerate(names)}
        fits = {
            dim: way
            for dim, way in sums.items()
            if way and shape[dim] % sharded.num_shards(mesh, way) == 0
        }
        scatters.append(fits)
        for dim, way in fits.items():
            axes[dim] = way

    def on_shard(*shards: Arrays) -> tuple[jax.Array | None, ...]:
        reduced = []
        for result, axes, ways in zip(body(*shards), outs, scatters, strict=True):
            used = {axis for of_dim in axes for axis in of_dim}
            for dim, way in ways.items():
                result = lax.psum_scatter(result, way, scatter_dimension=dim, tiled=True)
            summed = tuple(axis for way in over.values() for axis in way if axis not in used)
            reduced.append(lax.psum(result, summed) if summed and result is not None else result)
        return tuple(reduced)

    def run(*arrays: Arrays) -> tuple[Any, ...]:
        parts = list(map(jax.tree.leaves, arrays))
        specs = tuple(
            sharded.spec(*axes_of(names, part[0].shape)) if part else None
            for names, part in zip(of_operands, parts, strict=True)
        )
        out_specs = tuple(sharded.spec(*axes) for axes in outs)
        return jax.shard_map(
            on_shard, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=False
        )(*arrays)

    return run

"""Lowers a manual computation: ops on the shard of each device, which communicate by collectives
over mesh axes.

`Manual` is the op with the body; `CollectiveLowering`, `IndexLowering`, `VaryLowering` are only in
a body. `Varying` has the axes over which a value in it varies (see `varying`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from ..core import Sharding, config, held, topology
from ..core.extend import Arrays, Layouts, Lowering, OpSpec, Region, lowering
from .shard_collectives import Group, function_of

Axes = tuple[str, ...]
Cut = tuple[Axes, ...]  # for each dim the axes that shard it
Over = frozenset[str]


class Varying(NamedTuple):
    """The manual axes over which a value may differ between shards.

    varying: the gradient is partial over these axes: each shard's copy of the value gives a
    summand; over other axes the value is one, and so is its gradient. may_diverge: the value may
    not be the same on all shards; never more than `varying`.
    """

    varying: Over = frozenset()
    may_diverge: Over = frozenset()

    def __or__(self, other: "Varying") -> "Varying":
        return Varying(self.varying | other.varying, self.may_diverge | other.may_diverge)


# --- the ops that only a body has -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CollectiveLowering(Lowering):
    """One collective over axes. kind: a function of `ops.collective`; statics: its arguments
    between x and group."""

    kind: str
    axes: Axes
    statics: tuple[Any, ...]

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        function = function_of(self.kind)
        return (function(operands[0], *self.statics, here(self.kind).group(self.axes)),)

    def varies(self, operand: Varying) -> Varying:
        """Returns the varying axes of the result for those of the operand."""
        axes = frozenset(self.axes)
        if self.kind == "all_reduce":
            return Varying(operand.varying - axes, operand.may_diverge - axes)
        if self.kind == "all_gather":
            return Varying(operand.varying | axes, operand.may_diverge - axes)
        return Varying(operand.varying | axes, operand.may_diverge | axes)


@dataclass(frozen=True, slots=True)
class IndexLowering(Lowering):
    """The shard's index along axes."""

    axes: Axes

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        return (here("axis_index").index(self.axes),)

    def varies(self, operand: Varying) -> Varying:
        return operand | Varying(frozenset(self.axes), frozenset(self.axes))


@dataclass(frozen=True, slots=True)
class VaryLowering(Lowering):
    """The value itself, marked as varying over `more` axes and as not varying over `less`."""

    more: Axes
    less: Axes

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        return (operands[0],)

    def varies(self, operand: Varying) -> Varying:
        less = frozenset(self.less)
        return Varying((operand.varying | frozenset(self.more)) - less, operand.may_diverge - less)


# --- the manual computation -----------------------------------------------------------------------


class Boundary(NamedTuple):
    """The boundary sharding of a value: the manual axes that shard each dim of the global value.

    is_stack: it has a leading dim, of length one on a shard, which the body does not see.
    """

    dims: Cut
    is_stack: bool = False

    @property
    def over(self) -> Over:
        """All axes that shard the value."""
        return frozenset(axis for axes in self.dims for axis in axes)

    def counts(self, sizes: Mapping[str, int]) -> list[int]:
        """Returns the number of shards along each dim, for these sizes of the axes."""
        return [math.prod(sizes[axis] for axis in axes) for axes in self.dims]

    def spec(self, spelled: Mapping[str, Axes]) -> PartitionSpec:
        named = [tuple(name for axis in axes for name in spelled[axis]) for axes in self.dims]
        return PartitionSpec(*[names or None for names in named])


@dataclass(frozen=True, slots=True)
class Manual(Lowering):
    """Ops on the shards that a mesh has along `axes`; over its other axes the partitioner stays in
    charge.

    body: its inputs are the shards of the operands, its roots those of the results. ins, outs:
    their boundary shardings. folds: for each op of the body that draws, in order, the axes over
    which its numbers differ.
    """

    body: Region
    mesh: Sharding
    axes: Axes
    ins: tuple[Boundary, ...]
    outs: tuple[Boundary, ...]
    folds: tuple[Axes, ...]

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.body,)

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        mesh, spelled = self.mesh.by_axis()
        names = [name for axis in self.axes for name in spelled[axis]]
        is_partial = any(mesh.shape[name] > 1 for name in mesh.axis_names if name not in names)
        is_cpu = mesh.devices.flat[0].platform == "cpu"
        spec_of = [boundary.spec(spelled) for boundary in self.ins]

        def on_shard(
            floats: jax.Array, integers: jax.Array, *arrays: jax.Array
        ) -> tuple[jax.Array, ...]:
            shards = [
                array[0] if boundary.is_stack else array
                for array, boundary in zip(arrays, self.ins, strict=True)
            ]
            shard = _Here(spelled, dict(mesh.shape), is_partial, is_cpu)
            with (
                held(topology.program, shard=shard, manual_axes=frozenset(names)),
                lowering.unreported(),
            ):
                vectors = floats, self._folded(integers)
                result = lowering.lower_region(self.body, 0, shards, vectors, [None] * len(shards))
            return tuple(
                array[None] if boundary.is_stack else array
                for array, boundary in zip(result, self.outs, strict=True)
            )

        mapped = jax.shard_map(
            on_shard,
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec(), *spec_of),
            out_specs=tuple(boundary.spec(spelled) for boundary in self.outs),
            axis_names=set(names),
            check_vma=False,  # the recording of the body checks the same, at the user's line
        )
        return tuple(mapped(*numbers, *operands))

    def _folded(self, integers: jax.Array) -> jax.Array:
        """Returns the integer scalar arguments, the seeds of draws different on each shard; the
        first shard's are unchanged."""
        folds, start = iter(self.folds), 0
        for node in self.body.nodes:
            kinds = node.op.numbers
            draws = node.op.draws
            if draws and (axes := next(folds)):
                seed_positions = sorted({start + kinds[:seed].count("i") for seed, _ in draws})
                offset = here("a draw").index(axes).astype(integers.dtype) * np.int64(_GOLDEN)
                integers = integers.at[np.array(seed_positions)].add(offset)
            start += kinds.count("i")
        return integers


_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # as an int64


@dataclass(frozen=True, slots=True)
class _Here:
    """The shard that is being traced: mesh axes and index."""

    spelled: Mapping[str, Axes]
    sizes: Mapping[str, int]
    is_partial: bool
    is_cpu: bool

    def names(self, axes: Axes) -> Axes:
        return tuple(name for axis in axes for name in self.spelled[axis])

    def index(self, axes: Axes) -> jax.Array:
        return jax.lax.axis_index(self.names(axes)).astype(jnp.int64)

    def group(self, axes: Axes) -> Group:
        names = self.names(axes)
        is_gspmd = config.partitioner == "gspmd"
        size = math.prod(self.sizes[name] for name in names)
        return Group(
            names,
            size,
            self.index(axes),
            self.is_partial and is_gspmd,
            self.is_partial and self.is_cpu,
        )


def here(label: str) -> _Here:
    """Returns the shard that is being traced; raises RuntimeError outside of a manual
    computation."""
    shard: _Here | None = topology.program.shard
    if shard is None:
        raise RuntimeError(f"{label} of a shard was used outside of its manual computation")
    return shard

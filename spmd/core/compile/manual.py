"""A manual region: ops on the piece of each shard, which talk to each other by collectives over mesh axes.

`Manual` is the op with the body; `Collective`, `Index`, `Vary` are what only a body has. `Varies` says of a value in
it over which axes it is each shard's own; the same rules (`Rules`) are asked while a body is recorded.
"""

import contextlib
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from ..config import config
from ..ir.graph import Node, Region, Value, origin, value_name
from ..ir.op import Arrays, Entry, Layouts, Lowering
from ..ops import collective
from ..ops.collective import Group
from ..sharding.tracing import by_hand
from ..sharding.value import Sharding
from .lower import lower_region, unreported
from .region import Branches, Scan, While, draws_in, is_opaque

Axes = tuple[str, ...]
Over = frozenset[str]
NONE: Over = frozenset()


class Varies(NamedTuple):
    """Over which manual axes a value is each shard's own.

    typed: its gradient is what each shard's copy of it gives, and the whole gradient is their sum; over other axes the
    value is one, and so is its gradient. differs: it may not be the same on all shards; never more than `typed`.
    """

    typed: Over = NONE
    differs: Over = NONE

    def __or__(self, other: "Varies") -> "Varies":
        return Varies(self.typed | other.typed, self.differs | other.differs)


# --- the ops that only a body has -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Collective(Lowering):
    """One collective over axes. kind: a function of `ops.collective`; statics: its arguments between x and group."""

    kind: str
    axes: Axes
    statics: tuple[Any, ...]

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        function = getattr(collective, self.kind)
        return (function(operands[0], *self.statics, here(self.kind).group(self.axes)),)

    def varies(self, given: Varies) -> Varies:
        """What becomes of its operand's."""
        own = frozenset(self.axes)
        if self.kind == "all_reduce":
            return Varies(given.typed - own, given.differs - own)
        if self.kind == "all_gather":
            return Varies(given.typed | own, given.differs - own)
        return Varies(given.typed | own, given.differs | own)


@dataclass(frozen=True, slots=True)
class Index(Lowering):
    """The shard's place along axes."""

    axes: Axes

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        return (here("axis_index").index(self.axes),)

    def varies(self, given: Varies) -> Varies:
        return given | Varies(frozenset(self.axes), frozenset(self.axes))


@dataclass(frozen=True, slots=True)
class Vary(Lowering):
    """The value itself, counted as each shard's own over `more` axes, and as one over `less`."""

    more: Axes
    less: Axes

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        return (operands[0],)

    def varies(self, given: Varies) -> Varies:
        less = frozenset(self.less)
        return Varies((given.typed | frozenset(self.more)) - less, given.differs - less)


# --- what varies ------------------------------------------------------------------------------------------------------


class Rules:
    """Finds what varies of the values of a body over these axes. known: of its stand-ins. own_draws: of a draw the axes
    over which it is each shard's own, where its operands do not say it."""

    def __init__(self, axes: Axes, known: Mapping[Any, Varies], own_draws: Mapping[Node, Over] | None = None):
        self.every = frozenset(axes)
        self.known = known
        self.own_draws = {} if own_draws is None else own_draws
        self._found: dict[Node, tuple[Varies, ...]] = {}  # of its results; one, where they are alike

    def of(self, value: Value) -> Varies:
        """Of one value; what nothing is known of is one over all axes."""
        stack = [value]
        while stack:
            top = stack[-1]
            node = origin(top)
            if node is None or self._is_found(top):
                stack.pop()
                continue
            waiting = [operand for operand in node.operands if not self._is_found(operand)]
            if waiting:
                stack.extend(waiting)
            else:
                self._found[node] = self._of_node(node)
                stack.pop()
        return self._get(value)

    def _is_found(self, value: Value) -> bool:
        node = origin(value)
        return node is None or value_name(value) in self.known or node in self._found

    def _get(self, value: Value) -> Varies:
        known = self.known.get(value_name(value))
        if known is not None:
            return known
        node = origin(value)
        if node is None:
            return Varies()
        found = self._found[node]
        return found[getattr(value, "index", 0)] if len(found) > 1 else found[0]

    def _of_node(self, node: Node) -> tuple[Varies, ...]:
        given = [self._get(operand) for operand in node.operands]
        met = _union(given)
        lowering = node.entry.lowering
        if isinstance(lowering, (Collective, Index, Vary)):
            return (lowering.varies(met),)
        if isinstance(lowering, Scan):
            return self._of_scan(lowering, given)
        if isinstance(lowering, While):
            return self._of_while(lowering, given)
        if isinstance(lowering, Branches):
            return self._of_branches(lowering, given)
        if lowering.draws(node.entry):
            over = self.drawn_over(node)
            met |= Varies(over, over)
        return (met,)

    def drawn_over(self, node: Node) -> Over:
        """Over which axes the numbers that an op draws are each shard's own: where its operands are; without any, and
        in the body of a loop, everywhere."""
        if node in self.own_draws:
            return self.own_draws[node]
        if node.entry.lowering.regions or not node.operands:
            return self.every
        return frozenset().union(*(self.of(operand).differs for operand in node.operands))

    def _inside(self, region: Region, known: Sequence[Varies]) -> list[Varies]:
        rules = _Inner(tuple(self.every), dict(zip(region.leaves, known, strict=True)))
        return [rules.of(root) for root in region.roots]

    def _of_scan(self, scan: Scan, given: list[Varies]) -> tuple[Varies, ...]:
        """What goes round is given back until it stays."""
        start = scan.num_constants + scan.num_carried
        known = given[:start]
        for is_whole in scan.xs:
            end = start + (1 if is_whole else scan.turns)
            known.append(_union(given[start:end]))
            start = end
        while True:
            made = self._inside(scan.body, known)
            if not _grows(known, made[: scan.num_carried], scan.num_constants):
                break
        results = made[: scan.num_carried]
        for one, is_whole in zip(made[scan.num_carried :], scan.ys, strict=True):
            results += [one] if is_whole else [one] * scan.turns
        return tuple(results)

    def _of_while(self, loop: While, given: list[Varies]) -> tuple[Varies, ...]:
        known = list(given)
        while True:
            ends = _union(self._inside(loop.condition, known))
            made = [one | ends for one in self._inside(loop.body, known)]
            if not _grows(known, made, loop.num_constants):
                return tuple(known[loop.num_constants :])

    def _of_branches(self, choice: Branches, given: list[Varies]) -> tuple[Varies, ...]:
        one, other = (self._inside(region, given[1:]) for region in choice.regions)
        return tuple(a | b | given[0] for a, b in zip(one, other, strict=True))


class _Inner(Rules):
    """The rules in the body of a loop, whose draws are all each shard's own."""

    def drawn_over(self, node: Node) -> Over:
        return self.every


def _grows(known: list[Varies], made: Sequence[Varies], start: int) -> bool:
    """Adds what a turn makes of what goes round to what is known of it; whether that was news."""
    before = known[start : start + len(made)]
    known[start : start + len(made)] = [old | new for old, new in zip(before, made, strict=True)]
    return known[start : start + len(made)] != before


def _union(all_of: Iterable[Varies]) -> Varies:
    met = Varies()
    for one in all_of:
        met |= one
    return met


# --- the region -------------------------------------------------------------------------------------------------------


class Border(NamedTuple):
    """How a value crosses the border of a region: the manual axes that split each dim of the whole value.

    is_stack: it has a dim in front, of length one on a shard, which the body does not see.
    """

    dims: tuple[Axes, ...]
    is_stack: bool = False

    def spec(self, spelled: Mapping[str, Axes]) -> PartitionSpec:
        named = [tuple(name for axis in axes for name in spelled[axis]) for axes in self.dims]
        return PartitionSpec(*[names or None for names in named])


@dataclass(frozen=True, slots=True)
class Manual(Lowering):
    """Ops on the pieces that the shards of a mesh have along `axes`; over its other axes the partitioner goes on.

    body: its leaves are the operands' pieces, its roots those of the results. ins, outs: how they cross. folds: of each
    op of the body that draws, in order, over which axes the numbers are each shard's own.
    """

    body: Region
    mesh: Sharding
    axes: Axes
    ins: tuple[Border, ...]
    outs: tuple[Border, ...]
    folds: tuple[Axes, ...]

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.body,)

    @property
    def opaque(self) -> bool:
        return is_opaque(self.regions)

    def draws(self, op: Entry) -> Sequence[tuple[int, int]]:
        return draws_in(self.body.nodes)

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        mesh, spelled = self.mesh.by_axis()
        names = [name for axis in self.axes for name in spelled[axis]]
        is_partial = any(mesh.shape[name] > 1 for name in mesh.axis_names if name not in names)
        is_cpu = mesh.devices.flat[0].platform == "cpu"
        spec_of = [border.spec(spelled) for border in self.ins]

        def shard(floats: jax.Array, integers: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
            given = [array[0] if border.is_stack else array for array, border in zip(arrays, self.ins, strict=True)]
            place = _Here(spelled, dict(mesh.shape), is_partial, is_cpu)
            with _inside(place), by_hand(frozenset(names)), unreported():
                own = floats, self._folded(integers)
                made = lower_region(self.body, 0, given, own, [None] * len(given))
            return tuple(
                array[None] if border.is_stack else array for array, border in zip(made, self.outs, strict=True)
            )

        mapped = jax.shard_map(
            shard,
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec(), *spec_of),
            out_specs=tuple(border.spec(spelled) for border in self.outs),
            axis_names=set(names),
            check_vma=False,  # what it checks is checked where the body is recorded, at the user's line
        )
        return tuple(mapped(*numbers, *operands))

    def _folded(self, integers: jax.Array) -> jax.Array:
        """The lifted integers, of which the seeds of draws are each shard's own; the first shard's are as they are."""
        folds, start = iter(self.folds), 0
        for node in self.body.nodes:
            kinds = node.entry.numbers
            found = node.entry.lowering.draws(node.entry)
            if found:
                axes = next(folds)
                at = sorted({start + kinds[:seed].count("i") for seed, _ in found})
                if axes:
                    own = here("a draw").index(axes).astype(integers.dtype) * np.int64(_GOLDEN)
                    integers = integers.at[np.array(at)].add(own)
            start += kinds.count("i")
        return integers


_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # as an int64


@dataclass(frozen=True, slots=True)
class _Here:
    """Where the shard stands that is being traced."""

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
        return Group(names, size, self.index(axes), self.is_partial and is_gspmd, self.is_partial and self.is_cpu)


_tracing = threading.local()  # .here


@contextlib.contextmanager
def _inside(place: _Here) -> Iterator[None]:
    before, _tracing.here = getattr(_tracing, "here", None), place
    try:
        yield
    finally:
        _tracing.here = before


def here(what: str) -> _Here:
    """Where the shard stands that is being traced; RuntimeError outside a manual region."""
    place: _Here | None = getattr(_tracing, "here", None)
    if place is None:
        raise RuntimeError(f"{what} of a shard was used outside its manual region")
    return place

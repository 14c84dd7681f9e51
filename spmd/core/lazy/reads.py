"""How ops read a cell that is stored in another layout than they compute in: parameters are split and read whole.

A cell's reads are a stack: a context that is entered pushes one, the innermost counts. Each holds what was gathered for
as long as the cell keeps its value, or until it is renewed: FSDP gathers once in forward and anew in backward.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch

from ..ir.graph import Leaf, Node, Value, results
from ..ir.meta import Meta
from ..ir.op import Arrays, Entry, Layouts, Lowering
from ..sharding.buckets import Cut, cut_of, gather
from ..sharding.constrain import barrier, constrain, near
from ..sharding.value import Sharding
from ..tables import Interned
from .annotate import annotate, mark_entry
from .cell import LOCK, Cell
from .record import NOWHERE, record
from .tensor import XlaTensor, wrap
from .views import View, ViewRule, read_view
from .views import read as value_of

_Part = tuple[Meta, Sharding | None]  # an array, and how it is stored

num_turns = 0  # counts contexts entered or renewed, and those left that had others in them: see `next_turn`


def next_turn() -> int:
    """The number of a context that is entered or renewed now. Who has the latest still has at hand what it gathered."""
    global num_turns
    num_turns += 1
    return num_turns


def latest_turn() -> int:
    """The last number that `next_turn` gave."""
    return num_turns


_graph_task = torch._C._current_graph_task_id
_autograd_node = torch._C._current_autograd_node


class Read(View):
    """A whole cell in another layout; writes go to the cell itself.

    group: reads that are gathered by one op, this one among them, or empty. spans: autograd's numbers of the forward
    ops that read by it, a (first, end) per entry. All cells are held weakly: a cell holds its reads.
    """

    __slots__ = ("group", "owner", "spans")

    is_read = True

    def __init__(self, cell: Cell, layout: Sharding):
        super().__init__(ViewRule(mark_entry(cell.meta, layout), None, cell.meta), None, None, 0)
        self.owner = cell.ref
        self.group: list[Read] = []
        self.spans: deque[tuple[int, int]] = deque(maxlen=64)

    @property
    def layout(self) -> Sharding:
        layout = self.rule.read.sharding
        assert layout is not None, "an annotation has one"
        return layout

    def value_of(self, cell: Cell) -> Value:
        """The cell's value in this layout; gathered once for as long as the cell keeps its value."""
        if self.stamp == cell.stamp:
            return self.value  # type: ignore[return-value]
        members = _members(self.group)
        if len(members) < 2:
            return read_view(self, cell)
        _gather(members, [member.value for member in members.values()], [cell.sharding for cell in members.values()])
        return self.value  # type: ignore[return-value]


class Reads:
    """All reads of one cell.

    known: by layout, the one that was entered last at the end. active: those entered and not left, innermost last.
    """

    __slots__ = ("active", "known")

    def __init__(self) -> None:
        self.known: dict[Sharding, Read] = {}
        self.active: list[Read] = []

    def enter(self, read: Read) -> None:
        """Has ops read by this one."""
        self.known[read.layout] = self.known.pop(read.layout)
        self.active.append(read)

    def leave(self, layout: Sharding, span: tuple[int, int]) -> None:
        """Ends what was entered last in a layout; span: see `Read.spans`."""
        entered = next((read for read in reversed(self.active) if read.layout is layout), None)
        if entered is not None:
            self.active.remove(entered)
            entered.spans.append(span)

    @property
    def latest(self) -> Read:
        return next(reversed(self.known.values()))

    def current(self) -> Read | None:
        """The read of the op that is recorded now: a backward op reads as its forward op did; None: as stored."""
        if self.active:
            return self.active[-1]
        if _graph_task() == -1:
            return None
        return self.latest if len(self.known) == 1 else self._by_forward()

    def _by_forward(self) -> Read | None:
        node = _autograd_node()
        number = -1 if node is None else node._sequence_nr()
        spans = [(end - first, first, read) for read in self.known.values() for first, end in read.spans]
        around = [(size, read) for size, first, read in spans if first <= number < first + size]
        return min(around, key=lambda pair: pair[0])[1] if around else None

    def move(self, old: Cell, new: Cell) -> None:
        """Has a cell that takes another's place read as that one was, in the layouts that fit it."""
        fitting = [read for read in self.known.values() if len(read.layout.spec.dims) <= len(new.meta.shape)]
        if new.reads is not None or not fitting:
            return
        moved = {read: read_in(new, read.layout) for read in fitting}
        for read, made in moved.items():
            made.spans = read.spans
        reads: Any = new.reads  # made by the first of them
        reads.active = [moved[read] for read in self.active if read in moved]
        old.reads = None


def read_in(cell: Cell, layout: Sharding) -> Read:
    """The cell's read in a layout, made where there is none."""
    if cell.reads is None:
        cell.reads = Reads()
    layout = layout if cell.meta.numel else layout.replicated()  # there is nothing to split
    found = cell.reads.known.get(layout)
    if found is None:
        found = cell.reads.known[layout] = Read(cell, layout)
    return found


def join(reads: Sequence[Read]) -> None:
    """Has the small ones among reads of whole values gathered together, by how they are cut."""
    groups: dict[Any, list[Read]] = {}
    for read in reads:
        cell = read.owner()
        assert cell is not None
        cut = cut_of(cell.meta.shape, cell.sharding)
        if cut is not None and read.layout.is_replicated() and cell.meta.numel <= JOINED_NUMEL:
            read.group = groups.setdefault((cut.rows, cell.meta.dtype), [])
            read.group.append(read)
        else:
            read.group = []


# Arrays of at most this many elements share one gather: below it a collective costs its latency, not its bytes.
JOINED_NUMEL = 1 << 16

# Arrays that share a gather stay gathered where they are at most this part of what is renewed: on a few hundred devices
# the shards take as much.
HELD_PART = 1 / 256


def operand(tensor: XlaTensor) -> Value:
    """The tensor's value as the op that is recorded now reads it."""
    view, cell = tensor._view, tensor._cell
    if view is not None:
        return read_view(view, cell)
    return cell.value if cell.reads is None else operand_of(cell)


def operand_of(cell: Cell) -> Value:
    """The same for a cell that has reads."""
    read = cell.reads.current()
    return cell.value if read is None else read.value_of(cell)


def keep(reads: Sequence[Read], layouts: Sequence[Sharding], before: XlaTensor) -> list[XlaTensor | None]:
    """What was gathered of each, laid out so, for `renew`; None where that is no more than what is stored.

    It is cut before anyone reads `before`, or else a compiler cuts it when it is read, and keeps it whole until then.
    """
    with LOCK:
        kept = [_cut(read, layout) for read, layout in zip(reads, layouts, strict=True)]
        made = [tensor for tensor in kept if tensor is not None]
        if made:
            parts = [(tensor._cell.meta, tensor._cell.sharding) for tensor in made]
            waited = [tensor._cell.value for tensor in made]
            for tensor, value in zip(made, _behind(parts, waited, before), strict=False):
                tensor._cell.write(value)
        return kept


def _cut(read: Read, layout: Sharding) -> XlaTensor | None:
    cell = read.owner()
    if cell is None or cell.sharding is read.layout:
        return None
    # Behind a barrier: a partitioner that sees what it was gathered of exchanges that instead.
    whole = record(_barrier_entry(((cell.meta, read.layout),)), (read.value_of(cell),), (), NOWHERE)
    kept = wrap(cell.meta, Cell(whole, cell.meta))
    annotate(kept, layout)
    return kept


def _behind(parts: Sequence[_Part], values: Sequence[Value], tensor: XlaTensor) -> Sequence[Value]:
    """The values, none of which is there before all are, the tensor's among them, which takes what comes out: XLA keeps
    a barrier where both are used. Empty where the tensor is data or a module's own, which waits for nothing."""
    arrived = value_of(tensor)
    if type(arrived) is Leaf or tensor._cell.is_state:
        return ()
    *made, passed = results(record(_barrier_entry((*parts, (arrived.meta, None))), (*values, arrived), (), NOWHERE))
    if tensor._view is None:
        tensor._cell.write(passed)
    else:
        tensor._view.keep(passed, tensor._cell)
    return made


def renew(reads: Sequence[Read], after: XlaTensor, kept: Sequence[XlaTensor | None] = ()) -> None:
    """Has what is read from now on gathered anew, and not before `after` is computed; what was gathered can be freed.

    kept: what to gather it from, instead of what is stored (see `keep`).

    XLA would merge a second gather of the same shards with the first. One barrier over the shards and `after` prevents
    it where both results are used: so the tensor takes the barrier's, too. What is data or a module's own is waited for
    by nothing. A cast of what is stored is made anew, too, and not kept for it. Small arrays stay: see `HELD_PART`.
    """
    with LOCK:
        members = _members(reads)
        held = _held(members)
        members = {read: cell for read, cell in members.items() if read not in held}
        nearer = {read: tensor for read, tensor in zip(reads, kept, strict=bool(kept)) if tensor is not None}
        casts = [
            (value_of(nearer[read]), []) if read in nearer else _cast_behind(cell.value)
            for read, cell in members.items()
        ]
        stored = [base for base, _ in casts]
        lies = {
            read: nearer[read]._cell.sharding if read in nearer else cell.sharding for read, cell in members.items()
        }
        parts = [(base.meta, at) for base, at in zip(stored, lies.values(), strict=True)]
        shards = _behind(parts, stored, after) if members else ()
        if not shards:
            return
        shard_of = {
            member: _recorded_again(ops, shard) for member, (_, ops), shard in zip(members, casts, shards, strict=True)
        }
        for cell in members.values():
            cell.stamp += 1  # views of it that were read are read anew, too
        for member, cell in members.items():
            if member.stamp == cell.stamp:
                continue  # gathered with its group
            group = {other: held for other, held in _members(member.group).items() if other in shard_of}
            if len(group) > 1:
                _gather(group, [shard_of[other] for other in group], [lies[other] for other in group])
            else:
                member.keep(record(member.rule.read, (shard_of[member],), (), NOWHERE), cell)


def _held(members: dict[Read, Cell]) -> set[Read]:
    """Those among them that stay gathered."""
    at_hand = {read: cell.meta.nbytes for read, cell in members.items() if read.stamp == cell.stamp}
    most = HELD_PART * sum(cell.meta.nbytes for cell in members.values())
    held: set[Read] = set()
    # A group stays as one, or else what all of it was gathered into would be kept for a part.
    for group in {id(read.group): read.group for read in at_hand if read.group}.values():
        there = [read for read in group if read in at_hand]
        if sum(at_hand[read] for read in there) <= most:
            held.update(there)
    return held


def _cast_behind(value: Value) -> tuple[Value, list[Entry]]:
    """What a value was cast from, and the ops that make it of that, the last one first; itself where it is no cast."""
    base, ops = value, []
    while type(base) is Node and base.entry.name == "mark_sharding":
        ops.append(base.entry)
        base = base.operands[0]
    if type(base) is Node and base.entry.name == "aten._to_copy":
        return base.operands[0], [*ops, base.entry]
    return value, []


def _recorded_again(ops: Sequence[Entry], value: Value) -> Value:
    for op in reversed(ops):
        value = record(op, (value,), (), NOWHERE)
    return value


def lay_gradient(cell: Cell, grad: XlaTensor) -> None:
    """Lays a gradient out like the cell that it belongs to, where that is annotated."""
    sharding = cell.sharding
    if sharding is None or grad._cell.sharding is sharding:
        return
    if grad._view is not None and grad.storage_offset() == 0 and grad.is_contiguous():
        # Backward often ends in a view (a transposed product). What stays is stored as the gradient, not its base.
        grad._cell, grad._view = Cell(value_of(grad), grad._meta), None
    annotate(grad, sharding, None if cell.reads is None else cell.reads.latest.layout)


def _members(reads: Iterable[Read]) -> dict[Read, Cell]:
    """Those whose cell is still there and read by them, with it."""
    found = {read: cell for read in reads if (cell := read.owner()) is not None}
    return {
        read: cell
        for read, cell in found.items()
        if cell.reads is not None and cell.reads.known.get(read.layout) is read
    }


def _gather(members: dict[Read, Cell], stored: Sequence[Value], lies: Sequence[Sharding | None]) -> None:
    """One all-gather for many small arrays, of which each lies so."""
    parts = tuple((cell.meta, at) for cell, at in zip(members.values(), lies, strict=True))
    layout = next(iter(members)).layout
    entry = _GATHERS.get(parts) or _GATHERS.of(parts, lambda: _new_gather(parts, layout))
    for (member, cell), value in zip(members.items(), results(record(entry, tuple(stored), (), NOWHERE)), strict=True):
        member.keep(value, cell)


def _new_gather(parts: tuple[_Part, ...], layout: Sharding) -> Entry:
    # Every one has a cut: see `join`.
    cuts = tuple(cut for meta, sharding in parts if (cut := cut_of(meta.shape, sharding)) is not None)
    metas = tuple(meta for meta, _ in parts)
    return Entry.of("spmd.gather", _Gather(cuts), metas, metas, statics=f"{len(metas)} arrays", sharding=layout)


@dataclass(frozen=True, slots=True)
class _Gather(Lowering):
    """Every operand whole, by one all-gather."""

    cuts: tuple[Cut, ...]

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        return tuple(gather(operands, self.cuts))


def _barrier_entry(parts: tuple[_Part, ...]) -> Entry:
    return _BARRIERS.get(parts) or _BARRIERS.of(parts, lambda: _new_barrier(parts))


def _new_barrier(parts: tuple[_Part, ...]) -> Entry:
    metas = tuple(meta for meta, _ in parts)
    return Entry.of("spmd.renew", _Barrier(tuple(sharding for _, sharding in parts)), metas, metas)


@dataclass(frozen=True, slots=True)
class _Barrier(Lowering):
    """The operands, none of which is there before all are; each laid out as it is stored (None: as it comes)."""

    stored: tuple[Sharding | None, ...]

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        held = barrier(tuple(operands))
        # Said of what comes out, or else the partitioner would gather what goes in.
        return tuple(
            array if sharding is None else constrain(array, near(sharding))
            for array, sharding in zip(held, self.stored, strict=True)
        )


_GATHERS: Interned[tuple[_Part, ...], Entry] = Interned(4096)
_BARRIERS: Interned[tuple[_Part, ...], Entry] = Interned(4096)

"""Annotations: how the value of a tensor must lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from .. import forking
from ..ir.graph import Leaf, Node, Value, origin
from ..ir.meta import Meta, padded_meta
from ..ir.op import Arrays, Entry, Layouts, Lowering, Padded
from ..ir.source import user_frame
from ..ops.padding import NoRule, Pads
from ..pjrt import transfer
from ..sharding.constrain import barrier, constrain, in_memory, near
from ..sharding.value import Sharding
from ..tables import Interned
from .cell import LOCK, Cell, may_change, note_layout, take_up
from .record import record

# --- sharding ---------------------------------------------------------------------------------------------------------

_MARKS: Interned[tuple[Meta, Sharding, Sharding | None], Entry] = Interned(4096)


def mark_entry(meta: Meta, sharding: Sharding, via: Sharding | None = None) -> Entry:
    """The op that asks the partitioner to lay a value out so; a gradient arrives in the layout `via` first."""
    key = (meta, sharding, via)
    return _MARKS.get(key) or _MARKS.of(key, lambda: _new_mark(meta, sharding, via))


def _new_mark(meta: Meta, sharding: Sharding, via: Sharding | None) -> Entry:
    text = sharding.text(len(meta.shape))
    return Entry.of("mark_sharding", _Mark(sharding, via), (meta,), (meta,), statics=text, sharding=sharding)


@dataclass(frozen=True, slots=True)
class _Mark(Lowering):
    """A value laid out so; a gradient arrives in the layout `via` first."""

    sharding: Sharding
    via: Sharding | None

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        if self.via is None:
            return (constrain(operands[0], self.sharding),)
        # Cut at once: XLA would rather cut where it is read, which may be after the norm of all, and keep it whole.
        (cut,) = barrier((constrain(constrain(operands[0], self.via), near(self.sharding)),))
        return (in_memory(cut, self.sharding.memory),)

    def padded(self, op: Entry, pads: Sequence[Pads], begins: Sequence[int]) -> Padded:
        (pad,), (meta,) = pads, op.metas
        if begins:
            raise NoRule("marks a value that grows")
        return Padded(mark_entry(padded_meta(meta, pad), self.sharding, self.via), (dict(pad),), ())


@dataclass(frozen=True, slots=True)
class _Same(Lowering):
    """What an annotation becomes that is taken back before it has run: nothing."""

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        return (operands[0],)


def unmarked_entry(meta: Meta) -> Entry:
    """The op that gives a value as it is."""
    return Entry.of("spmd.unmarked", _Same(), (meta,), (meta,))


def annotate(tensor: Any, sharding: Sharding, via: Sharding | None = None) -> None:
    """Makes `sharding` the layout of a tensor: of the recorded value, of host data at its upload, or of the buffer now.

    A gradient takes the layout `via` first, where one is given.
    """
    if not tensor._meta.numel:
        sharding = sharding.replicated()  # nothing to split, and the compiler would not
    forking.check()
    with LOCK:
        cell, view = tensor._cell, tensor._view
        if view is not None:
            view.sharding = sharding
            view.stamp = -1  # the cached value is read anew, with the annotation
            return
        note_layout(cell)
        value = cell.value
        cell.sharding = sharding = sharding.closed() if type(value) is Leaf else sharding
        if type(value) is Node and value.entry.name == "mark_sharding" and via is None and may_change(value):
            if value.entry.sharding is not sharding:  # else it lies so, perhaps by way of another layout
                value.entry = mark_entry(cell.meta, sharding)  # marked again: also for what has read the value since
                take_up(lambda nodes, _: value in nodes)
        elif type(value) is not Leaf:
            # The line is that of the value: an annotation is about it; finding our own would cost more than recording.
            source = origin(value)
            assert source is not None, "only a leaf has none"
            place = (source.code, source.instruction, -1)
            cell.write(record(mark_entry(cell.meta, sharding, via), (value,), (), place))
        elif value.host is not None:
            note_layout(cell, value)
            value.sharding = sharding  # for its upload, should the tensor itself be gone by then
        elif value.sharding is not sharding:
            _lay_out(cell, value, sharding)


def annotate_in_program(tensor: Any, sharding: Sharding) -> None:
    """The same, but data on devices moves in the next program and not now."""
    if tensor._view is not None or not tensor._meta.numel:
        annotate(tensor, sharding)
        return
    forking.check()
    with LOCK:
        cell, value = tensor._cell, tensor._cell.value
        if type(value) is not Leaf or value.host is not None or value.is_abstract:
            annotate(tensor, sharding)
            return
        note_layout(cell)
        cell.sharding = sharding
        cell.write(record(mark_entry(cell.meta, sharding), (value,), (), (*user_frame(), -1)))


def ask_again(cell: Cell) -> Value:
    """The recorded value of a cell that is about to run, its last op an annotation where one leaves dims open.

    What is asked in full of a result is asked of the program (`pinned`), which takes no open dim.
    """
    sharding, value = cell.sharding, cell.value
    if sharding is not None and sharding.is_open and not (type(value) is Node and value.entry.sharding is sharding):
        source = origin(value)
        assert source is not None, "data is not about to run"
        cell.write(record(mark_entry(cell.meta, sharding), (value,), (), (source.code, source.instruction, -1)))
    return cell.value


def _lay_out(cell: Cell, leaf: Leaf, sharding: Sharding) -> None:
    """Lays data on devices out anew, also for what has read it and not run yet; an equal layout only takes the name."""
    if note_layout(cell, leaf) or leaf.is_abstract:
        _lay_out_abstractly(cell, leaf, sharding)
        return
    leaf.check()
    buffer, lies = leaf.placed()
    if lies.is_as(sharding, len(leaf.meta.shape)):
        leaf.take(transfer.respelled(buffer, sharding.jax), sharding)
    else:
        leaf.take(transfer.move(buffer, leaf.meta.shape, lies, sharding), sharding)
    cell.home = sharding
    take_up(lambda _, leaves: leaf in leaves)


def _lay_out_abstractly(cell: Cell, leaf: Leaf, sharding: Sharding) -> None:
    """The same where no data moves: the leaf is abstract, or it is not and another takes its place for a while."""
    if leaf.is_abstract:
        leaf.sharding = sharding
    else:
        cell.value = Leaf(leaf.meta, sharding=sharding, is_abstract=True)
        cell.value.holder = cell.ref
    cell.home = sharding


def clear_annotation(tensor: Any) -> None:
    """Forgets the asked-for layout; data on a mesh becomes whole on each of its devices."""
    with LOCK:
        if tensor._view is not None:
            tensor._view.sharding = None
            tensor._view.stamp = -1
            return
        cell = tensor._cell
        note_layout(cell)
        cell.sharding = cell.home = None
        value = cell.value
        if type(value) is Node and value.entry.name == "mark_sharding" and not may_change(value):
            cell.write(record(unmarked_entry(cell.meta), (value,), (), (value.code, value.instruction, -1)))
        elif type(value) is Node and value.entry.name == "mark_sharding":
            value.entry = unmarked_entry(cell.meta)
            take_up(lambda nodes, _: value in nodes)
        elif type(value) is Leaf and value.host is None:
            if value.sharding is not None:  # else it is abstract and nobody has said how it lies
                _lay_out(cell, value, value.sharding.replicated())
            cell.home = None


def current_sharding(tensor: Any) -> Sharding | None:
    """What was asked for, else where the data lies, else None (recorded and not yet run, or still on the host)."""
    if tensor._view is not None:
        return tensor._view.sharding
    cell = tensor._cell
    if cell.sharding is not None:
        return cell.sharding
    return cell.value.sharding if type(cell.value) is Leaf and cell.value.host is None else None


def residence(value: Value) -> str:
    """Where a value is: "host", "pending", "devices", "abstract" or "lost" (see `spmd.residence`)."""
    if type(value) is not Leaf:
        return "pending"
    if value.gone is not None:
        return "lost"
    if value.is_abstract:
        return "abstract"
    return "devices" if value.host is None else "host"

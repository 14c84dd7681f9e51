"""The cell that holds the value of a tensor and its views; the live set."""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .. import forking
from ..ir.graph import Leaf, Node, Pick, Value, is_data, next_serial, topological
from ..ir.meta import Meta
from ..sharding.value import Sharding
from . import pieces, recorders

# One lock for recording and running: a thread that runs the graph must not donate what another is about to read.
LOCK = forking.survives_fork(threading.RLock())
# Who runs the graph has this one, too, from the choice of what to run until the cells have the results; it is taken
# before LOCK, never inside it.
BARRIER = forking.survives_fork(threading.RLock())
# Ops with a lower serial than this are being compiled: another thread must not change them. 0: none are.
being_compiled = 0


@contextlib.contextmanager
def unlocked() -> Iterator[None]:
    """Lets other threads record while this one, which has BARRIER, compiles. What is recorded by now stays as it is."""
    global being_compiled
    being_compiled = next_serial()
    held = LOCK._release_save()  # type: ignore[attr-defined]  # however often this thread holds it
    try:
        yield
    finally:
        LOCK._acquire_restore(held)  # type: ignore[attr-defined]
        being_compiled = 0


def may_change(node: Node) -> bool:
    """Whether a recorded op may be changed now."""
    return node.serial >= being_compiled


class Cell:
    """What a tensor and all its views share: the current value, how it must lie, and a stamp that changes with it.

    sharding: asked for by the user, kept through in-place writes. reads: how ops read the value, where that
    differs from how it is stored (`lazy.reads.Reads`). home: where the last run left the value.
    is_state: held by a module (a Parameter or buffer), so its initial value is born in a program of its own;
    is_parameter: as a Parameter. past: the values it held since the last barrier, from which that initial value is
    found. data: what it held when the first of these was recorded, which it takes back should they fail. recorder: the
    thread that recorded the value. needed: the stamp at which other threads' barriers have computed the value without
    giving it to the cell, and how often. ref: a weak reference to it. views: its tensors that are views and that
    autograd knows (see `lazy.rebased`).
    """

    __slots__ = (
        "__weakref__", "data", "home", "is_parameter", "is_state", "listed", "meta", "needed", "past", "reads",
        "recorder", "ref", "sharding", "stamp", "value", "views",
    )  # fmt: skip

    def __init__(self, value: Value, meta: Meta, sharding: Sharding | None = None):
        self.value = value
        self.meta = meta
        self.stamp = 0
        self.sharding = sharding
        self.home: Sharding | None = None
        self.reads: Any = None
        self.is_state = self.is_parameter = False
        self.past: list[Value] | None = None
        self.data: Leaf | None = None
        self.listed = False
        self.recorder = recorders.number() if recorders.is_several else 0
        self.needed = (-1, 0)
        self.ref = weakref.ref(self)
        self.views: set[weakref.ref[Any]] | None = None
        if type(value) is Leaf:
            value.holder = self.ref
        else:
            LIVE.append(self.ref)
            self.listed = True

    # A signal's handler may raise between any two lines: the order is one in which nothing is lost then.

    def write(self, value: Value) -> None:
        """Replaces the value, as an in-place op does."""
        if UNDO:
            for log in UNDO:
                log.note(self)
        old = self.value
        if type(old) is Leaf:
            self.data = old
        elif self.past is None:
            self.past = [old]
        else:
            self.past.append(old)
        if type(value) is Leaf:
            value.holder = self.ref
            self.past = self.data = None  # what it held before waits for no barrier any more
        else:
            self.recorder = recorders.number() if recorders.is_several else 0
            if not self.listed:
                LIVE.append(self.ref)
                self.listed = True
        self.stamp += 1
        self.value = value

    def settle(self, leaf: Leaf) -> None:
        """Takes the result of a run."""
        if UNDO:
            note_layout(self)
        leaf.holder = self.ref
        self.stamp += 1
        self.value = leaf
        self.past = self.data = None
        self.lie(leaf.sharding)

    def go_back(self, value: Value) -> None:
        """Takes its initial value back, which is still to be run."""
        self.stamp += 1
        self.value = value
        self.past = self.data = None

    def rest(self, shown: Node, sharding: Sharding | None) -> None:
        """Takes what is shown of a result that has padding: no barrier waits for it."""
        self.stamp += 1
        self.value = shown
        self.past = self.data = None
        self.lie(sharding)
        leaf = shown.operands[0]
        assert type(leaf) is Leaf, "a result is there"
        leaf.holder = self.ref

    def lie(self, sharding: Sharding | None) -> None:
        """Learns how its value lies; an annotation that left dims to the partitioner becomes what that chose."""
        self.home = sharding
        if self.sharding is not None and self.sharding.is_open:
            self.sharding = sharding


class UndoLog:
    """What cells and leaves were when something began to be recorded that is taken back at its end.

    That is the body of a loop, of which the values are taken back, or a whole step that never runs (`is_step`), which
    leaves nothing behind, layouts included. A cell or leaf that is made meanwhile is nobody's concern: it is not noted.
    """

    def __init__(self, *, is_step: bool = False) -> None:
        self.first = next_serial()
        self.is_step = is_step
        self.cells: dict[weakref.ref[Cell], tuple[Any, ...]] = {}  # what dies meanwhile must not live on here
        self.leaves: dict[Leaf, Sharding | None] = {}

    def note(self, cell: Cell) -> None:
        """Remembers a cell as it is, unless it is known already, or new."""
        if cell.ref not in self.cells and value_serial(cell.value)[0] < self.first:
            past = None if cell.past is None else list(cell.past)
            lay = cell.stamp, cell.sharding, cell.home, cell.is_state
            self.cells[cell.ref] = (cell.value, past, cell.data, cell.recorder, *lay)

    def values(self) -> dict[Cell, Value]:
        """The cells that were noted and are still there, with what they held, in the order of their first writes."""
        return {cell: before[0] for ref, before in self.cells.items() if (cell := ref()) is not None}

    def undo(self) -> None:
        """Gives cells and leaves back what they had."""
        for ref, (value, past, data, recorder, *lay) in self.cells.items():
            cell = ref()
            if cell is None:
                continue
            cell.value, cell.past, cell.data, cell.recorder = value, past, data, recorder
            if self.is_step:
                cell.stamp, cell.sharding, cell.home, cell.is_state = lay
            else:
                cell.stamp += 1  # what views of it have kept meanwhile is read anew
            if type(value) is Leaf:
                value.holder = ref
            elif not cell.listed:
                LIVE.append(ref)
                cell.listed = True
        for leaf, sharding in self.leaves.items():
            leaf.sharding = sharding


# Those of what is being recorded now, the innermost last.
UNDO: list[UndoLog] = []


def note_layout(cell: Cell, leaf: Leaf | None = None) -> bool:
    """A cell, or a leaf, is about to be laid out otherwise; whether that is part of a step that never runs."""
    if not UNDO:
        return False
    steps = [log for log in UNDO if log.is_step]
    for log in steps:
        log.note(cell)
        if leaf is not None:
            log.leaves.setdefault(leaf, leaf.sharding)
    return bool(steps)


# Cells whose value is a recorded op, in the order in which they became so; dead ones are dropped at the barrier.
LIVE: list["weakref.ref[Cell]"] = []
# Those whose ops could not be compiled: no barrier takes them up before they are read or an annotation is mended.
ASIDE: list["weakref.ref[Cell]"] = []


def take_up(is_mended: Callable[[Sequence[Node], Sequence[Leaf]], bool]) -> None:
    """Has the next barrier try again what was set aside and is mended, judged by the ops and the data behind it."""
    with LOCK:
        aside, ASIDE[:] = ASIDE[:], ()
        for ref in aside:
            cell = ref()
            if cell is None or cell.listed or type(cell.value) is Leaf:
                continue
            if is_mended(*topological([cell.value])):
                LIVE.append(ref)
                cell.listed = True
            else:
                ASIDE.append(ref)


# The views that keep their value for the next read, each with its cell and who read it, since the last barrier.
READ: list[tuple[Any, "weakref.ref[Cell]", int]] = []


def note_read(view: Any, cell: Cell) -> None:
    """A view keeps its value from now on."""
    READ.append((view, cell.ref, recorders.number() if recorders.is_several else 0))


def forget_reads(*, all_of_them: bool = True) -> None:
    """Takes from the views the values they keep: what has run must not be held by who once read it.

    After a run of finished turns, and of what other threads read, only those whose cell has another value by now: the
    rest may be read again by what is still recorded.
    """
    is_run_here = recorders.is_run_here()
    kept = []
    for view, ref, reader in READ:
        cell = ref()
        stays = not all_of_them or not is_run_here(reader)
        if stays and cell is not None and view.stamp == cell.stamp:
            kept.append((view, ref, reader))
        else:
            view.value, view.stamp = None, -1
    READ[:] = kept


def _waiting() -> list[Cell]:
    """The live cells whose value has not run, whoever recorded it."""
    return [cell for ref in LIVE if (cell := ref()) is not None and not is_data(cell.value)]


def pending() -> list[Cell]:
    """The live cells whose value this thread, or one that has ended, has recorded and that has not run, in the order in
    which those values were recorded.

    A first step creates optimizer state and a later one only writes it; ordered by value, both are the same program.
    """
    forking.check()
    is_run_here = recorders.is_run_here()
    cells = {cell: None for cell in _waiting() if is_run_here(cell.recorder)}
    if pieces.is_used:
        runs = pieces.without([cell.value for cell in cells])
        cells = {cell: None for cell, can_run in zip(cells, runs, strict=True) if can_run}
    return sorted(cells, key=lambda cell: value_serial(cell.value))


def pending_elsewhere(cells: Iterable[Cell]) -> list[Cell]:
    """The live cells beside these whose value is recorded and has not run: those of other threads, above all."""
    own = set(cells)
    return [cell for cell in _waiting() if cell not in own]


def value_serial(value: Value) -> tuple[float, int]:
    """Sorts values in the order in which they were recorded."""
    return (value.node.serial, value.index) if type(value) is Pick else (value.serial, 0)  # type: ignore[union-attr]

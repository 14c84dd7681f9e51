"""Aliasing and write-back: a tensor is a chain of views over a cell. The only file that knows mutation."""

from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import jax
from torch._ops import OpOverload

from ..ir.graph import Value
from ..ir.meta import Meta
from ..ir.op import Arrays, Entry, Layouts, Lowering
from ..ops.moving import MOVING_VIEWS, Run, run_of
from ..ops.shape import SIGNS, WRITE_BACK, Shown, read_strided, repeats_memory, write_strided
from ..sharding.value import Sharding
from ..tables import Bounded, Interned
from .annotate import mark_entry
from .cell import Cell, note_read
from .record import record
from .tensor import XlaTensor


class ViewRule:
    """How one kind of view is read from its parent and written back into it; `write` is None where only the memory
    layout says which elements it covers. meta: the view's, with the place in memory at which it begins. shown: what
    the view shows of memory otherwise than what is written there (see `ops.shape.Shown`)."""

    __slots__ = ("__weakref__", "meta", "read", "shown", "write")

    def __init__(self, read: Entry, write: Entry | None, meta: Meta, shown: tuple[Shown, ...] = ()):
        self.read = read
        self.write = write
        self.meta = meta
        self.shown = shown


class View:
    """One tensor's place in the chain: its rule, the view it was taken from (None: the cell itself), the cached value.

    The cached value is good while its stamp is the cell's; the next barrier takes it away (see `cell.READ`).
    """

    __slots__ = ("code", "instruction", "meta", "parent", "rule", "sharding", "stamp", "value")

    is_read = False  # whether it is no part of the chain but the cell in another layout: see `lazy.reads.Read`

    def __init__(self, rule: ViewRule, parent: "View | None", code: CodeType | None, instruction: int):
        self.rule = rule
        self.parent = parent
        self.meta = rule.meta
        self.code = code
        self.instruction = instruction
        self.value: Value | None = None
        self.stamp = -1
        self.sharding: Sharding | None = None

    def elsewhere(self) -> "View":
        """The same view of another cell."""
        parent = None if self.parent is None or self.parent.is_read else self.parent.elsewhere()
        made = View(self.rule, parent, self.code, self.instruction)
        made.sharding = self.sharding
        return made

    def value_of(self, cell: Cell) -> Value:
        """What it shows of the cell now."""
        return read_view(self, cell)

    def keep(self, value: Value, cell: Cell) -> None:
        """Has this value for what it shows, until the cell has another one."""
        self.value, self.stamp = value, cell.stamp
        note_read(self, cell)


def read(tensor: XlaTensor) -> Value:
    """The tensor's current value; a view whose base has changed is replayed."""
    view = tensor._view
    return tensor._cell.value if view is None else read_view(view, tensor._cell)


def read_view(view: View, cell: Cell) -> Value:
    """The value of one view of a cell."""
    if view.stamp == cell.stamp:
        return view.value  # type: ignore[return-value]
    parent = view.parent
    base = cell.value if parent is None else parent.value_of(cell)
    place = (view.code, view.instruction, -1)
    value = record(view.rule.read, (base,), (), place)
    if view.sharding is not None:
        value = record(mark_entry(view.meta.layout, view.sharding), (value,), (), place)
    view.keep(value, cell)
    return value


def write(tensor: XlaTensor, value: Value, code: CodeType | None = None, instruction: int = 0) -> None:
    """Gives the tensor, and through its chain the cell, a new value."""
    cell, view = tensor._cell, tensor._view
    if view is None:
        cell.write(value)
        return
    new, link = value, view
    place = (code, instruction, -1)
    while link is not None and not link.is_read:
        if link.rule.write is None:
            # Link by link, a place that the parent shows twice would be written once anew and once with what it was.
            new = record(_strided_write(cell.meta, view), (cell.value, value), (), place)
            break
        parent = link.parent
        base = cell.value if parent is None or parent.is_read else read_view(parent, cell)
        new = record(link.rule.write, (base, new), (), place)
        link = link.parent
    cell.write(new)
    if view.sharding is None and not (link is view and repeats(view.meta)):
        view.keep(value, cell)


def shown(view: View | None) -> tuple[Shown, ...]:
    """What a chain of views shows of its cell's memory otherwise than what is written there, in order."""
    found: tuple[Shown, ...] = ()
    while view is not None:
        found = view.rule.shown + found
        view = view.parent
    return found


def repeats(meta: Meta) -> bool:
    """Whether some place in memory is more than one element."""
    found = _REPEATS.get(meta)
    return _REPEATS.keep(meta, repeats_memory(meta.shape, meta.strides)) if found is None else found


def view_rule(overload: Any, read_entry: Entry, parent: Meta, arguments: dict[str, Any]) -> ViewRule:
    """The rule of a view op with these static arguments over a parent of this layout."""
    function, meta = WRITE_BACK.get(overload), read_entry.metas[0]
    other = (meta.struct.dtype,) if meta.dtype is not parent.dtype else ()
    shows: tuple[Shown, ...] = (SIGNS[overload],) if overload in SIGNS else other
    if function is None:
        return ViewRule(read_entry, None, meta, shows)
    write_back = _WriteBack(overload, tuple(arguments.items()))
    name = f"spmd.write.{read_entry.name}"
    entry = Entry.of(name, write_back, (parent,), (parent, meta), statics=read_entry.statics)
    return ViewRule(read_entry, entry, meta, shows)


@dataclass(frozen=True, slots=True)
class _WriteBack(Lowering):
    """The base, new where a view op with these static arguments shows it."""

    overload: OpOverload
    arguments: tuple[tuple[str, Any], ...]

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        return (WRITE_BACK[self.overload](*operands, *(value for _, value in self.arguments)),)

    def moving(self, op: Entry) -> tuple[Entry, int] | None:
        (base,) = op.metas
        found = run_of(self.overload, base.shape, dict(self.arguments)) if self.overload in MOVING_VIEWS else None
        if found is None:
            return None
        run, start = found
        write = Entry.of(op.name, _MovingWrite(run), op.metas, op.operands, numbers="i", statics=f"moving, {run}")
        return write, start


@dataclass(frozen=True, slots=True)
class _MovingWrite(Lowering):
    """A write through a select or slice with the position lifted."""

    run: Run

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        return (self.run.write(operands[0], operands[1], numbers[0]),)


def strided_rule(base: Meta, meta: Meta, shows: tuple[Shown, ...]) -> ViewRule:
    """`as_strided`: elements of the cell's memory, as the views so far show it, by stride and offset."""
    check_dense(base)
    key = (base, meta, shows)
    return _STRIDED.get(key) or _STRIDED.of(key, lambda: _new_strided_rule(*key))


def _new_strided_rule(base: Meta, meta: Meta, shows: tuple[Shown, ...]) -> ViewRule:
    strided = _Strided(base.strides, meta.shape, meta.strides, _begin(base, meta), shows)
    entry = Entry.of("aten.as_strided", strided, (meta.layout,), (base.layout,), statics=strided.text())
    return ViewRule(entry, None, meta, shows)


@dataclass(frozen=True, slots=True)
class _Strided(Lowering):
    """Elements of memory, as views show it, by their places; or memory with these written anew."""

    base_strides: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    shows: tuple[Shown, ...]
    writes: bool = False

    def text(self) -> str:
        return ", ".join(map(str, (self.shape, self.strides, self.offset, self.shows)))

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        layout = (self.base_strides, self.shape, self.strides, self.offset, self.shows)
        if self.writes:
            return (write_strided(operands[0], operands[1], *layout),)
        return (read_strided(operands[0], *layout),)


def refused_rule(meta: Meta, error: Exception) -> ViewRule:
    """A view that nobody can read: whoever does gets the error."""
    entry = Entry.of("aten.as_strided", _Refused(repr(error), error), (meta.layout,), ())
    return ViewRule(entry, None, meta)


@dataclass(frozen=True, slots=True)
class _Refused(Lowering):
    """What cannot be read, and why."""

    text: str
    error: Exception = field(compare=False)

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        raise self.error


def _strided_write(base: Meta, view: View) -> Entry:
    """A write into a view by the places in memory of its elements, whatever it is a view of."""
    check_dense(base)
    key = (base, view.meta, shown(view))
    return _STRIDED_WRITES.get(key) or _STRIDED_WRITES.of(key, lambda: _new_strided_write(*key))


def _new_strided_write(base: Meta, meta: Meta, shows: tuple[Shown, ...]) -> Entry:
    strided = _Strided(base.strides, meta.shape, meta.strides, _begin(base, meta), shows, writes=True)
    return Entry.of("spmd.write.strided", strided, (base,), (base, meta.layout), statics=strided.text())


def _begin(base: Meta, meta: Meta) -> int:
    """Where a view begins in its base's memory, in its own elements."""
    return meta.offset - base.offset * base.dtype.itemsize // meta.dtype.itemsize


# By the base's layout, the view's, and what the view shows of memory.
_Place = tuple[Meta, Meta, tuple[Shown, ...]]
_STRIDED: Interned[_Place, ViewRule] = Interned(4096)
_STRIDED_WRITES: Interned[_Place, Entry] = Interned(4096)
_REPEATS: Bounded[Meta, bool] = Bounded(4096)


def check_bounds(base: Meta, meta: Meta) -> None:
    """torch's meta device lets `as_strided` reach beyond the memory; every real device refuses."""
    reach = meta.offset + sum((size - 1) * stride for size, stride in zip(meta.shape, meta.strides, strict=True)) + 1
    width, whole = meta.dtype.itemsize, base.offset * base.dtype.itemsize + base.nbytes
    if meta.numel and (reach * width > whole or meta.offset * width < base.offset * base.dtype.itemsize):
        raise RuntimeError(
            f"setStorage: sizes {list(meta.shape)}, strides {list(meta.strides)}, storage offset {meta.offset}, and "
            f"itemsize {width} requiring a storage size of {reach * width} are out of bounds for storage of size "
            f"{whole}"
        )


def check_dense(base: Meta) -> None:
    """Strided access is by position in memory, so the base must fill its memory without gaps or overlaps."""
    step = 1
    for stride, size in sorted((s, d) for s, d in zip(base.strides, base.shape, strict=True) if d != 1):
        if stride != step and base.numel:
            raise NotImplementedError(
                f"as_strided or a write through a strided view of {base!r} with strides {base.strides}: the base has "
                "gaps or overlaps in memory; call .contiguous() on it first"
            )
        step *= size

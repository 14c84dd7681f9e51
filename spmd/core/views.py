"""Aliasing and write-back: a tensor is a chain of views over a cell. The only file that knows mutation."""

import weakref
from types import CodeType
from typing import Any

from .ir import Entry, Meta, Node, Value, results
from .ops.moving import Run, run_of
from .ops.shape import WRITE_BACK, read_strided, write_strided
from .pieces import cut_of, gather
from .sharding import Sharding
from .tensor import Cell, XlaTensor, mark_entry


class ViewRule:
    """How one kind of view is read from its parent and written back into it; `write` is None where only the memory
    layout says which elements it covers. meta: the view's, with the place in memory at which it begins."""

    __slots__ = ("meta", "read", "write")

    def __init__(self, read: Entry, write: Entry | None, meta: Meta):
        self.read = read
        self.write = write
        self.meta = meta


class View:
    """One tensor's place in the chain: its rule, the view it was taken from (None: the cell itself), the cached value.

    The cached value is good while its stamp is the cell's.
    """

    __slots__ = ("code", "instruction", "meta", "parent", "rule", "sharding", "stamp", "value")

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
        parent = None if self.parent is None or type(self.parent) is Use else self.parent.elsewhere()
        made = View(self.rule, parent, self.code, self.instruction)
        made.sharding = self.sharding
        return made


def read(tensor: XlaTensor) -> Value:
    """The tensor's current value; a view whose base has changed is replayed."""
    view = tensor._view
    return tensor._cell.value if view is None else read_view(view, tensor._cell)


def read_view(view: View, cell: Cell) -> Value:
    """The value of one view of a cell."""
    if view.stamp == cell.stamp:
        return view.value  # type: ignore[return-value]
    parent = view.parent
    base = cell.value if parent is None else read_use(parent) if type(parent) is Use else read_view(parent, cell)
    value = Node(view.rule.read, (base,), (), view.code, view.instruction)
    if view.sharding is not None:
        value = Node(mark_entry(view.meta.layout, view.sharding), (value,), (), view.code, view.instruction)
    view.value = value
    view.stamp = cell.stamp
    return value


def write(tensor: XlaTensor, value: Value, code: CodeType | None = None, instruction: int = 0) -> None:
    """Gives the tensor, and through its chain the cell, a new value."""
    cell, view = tensor._cell, tensor._view
    if view is None:
        cell.write(value)
        return
    new, link = value, view
    while link is not None and type(link) is not Use:
        if link.rule.write is None:
            new = Node(_strided_write(cell.meta, link.meta), (cell.value, new), (), code, instruction)
            break
        parent = link.parent
        base = cell.value if parent is None or type(parent) is Use else read_view(parent, cell)
        new = Node(link.rule.write, (base, new), (), code, instruction)
        link = link.parent
    cell.write(new)
    view.value, view.stamp = value, cell.stamp


def view_rule(overload: Any, read_entry: Entry, parent: Meta, arguments: dict[str, Any]) -> ViewRule:
    """The rule of a view op with these static arguments over a parent of this layout."""
    function = WRITE_BACK.get(overload)
    if function is None:
        return ViewRule(read_entry, None, read_entry.metas[0])

    def lower(operands: list, numbers: list) -> tuple:
        base, new = operands
        return (function(base, new, *arguments.values()),)

    entry = Entry(f"spmd.write.{read_entry.name}", lower, (parent,), statics=read_entry.statics)
    if read_entry.moving is not None:
        entry.moving = _moving_write(read_entry, run_of(overload, parent.shape, arguments), parent)
    return ViewRule(read_entry, entry, read_entry.metas[0])


def _moving_write(read_entry: Entry, found: tuple[Run, int] | None, parent: Meta) -> tuple[Entry, int]:
    """A write through a select or slice with the position lifted."""
    assert found is not None
    run, start = found
    entry = base_cache(parent).get(("moving", run))
    if entry is None:

        def lower(operands: list, numbers: list) -> tuple:
            return (run.write(operands[0], operands[1], numbers[0]),)

        entry = Entry(f"spmd.write.{read_entry.name}", lower, (parent,), numbers="i", statics=f"moving, {run}")
        base_cache(parent)["moving", run] = entry
    return entry, start


def strided_rule(base: Meta, meta: Meta) -> ViewRule:
    """`as_strided`: elements of the cell's memory by stride and offset."""
    check_dense(base)
    found = base_cache(base).get(("read", meta))
    if found is None:

        def lower(operands: list, numbers: list) -> tuple:
            return (read_strided(operands[0], base.strides, meta.shape, meta.strides, meta.offset - base.offset),)

        statics = f"{meta.shape}, {meta.strides}, {meta.offset}"
        entry = Entry("aten.as_strided", lower, (meta.layout,), statics=statics)
        found = base_cache(base)[("read", meta)] = ViewRule(entry, None, meta)
    return found


def _strided_write(base: Meta, meta: Meta) -> Entry:
    check_dense(base)
    found = base_cache(base).get(("write", meta))
    if found is None:

        def lower(operands: list, numbers: list) -> tuple:
            old, new = operands
            return (write_strided(old, new, base.strides, meta.shape, meta.strides, meta.offset - base.offset),)

        found = Entry("spmd.write.strided", lower, (base,), statics=f"{meta.shape}, {meta.strides}, {meta.offset}")
        base_cache(base)[("write", meta)] = found
    return found


class Use(View):
    """How forward and backward ops read a whole cell that is stored in another layout; writes go to the cell itself.

    active: set while ops outside backward read through it. Cells of one `group` are gathered by one op. All cells are
    held weakly: a cell holds its use.
    """

    __slots__ = ("active", "group", "owner")

    def __init__(self, cell: Cell, sharding: Sharding):
        super().__init__(ViewRule(mark_entry(cell.meta, sharding), None, cell.meta), None, None, 0)
        self.owner = weakref.ref(cell)
        self.active = False
        self.group: list[weakref.ref[Cell]] = []

    @property
    def cell(self) -> Cell:
        cell = self.owner()
        assert cell is not None, "a use is read through its cell"
        return cell


def read_use(use: Use) -> Value:
    """The cell's value in the layout of its use; gathered once for as long as the cell keeps its value."""
    cell = use.cell
    if use.stamp == cell.stamp:
        return use.value  # type: ignore[return-value]
    group = [member for ref in use.group if (member := ref()) is not None and member.use is not None]
    if len(group) < 2:
        return read_view(use, cell)
    node = Node(_gather_entry(group), tuple(member.value for member in group))
    for member, value in zip(group, results(node), strict=True):
        member.use.value, member.use.stamp = value, member.stamp
    return use.value  # type: ignore[return-value]


def _gather_entry(group: list[Cell]) -> Entry:
    """One all-gather for many small arrays."""
    parts = tuple((cell.meta, cell.sharding) for cell in group)
    found = _GATHERS.get(parts)
    if found is None:
        cuts = [cut for meta, sharding in parts if (cut := cut_of(meta, sharding)) is not None]  # all: see use_sharding
        metas = tuple(meta for meta, _ in parts)
        found = _GATHERS[parts] = Entry(
            "spmd.gather",
            lambda operands, numbers: tuple(gather(operands, cuts)),
            metas,
            statics=f"{len(metas)} arrays",
            sharding=group[0].use.rule.read.sharding,
        )
    return found


_GATHERS: dict[Any, Entry] = {}

_CACHES: dict[Meta, dict[Any, Any]] = {}


def base_cache(base: Meta) -> dict[Any, Any]:
    """Rules that depend on a base's memory layout."""
    return _CACHES.setdefault(base, {})


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

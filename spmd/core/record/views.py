"""Aliasing and write-back: a tensor is a chain of views over a storage.

The only file that knows mutation.
"""

import functools
from dataclasses import dataclass, field
from types import CodeType

import jax
from torch._ops import OpOverload

from ...ops.shape import DYNAMIC_START_VIEWS, WRITE_BACK, Write, run_of
from ...ops.strided import SIGNS, Shown, read_strided, repeats_memory, write_strided
from ..graph.graph import Value
from ..graph.meta import Meta
from ..graph.op import Arrays, Layouts, Lowering, OpSpec, starts
from ..sharding.value import Sharding
from .annotations import mark_op
from .lowerings import with_dynamic_start
from .overlap import fills_memory
from .overloads import Kwargs, TorchValue
from .record import at_once, record
from .storage import Storage, note_read
from .tensor import XlaTensor


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ViewRule:
    """The ops that read one kind of view from its parent and write it back; `write` is None where
    only the strides and offset say which elements it covers. meta: the view's, with its offset in
    memory. shown: the sign or dtype in which the view shows memory, where it is not the stored one
    (see `ops.strided.Shown`)."""

    read: OpSpec
    write: OpSpec | None
    meta: Meta
    shown: tuple[Shown, ...] = ()


class View:
    """One tensor's place in the chain: its rule, its parent (None: the storage itself), the cached
    value.

    The cached value is good while its stamp is the storage's; the next sync takes it away (see
    `storage.READ`).
    """

    __slots__ = ("code", "instruction", "meta", "parent", "rule", "sharding", "stamp", "value")

    # whether it is no view but the storage in another sharding: see `record.reads.Read`
    is_read = False

    def __init__(
        self, rule: ViewRule, parent: "View | None", code: CodeType | None, instruction: int
    ):
        self.rule = rule
        self.parent = parent
        self.meta = rule.meta
        self.code = code
        self.instruction = instruction
        self.value: Value | None = None
        self.stamp = -1
        self.sharding: Sharding | None = None

    def __deepcopy__(self, memo: object) -> None:
        """Returns None where code copies a tensor's attributes: see `Storage.__deepcopy__`."""

    def without_cache(self) -> "View":
        """Returns a copy of the chain of views without cached values, for another storage."""
        parent = None if self.parent is None or self.parent.is_read else self.parent.without_cache()
        result = View(self.rule, parent, self.code, self.instruction)
        result.sharding = self.sharding
        return result

    def value_of(self, storage: Storage) -> Value:
        """The view's value, recorded once until the base is written."""
        if self.stamp == storage.stamp:
            return self.value  # type: ignore[return-value]
        base = storage.value if self.parent is None else self.parent.value_of(storage)
        line = (self.code, self.instruction, -1)
        # The host itself takes parts of its lists of tokens: each length would be another program.
        host_lists = at_once.value
        value = (host_lists and host_lists.viewed(self.rule.read, base)) or record(
            self.rule.read, (base,), (), line
        )
        if self.sharding is not None:
            value = record(mark_op(self.meta.layout, self.sharding), (value,), (), line)
        self.keep(value, storage)
        return value

    def keep(self, value: Value, storage: Storage) -> None:
        """Caches the view's value until the next write of the storage."""
        self.value, self.stamp = value, storage.stamp
        note_read(self, storage)


def read(tensor: XlaTensor) -> Value:
    """The tensor's current value; a view whose base has changed is replayed."""
    view = tensor._view
    return tensor._storage.value if view is None else view.value_of(tensor._storage)


def write(
    tensor: XlaTensor, value: Value, code: CodeType | None = None, instruction: int = 0
) -> None:
    """Gives the tensor, and through its chain the storage, a new value."""
    storage, view = tensor._storage, tensor._view
    if view is None:
        storage.write(value)
        return
    base_value, link = value, view
    line = (code, instruction, -1)
    while link is not None and not link.is_read:
        if link.rule.write is None:
            # Into the storage at once: link by link, memory that the parent shows twice would be
            # written once with the new and once with the old value.
            base_value = record(
                _strided_write(storage.meta, view.meta, shown(view)),
                (storage.value, value),
                (),
                line,
            )
            break
        parent = link.parent
        base = storage.value if parent is None or parent.is_read else parent.value_of(storage)
        base_value = record(link.rule.write, (base, base_value), (), line)
        link = link.parent
    # The base first: the value cached below has its stamp.
    storage.write(base_value)
    # The next read returns the written value, unless several elements share memory.
    if view.sharding is None and not (link is view and repeats(view.meta)):
        view.keep(value, storage)


def shown(view: View | None) -> tuple[Shown, ...]:
    """Signs and dtypes, other than the stored ones, of a chain of views, in order."""
    signs: tuple[Shown, ...] = ()
    while view is not None:
        signs = view.rule.shown + signs
        view = view.parent
    return signs


@functools.lru_cache(4096)
def repeats(meta: Meta) -> bool:
    """True if several elements share memory."""
    return repeats_memory(meta.shape, meta.strides)


def view_rule(overload: OpOverload, read_op: OpSpec, parent: Meta, arguments: Kwargs) -> ViewRule:
    """The rule of a view op with these static arguments over a parent with this meta."""
    function, meta = WRITE_BACK.get(overload), read_op.metas[0]
    dtype_shown = (meta.struct.dtype,) if meta.dtype is not parent.dtype else ()
    shows: tuple[Shown, ...] = (SIGNS[overload],) if overload in SIGNS else dtype_shown
    # Without a write-back rule the elements are known by strides and offset alone.
    if function is None:
        return ViewRule(read_op, None, meta, shows)
    write_back = _WriteBack(overload, tuple(arguments.items()))
    name = f"spmd.write.{read_op.name}"
    op = OpSpec.of(name, write_back, (parent,), (parent, meta), statics=read_op.statics)
    return ViewRule(read_op, op, meta, shows)


@dataclass(frozen=True, slots=True)
class _WriteBack(Lowering):
    """The base with the elements of a view replaced."""

    overload: OpOverload
    arguments: tuple[tuple[str, TorchValue], ...]

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        return (WRITE_BACK[self.overload](*operands, *(value for _, value in self.arguments)),)


@starts.register
def _start(lowering: _WriteBack, op: OpSpec) -> tuple[OpSpec, int] | None:
    """`with_dynamic_start` of a write."""
    run_and_start = (
        run_of(lowering.overload, op.metas[0].shape, dict(lowering.arguments))
        if lowering.overload in DYNAMIC_START_VIEWS
        else None
    )
    move_and_start = run_and_start and (Write(run_and_start[0]), run_and_start[1])
    return with_dynamic_start(op, move_and_start, "i")


@functools.lru_cache(4096)
def strided_rule(base: Meta, meta: Meta, shows: tuple[Shown, ...]) -> ViewRule:
    """The rule of `as_strided`: elements of the storage's memory, as the views so far show it, by
    stride and offset."""
    strided = _Strided(base.strides, meta.shape, meta.strides, _offset_in_base(base, meta), shows)
    op = OpSpec.of(
        "aten.as_strided", strided, (meta.layout,), (base.layout,), statics=strided.text()
    )
    return ViewRule(op, None, meta, shows)


@dataclass(frozen=True, slots=True)
class _Strided(Lowering):
    """Elements of memory, as views show it, by strides and offset; with `writes`, the memory with
    these replaced."""

    base_strides: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    shows: tuple[Shown, ...]
    writes: bool = False

    def text(self) -> str:
        return ", ".join(map(str, (self.shape, self.strides, self.offset, self.shows)))

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        layout = (self.base_strides, self.shape, self.strides, self.offset, self.shows)
        if self.writes:
            return (write_strided(operands[0], operands[1], *layout),)
        return (read_strided(operands[0], *layout),)


def refused_rule(meta: Meta, error: Exception) -> ViewRule:
    """The rule of an unreadable view: a read raises the error."""
    op = OpSpec.of("aten.as_strided", _Refused(repr(error), error), (meta.layout,), ())
    return ViewRule(op, None, meta)


@dataclass(frozen=True, slots=True)
class _Refused(Lowering):
    """Raises the error of an unreadable view."""

    text: str
    error: Exception = field(compare=False)

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        raise self.error


@functools.lru_cache(4096)
def _strided_write(base: Meta, meta: Meta, shows: tuple[Shown, ...]) -> OpSpec:
    """The op that writes a view's elements by their places in memory, whatever it is a view of."""
    strided = _Strided(
        base.strides, meta.shape, meta.strides, _offset_in_base(base, meta), shows, writes=True
    )
    return OpSpec.of(
        "spmd.write.strided", strided, (base,), (base, meta.layout), statics=strided.text()
    )


def _offset_in_base(base: Meta, meta: Meta) -> int:
    """The offset of a view in its base's memory, in elements of the view. Raises
    NotImplementedError unless the base fills its memory without gaps or overlaps: strided access is
    by position in memory."""
    # Here and not in the lowering: the error is the user's line's, and not the sync's.
    if not fills_memory(base):
        raise NotImplementedError(
            f"as_strided or a write through a strided view of {base!r} with strides "
            f"{base.strides}: the base has gaps or overlaps in memory; call .contiguous() on it "
            "first"
        )
    return meta.offset - base.offset * base.dtype.itemsize // meta.dtype.itemsize

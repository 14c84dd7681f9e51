"""The dtype in which a gradient is summed over devices: what makes it is recorded anew, asked in that dtype.

A partitioner reduces a sum where it stands, over the batch say, in the dtype of the op that sums: a cast behind it
comes too late. So the way back from the gradient leads to that op, through casts, annotations, views and sums of
several uses.
"""

import warnings
from collections.abc import Collection
from typing import Any

import torch

from ..ir.graph import Node, Pick, Value, results
from ..ir.meta import Meta, intern_meta
from ..ir.op import Entry, Slot
from ..lazy.annotate import mark_entry
from ..lazy.cell import LOCK, Cell
from ..lazy.record import Place, record
from ..lazy.tensor import XlaTensor, wrap
from ..lazy.views import read as value_of
from ..ops.partial import SUMS, WAYS
from .lowerings import Call, fill

_warned: set[tuple[str, torch.dtype]] = set()


def reduce_in(gradient: XlaTensor, dtype: torch.dtype) -> None:
    """Has the sum over devices that a gradient is be taken in a dtype; the gradient keeps its own, and its place."""
    with LOCK:
        value = value_of(gradient)
        asked = _Way(dtype).to(value)
        if asked is value:
            return
        made = _cast(asked, value.meta.dtype)
        if gradient._view is None:
            gradient._cell.write(made)
        else:  # what it was a view of is not asked
            gradient._cell, gradient._view = Cell(made, gradient._meta), None


class _Way:
    """The way back from one gradient."""

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype

    def to(self, value: Value) -> Value:
        """The value with its sums in the dtype, and perhaps in that dtype itself; the same object where nothing is to
        be done."""
        node = value.node if type(value) is Pick else value
        if type(node) is not Node or not value.meta.dtype.is_floating_point:
            return value  # data: its sum is over
        name = node.entry.name.partition(":")[0]
        if name == "mark_sharding":
            return self._marked(node)
        lowering = node.entry.lowering
        sums = _sums(node.entry, name)
        index = value.index if type(value) is Pick else 0
        if index in sums:
            return value if value.meta.dtype is self.dtype else self._asked(node, index, sums)
        if name in WAYS and isinstance(lowering, Call) and not lowering.opaque:
            return self._again(node, value, lowering)
        if value.meta.dtype is not self.dtype:
            _warn(name, value.meta.dtype, self.dtype)
        return value

    def _marked(self, node: Node) -> Value:
        (inner,) = node.operands
        asked = self.to(inner)
        if asked is inner:
            return node
        lowering: Any = node.entry.lowering
        return record(mark_entry(asked.meta, lowering.sharding, lowering.via), (asked,), (), _place(node))

    def _asked(self, node: Node, index: int, sums: Collection[int]) -> Value:
        """The op that sums, with the results that are sums promised in the dtype: its rule does as is promised."""
        op = node.entry
        metas = tuple(_in(meta, self.dtype) if place in sums else meta for place, meta in enumerate(op.metas))
        entry = Entry.of(
            op.name, op.lowering, metas, op.operands, numbers=op.numbers, statics=f"{op.statics}, sum={self.dtype}",
            layout=op.layout,
        )  # fmt: skip
        return results(record(entry, node.operands, node.numbers, _place(node)))[index]

    def _again(self, node: Node, value: Value, lowering: Call) -> Value:
        """The op on operands whose sums are in the dtype; of a cast, what was cast."""
        asked = [self.to(operand) for operand in node.operands]
        if all(one is other for one, other in zip(asked, node.operands, strict=True)):
            return value
        if node.entry.name == "aten._to_copy":
            return asked[0]
        tensors = [_tensor(one) for one in asked]
        given = {
            name: fill(said, lambda index: tensors[index], lambda index: node.numbers[index])
            for name, said in lowering.arguments
        }
        return value_of(lowering.overload(**given))


def _sums(op: Entry, name: str) -> Collection[int]:
    """Which of an op's results are sums that it can be asked for in another dtype; those it does not make count not."""
    sums = SUMS.get(name, ())
    if op.layout is None:
        return sums
    made = [place for place, part in enumerate(op.layout) if part is Slot]
    return [made.index(place) for place in sums if place in made]


def _in(meta: Meta, dtype: torch.dtype) -> Meta:
    return intern_meta(meta.shape, dtype, meta.strides, meta.offset)


def _cast(value: Value, dtype: torch.dtype) -> Value:
    if value.meta.dtype is dtype:
        return value
    made = _tensor(value).to(dtype)
    assert isinstance(made, XlaTensor), "a cast stays on the device"
    return value_of(made)


def _tensor(value: Value) -> XlaTensor:
    return wrap(value.meta, Cell(value, value.meta))


def _place(node: Node) -> Place:
    return node.code, node.instruction, node.sequence


def _warn(name: str, computed: torch.dtype, asked: torch.dtype) -> None:
    if (name, asked) not in _warned:
        _warned.add((name, asked))
        warnings.warn(
            f"a gradient is to be reduced in {asked}, but {name} makes it in {computed} and cannot be asked for "
            "another dtype: it is reduced in that",
            UserWarning,
            stacklevel=2,
        )

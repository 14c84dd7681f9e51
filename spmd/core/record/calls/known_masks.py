"""Attention masks with their numbers: the width of a window, the length of a document.

A program takes the numbers of its ops as arguments. Those of a mask decide the blocks of scores
that attention computes, so they are a part of the program.
"""

# Why an op of its own behind the mask, and no static numbers in the mask's ops: whether a mask is
# for attention is not known before attention reads it.

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ....ops.attention import is_long
from ...base.tables import Bounded
from ...graph.graph import Node, Region, Value, origin, pack_numbers, value_name
from ...graph.op import Arrays, Layouts, Lowering, OpSpec
from ...graph.store import DeviceData
from ...lower.lower import Values, known_in, lower_nodes, program_value
from ...lower.stack_rows import plain
from ...passes.equal_masks import KNOWN_MASK
from ..reads import operand
from ..record import graph_task, record_here
from ..storage import LOCK, Storage
from ..tensor import XlaTensor, tensors_of
from ..threads import enter_thread

# The ops from positions to a mask: factories, elementwise ops, changes of shape, and lookups.
_OPS = frozenset((
    "arange", "fill_", "full", "full_like", "new_full", "zeros", "zeros_like", "new_zeros", "ones",
    "ones_like", "new_ones", "scalar_tensor", "eq", "ne", "lt", "le", "gt", "ge", "add", "sub",
    "rsub", "mul", "div", "floor_divide", "remainder", "fmod", "neg", "abs", "sign", "sgn",
    "floor", "minimum", "maximum", "clamp", "clamp_min", "clamp_max", "where", "masked_fill",
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "logical_and", "logical_or",
    "logical_xor", "logical_not", "__and__", "__or__", "__xor__", "tril", "triu",
    "bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__", "_to_copy", "clone",
    "alias", "detach", "lift_fresh_copy", "expand", "view", "_unsafe_view", "unsqueeze",
    "squeeze", "permute", "transpose", "t", "slice", "select", "index", "cat", "cumsum", "any",
    "all", "sum", "isin", "searchsorted", "bucketize",
))  # fmt: skip
# More ops than these are no mask of positions.
_MOST = 256


@dataclass(frozen=True, slots=True)
class KnownMask(Lowering):
    """A mask: its first operand, computed of the other operands again, with these numbers."""

    body: Region
    numbers: tuple[float | int, ...]

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        values: Values = {
            data: (array,) for data, array in zip(self.body.inputs, operands[1:], strict=True)
        }
        shardings = dict(zip(self.body.inputs, layouts[1:], strict=True))
        floats, integers = pack_numbers(self.body.nodes)
        vectors = np.array(floats, np.float64), np.array(integers, np.int64)
        with known_in(self.body.nodes, {}):
            lower_nodes(self.body.nodes, values, vectors, shardings)  # type: ignore[arg-type]
        return (plain(program_value(self.body.roots[0], values)),)


# Masks of more numbers than these, as of the parts of a prompt, are one program.
_MOST_VARIANTS = 4
_variants: Bounded[str, set[tuple[float | int, ...]]] = Bounded(256)


class _Known(NamedTuple):
    """What is known of a mask.

    storage, version, stamp, value: the mask's, when it was read. op: the op behind it; None: it has
    no numbers, or other ones each time. outside: the values that the op reads beside the mask.
    """

    storage: Storage
    version: int
    stamp: int
    value: Value
    op: OpSpec | None = None
    outside: Sequence[Value] = ()

    def is_of(self, mask: XlaTensor, value: Value) -> bool:
        """True if the mask was not written since: its storage has its value, or that of a run."""
        storage = mask._storage
        if self.storage is not storage or self.version != _version(mask):
            return False
        is_computed = (
            storage.stamp == self.stamp + 1
            and type(storage.value) is DeviceData
            and origin(self.value) is not None
            and not self.outside
            and not mask.is_inference()
        )
        return is_computed or (storage.stamp == self.stamp and self.value is value)


def _version(mask: XlaTensor) -> int:
    """The number of writes that torch has seen; of a tensor of inference mode it sees none."""
    return -1 if mask.is_inference() else mask._version


# The op and not its result: that would be a result of each program while the mask lives. It is
# known of a mask that exists, too, as long as it is not written.
_known = WeakTensorKeyDictionary()


def known_mask(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> Any:
    """The mask of long attention with its numbers; another as it is."""
    if type(mask) is not XlaTensor or mask.dim() < 2:
        return mask
    if mask.shape[-2:] != (query.shape[-2], key.shape[-2]) or not is_long(query, key):
        return mask
    return _WithNumbers.apply(mask) if mask.requires_grad else _with_numbers(mask)


class _WithNumbers(torch.autograd.Function):
    """A mask with its numbers: its gradient is that of the mask."""

    @staticmethod
    def forward(ctx: Any, mask: XlaTensor) -> torch.Tensor:
        known = _with_numbers(mask)
        return mask.view_as(mask) if known is mask else known

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> Any:
        return arriving[0]


def _with_numbers(mask: XlaTensor) -> torch.Tensor:
    enter_thread()
    with LOCK:
        value, storage = operand(mask), mask._storage
        known: _Known | None = _known.get(mask)
        if known is None or not known.is_of(mask, value):
            known = _Known(storage, _version(mask), storage.stamp, value, *_op_of(value))
        elif known.stamp != storage.stamp:
            known = known._replace(stamp=storage.stamp, value=value)
        _known[mask] = known
        if known.op is None:
            return mask
        operands = [value, *known.outside]
        return tensors_of(record_here(known.op, operands, (), sys._getframe(2), graph_task()))[0]


def _op_of(value: Value) -> tuple[OpSpec, Sequence[Value]] | tuple[()]:
    cone, outside = _cone(value)
    if not any(node.numbers for node in cone):
        return ()
    body = Region.of([value], outside, cone)
    numbers = tuple(number for node in cone for number in node.numbers)
    variants = {numbers, *(_variants.get(body.encoded) or ())}
    if len(variants) > _MOST_VARIANTS:
        return ()
    _variants.keep(body.encoded, variants)
    metas = tuple(operand.meta for operand in (value, *outside))
    return OpSpec.of(KNOWN_MASK, KnownMask(body, numbers), metas[:1], metas), outside


def _cone(value: Value) -> tuple[list[Node], list[Value]]:
    """The ops from positions to a mask, as recorded, and the values that they read."""
    nodes: dict[Node, None] = {}
    outside: dict[object, Value] = {}
    stack = [value]
    while stack:
        source = stack.pop()
        node = origin(source)
        if node is None or not _is_of_mask(node) or len(nodes) == _MOST:
            outside.setdefault(value_name(source), source)
        elif node not in nodes:
            nodes[node] = None
            stack.extend(node.operands)
    return sorted(nodes, key=lambda node: node.serial), list(outside.values())


def _is_of_mask(node: Node) -> bool:
    parts = node.op.name.split(".")
    return parts[0] == "aten" and parts[1] in _OPS and len(node.op.metas) == 1

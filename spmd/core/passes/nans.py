"""The first NaN of a program: one more result flags the values that hold NaN or infinity; the op is found from it."""

import dataclasses
import math
import re
import threading
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..ir.graph import Graph, Node, Value, results, value_name
from ..ir.meta import Meta, dense_meta
from ..ir.op import Arrays, Entry, Layouts, Lowering
from ..ir.source import describe
from ..tables import Interned

NAN, INFINITE = 1, 2
_WRITTEN = re.compile(r"\b(inf|nan)\b")

_thread = threading.local()  # .kinds: what this thread's guard looks for; absent or 0 outside a guard
_CHECKS: Interned[tuple[Meta, ...], Entry] = Interned(64)


def looked_for() -> int:
    """What the calling thread's barriers look for: NAN, NAN | INFINITE, or 0 for nothing."""
    return getattr(_thread, "kinds", 0)


def look_for(kinds: int) -> None:
    """Sets what `looked_for` answers in this thread."""
    _thread.kinds = kinds


class NanError(FloatingPointError):
    """An op made a NaN or an infinity; the message names it and the user's line, `node` is the op."""

    def __init__(self, message: str, node: Node):
        super().__init__(message)
        self.node = node


def watch(graph: Graph) -> tuple[Graph, list[Value]]:
    """The graph with one more root, a uint8 per returned value: bit 1 where it holds NaN, bit 2 where an infinity."""
    values: list[Value] = [leaf for leaf in graph.leaves if _can_hold(leaf.meta)]
    for node in graph.nodes:
        values += [value for value in results(node) if _can_hold(value.meta)]
    if not values:
        return graph, []
    metas = tuple(value.meta for value in values)
    flags = dense_meta((len(metas),), torch.uint8)
    check = Node(_CHECKS.of(metas, lambda: Entry.of("spmd.nan_check", _Flags(), (flags,), metas)), values)
    return (
        dataclasses.replace(
            graph, nodes=[*graph.nodes, check], roots=[*graph.roots, check], pinned=[*graph.pinned, graph.mesh]
        ),
        values,
    )


def blame(graph: Graph, values: list[Value], flags: np.ndarray, kinds: int) -> None:
    """Raises NanError for the first op that made a NaN (or an infinity) from operands and numbers that held none."""
    held = {value_name(value): int(flag) for value, flag in zip(values, flags, strict=True)}
    for node in graph.nodes:
        found = given = 0
        for value in results(node):
            found |= held.get(value_name(value), 0)
        if not found & kinds:
            continue
        for operand in node.operands:
            given |= held.get(value_name(operand), 0)
        given |= _written(node)
        if found & NAN and not given & NAN:
            raise NanError(_message(node, "NaN"), node)
        if found & kinds & INFINITE and not given:
            raise NanError(_message(node, "infinity"), node)


def _message(node: Node, kind: str) -> str:
    return (
        f"nan_guard: the first {kind} was made by {describe(node)}, from operands without one. Nothing that was stored "
        "is overwritten: tensors that had data before this program still have it."
    )


def _can_hold(meta: Meta) -> bool:
    return bool(meta.numel) and (meta.dtype.is_floating_point or meta.dtype.is_complex)


def _written(node: Node) -> int:
    """What the user's own numbers hold: a mask filled with -inf is no fault of the op."""
    kinds = 0
    for number in node.numbers:
        kinds |= NAN if math.isnan(number) else INFINITE if math.isinf(number) else 0
    for word in _WRITTEN.findall(f"{node.entry.statics} {node.entry.constant}"):
        kinds |= NAN if word == "nan" else INFINITE
    return kinds


@dataclass(frozen=True, slots=True)
class _Flags(Lowering):
    """What each operand holds, in bits."""

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        return (jnp.stack([_flag(operand) for operand in operands]).astype(np.uint8),)


def _flag(array: jax.Array) -> jax.Array:
    wide = array if array.dtype.itemsize > 1 else array.astype(np.float32)  # fp8
    return jnp.any(jnp.isnan(wide)) * NAN + jnp.any(jnp.isinf(wide)) * INFINITE

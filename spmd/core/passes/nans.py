"""The first NaN of a program: one more result flags the values that hold NaN or infinity. The op that made one is found
from it, or what brought one in."""

import dataclasses
import functools
import math
import operator
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..ir.graph import Graph, Leaf, Node, Value, origin, results, value_name
from ..ir.meta import Meta, dense_meta
from ..ir.op import Arrays, Entry, Layouts, Lowering
from ..ir.source import Line, describe
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
    """An op made a NaN or an infinity, or one came in; the message names it and the user's line. `value`: the op, or
    the data that held it."""

    def __init__(self, message: str, value: Node | Leaf):
        super().__init__(message)
        self.value = value


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


def blame(graph: Graph, values: list[Value], flags: np.ndarray, kinds: int, targets: Sequence[Any]) -> None:
    """Raises NanError for the first op that made a NaN (or an infinity) from operands and numbers that held none.

    Else for what brought one in, where it does harm: a NaN of the data that reaches a result or is cast to an integer;
    and whatever reaches a trained value that is overwritten, numbers of the user's among it. An infinity does none in
    other results: masks have them. targets: the cells that take the results.
    """
    held = _Held({value_name(value): int(flag) for value, flag in zip(values, flags, strict=True)})
    for node in graph.nodes:
        found, given = held.of(results(node)), held.of(node.operands) | _written(node)
        if found & kinds & NAN and not given & NAN:
            raise NanError(_made(node, "NaN") + (held.origin(node, INFINITE) if given else "") + _KEPT, node)
        if found & kinds & INFINITE and not given:
            raise NanError(_made(node, "infinity") + _KEPT, node)
        if _is_cast_to_integer(node):
            _blame_what_came_in(node, held, kinds)
    for root, cell in zip(graph.roots, targets, strict=True):
        maker = origin(root)
        found = held.of((root,)) & kinds
        if maker is not None and found:
            _blame_what_came_in(maker, held, found, cell)


_KEPT = ". Nothing that was stored is overwritten: tensors that had data before this program still have it."


@dataclass(frozen=True, slots=True)
class _Held:
    """The flags of each value of a program, by its name."""

    flags: dict[Any, int]

    def of(self, values: Iterable[Value]) -> int:
        """The flags of these values together."""
        return functools.reduce(operator.or_, (self.flags.get(value_name(value), 0) for value in values), 0)

    def path(self, node: Node, kind: int) -> tuple[list[Node], Node | Leaf]:
        """The ops through which a NaN or an infinity came to an op, the last first, and what brought it: data, or the
        op whose own numbers have it."""
        nodes = [node]
        while True:
            value = next((value for value in nodes[-1].operands if self.of((value,)) & kind), None)
            if value is None:
                return nodes, nodes[-1]
            if isinstance(value, Leaf):
                return nodes, value
            nodes.append(origin(value))  # type: ignore[arg-type]  # only a leaf has none

    def origin(self, node: Node, kind: int) -> str:
        """The origin of a NaN or an infinity that reached an op, in words."""
        return f"; {_NAMES[kind]} reached it from {_brought(self.path(node, kind)[1])}"


_NAMES = {NAN: "a NaN", INFINITE: "an infinity"}


def _blame_what_came_in(node: Node, held: _Held, kinds: int, target: Any = None) -> None:
    """Raises NanError for what an op has got from data, or from the user's numbers. target: the cell that takes its
    result; None: the op makes something else of it."""
    for kind in (NAN, INFINITE):
        if not kinds & kind or not (target is not None or held.of(node.operands) & kind):
            continue
        path, source = held.path(node, kind)
        is_trained = target is not None and _is_trained(target, path)
        is_harmful = target is None or (isinstance(source, Leaf) and kind is NAN)
        if is_trained or is_harmful:
            said = f"nan_guard: {_NAMES[kind]} came in by {_brought(source)}; it reached {describe(node)}"
            raise NanError(said + _KEPT, source)


def _is_trained(target: Any, path: Sequence[Node]) -> bool:
    """True for a value that is overwritten and that training changes: a parameter, or one that a gradient reached."""
    is_overwritten = target.data is not None or bool(target.past)
    return is_overwritten and (target.is_parameter or any(node.sequence >= 0 for node in path))


def _made(node: Node, kind: str) -> str:
    return f"nan_guard: the first {kind} was made by {describe(node)}, from operands without one"


def _brought(source: Node | Leaf) -> str:
    """The origin of a NaN or an infinity, and its line, in words."""
    if isinstance(source, Node):
        return f"a number in {describe(source)}"
    cell = source.holder() if source.holder is not None else None
    role = "an input" if cell is None or not cell.is_state else "a parameter" if cell.is_parameter else "a buffer"
    maker = source.maker() if source.maker is not None else None
    if isinstance(source.source, tuple):
        where = f"whose data came at {Line(*source.source)}"
    elif maker is not None and source.source is not None:
        place = maker.made_by[source.source]
        where = f"made by {maker.entries[place].name}, {maker.lines[place]}"
    else:
        where = "of an earlier program"
    return f"{role}, {source.meta!r}, {where}"


# What gives its operand's values in another dtype, or their sum; a NaN or an infinity as an integer is any number.
_CASTS = frozenset({
    "aten._to_copy", "aten.copy_", "aten.copy", "aten.fill_", "aten.fill", "aten.sum", "aten.nansum", "aten.prod",
    "aten.cumsum", "aten.cumprod",
})  # fmt: skip


def _is_cast_to_integer(node: Node) -> bool:
    op = ".".join(node.entry.name.split(".")[:2])  # of whatever overload
    return op in _CASTS and is_integer(node.entry.metas[0].dtype)


def is_integer(dtype: torch.dtype) -> bool:
    """True for a dtype that has neither NaN nor infinity, and no one value that a cast gives for them."""
    return dtype is not torch.bool and not dtype.is_floating_point and not dtype.is_complex


def check_cast(source: torch.Tensor, dtype: torch.dtype) -> None:
    """Raises FloatingPointError for a NaN or an infinity of CPU data that the host casts to integers for the device."""
    kinds = looked_for()
    if kinds and is_integer(dtype) and not is_integer(source.dtype):
        for kind, found in ((NAN, source.isnan()), (INFINITE, source.isinf())):
            if kinds & kind and found.any():
                said = f"nan_guard: {_NAMES[kind]} came in by CPU data that is cast to {dtype}"
                raise FloatingPointError(said + _KEPT)


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

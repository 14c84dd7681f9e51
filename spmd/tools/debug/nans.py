"""The first NaN of a program: one more result flags the values that hold NaN or infinity. From the
flags follows the op that made one, or the input that brought one in."""

import dataclasses
import functools
import math
import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ...core import DeviceData, GuardError, Meta, dense_meta, dtypes
from ...core.extend import (
    Arrays,
    Graph,
    Interned,
    Layouts,
    Line,
    Lowering,
    Node,
    OpSpec,
    Value,
    user_lines,
    walks,
)

NAN, INFINITE = 1, 2
_WRITTEN = re.compile(r"\b(inf|nan)\b")


_CHECKS: Interned[tuple[Meta, ...], OpSpec] = Interned(64)


class NanError(GuardError):
    """Raised where an op made a NaN or an infinity, or where an input had one; the message names it
    and the user's line."""


@dataclass(frozen=True, slots=True)
class NanGuard:
    """The guard of a thread's programs. kinds: what it looks for, NAN or NAN | INFINITE."""

    kinds: int

    def watched(self, graph: Graph) -> tuple[Graph, list[Value]]:
        """Returns the graph with one more root, and the values that it flags: a uint8 each, bit 1
        for NaN, bit 2 for infinity."""
        values: list[Value] = [
            device_data for device_data in graph.inputs if _can_hold(device_data.meta)
        ]
        for node in graph.nodes:
            values += [value for value in walks.results(node) if _can_hold(value.meta)]
        if not values:
            return graph, []
        metas = tuple(value.meta for value in values)
        flags = dense_meta((len(metas),), torch.uint8)
        check = Node(
            _CHECKS.of(metas, lambda: OpSpec.of("spmd.nan_check", _Flags(), (flags,), metas)),
            values,
        )
        nodes, roots, pinned = (
            [*graph.nodes, check],
            [*graph.roots, check],
            [*graph.pinned, graph.mesh],
        )
        return dataclasses.replace(graph, nodes=nodes, roots=roots, pinned=pinned), values

    def look(
        self, graph: Graph, values: list[Value], flags: np.ndarray, targets: Sequence[Any]
    ) -> None:
        """Raises NanError for the first op that made a NaN (or an infinity) from operands and
        numbers that held none.

        Else for an input that brought one in, where it does harm: a NaN of the data that reaches a
        result or is cast to an integer; and any NaN or infinity that reaches a trained value that
        is overwritten, from numbers of the user's as well. An infinity does none in other results:
        masks have them. targets: the storages that take the results.
        """
        kinds = self.kinds
        value_flags = _Held(
            {walks.value_name(value): int(flag) for value, flag in zip(values, flags, strict=True)}
        )
        for node in graph.nodes:
            result_flags, operand_flags = (
                value_flags.of(walks.results(node)),
                value_flags.of(node.operands) | _written(node),
            )
            if result_flags & kinds & NAN and not operand_flags & NAN:
                reached = value_flags.origin(node, INFINITE) if operand_flags else ""
                raise NanError(_made(node, "NaN") + reached + _KEPT, node)
            if result_flags & kinds & INFINITE and not operand_flags:
                raise NanError(_made(node, "infinity") + _KEPT, node)
            if _is_cast_to_integer(node):
                _blame_what_came_in(node, value_flags, kinds)
        for root, storage in zip(graph.roots, targets, strict=True):
            maker = walks.origin(root)
            result_flags = value_flags.of((root,)) & kinds
            if maker is not None and result_flags:
                _blame_what_came_in(maker, value_flags, result_flags, storage)

    def check_cast(self, source: torch.Tensor, dtype: torch.dtype) -> None:
        """Raises FloatingPointError for a NaN or an infinity of CPU data that the host casts to
        integers for the device."""
        if dtypes.is_integer(dtype) and not dtypes.is_integer(source.dtype):
            for kind, is_kind in ((NAN, source.isnan()), (INFINITE, source.isinf())):
                if self.kinds & kind and is_kind.any():
                    message = (
                        f"nan_guard: {_NAMES[kind]} came in by CPU data that is cast to {dtype}"
                    )
                    raise FloatingPointError(message + _KEPT)


_KEPT = (
    ". Nothing that was stored is overwritten: tensors that had data before this program still "
    "have it."
)


@dataclass(frozen=True, slots=True)
class _Held:
    """The flags of each value of a program, by its name."""

    flags: dict[object, int]

    def of(self, values: Iterable[Value]) -> int:
        """Returns the flags of these values together."""
        return functools.reduce(
            operator.or_, (self.flags.get(walks.value_name(value), 0) for value in values), 0
        )

    def path(self, node: Node, kind: int) -> tuple[list[Node], Node | DeviceData]:
        """Returns the ops through which a NaN or an infinity reached an op, the last first, and its
        source: data, or the op whose own numbers have it."""
        nodes = [node]
        while True:
            value = next((value for value in nodes[-1].operands if self.of((value,)) & kind), None)
            if value is None:
                return nodes, nodes[-1]
            if isinstance(value, DeviceData):
                return nodes, value
            nodes.append(walks.origin(value))  # type: ignore[arg-type]  # only device data has none

    def origin(self, node: Node, kind: int) -> str:
        """Returns the source of a NaN or an infinity that reached an op, in words."""
        return f"; {_NAMES[kind]} reached it from {_brought(self.path(node, kind)[1])}"


_NAMES = {NAN: "a NaN", INFINITE: "an infinity"}


def _blame_what_came_in(node: Node, value_flags: _Held, kinds: int, target: Any = None) -> None:
    """Raises NanError for an op whose NaN or infinity is from data, or from the user's numbers.
    target: the storage that takes its result; None: the op casts it to integers."""
    for kind in (NAN, INFINITE):
        if not kinds & kind or not (target is not None or value_flags.of(node.operands) & kind):
            continue
        path, source = value_flags.path(node, kind)
        is_trained = target is not None and _is_trained(target, path)
        is_harmful = target is None or (isinstance(source, DeviceData) and kind is NAN)
        if is_trained or is_harmful:
            message = (
                f"nan_guard: {_NAMES[kind]} came in by {_brought(source)}; it reached "
                f"{user_lines.describe(node)}"
            )
            raise NanError(message + _KEPT, source)


def _is_trained(target: Any, path: Sequence[Node]) -> bool:
    """True for a value that is overwritten and that training changes: a parameter, or one that a
    gradient reached."""
    is_overwritten = target.data is not None or bool(target.past)
    return is_overwritten and (target.is_parameter or any(node.sequence >= 0 for node in path))


def _made(node: Node, kind: str) -> str:
    return (
        f"nan_guard: the first {kind} was made by {user_lines.describe(node)}, from operands "
        "without one"
    )


def _brought(source: Node | DeviceData) -> str:
    """Returns the source of a NaN or an infinity, and its line, in words."""
    if isinstance(source, Node):
        return f"a number in {user_lines.describe(source)}"
    storage = source.holder() if source.holder is not None else None
    role = (
        "an input"
        if storage is None or not storage.is_state
        else "a parameter"
        if storage.is_parameter
        else "a buffer"
    )
    maker = source.maker() if source.maker is not None else None
    if isinstance(source.source, tuple):
        where = f"whose data came at {Line(*source.source)}"
    elif maker is not None and source.source is not None:
        index = maker.made_by[source.source]
        where = f"made by {maker.entries[index].name}, {maker.lines[index]}"
    else:
        where = "of an earlier program"
    return f"{role}, {source.meta!r}, {where}"


# Ops that return their operand's values in another dtype, or their sum; a NaN or an infinity
# becomes any integer.
_CASTS = frozenset(
    {
        "aten._to_copy",
        "aten.copy_",
        "aten.copy",
        "aten.fill_",
        "aten.fill",
        "aten.sum",
        "aten.prod",
        "aten.cumsum",
        "aten.cumprod",
    }
)


def _is_cast_to_integer(node: Node) -> bool:
    op = ".".join(node.op.name.split(".")[:2])  # of any overload
    return op in _CASTS and dtypes.is_integer(node.op.metas[0].dtype)


def _can_hold(meta: Meta) -> bool:
    return bool(meta.numel) and (meta.dtype.is_floating_point or meta.dtype.is_complex)


def _written(node: Node) -> int:
    """Returns the flags of the user's own numbers: a mask filled with -inf is no fault of the
    op."""
    kinds = 0
    for number in node.numbers:
        kinds |= NAN if math.isnan(number) else INFINITE if math.isinf(number) else 0
    for word in _WRITTEN.findall(f"{node.op.statics} {node.op.constant}"):
        kinds |= NAN if word == "nan" else INFINITE
    return kinds


@dataclass(frozen=True, slots=True)
class _Flags(Lowering):
    """Computes the flags of each operand."""

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        return (jnp.stack([_flag(operand) for operand in operands]).astype(np.uint8),)


def _flag(array: jax.Array) -> jax.Array:
    wide = array if array.dtype.itemsize > 1 else array.astype(np.float32)  # fp8
    return jnp.any(jnp.isnan(wide)) * NAN + jnp.any(jnp.isinf(wide)) * INFINITE

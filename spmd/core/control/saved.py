"""The values that a forward body saves for its backward body, per iteration, and the values that backward recomputes.

As in a Python loop, the values are those that autograd saves, less what backward has anyway: a view, cast or gather of
weights and constants is recomputed from them, and a view of a saved value from that value.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ..dispatch.lowerings import Call, Fill
from ..dispatch.overloads import VIEW, kind_of
from ..ir.graph import Node, Value, between, origin, value_name
from .capture import Capture

aten = torch.ops.aten

# Ops that change no more than how a value is represented: nothing is lost when they are recomputed.
_CASTS = frozenset({aten._to_copy.default, aten.clone.default, aten.alias.default, aten.detach.default})
_PLACES = frozenset({"mark_sharding", "spmd.unmarked", "spmd.vary"})


def saved(capture: Capture, roots: Sequence[Value], at_hand: Sequence[Value], middle: int) -> list[Value]:
    """Returns the values of the forward body that the backward body needs.

    roots: the results of backward. at_hand: values of the body that backward receives in any case. middle: the serial
    at which backward begins.
    """
    return _Split(capture, at_hand, middle).of(roots)


class _Split:
    def __init__(self, capture: Capture, at_hand: Sequence[Value], middle: int):
        self.capture = capture
        self.middle = middle
        self.at_hand: dict[Any, Value] = {value_name(value): value for value in at_hand}
        self.saved: dict[Any, Value] = {}
        self.free: dict[Node, bool] = {}
        self.fixed: dict[Node, bool] = {}
        self.given = {value_name(value) for value in capture.given}

    def of(self, roots: Sequence[Value]) -> list[Value]:
        wanted: dict[Any, Value] = {}
        for node in between(roots, self.at_hand.values(), since=self.middle):
            for operand in node.operands:
                wanted.setdefault(value_name(operand), operand)
        for value in (*roots, *wanted.values()):
            if self._is_forward(value):
                self._need(value)
        return list(self.saved.values())

    def _is_forward(self, value: Value) -> bool:
        node = origin(value)
        is_own = node is not None and self.capture.start <= node.serial < self.middle
        return is_own or value_name(value) in self.given

    def _need(self, value: Value) -> None:
        """Saves a value for backward, or a value that it is cheaply recomputed from."""
        name = value_name(value)
        if name in self.saved or self._is_free(value):
            return
        node = origin(value)
        if node is not None and name not in self.given and _is_cheap(node) and len(node.operands) == 1:
            (base,) = node.operands
            if base.meta.nbytes <= value.meta.nbytes or value_name(base) in self.saved:
                return self._need(base)
        self.saved[name] = value

    def _is_free(self, value: Value) -> bool:
        """True if a value is at hand, or is recomputed by cheap ops from values that are."""
        name = value_name(value)
        if name in self.at_hand or name in self.given:
            return name in self.at_hand
        node = origin(value)
        if node is None or self.capture.is_outside(value):
            return True
        if node not in self.free:
            self.free[node] = (_is_cheap(node) or self._is_fixed(node)) and all(map(self._is_free, node.operands))
        return self.free[node]

    def _is_fixed(self, node: Node) -> bool:
        """True if an op has the same result in each iteration, as a mask does: cheaper recomputed than saved."""
        if node not in self.fixed:
            self.fixed[node] = not node.op.lowering.draws(node.op) and all(map(self._is_the_same, node.operands))
        return self.fixed[node]

    def _is_the_same(self, value: Value) -> bool:
        if value_name(value) in self.given or value_name(value) in self.at_hand:
            return False
        node = origin(value)
        return node is None or self.capture.is_outside(value) or self._is_fixed(node)


def _is_cheap(node: Node) -> bool:
    """True if an op is a view, a cast, a sharding or an optimization barrier, or fills with a number."""
    lowering, sharding = node.op.lowering, node.op.sharding
    if node.op.name in _PLACES:
        return sharding is None or not sharding.is_replicated()  # a gather costs
    if isinstance(lowering, Call):
        return kind_of(lowering.overload) is VIEW or lowering.overload in _CASTS
    return isinstance(lowering, Fill) or node.op.name == "spmd.renew"

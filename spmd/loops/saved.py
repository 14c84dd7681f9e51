"""The values that a forward body saves for its backward body, per iteration, and the values that backward recomputes.

As in a Python loop, the values are those that autograd saves, less what backward has anyway: a view, cast or gather of
weights and constants is recomputed from them, and a view of a saved value from that value.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ..core.extend import Call, Fill, Node, Value, calls, walks
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
    given, received = set(map(walks.value_name, capture.given)), set(map(walks.value_name, at_hand))
    wanted = {walks.value_name(value): value for value in roots}
    for node in walks.between(roots, at_hand, since=middle):
        for value in node.operands:
            wanted.setdefault(walks.value_name(value), value)
    forward = []
    for name, value in wanted.items():
        maker = walks.origin(value)
        if name in given or (maker is not None and capture.start <= maker.serial < middle):
            forward.append(value)
    fixed: set[Node | None] = set()  # with the same result in each iteration, as a mask has
    free: set[Node | None] = set()  # recomputed by cheap ops from values at hand

    def is_fixed(value: Value) -> bool:
        if walks.value_name(value) in given or walks.value_name(value) in received:
            return False
        return capture.is_outside(value) or walks.origin(value) in fixed

    def is_free(value: Value) -> bool:
        if walks.value_name(value) in given or walks.value_name(value) in received:
            return walks.value_name(value) in received
        return capture.is_outside(value) or walks.origin(value) in free

    for node in walks.between(forward, [*capture.given, *at_hand], since=capture.start):
        if not node.op.lowering.draws(node.op) and all(map(is_fixed, node.operands)):
            fixed.add(node)  # cheaper recomputed than saved
        if (node in fixed or _is_cheap(node)) and all(map(is_free, node.operands)):
            free.add(node)
    found: dict[Any, Value] = {}
    for value in forward:
        while walks.value_name(value) not in found and not is_free(value):
            base = None if walks.value_name(value) in given else _base(value)
            if base is None or (base.meta.nbytes > value.meta.nbytes and walks.value_name(base) not in found):
                found[walks.value_name(value)] = value
            else:
                value = base
    return list(found.values())


def _base(value: Value) -> Value | None:
    """Returns the value from which a cheap op computes this one, or None."""
    node = walks.origin(value)
    return node.operands[0] if node is not None and len(node.operands) == 1 and _is_cheap(node) else None


def _is_cheap(node: Node) -> bool:
    """True if an op is a view, a cast, a sharding or an optimization barrier, or fills with a number."""
    lowering, sharding = node.op.lowering, node.op.sharding
    if node.op.name in _PLACES:
        return sharding is None or not sharding.is_replicated()  # a gather costs
    if isinstance(lowering, Call):
        return calls.kind_of(lowering.overload) is calls.VIEW or lowering.overload in _CASTS
    return isinstance(lowering, Fill) or node.op.name == "spmd.renew"

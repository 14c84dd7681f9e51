"""Calls of recorded functions that are about to run: their ops take their places.

Not here: the recording of such calls (`spmd.loops.recorded_call`).
"""

# Why before the key of a graph: a step is one program, whether its functions are called or run op
# by op.

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ..graph.graph import Name, Node, Value, results, topological, value_name
from ..lower.region import Called
from ..record.storage import READ, Storage, value_serial


class Calls(NamedTuple):
    """A graph as it was recorded, with calls: its nodes, its storages, and the value of each."""

    nodes: list[Node]
    storages: Sequence[Storage]
    values: Mapping[Storage, Value]


def inline(
    storages: list[Storage], others: Sequence[Storage] = ()
) -> tuple[list[Storage], Calls | None]:
    """Gives pending storages, and others that may share ops with them, values without calls.
    Returns the former in the order of these, and their graph as it was, or None where it has no
    calls."""
    nodes, _ = topological([storage.value for storage in storages])
    all_nodes = topological([x.value for x in (*storages, *others)])[0] if others else nodes
    reads = {view.value for view, *_ in READ if not view.is_read}
    new = inlined(all_nodes, reads)
    if not new:
        return storages, None
    calls = Calls(nodes, storages, {storage: storage.value for storage in storages})
    for storage in (*storages, *others):
        storage.value = new.get(value_name(storage.value), storage.value)
        if storage.past:  # a cut gives them the memory of the storage
            storage.past = [new.get(value_name(past), past) for past in storage.past]
    for view, *_ in READ:
        if view.value is not None:
            view.value = new.get(value_name(view.value), view.value)
    return sorted(storages, key=lambda storage: value_serial(storage.value)), calls


def inlined(nodes: Sequence[Node], reads: Collection[object] = ()) -> dict[Name, Value]:
    """Returns the values that take the place of results of calls, and of what reads them; none
    where these nodes call nothing. reads: of views."""
    new: dict[Name, Value] = {}
    for i, node in enumerate(nodes):
        operands = [new.get(value_name(value), value) for value in node.operands]
        if type(node.op.lowering) is Called:
            # An argument is read by the first op inside that uses it, as without the call.
            before = itertools.takewhile(reads.__contains__, reversed(nodes[:i]))
            unread: set[Any] = {new.get(read, read) for read in before}
            values: Sequence[Value] = _inline(node, operands, node.serial, 1.0, unread)
        elif operands != list(node.operands):
            copy = node.with_operands(operands)
            copy.serial = node.serial
            values = results(copy)
        else:
            continue
        new |= zip(map(value_name, results(node)), values, strict=True)
    return new


def _inline(
    call: Node, operands: Sequence[Value], after: float, room: float, unread: set[Any]
) -> Sequence[Value]:
    """Returns the results of a call's ops, whose serials are in the `room` behind `after`."""
    assert isinstance(call.op.lowering, Called)
    body, start = call.op.lowering.body, 0
    inner: dict[Name, Value] = dict(zip(body.inputs, operands, strict=True))
    room /= len(body.nodes) + len(unread) + 1

    def read(value: Any) -> None:
        nonlocal after
        chain: list[Node] = []  # a view and those that it is a view of
        while value in unread:
            unread.remove(value)
            chain.append(value)
            value = value.operands[0]
        for view in reversed(chain):
            after = view.serial = after + room

    for node in body.nodes:
        numbers = call.numbers[start : start + len(node.op.numbers)]
        start += len(numbers)
        operands = [inner[value_name(value)] for value in node.operands]
        copy = node.with_operands(operands)
        copy.numbers = numbers
        values = results(copy)
        if isinstance(node.op.lowering, Called):
            values = _inline(copy, operands, after, room, unread)
        else:
            for operand in operands:
                read(operand)
        after = copy.serial = after + room
        inner |= zip(map(value_name, results(node)), values, strict=True)
    for view in sorted(unread, key=value_serial):
        # a view of one that is read only now
        if any(value_serial(x) > value_serial(view) for x in view.operands if type(x) is Node):
            read(view)
    return [inner[value_name(root)] for root in body.roots]

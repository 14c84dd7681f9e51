"""Integers that the host computes while tokens are decoded: positions, and the list of tokens.

[Note: lists of tokens] A loop that decodes adds a token to a list in each iteration. As ops of a program these would
be another program for each length. So the host computes ops of integers that it has at once; a list that a token of the
device is joined to stays recorded, and is computed by a later sync, when the token has come: no sync waits for it. What
a program reads of such a list is the newest token, which is read where it is.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

import torch

from ..base.counters import pace
from ..base.dtypes import is_exact
from ..base.state import active_observation
from ..graph.graph import DeviceData, Node, Value, topological
from ..graph.op import OpSpec
from ..passes import on_host
from ..passes.on_host import LARGEST
from ..run.pjrt import processes, transfer
from .storage import Storage


class _Decoding(threading.local):
    """The state of a thread that decodes. num_syncs: so many syncs later it no longer does. lists: recorded ones.
    known: results on the host by op, numbers and operands, as an iteration makes most of what the last has made."""

    num_syncs = 0

    def __init__(self) -> None:
        self.lists: list[Node] = []
        self.known: dict[Any, tuple[Any, Any, list[Any]]] = {}


_thread = _Decoding()
_MOST = 512
_SYNCS = 4  # that an iteration has at most


def set_decoding(is_on: bool) -> None:
    """Has the host compute integers in this thread, until a few syncs later."""
    if not processes.several():
        _thread.num_syncs, pace.decodes = _SYNCS * is_on, is_on


def bring_home(storage: Storage) -> None:
    """Moves integers to the host, where a list of them may begin."""
    data, meta = storage.value, storage.meta
    if processes.several() or type(data) is not DeviceData or meta.numel > LARGEST or not is_exact(meta.dtype):
        return
    if data.host is None:
        host = transfer.download(data.placed()[0], meta.shape).copy()
        storage.settle(DeviceData(meta, host=host, sharding=data.sharding))


def computed(op: OpSpec, operands: Sequence[Value], numbers: Sequence[float | int]) -> DeviceData | None:
    """The result of an op of integers that the host has, in a thread that decodes; None for other ops."""
    if not all([type(x) is DeviceData and x.host is not None for x in operands]) or not _is_small(op):  # noqa: C419
        return None
    if not _thread.num_syncs or torch.is_grad_enabled() or active_observation.value is not None:
        return None
    data: Any = operands
    results = _thread.known
    key = op, tuple(numbers), tuple([id(x.host) for x in data])
    entry = results.get(key)
    if entry is None:
        if len(results) == _MOST:
            results.clear()
        (result,) = on_host.compute(op, data, numbers)
        entry = results[key] = result.host, result.sharding, [x.host for x in data]  # the ids are theirs while kept
    return DeviceData(op.metas[0], host=entry[0], sharding=entry[1])


def _is_small(op: OpSpec) -> bool:
    if op.on_host is None or len(op.metas) > 1 or op.layout is not None:
        return False
    return all([meta.numel <= LARGEST for meta in (*op.metas, *op.operands)])  # noqa: C419


def is_list(value: Value) -> TypeGuard[Node]:
    """True for a list that is joined of one of the host and of values of the device."""
    if type(value) is not Node or value.op.name != "aten.cat" or not _is_small(value.op):
        return False
    first = value.operands[0]
    return first.host is not None if type(first) is DeviceData else is_list(first)


def viewed(op: OpSpec, base: Value) -> Value | None:
    """The value of a view of integers that the host has, or of the last part of a list; else None."""
    if type(base) is DeviceData:
        return computed(op, (base,), ()) if base.host is not None else None
    if not is_list(base) or op.on_host is None or op.metas[0] is not base.operands[-1].meta:
        return None
    last, joined = base.operands[-1], base.op.on_host
    places = [torch.full(value.meta.shape, -1) for value in base.operands[:-1]]
    places.append(torch.arange(last.meta.numel).view(last.meta.shape))
    return last if joined and torch.equal(op.on_host(joined(places, base.numbers), ())[0], places[-1]) else None


def left_out(roots: Sequence[tuple[Value, Storage]]) -> list[Node]:
    """The lists that a sync leaves recorded, as no other op reads them; those whose values have come get their data."""
    _thread.num_syncs = max(_thread.num_syncs - (active_observation.value is None), 0)
    pace.decodes = _thread.num_syncs > 0
    if not pace.decodes:
        _thread.lists = []
        return []
    lists = [(value, storage) for value, storage in roots if is_list(value)]
    for value, storage in lists:
        data = _come(value)
        if data is not None:
            storage.settle(data)
    recorded = [node for node in topological([value for value, at in lists if at.value is value])[0] if is_list(node)]
    others = topological([value for value, _ in roots if not is_list(value)])[0] if recorded else ()
    _thread.lists = recorded if {*recorded}.isdisjoint(others) else []
    return _thread.lists


def finish(storage: Storage) -> None:
    """Gives a list its data after a sync, for a read, which waits for its last value."""
    if (data := _come(storage.value, waits=True)) is not None:
        storage.settle(data)


def _come(value: Value, *, waits: bool = False) -> DeviceData | None:
    """The data of a list whose values have come, or are waited for; None where one is still to come."""
    if type(value) is DeviceData:
        is_here = waits or value.host is not None or value.placed()[0].is_ready()  # type: ignore[attr-defined]
        return value if is_here else None
    if not is_list(value):
        return None
    data = [_come(operand, waits=waits) for operand in value.operands]
    value.operands = tuple(new or old for new, old in zip(data, value.operands, strict=True))
    complete = [one for one in data if one is not None]
    return on_host.compute(value.op, complete, value.numbers)[0] if len(complete) == len(data) else None


def are_read(data: Iterable[DeviceData]) -> bool:
    """True if a list that is still recorded reads one of these data."""
    return bool(_thread.lists) and not {x for node in _thread.lists for x in node.operands}.isdisjoint(data)

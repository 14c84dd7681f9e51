"""Integers that the host computes while tokens are decoded: positions, and the list of tokens.

[Note: lists of tokens] A loop that decodes adds a token to a list in each iteration. As ops of a
program these would be another program for each length. So the host computes ops of integers that it
has at once; a list that a token of the device is joined to stays recorded. When several such lists
are, one behind another, a sync has the host join those whose tokens have come: no sync waits for
one. A program reads only the newest token of such a list, where it is.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

import torch

from ...core import DeviceData, Storage, dtypes, observation, processes, transfer
from ...core.extend import Bounded, Node, OpSpec, Value, host_ops, record_calls, walks

_SYNCS = 4  # that an iteration has at most
_MOST_LISTS = 8  # that stay recorded, one behind another; more are computed, all at once
_MOST_BYTES = 1 << 14  # of operands and result together
# Results by op, numbers and operands: an iteration makes most of what the last has made, and a call
# of `generate` the positions and masks of earlier ones.
_known: Bounded[Any, DeviceData] = Bounded(1024)


def set_decoding(is_on: bool) -> None:
    """Has the host compute integers in this thread, until a few syncs later."""
    lists = record_calls.at_once.value
    if not is_on or processes.several():
        record_calls.at_once.value = None
    elif isinstance(lists, HostLists):
        lists.num_syncs = _SYNCS
    else:
        record_calls.at_once.value = HostLists()


def bring_home(storage: Storage) -> None:
    """Moves integers to the host, where a list of them may begin."""
    data, meta = storage.value, storage.meta
    is_small = meta.numel <= host_ops.LARGEST and dtypes.is_exact(meta.dtype)
    if not processes.several() and type(data) is DeviceData and is_small and data.host is None:
        host = transfer.download(data.placed()[0], meta.shape).copy()
        storage.settle(DeviceData(meta, host=host, sharding=data.sharding))


class HostLists:
    """The values that the host has in a thread that decodes (see `spmd.core.record.record.AtOnce`).

    num_syncs: so many syncs later it no longer does. lists: the recorded ones.
    """

    def __init__(self) -> None:
        self.num_syncs = _SYNCS
        self.lists: list[Node] = []

    def computed(
        self, op: OpSpec, operands: Sequence[Value], numbers: Sequence[float | int]
    ) -> DeviceData | None:
        """The result of an op of integers that the host has; None for other ops."""
        if not all(
            [type(x) is DeviceData and x.host is not None for x in operands]  # noqa: C419
        ) or not _is_small(op):
            return None
        if torch.is_grad_enabled() or observation.active_observation.value is not None:
            return None
        data: Any = operands
        meta = op.metas[0]
        if sum([x.meta.nbytes for x in data], meta.nbytes) > _MOST_BYTES:
            return host_ops.compute(op, data, numbers)[0]
        key = op, tuple(numbers), tuple([(x.host.tobytes(), x.sharding) for x in data])
        result = _known.get(key)
        if result is None:
            result = _known.keep(key, host_ops.compute(op, data, numbers)[0])
        return DeviceData(meta, host=result.host, sharding=result.sharding)

    def viewed(self, op: OpSpec, base: Value) -> Value | None:
        """The value of a view of integers that the host has, or of the last part of a list; else
        None."""
        if type(base) is DeviceData:
            return self.computed(op, (base,), ()) if base.host is not None else None
        if not self.is_token_list(base) or op.metas[0] is not base.operands[-1].meta:
            return None
        return base.operands[-1] if _is_last_part(op, base.op, tuple(base.numbers)) else None

    def is_token_list(self, value: Value) -> TypeGuard[Node]:
        """True for a small list that joins integers of the host with tokens of the device."""
        if type(value) is not Node or value.op.name != "aten.cat" or not _is_small(value.op):
            return False
        first = value.operands[0]
        if type(first) is DeviceData:
            return first.host is not None
        return first in self.lists or self.is_token_list(first)

    def left_out(self, storages: Sequence[Storage]) -> list[Node]:
        """The lists that a sync leaves recorded, as no other op reads them; now and then those
        whose values have come get their data. After a few syncs without another token the thread no
        longer decodes."""
        self.num_syncs -= observation.active_observation.value is None
        if self.num_syncs <= 0:
            record_calls.at_once.value = None
            return []
        lists = [storage for storage in storages if self.is_token_list(storage.value)]
        # Until there are many, or no token has come since the last sync: its loop may have ended.
        may_wait = self.num_syncs == _SYNCS - 1 and 0 < len(self.lists) < _MOST_LISTS
        for storage in () if may_wait else lists:
            data = self._come(storage.value)
            if data is not None:
                storage.settle(data)
        ancestors = walks.topological([x.value for x in lists if type(x.value) is Node])[0]
        recorded = [node for node in ancestors if self.is_token_list(node)]
        others = {*storages}.difference(lists)
        read_nodes = walks.topological([x.value for x in others])[0] if recorded else ()
        self.lists = recorded if {*recorded}.isdisjoint(read_nodes) else []
        return self.lists

    def finish(self, storage: Storage) -> None:
        """Gives a list its data after a sync, for a read, which waits for its last value."""
        if (data := self._come(storage.value, waits=True)) is not None:
            storage.settle(data)

    def _come(self, value: Value, *, waits: bool = False) -> DeviceData | None:
        """The data of a list whose values have come, or are waited for; None where one is still to
        come."""
        if type(value) is DeviceData:
            is_here = waits or value.host is not None or value.placed()[0].is_ready()  # type: ignore[attr-defined]
            return value if is_here else None
        if not self.is_token_list(value):
            return None
        data = [self._come(operand, waits=waits) for operand in value.operands]
        value.operands = tuple(new or old for new, old in zip(data, value.operands, strict=True))
        complete = [entry for entry in data if entry is not None]
        return (
            host_ops.compute(value.op, complete, value.numbers)[0]
            if len(complete) == len(data)
            else None
        )

    def reads(self, data: Iterable[DeviceData]) -> bool:
        """True if a list that is still recorded reads one of these data."""
        return bool(self.lists) and not {
            x for node in self.lists for x in node.operands
        }.isdisjoint(data)


@functools.lru_cache(4096)
def _is_last_part(view: OpSpec, joined: OpSpec, numbers: tuple[float | int, ...]) -> bool:
    """True if a view of a list has what was joined to it last, in order."""
    if view.on_host is None or joined.on_host is None:
        return False
    *earlier, last = joined.operands
    places = [torch.full(meta.shape, -1, device="cpu") for meta in earlier]
    places.append(torch.arange(last.numel, device="cpu").view(last.shape))
    return torch.equal(view.on_host(joined.on_host(places, numbers), ())[0], places[-1])


@functools.lru_cache(4096)
def _is_small(op: OpSpec) -> bool:
    if op.on_host is None or len(op.metas) > 1 or op.layout is not None:
        return False
    return all([meta.numel <= host_ops.LARGEST for meta in (*op.metas, *op.operands)])  # noqa: C419

"""Reads of a storage in another sharding than the stored one: parameters are stored sharded, and
ops read them unsharded.

The reads of a storage are a stack: entering a context pushes one, and the innermost applies. Each
keeps its gathered value for as long as the storage keeps its value, or until it is renewed: FSDP
gathers once in forward and again in backward.
"""

# Why the reads of a storage are a stack that `.data =` carries: units nest, and tied weights belong
# to two of them. The innermost decides, and a parameter keeps its object whatever the sharding in
# which ops read it.
#
# Why a backward op reads as its forward op did: autograd runs outside of the contexts of forward.
# Read in the stored sharding, a gradient would be computed against another operand than the one
# that forward used.
#
# Why the tensor that a gather waits for is put back into its storage behind `optimization_barrier`:
# only a value that flows on from it keeps the compiler from taking it away.

import functools
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch

from ..base import in_flight
from ..base.dtypes import to_numpy_dtype
from ..graph.graph import Node, Value, results
from ..graph.meta import Meta
from ..graph.op import Arrays, Identity, Layouts, Lowering, OpSpec
from ..sharding.buckets import cut_of, gather
from ..sharding.constrain import constrain, near, wait_for_all
from ..sharding.narrow import gather_narrow
from ..sharding.value import Sharding
from . import body
from .annotations import annotate, mark_op
from .record import NOWHERE, autograd_node, graph_task, record, record_here
from .storage import LOCK, Storage
from .tensor import XlaTensor, tensors_of, wrap
from .threads import enter_thread
from .views import View, ViewRule
from .views import read as value_of

_Part = tuple[Meta, Sharding | None]  # an array, and its stored sharding
# a read: its sharding, and the dtype of eight bits that devices exchange (None: the array's own)
ReadKey = tuple[Sharding, torch.dtype | None]

# counts contexts entered or renewed, and those left that had others inside: see `next_generation`
generation = 0


def next_generation() -> int:
    """A number for a context entered or renewed.

    Only the newest generation's gathered values are live.
    """
    global generation
    generation += 1
    return generation


class Read(View):
    """A full storage in another sharding; writes go to the storage itself.

    dtype: the dtype in which devices exchange it, None for the array's own. group: reads that are
    gathered by one op, this one among them, or empty. spans: autograd's
    sequence numbers of the forward ops that read through it, a (first, end) for each time the
    context was entered. run: the run behind which the value was kept (`in_flight.stamp`). All
    storages are held weakly: a storage holds its reads.
    """

    __slots__ = ("dtype", "group", "owner", "run", "spans")

    is_read = True

    def __init__(self, storage: Storage, layout: Sharding, dtype: torch.dtype | None):
        super().__init__(ViewRule(mark_op(storage.meta, layout), None, storage.meta), None, None, 0)
        self.dtype = dtype
        self.owner = storage.ref
        self.group: list[Read] = []
        self.spans: deque[tuple[int, int]] = deque(maxlen=64)
        self.run = -1

    @property
    def layout(self) -> Sharding:
        layout = self.rule.read.sharding
        assert layout is not None, "an annotation has one"
        return layout

    @property
    def key(self) -> ReadKey:
        return self.layout, self.dtype

    def keep(self, value: Value, storage: Storage) -> None:
        super().keep(value, storage)
        self.run = in_flight.stamp()

    def is_fresh(self) -> bool:
        """True for a value of the step that is recorded: what an evaluation gathered is gathered
        again, or else the step after it would be another program."""
        storage = self.owner()
        return storage is not None and self.stamp == storage.stamp and self.run == in_flight.stamp()

    def value_of(self, storage: Storage) -> Value:
        """The storage's value in this sharding; gathered once for as long as the storage keeps its
        value."""
        if self.stamp == storage.stamp:
            return self.value  # type: ignore[return-value]
        members = live_reads(self.group)
        if len(members) < 2 and self.dtype is None:
            return super().value_of(storage)
        _gather(
            members,
            [member.value for member in members.values()],
            [storage.sharding for storage in members.values()],
        )
        return self.value  # type: ignore[return-value]


class Reads:
    """All reads of one storage.

    known: the reads by key, the one entered last at the end. active: the reads that are
    entered and not left, innermost last.
    """

    __slots__ = ("active", "known")

    def __init__(self) -> None:
        self.known: dict[ReadKey, Read] = {}
        self.active: list[Read] = []

    def enter(self, read: Read) -> None:
        """Pushes a read: later ops read through it."""
        # Taken out and put back, so that it is the last one (see `latest`).
        self.known[read.key] = self.known.pop(read.key)
        self.active.append(read)

    def leave(self, key: ReadKey, span: tuple[int, int]) -> None:
        """Ends the latest read of this key. span: see `Read.spans`."""
        entered = next((read for read in reversed(self.active) if read.key == key), None)
        if entered is not None:
            self.active.remove(entered)
            entered.spans.append(span)

    @property
    def latest(self) -> Read:
        return next(reversed(self.known.values()))

    def current(self) -> Read | None:
        """The read of the next op, None for the stored value.

        A backward op reads as its forward op did.
        """
        if self.active:
            return self.active[-1]
        if graph_task() == -1:
            return None
        return self.latest if len(self.known) == 1 else self._by_forward()

    def _by_forward(self) -> Read | None:
        """The read of a backward op: the shortest context around its forward op."""
        node = autograd_node()
        number = -1 if node is None else node._sequence_nr()
        spans = [
            (end - first, first, read) for read in self.known.values() for first, end in read.spans
        ]
        around = [(size, read) for size, first, read in spans if first <= number < first + size]
        return min(around, key=lambda pair: pair[0])[1] if around else None

    def move(self, old: Storage, new: Storage) -> None:
        """Hands the reads of a storage to its replacement, in the shardings that fit."""
        fitting = [
            read
            for read in self.known.values()
            if len(read.layout.spec.dims) <= len(new.meta.shape)
        ]
        if new.reads is not None or not fitting:
            return
        replacements = {read: read_in(new, *read.key) for read in fitting}
        for read, replacement in replacements.items():
            replacement.spans = read.spans
        reads: Any = new.reads  # created by `read_in`
        reads.active += [replacements[read] for read in self.active if read in replacements]
        old.reads = None


def read_in(storage: Storage, layout: Sharding, dtype: torch.dtype | None) -> Read:
    """The storage's read of a key, created at the first call."""
    if storage.reads is None:
        storage.reads = Reads()
    layout = layout if storage.meta.numel else layout.replicated()  # there is nothing to shard
    read = storage.reads.known.get((layout, dtype))
    if read is None:
        read = storage.reads.known[layout, dtype] = Read(storage, layout, dtype)
    return read


def group(reads: Sequence[Read]) -> None:
    """Groups the reads of small arrays, and of all that are exchanged in eight bits, by dtype and
    sharding: one op gathers a group."""
    groups: dict[object, list[Read]] = {}
    for read in reads:
        storage = read.owner()
        assert storage is not None
        cut = cut_of(storage.meta.shape, storage.sharding)
        rows = None if cut is None or not read.layout.is_replicated() else cut.rows
        read.group = []
        if read.dtype is not None or (rows is not None and storage.meta.numel <= JOINED_NUMEL):
            key = rows or read, storage.meta.dtype, read.dtype
            read.group = groups.setdefault(key, [])
            read.group.append(read)


# Arrays of at most this many elements share one gather: below it a collective costs its latency,
# not its bytes.
JOINED_NUMEL = 1 << 16

# Arrays that share a gather stay gathered where they are at most this part of the renewed bytes: on
# a few hundred devices the shards take as much.
RESIDENT_FRACTION = 1 / 256


def operand(tensor: XlaTensor) -> Value:
    """The tensor's value as the next op reads it."""
    view, storage = tensor._view, tensor._storage
    if view is not None:
        return view.value_of(storage)
    return storage.value if storage.reads is None else operand_of(storage)


def record_op(op: OpSpec, tensors: Sequence[XlaTensor]) -> list[XlaTensor]:
    """A new tensor for each result of an op of these tensors' values, recorded at the user's
    present line."""
    enter_thread()
    with LOCK:
        operands = [operand(tensor) for tensor in tensors]
        return tensors_of(record_here(op, operands, (), sys._getframe(1), graph_task()))


def operand_of(storage: Storage) -> Value:
    """`operand` for a storage that has reads."""
    read = storage.reads.current()
    return storage.value if read is None else read.value_of(storage)


def reshard(
    reads: Sequence[Read], layouts: Sequence[Sharding], reader: XlaTensor
) -> list[XlaTensor | None]:
    """The gathered value of each read, resharded to its layout, for `renew` to gather from; None
    for a value stored in the read's sharding.

    Every op that reads `reader` waits for the resharding. Otherwise a compiler reshards a value
    where `renew` reads it, and keeps it unsharded until then.
    """
    with LOCK:
        result = [_reshard_read(read, layout) for read, layout in zip(reads, layouts, strict=True)]
        storages = [tensor._storage for tensor in result if tensor is not None]
        if storages:
            parts = [(storage.meta, storage.sharding) for storage in storages]
            waiting = _wait_with(parts, [storage.value for storage in storages], reader)
            # `waiting` is empty for a reader with data.
            for storage, value in zip(storages, waiting, strict=False):
                storage.write(value)
        return result


def _reshard_read(read: Read, layout: Sharding) -> XlaTensor | None:
    """The gathered value of a read, resharded; None for a value stored in the read's sharding."""
    storage = read.owner()
    if storage is None or storage.sharding is read.layout:
        return None
    # Without the optimization barrier the partitioner would reshard the stored shards in place of
    # the gathered value.
    gathered = record(
        _barrier_op(((storage.meta, read.layout),)), (read.value_of(storage),), (), NOWHERE
    )
    sharded = wrap(storage.meta, Storage(gathered, storage.meta))
    annotate(sharded, layout)
    return sharded


def _wait_with(
    parts: Sequence[_Part], values: Sequence[Value], tensor: XlaTensor
) -> Sequence[Value]:
    """The values behind one optimization barrier with the tensor's value: none is ready before all
    are.

    The tensor takes its own result of the barrier as its value: XLA drops a barrier with an unused
    result. Empty for a tensor with data or a module's state: nothing waits for these.
    """
    awaited = value_of(tensor)
    if body.is_data(awaited) or tensor._storage.is_state:
        return ()
    sharding = (tensor._storage if tensor._view is None else tensor._view).sharding
    # What is split along a sequence, too, is gathered by its readers, and not in front of this.
    if sharding is not None and sum(bool(dim.axes) for dim in sharding.spec.dims) < 2:
        sharding = None
    *result, behind_barrier = results(
        record(_barrier_op((*parts, (awaited.meta, sharding))), (*values, awaited), (), NOWHERE)
    )
    if tensor._view is None:
        tensor._storage.write(behind_barrier)
    else:
        tensor._view.keep(behind_barrier, tensor._storage)
    return result


def renew(
    reads: Sequence[Read], awaited: XlaTensor, sources: Sequence[XlaTensor | None] = ()
) -> None:
    """Has later ops gather again, and not before `awaited` is computed; the values gathered so far
    can be freed.

    sources: the values to gather from, instead of the stored ones (see `reshard`).

    XLA would merge a second gather of the same shards with the first. One optimization barrier over
    the shards and `awaited` prevents it, if both results are used: so `awaited` takes its result as
    its value. Nothing is gathered again where `awaited` is data or a module's state. Casts of
    stored values are recorded again as well. Small arrays stay: see `RESIDENT_FRACTION`.
    """
    with LOCK:
        live = live_reads(reads)
        resident = _small_gathered(live)
        members = {read: storage for read, storage in live.items() if read not in resident}
        source_of = {
            read: tensor
            for read, tensor in zip(reads, sources, strict=bool(sources))
            if tensor is not None
        }
        # For each read: the value to gather from, the ops of a cast behind it, and its sharding.
        stored, casts, shardings = [], [], []
        for read, storage in members.items():
            tensor = source_of.get(read)
            base, ops = _split_cast(storage.value) if tensor is None else (value_of(tensor), [])
            stored.append(base)
            casts.append(ops)
            shardings.append((storage if tensor is None else tensor._storage).sharding)
        parts = [(base.meta, sharding) for base, sharding in zip(stored, shardings, strict=True)]
        # Each value is gathered again from its result of the barrier, alone or with its group.
        shards = _wait_with(parts, stored, awaited) if members else ()
        if not shards:
            return
        shard_of = dict(zip(members, map(_record_ops, casts, shards), strict=True))
        sharding_of = dict(zip(members, shardings, strict=True))
        for storage in members.values():
            storage.stamp += 1  # views of it that were read are read again, too
        for member, member_storage in members.items():
            if member.stamp == member_storage.stamp:
                continue  # gathered with its group
            group = {
                read: storage
                for read, storage in live_reads(member.group).items()
                if read in shard_of
            }
            if len(group) > 1 or member.dtype is not None:
                _gather(
                    group, [shard_of[read] for read in group], [sharding_of[read] for read in group]
                )
            else:
                member.keep(
                    record(member.rule.read, (shard_of[member],), (), NOWHERE), member_storage
                )


def _small_gathered(members: dict[Read, Storage]) -> set[Read]:
    """The members that may stay gathered: small ones, whole groups at a time."""
    gathered_nbytes = {
        read: storage.meta.nbytes
        for read, storage in members.items()
        if read.stamp == storage.stamp
    }
    max_nbytes = RESIDENT_FRACTION * sum(storage.meta.nbytes for storage in members.values())
    resident: set[Read] = set()
    # A group stays as one: a part of it would keep the buffer that all of it was gathered into.
    for group in {id(read.group): read.group for read in gathered_nbytes if read.group}.values():
        gathered = [read for read in group if read in gathered_nbytes]
        if sum(gathered_nbytes[read] for read in gathered) <= max_nbytes:
            resident.update(gathered)
    return resident


def _split_cast(value: Value) -> tuple[Value, list[OpSpec]]:
    """(operand of the cast, ops from the last one back to the cast) of a cast value; (value, []) of
    any other."""
    base, ops = value, []
    while type(base) is Node and base.op.name == "mark_sharding":
        ops.append(base.op)
        base = base.operands[0]
    if type(base) is Node and base.op.name == "aten._to_copy":
        return base.operands[0], [*ops, base.op]
    return value, []


def _record_ops(ops: Sequence[OpSpec], value: Value) -> Value:
    """The value of these ops in reversed order, the first of them on `value`."""
    for op in reversed(ops):
        value = record(op, (value,), (), NOWHERE)
    return value


def live_reads(reads: Iterable[Read]) -> dict[Read, Storage]:
    """The reads that their storages still have, each with its storage."""
    living = {read: storage for read in reads if (storage := read.owner()) is not None}
    return {
        read: storage
        for read, storage in living.items()
        if storage.reads is not None and storage.reads.known.get(read.key) is read
    }


def _gather(
    members: dict[Read, Storage], stored: Sequence[Value], shardings: Sequence[Sharding | None]
) -> None:
    """Gathers the arrays of a group, each stored in its own sharding, by one op."""
    parts = tuple(
        (storage.meta, sharding)
        for storage, sharding in zip(members.values(), shardings, strict=True)
    )
    layout, dtype = next(iter(members)).key
    node = record(_gather_op(parts, layout, dtype), tuple(stored), (), NOWHERE)
    for (member, storage), value in zip(members.items(), results(node), strict=True):
        member.keep(value, storage)


@functools.lru_cache(4096)
def _gather_op(parts: tuple[_Part, ...], layout: Sharding, dtype: torch.dtype | None) -> OpSpec:
    metas = tuple(meta for meta, _ in parts)
    lowering = _Gather(tuple(sharding for _, sharding in parts), dtype)
    statics = f"{len(metas)} arrays" + ("" if dtype is None else f" in {dtype}")
    return OpSpec.of("spmd.gather", lowering, metas, metas, statics=statics, sharding=layout)


@dataclass(frozen=True, slots=True)
class _Gather(Lowering):
    """Every operand unsharded, by one all-gather; or each in eight bits."""

    stored: tuple[Sharding | None, ...]
    dtype: torch.dtype | None

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        if self.dtype is not None:
            assert op.sharding is not None, "a gather has a layout"
            dtype = to_numpy_dtype(self.dtype)
            return tuple(gather_narrow(operands, self.stored, op.sharding, dtype))
        # Every array has a cut: see `group`.
        cuts = [
            cut
            for array, sharding in zip(operands, self.stored, strict=True)
            if (cut := cut_of(array.shape, sharding)) is not None
        ]
        return tuple(gather(operands, cuts))


@functools.lru_cache(4096)
def _barrier_op(parts: tuple[_Part, ...]) -> OpSpec:
    metas = tuple(meta for meta, _ in parts)
    return OpSpec.of("spmd.renew", _Barrier(tuple(sharding for _, sharding in parts)), metas, metas)


@dataclass(frozen=True, slots=True)
class _Barrier(Identity):
    """The operands behind one optimization barrier, each constrained to its stored sharding (None:
    as it comes)."""

    stored: tuple[Sharding | None, ...]

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        arrays = wait_for_all(tuple(operands))
        # The results are constrained: otherwise the partitioner would gather the operands.
        return tuple(
            array if sharding is None else constrain(array, near(sharding))
            for array, sharding in zip(arrays, self.stored, strict=True)
        )

"""Annotations: requested shardings of tensors."""

# Why a mark on a recorded value is an op, and one on data is not: a value that has not been
# computed can still be made in the sharding; data is uploaded in it, or moved by a program of its
# own.
#
# Why the sharding stays with the storage and not with the value: in-place ops, optimizers and
# loaded states write other values into a parameter, and none of them knows its sharding.

import functools
from dataclasses import dataclass
from typing import Any, Protocol

import jax

from ..graph.graph import DeviceData, Node, Value, origin
from ..graph.meta import Meta
from ..graph.op import Arrays, Identity, Layouts, OpSpec
from ..graph.source import THREADS, user_frame
from ..run.pjrt import transfer
from ..sharding.constrain import constrain, in_memory, near, wait_for_all
from ..sharding.value import Sharding
from . import body
from .record import record
from .storage import LOCK, Storage, may_change, note_layout, requeue
from .threads import enter_thread


class Annotated(Protocol):
    """A tensor of the device: the class itself is above this file."""

    _storage: Storage
    _view: Any
    _meta: Meta


# --- sharding -------------------------------------------------------------------------------------


# A call of Python would be one more for each gradient. Op specs are interned: one that was dropped
# here is found again.
@functools.lru_cache(4096)
def mark_op(meta: Meta, sharding: Sharding, via: Sharding | None = None) -> OpSpec:
    """The op of an annotation; `via` is the first of two constraints of a gradient."""
    text = sharding.text(len(meta.shape))
    return OpSpec.of(
        "mark_sharding", _Mark(sharding, via), (meta,), (meta,), statics=text, sharding=sharding
    )


@dataclass(frozen=True, slots=True)
class _Mark(Identity):
    """Constrains its operand to `via`, if any, and then to `sharding`."""

    sharding: Sharding
    via: Sharding | None

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        if self.via is None:
            return (constrain(operands[0], self.sharding),)
        # Behind an optimization barrier, so that it is sharded at once: XLA would rather shard it
        # where it is read, which may be after the norm of all gradients, and keep it unsharded
        # until then.
        resharded = constrain(constrain(operands[0], self.via), near(self.sharding))
        return (in_memory(wait_for_all((resharded,))[0], self.sharding.memory),)


@dataclass(frozen=True, slots=True)
class _Same(Identity):
    """Identity: replaces an annotation removed before it has run."""

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        return (operands[0],)


def unmarked_op(meta: Meta) -> OpSpec:
    """The op that returns its operand unchanged."""
    return OpSpec.of("spmd.unmarked", _Same(), (meta,), (meta,))


# The devices of each mesh that an annotation of this process has named.
MESHES: set[frozenset[int]] = set()


def annotate(
    tensor: Annotated, sharding: Sharding, via: Sharding | None = None, *, in_program: bool = False
) -> None:
    """Sets the sharding of a tensor: of the recorded value, of host data at its upload, or of the
    buffer now.

    via: constrains a gradient to this sharding first. in_program: leaves data on devices to the
    next program, which reshards it.
    """
    if not tensor._meta.numel:
        sharding = sharding.replicated()  # XLA refuses to shard an empty array
    if not hasattr(THREADS, "ring"):
        enter_thread()  # as at a recorded op; raises in a forked process
    MESHES.add(sharding.devices)
    with LOCK:
        storage, view = tensor._storage, tensor._view
        if view is not None:
            view.sharding = sharding
            view.stamp = -1  # the cached value is read again, with the annotation
            return
        note_layout(storage)
        value = storage.value
        is_on_devices = type(value) is DeviceData and value.host is None and not value.is_abstract
        if in_program and is_on_devices and tensor._meta.numel:
            storage.sharding = sharding
            storage.write(
                record(mark_op(storage.meta, sharding), (value,), (), (*user_frame(), -1))
            )
            return
        # Data is in no program whose partitioner could choose open dims.
        is_data = body.is_data(value)
        storage.sharding = sharding = sharding.closed() if is_data else sharding
        if (
            type(value) is Node
            and value.op.name == "mark_sharding"
            and via is None
            and may_change(value)
        ):
            # An annotation with this sharding stays: it may be a gradient's, with a `via`.
            if value.op.sharding is not sharding:
                # A new op for the same node: ops that have read the value read the new sharding.
                value.op = mark_op(storage.meta, sharding)
                requeue(lambda nodes, _: value in nodes)
        elif not is_data:
            _record_annotation(storage, mark_op(storage.meta, sharding, via))
        elif type(value) is DeviceData and value.host is not None:
            note_layout(storage, value)
            value.sharding = sharding  # the upload needs it, also after the tensor is freed
        elif type(value) is DeviceData and value.sharding is not sharding:
            _reshard_data(storage, value, sharding)  # else it may stand for data of each call


def _record_annotation(storage: Storage, op: OpSpec) -> None:
    """Records an annotation of a storage's pending value, and writes its result to the storage."""
    # The op gets the line of the value that it annotates; finding the line of the annotation would
    # cost more than recording the op.
    source = origin(storage.value)
    assert source is not None, "only device data has none"
    storage.write(record(op, (storage.value,), (), (source.code, source.instruction, -1)))


def record_open_annotation(storage: Storage, sharding: Sharding) -> None:
    """Records an annotation with open dims as the last op of a storage, before a sync.

    Other shardings are requested of the program (`Graph.pinned`), which takes no open dim.
    """
    value = storage.value
    if not (type(value) is Node and value.op.sharding is sharding):
        _record_annotation(storage, mark_op(storage.meta, sharding))


def _reshard_data(storage: Storage, device_data: DeviceData, sharding: Sharding) -> None:
    """Reshards data on devices, also for its recorded readers; an equal layout only gets the new
    sharding's name."""
    is_planned = note_layout(storage, device_data)
    if device_data.is_abstract:
        device_data.sharding = sharding
    elif is_planned:  # no data moves: abstract device data stands in until the step is undone
        storage.value = DeviceData(device_data.meta, sharding=sharding, is_abstract=True)
        storage.value.holder = storage.ref
    else:
        device_data.check()
        buffer, current = device_data.placed()
        if current.is_as(sharding, len(device_data.meta.shape)):
            device_data.take(transfer.respelled(buffer, sharding.jax), sharding)
        else:
            device_data.take(
                transfer.move(buffer, device_data.meta.shape, current, sharding), sharding
            )
        requeue(lambda _, inputs: device_data in inputs)
    storage.home = sharding


def clear_annotation(tensor: Annotated) -> None:
    """Removes the annotation; data on a mesh becomes replicated."""
    with LOCK:
        if tensor._view is not None:
            tensor._view.sharding = None
            tensor._view.stamp = -1
            return
        storage = tensor._storage
        note_layout(storage)
        storage.sharding = storage.home = None
        value = storage.value
        # An annotation that is being compiled must stay: another op lifts it.
        if type(value) is Node and value.op.name == "mark_sharding" and not may_change(value):
            _record_annotation(storage, unmarked_op(storage.meta))
        elif type(value) is Node and value.op.name == "mark_sharding":
            value.op = unmarked_op(storage.meta)
            requeue(lambda nodes, _: value in nodes)
        elif type(value) is DeviceData and value.host is None:
            if value.sharding is not None:  # None where it is abstract, without a sharding
                _reshard_data(storage, value, value.sharding.replicated())
            storage.home = None


def current_sharding(tensor: Annotated) -> Sharding | None:
    """The requested sharding, else the data's; None for recorded values and host data."""
    if tensor._view is not None:
        return tensor._view.sharding
    storage = tensor._storage
    if storage.sharding is not None:
        return storage.sharding
    return (
        storage.value.sharding
        if type(storage.value) is DeviceData and storage.value.host is None
        else None
    )


def residence(value: Value) -> str:
    """The residence of a value: "host", "pending", "devices", "abstract" or "lost" (see
    `spmd.residence`)."""
    if type(value) is not DeviceData:
        return "pending"
    if value.lost_reason is not None:
        return "lost"
    if value.is_abstract:
        return "abstract"
    return "devices" if value.host is None else "host"

"""Pickling, copying, dlpack, `torch.save` and `torch.load`: a file holds plain CPU tensors, which
any torch can read.

Each is marked as a tensor of the device in torch's metadata, where torch ignores unknown marks.
With this library imported they load onto the device, as with cuda, unless `map_location` names
another place; without it they load onto the CPU. CPU tensors load onto the device by
`map_location="xla"`.
"""

import json
from collections import OrderedDict
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.storage import TypedStorage

from ..base import forking
from ..base.state import PerThread
from ..graph.buffer_leases import READERS
from ..graph.meta import dense_meta
from ..graph.source import warn
from ..record.annotations import annotate
from ..record.calls.copies import changes_values, host_copy
from ..record.calls.naming import only_device
from ..record.storage import Storage
from ..record.tensor import XlaTensor, attributes_of, no_bytes, wrap
from ..run.host_reads import leased
from ..run.pjrt import devices
from ..sharding.value import OPEN, Dim, Sharding, Spec
from .backward import follow
from .subclasses import user_class
from .when_imported import replaces

_Storage = torch.UntypedStorage | TypedStorage
_Restore = Callable[[_Storage, str], _Storage]
# of pickle: a function and its arguments
_Reduction = tuple[Callable[..., object], tuple[object, ...]]
_Memory = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]  # dtype, shape, strides, offset
_MARK = "xla"  # in a saved tensor's metadata, which torch takes as names that are true or false
_SHARDINGS = "xla_sharding: "  # prefix of the name that holds the tensor's sharding

# Host storages made for tensors that are being saved, so that views and tied weights share one, as
# they do here.
_saved: "WeakKeyDictionary[Storage, tuple[int, StorageWeakRef]]" = WeakKeyDictionary()


def _reduce(tensor: XlaTensor, protocol: object) -> _Reduction:
    """The reduction for pickle and torch.save: the CPU tensor or parameter of the values, with the
    attributes."""
    state = attributes_of(tensor)
    host = shared_host_copy(tensor).requires_grad_(tensor.requires_grad and not tensor._is_param)
    starting: Any = get_spawning_popen()
    # A new process opens the memory by its number when it starts: until then the copy must live.
    if starting is not None:
        starting.__dict__.setdefault("_host_copies", []).append(host)
    function, arguments = host._reduce_ex_internal(protocol)[:2]
    if function is torch._utils._rebuild_tensor_v3:
        # Dtypes without a storage class of their own. torch writes their bare storage, which its
        # loader of plain pickles cannot read; declared as bytes, it can.
        arguments = (
            TypedStorage(wrap_storage=arguments[0], dtype=torch.uint8, _internal=True),
            *arguments[1:],
        )
    sharding = tensor._storage.sharding if tensor._view is None else None
    marks = (
        {_MARK: True}
        if sharding is None
        else {_MARK: True, _SHARDINGS + _sharding_text(sharding): True}
    )
    arguments = (*arguments, marks)  # a copy on the host has no metadata of its own
    if not tensor._is_param:
        cls = user_class(type(tensor))
        if state or cls is not torch.Tensor:
            return torch._tensor._rebuild_from_type_v2, (function, cls, arguments, state)
        return function, arguments
    arguments = (_Reduced(function, arguments), tensor.requires_grad, OrderedDict())
    if state:
        return torch._utils._rebuild_parameter_with_state, (*arguments, state)
    return torch._utils._rebuild_parameter, arguments


def _sharding_text(sharding: Sharding) -> str:
    """A sharding as JSON, which `_annotate_as_saved` reads."""
    dims = [None if dim.is_open else list(dim.axes) for dim in sharding.spec.dims]
    return json.dumps(
        [sharding.device_ids, sharding.mesh_shape, sharding.axis_names, dims, sharding.memory]
    )


def _annotate_as_saved(tensor: XlaTensor, text: str) -> None:
    """Annotates a loaded tensor with the text of its saved sharding; warns if this process lacks
    devices of the sharding."""
    ids, shape, axes, dims, memory = json.loads(text)
    spec = Spec(tuple(OPEN if dim is None else Dim(tuple(dim)) for dim in dims))
    sharding = Sharding.of(tuple(ids), tuple(shape), tuple(axes), spec, memory)
    num_devices = len(devices.devices())
    if max(ids) < num_devices:
        annotate(tensor, sharding)
        return
    warn(
        f"a tensor was saved as {sharding!r}, over devices up to {max(ids)}, and this process "
        f"sees {num_devices}: it is loaded without an annotation; mark it for the devices that are "
        "here"
    )


class _Reduced:
    """Represents a value in a pickle by the call that makes it."""

    def __init__(self, function: Callable[..., object], arguments: tuple[object, ...]):
        self.call = function, arguments

    def __reduce__(self) -> _Reduction:
        return self.call


def shared_host_copy(tensor: XlaTensor) -> torch.Tensor:
    """Returns a CPU copy of the tensor; tensors over one storage that are saved together share one
    CPU storage."""
    storage, meta = tensor._storage, tensor._meta
    base = storage.meta
    if (
        base is not dense_meta(base.shape, base.dtype)
        or meta.dtype is not base.dtype
        or changes_values(tensor._view)
    ):
        return host_copy(tensor, "saving")
    on_cpu = _saved_copy(storage)
    if on_cpu is None:
        on_cpu = host_copy(wrap(base, storage), "saving").contiguous().untyped_storage()
        _saved[storage] = (storage.stamp, StorageWeakRef(on_cpu))
    return torch.empty(0, dtype=meta.dtype, device="cpu").set_(
        on_cpu, meta.offset, meta.shape, meta.strides
    )


def _saved_copy(storage: Storage) -> torch.UntypedStorage | None:
    """The CPU storage made for a storage that was not written since; None if none is alive."""
    stamp, on_cpu = _saved.get(storage, (None, None))
    if stamp != storage.stamp or on_cpu is None or on_cpu.expired():
        return None
    return torch.UntypedStorage._new_with_weak_ptr(on_cpu.cdata)


def _copy(tensor: XlaTensor) -> XlaTensor:
    """`copy.copy`: another tensor over the same memory."""
    result: Any = tensor.detach().requires_grad_(tensor.requires_grad)
    result.__class__ = type(tensor)
    result.__dict__.update(attributes_of(tensor))
    if tensor._is_param:
        result._is_param = True
    return result


def _dlpack(tensor: XlaTensor, **kwargs: object) -> object:
    """Exports the buffer without a copy where one device has the full value; it is then never
    donated."""
    if tensor.requires_grad:
        raise BufferError(
            "dlpack: the tensor requires gradients, which cannot be exported; call .detach() first"
        )
    return _exported_buffer(tensor).__dlpack__(**kwargs)


def _dlpack_device(tensor: XlaTensor) -> tuple[int, int]:
    return _exported_buffer(tensor).__dlpack_device__()


def _exported_buffer(tensor: Any) -> Any:
    """A jax array of the tensor's value; a CPU tensor where its memory is not one dense block of
    one device."""
    forking.check()
    storage, meta = tensor._storage, tensor._meta
    if tensor._view is not None or meta is not dense_meta(meta.shape, meta.dtype):
        return _exported_buffer(
            torch.empty(meta.shape, dtype=meta.dtype, device="xla").copy_(tensor.detach())
        )
    with leased(storage, "dlpack", on_device=True) as lease:
        buffer, sharding = lease.placed()
        if len(sharding.device_ids) > 1 or meta.dtype is torch.bool:
            return host_copy(tensor.detach(), "dlpack")
        READERS.lend(buffer)  # for good: the other library does not report when it is done with it
        return buffer


def _keep_for_device(storage: Any, location: str) -> Any:
    """Keeps a file's storage for xla on the host, marked: tensors move to the device, not
    storages."""
    if not location.startswith("xla"):
        return None
    only_device(torch.device(location))
    _untyped(storage)._tensors_on_xla = {}
    return storage


def _untyped(storage: _Storage) -> Any:
    return storage if isinstance(storage, torch.UntypedStorage) else storage._untyped_storage


def _restores_device(map_location: object) -> bool:
    """True if a load puts tensors that were saved from the device back there."""
    if not isinstance(map_location, dict):
        return map_location is None
    targets = [str(map_location[name]) for name in ("xla:0", "xla", "cpu") if name in map_location]
    return not targets or targets[0].startswith("xla")


def get_restore_location(restoring: Callable[..., _Restore], map_location: object) -> _Restore:
    """Marks the storages of a load that restores devices: their marked tensors go to the device."""
    restore = restoring(map_location)
    if not _restores_device(map_location):
        return restore

    def as_saved(storage: _Storage, location: str) -> _Storage:
        restored = restore(storage, location)
        _untyped(restored)._restores_device = True
        return restored

    return as_saved


def set_tensor_metadata(
    set_metadata: Callable[..., None], tensor: torch.Tensor, metadata: dict[str, object]
) -> None:
    """torch's `set_tensor_metadata`, without our two names: of a tensor saved from the device, it
    marks the storage and keeps the sharding for `restore_device`."""
    if _MARK in metadata:
        storage: Any = tensor.untyped_storage()
        # `restore_device` moves the tensors of a storage that has this dict, and enters them in it.
        if hasattr(storage, "_restores_device") and not hasattr(storage, "_tensors_on_xla"):
            storage._tensors_on_xla = {}
        # The sharding is written into the name itself, as torch reads each entry as a bool.
        tensor.__dict__[_SHARDINGS] = next(
            (name for name in metadata if name.startswith(_SHARDINGS)), None
        )
        metadata = {
            name: value
            for name, value in metadata.items()
            if name != _MARK and not name.startswith(_SHARDINGS)
        }
    set_metadata(tensor, metadata)


def _view_within(tensor: torch.Tensor, moved: dict[_Memory, torch.Tensor]) -> torch.Tensor | None:
    """Returns a view of a tensor loaded earlier from the same storage, if its memory contains that
    of this tensor."""
    begin = tensor.storage_offset()
    end = begin + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    for (dtype, shape, strides, offset), loaded in moved.items():
        covers = dtype == tensor.dtype and offset <= begin and end < offset + loaded.numel()
        memory = torch.empty_strided(shape, strides, device="meta")
        if covers and torch.ops.aten.is_non_overlapping_and_dense(memory) and loaded._view is None:  # type: ignore[attr-defined]  # all are ours
            return loaded.as_strided(tensor.shape, tensor.stride(), begin - offset)
    return None


def restore_device(
    finish: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor
) -> torch.Tensor:
    """Moves a rebuilt tensor to the device if its storage is marked for xla; tensors of one storage
    still share memory."""
    sharding = tensor.__dict__.pop(_SHARDINGS, None)
    tensor = finish(tensor)
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return tensor
    moved = getattr(tensor.untyped_storage(), "_tensors_on_xla", None)
    if moved is None:
        return tensor
    key = (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset())
    # Tensors of equal memory are one on the device, and one inside another's memory is its view.
    if key not in moved:
        shared = _view_within(tensor, moved) if tensor.numel() else None
        moved[key] = tensor.detach().to("xla") if shared is None else shared
        if sharding is not None and shared is None:
            _annotate_as_saved(moved[key], sharding.removeprefix(_SHARDINGS))
        if _moved_early.value is not None and shared is None:
            _moved_early.value.append((moved[key], tensor.detach()))
    result = moved[key].detach().requires_grad_(tensor.requires_grad)
    if sharding is not None:
        follow(result)
    return result


# Tensors of this thread's load that were moved before their bytes were read, with their sources.
_moved_early = PerThread[list[tuple[torch.Tensor, torch.Tensor]] | None](None)


def legacy_load(load: Callable[..., object], *args: object, **kwargs: object) -> object:
    """Copies the values of moved tensors at the end of a load: old files hold the bytes after all
    tensors."""
    moved_tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
    with _moved_early.held(moved_tensors):
        loaded = load(*args, **kwargs)
        with torch.no_grad():
            for moved, source in moved_tensors:
                moved.copy_(source)
        return loaded


def _new_storage(make: Callable[..., object], *args: object, **kwargs: Any) -> object:
    """Refuses storages on xla: torch would look for the device's allocator, which does not exist,
    and abort."""
    device = kwargs.get("device")
    if device is not None and torch.device(device).type == "xla":
        no_bytes()
    return make(*args, **kwargs)


def join_saving() -> None:
    """Adds the device to pickle, copy and torch's (de)serialization."""
    for method, function in {
        "__reduce_ex__": _reduce,
        "__copy__": _copy,
        "__dlpack__": _dlpack,
        "__dlpack_device__": _dlpack_device,
    }.items():
        setattr(XlaTensor, method, function)
    torch.serialization.register_package(5, lambda storage: None, _keep_for_device)
    replaces(torch.UntypedStorage, "__new__")(_new_storage)

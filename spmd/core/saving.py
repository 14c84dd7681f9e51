"""Pickling, copying, dlpack, `torch.save` and `torch.load`: a file holds plain CPU tensors, which any torch can read.

`torch.load(path, map_location="xla")` and `model.to("xla")` bring them onto the device.
"""

from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.storage import TypedStorage

from .barrier import placed
from .ir import dense_meta
from .specials import _changes_values, host_copy
from .tensor import LOCK, OURS, Cell, XlaTensor, wrap

# Host storages made for tensors that are being saved, so that views and tied weights share one, as they do here.
_saved: "WeakKeyDictionary[Cell, tuple[int, StorageWeakRef]]" = WeakKeyDictionary()


def _reduce(tensor: XlaTensor, protocol: Any) -> Any:
    """How pickle and torch.save write a tensor: as the CPU tensor or parameter of its values, with its attributes."""
    state = {name: value for name, value in tensor.__dict__.items() if name not in OURS}
    host = _host(tensor).requires_grad_(tensor.requires_grad and not tensor._is_param)
    function, arguments = host._reduce_ex_internal(protocol)[:2]
    if function is torch._utils._rebuild_tensor_v3:
        # Dtypes without a storage class of their own. torch writes their bare storage, which its loader of plain
        # pickles cannot read; told that it holds bytes, it can.
        arguments = (TypedStorage(wrap_storage=arguments[0], dtype=torch.uint8, _internal=True), *arguments[1:])
    if not tensor._is_param:
        if state:
            return torch._tensor._rebuild_from_type_v2, (function, torch.Tensor, arguments, state)
        return function, arguments
    arguments = (_Reduced(function, arguments), tensor.requires_grad, OrderedDict())
    if state:
        return torch._utils._rebuild_parameter_with_state, (*arguments, state)
    return torch._utils._rebuild_parameter, arguments


class _Reduced:
    """Stands for a value in what is pickled, by the call that makes it."""

    def __init__(self, function: Any, arguments: Any):
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def _host(tensor: XlaTensor) -> torch.Tensor:
    """The tensor on the CPU; while another one over the same cell is being saved, on the same storage."""
    cell, meta = tensor._cell, tensor._meta
    base = cell.meta
    if base is not dense_meta(base.shape, base.dtype) or meta.dtype is not base.dtype or _changes_values(tensor._view):
        return host_copy(tensor, "saving")
    storage = _known(cell)
    if storage is None:
        storage = host_copy(wrap(base, cell), "saving").contiguous().untyped_storage()
        _saved[cell] = (cell.stamp, StorageWeakRef(storage))
    return torch.empty(0, dtype=meta.dtype, device="cpu").set_(storage, meta.offset, meta.shape, meta.strides)


def _known(cell: Cell) -> torch.UntypedStorage | None:
    stamp, storage = _saved.get(cell, (None, None))
    if stamp != cell.stamp or storage is None or storage.expired():
        return None
    return torch.UntypedStorage._new_with_weak_ptr(storage.cdata)


def _copy(tensor: XlaTensor) -> XlaTensor:
    """`copy.copy`: another tensor over the same memory."""
    made: XlaTensor = tensor.detach().requires_grad_(tensor.requires_grad)  # type: ignore[assignment]
    made.__dict__.update({name: value for name, value in tensor.__dict__.items() if name not in OURS})
    if tensor._is_param:
        made._is_param = True
    return made


def _dlpack(tensor: XlaTensor, **kwargs: Any) -> Any:
    """The tensor's buffer for another library, without a copy where one device has the whole; then never donated."""
    if tensor.requires_grad:
        raise BufferError("dlpack: the tensor requires gradients, which do not cross; call .detach() first")
    return _exchange(tensor).__dlpack__(**kwargs)


def _dlpack_device(tensor: XlaTensor) -> Any:
    return _exchange(tensor).__dlpack_device__()


def _exchange(tensor: Any) -> Any:
    """A jax array of the tensor's value; a CPU tensor where its memory is not one dense block of one device."""
    cell, meta = tensor._cell, tensor._meta
    if tensor._view is not None or meta is not dense_meta(meta.shape, meta.dtype):
        return _exchange(torch.empty(meta.shape, dtype=meta.dtype, device="xla").copy_(tensor.detach()))
    leaf = placed(cell)
    buffer, lies = leaf.placed()
    if len(lies.device_ids) > 1 or meta.dtype is torch.bool:
        return host_copy(tensor.detach(), "dlpack")
    with LOCK:
        leaf.shared += 1
    return buffer


def _keep_for_device(storage: Any, location: str) -> Any:
    """Where a storage of a file is asked for on xla, it stays on the host, marked so: tensors move, not storages."""
    if not location.startswith("xla"):
        return None
    untyped: Any = storage if isinstance(storage, torch.UntypedStorage) else storage._untyped_storage
    untyped._tensors_on_xla = {}
    return storage


def _move_loaded() -> None:
    """Moves a rebuilt tensor to the device where its storage was to go there; a storage's equal tensors stay one."""
    finish = torch._utils._restore_device_fake_mode

    def restore(tensor: torch.Tensor) -> torch.Tensor:
        tensor = finish(tensor)
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return tensor
        there = getattr(tensor.untyped_storage(), "_tensors_on_xla", None)
        if there is None:
            return tensor
        key = (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset())
        if key not in there:
            there[key] = tensor.detach().to("xla")
        return there[key].detach().requires_grad_(tensor.requires_grad)

    torch._utils._restore_device_fake_mode = restore


def join_saving() -> None:
    """Teaches pickle, copy and torch's (de)serialisation about the device."""
    XlaTensor.__reduce_ex__ = _reduce  # type: ignore[method-assign,assignment]
    XlaTensor.__copy__ = _copy  # type: ignore[attr-defined]
    XlaTensor.__dlpack__ = _dlpack  # type: ignore[method-assign,assignment]
    XlaTensor.__dlpack_device__ = _dlpack_device  # type: ignore[method-assign,assignment]
    torch.serialization.register_package(5, lambda storage: None, _keep_for_device)
    _move_loaded()

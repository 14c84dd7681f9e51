"""Copies between host and device, and reads: all ways of data to and from the device."""

from collections.abc import Callable

import numpy as np
import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map_only

from ...base import counters
from ...base.dtypes import is_integer
from ...base.state import active_observation
from ...graph.graph import DeviceData, origin
from ...graph.source import user_frame
from ...run.execute import guard
from ...run.host_reads import host_value, settle_count
from ...run.pjrt.host import leaving
from ...run.pjrt.transfer import host_array, host_tensor
from ...run.recording import recording
from ...sharding.value import Sharding
from ..constraints import effective_sharding, with_sharding
from ..memory_formats import refuse_layout, refuse_tensor
from ..overlap import check_targets
from ..overloads import Args, Handler, Kwargs, aten
from ..storage import LOCK
from ..tensor import XlaTensor, wrap
from ..views import View, shown, write
from .determinism import filled
from .lists import by_mesh
from .naming import only_device


def changes_values(view: View | None) -> bool:
    """True if a chain of views conjugates or negates the numbers in memory."""
    return any(isinstance(sign, str) for sign in shown(view))


def host_copy(tensor: XlaTensor, call: str = "a read", *, together: bool = False) -> torch.Tensor:
    """Syncs, and returns a copy of the tensor's value on the CPU.

    call: the user's call, for messages. together: all processes read the value at once (see
    `host_reads.host_value`).
    """
    storage, meta = tensor._storage, tensor._meta
    leaving(call, meta)
    if changes_values(tensor._view):
        return host_copy(aten.clone.default(tensor), call, together=together)
    base = host_tensor(host_value(storage, call, together=together))
    if tensor._view is None:
        # The host's array is contiguous, whatever the tensor's strides.
        return (
            base
            if meta.strides == base.stride()
            else base.clone().as_strided_(meta.shape, base.stride())
        )
    # None: a copy on the device computes the view.
    result = strided(tensor, base)
    return (
        host_copy(aten.clone.default(tensor), call, together=together)
        if result is None
        else result.clone()
    )


def strided(tensor: XlaTensor, base: torch.Tensor) -> torch.Tensor | None:
    """A view of the host's copy of a tensor's base; None for a complex view of another dtype."""
    meta, storage_meta = tensor._meta, tensor._storage.meta
    if not meta.numel:  # numpy's strides of an empty array are not torch's
        return torch.empty_strided(meta.shape, meta.strides, dtype=meta.dtype, device="cpu")
    order = sorted(range(base.dim()), key=lambda dim: (-storage_meta.strides[dim], dim))
    memory = base.permute(order).contiguous().reshape(-1)
    memory = (
        memory.view(meta.dtype)
        if memory.dtype != meta.dtype and not meta.dtype.is_complex
        else memory
    )
    if meta.dtype != memory.dtype:
        return None
    return memory.as_strided(meta.shape, meta.strides, meta.offset - storage_meta.offset)


# Called with a tensor and the CPU tensor copied into it.
after_upload: list[Callable[[XlaTensor, torch.Tensor], None]] = []


def _copy_(func: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """`copy_` between devices: from the device by a read, on the device by an op, to it as host
    data."""
    target, source = args[0], args[1]
    if not isinstance(target, XlaTensor):
        return target.copy_(host_copy(source, "copy_ into a CPU tensor"))
    if isinstance(source, XlaTensor):
        return _copy_on_device(target, source, args, kwargs)
    # torch's parser also takes numbers for a tensor, and passes them as they are.
    if not isinstance(source, torch.Tensor):
        source = torch.from_numpy(np.asarray(source))
    refuse_tensor(source)
    if source.is_meta:
        # `Module.to` searches for these words
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")
    if source.device.type != "cpu":
        raise RuntimeError(f"copy_: expected a tensor on xla or cpu, got one on {source.device}")
    check_targets("aten.copy_", "copy", [target])
    guarding = guard.value
    if guarding is not None:
        guarding.check_cast(source, target.dtype)
    if recording.value is not None:  # nothing is uploaded: the CPU tensor needs no copy
        snapshot = source.detach().to(target.dtype).expand(target.shape).contiguous()
    else:  # the caller may change the CPU tensor before the upload, which waits for the first use
        snapshot = torch.empty(target.shape, dtype=target.dtype, device="cpu").copy_(source)
    meta = target._meta if target._view is None else target._view.meta.layout
    device_data = DeviceData(meta, host=host_array(snapshot), source=user_frame())
    observing = active_observation.value
    if observing is not None:
        observing.uploads.append((source, device_data))
    with LOCK:
        write(target, device_data)
    if target._view is None:
        for note in after_upload:
            note(target, source)
    return target


def _copy_on_device(target: XlaTensor, source: XlaTensor, args: Args, kwargs: Kwargs) -> object:
    """`copy_` between tensors of the device: the target keeps its sharding, whatever the
    source's."""
    storage = target._storage
    if source._view is target._view is None and source._meta is target._meta:
        # copied into itself, as by a state dict that was loaded in place
        if source._storage is storage:
            return target
        with LOCK:
            data = source._storage.value
            # Host data needs no program; but a replay repeats programs alone.
            if (
                type(data) is DeviceData
                and data.host is not None
                and active_observation.value is None
            ):
                write(target, DeviceData(data.meta, host=data.host, source=data.source))
                return target
    sharding = _sharding_across_devices(target, source)
    if sharding is None:
        return NotImplemented
    is_whole = target._view is None and source.shape == target.shape
    return target.copy_(
        with_sharding(source, sharding if is_whole else sharding.replicated()), *args[2:], **kwargs
    )


def _sharding_across_devices(target: torch.Tensor, source: torch.Tensor) -> Sharding | None:
    """The sharding of the target of a copy if its source is on other devices; else None."""
    if (
        not isinstance(target, XlaTensor)
        or not isinstance(source, XlaTensor)
        or target._storage.sharding is None
    ):
        return None
    # A view's base: reading the view here would record it too early.
    view = source._view
    base = source if view is None else wrap(source._storage.meta, source._storage)
    sharding = (view and view.sharding) or effective_sharding(base)
    is_across = sharding is not None and sharding.devices != target._storage.sharding.devices
    return target._storage.sharding if is_across else None


def _foreach_copy_(func: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """The list op; pair by pair if a source is on other devices than its target, or is cast to
    integers, which a NaN guard checks op by op."""
    pairs = [*zip(*args[:2], strict=True)]
    for target, source in pairs:
        is_cast = target.dtype is not source.dtype and is_integer(target.dtype)
        if is_cast or _sharding_across_devices(target, source) is not None:
            for pair in pairs:
                aten.copy_.default(*pair, *args[2:], **kwargs)
            return None
    return by_mesh(func, args, kwargs)


def _is_here(device: torch.device | None) -> bool:
    """True if a call's result is on this device, by name or by default. Raises for an index other
    than 0."""
    is_here = device is None or device.type == "xla"
    if is_here:
        only_device(device)
    return is_here


def _to_copy(func: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """`to()` and `cpu()`: a read for a copy on another device; else an op."""
    device = kwargs.get("device")
    if _is_here(device):
        return NotImplemented
    result = host_copy(args[0], "cpu() or to()")
    return result.to(device).to(kwargs.get("dtype") or result.dtype)


def _item(func: OpOverload, args: Args, kwargs: Kwargs) -> object:
    node = origin(args[0]._storage.value)
    if node is not None and node.op.name == "aten.sum" and node.op.operands[0].dtype is torch.bool:
        settle_count(args[0]._storage)  # the hits of a mask
    return host_copy(args[0], "item() or bool()").item()


def _equal(func: OpOverload, args: Args, kwargs: Kwargs) -> bool:
    first, second = args
    return first.shape == second.shape and bool((first == second).all().item())


def _allclose(func: OpOverload, args: Args, kwargs: Kwargs) -> bool:
    return bool(torch.isclose(*args, **kwargs).all().item())


def _factory(func: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """A factory like a tensor, on the named device: `x.new_zeros(2, device="cpu")`."""
    device = kwargs.get("device")
    if _is_here(device):
        refuse_layout(kwargs.get("layout"))
        return filled(func, args, kwargs)
    template = torch.empty_strided(
        args[0].shape, args[0].stride(), dtype=args[0].dtype, device=device
    )
    return func(template, *args[1:], **kwargs)


def _on_host(func: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """Runs an op with a data-dependent shape on the host, and counts it."""
    leaving(str(func), "its operands, as the result's shape depends on their values,")
    counters.add("host_ops")
    args, kwargs = tree_map_only(torch.Tensor, counting_copy, (args, kwargs))
    results = func(*args, **kwargs)
    setattr(tree_leaves(results)[0], COUNTED, True)
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to("xla"), results)


def counting_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy on the CPU of a value that decides a count."""
    if isinstance(tensor, XlaTensor):
        settle_count(tensor._storage)
    return tensor.cpu()


# The attribute of a CPU tensor whose rows data has counted.
COUNTED = "_spmd_counted"


def counted(tensor: torch.Tensor) -> torch.Tensor:
    """Uploads a tensor whose rows data has counted."""
    setattr(tensor, COUNTED, True)
    return tensor.to("xla")


def _repeats(func: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """`repeat_interleave` of counts: an op if the caller passes their sum; else on the host."""
    return NotImplemented if kwargs.get("output_size") is not None else _on_host(func, args, kwargs)


# Ops whose result has a shape that depends on data.
_DATA_DEPENDENT = (
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.unique_dim_consecutive.default,
    aten.bincount.default,
)
_FACTORIES = (
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_full.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.empty_like.default,
)
HANDLERS: dict[OpOverload, Handler] = {
    aten.copy_.default: _copy_,
    aten._foreach_copy_.default: _foreach_copy_,
    aten._to_copy.default: _to_copy,
    aten._local_scalar_dense.default: _item,
    aten.item.default: _item,  # `.item()` below autograd, inside another handler
    aten.equal.default: _equal,
    aten.allclose.default: _allclose,
    aten.repeat_interleave.Tensor: _repeats,
    **dict.fromkeys(_DATA_DEPENDENT, _on_host),
    **dict.fromkeys(_FACTORIES, _factory),
}

# The handlers above that take data to the host, for `python -m spmd where`.
HOST_HANDLERS = frozenset({_item, _equal, _allclose, _on_host})

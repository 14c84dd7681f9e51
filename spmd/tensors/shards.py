"""Shards of tensors: those on this process's devices, tensors made of such, and values whose shards
come in singly."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from ..core import (
    LOCK,
    AbstractError,
    DeviceData,
    Meta,
    Sharding,
    Storage,
    XlaTensor,
    abstract,
    annotations,
    dense_meta,
    ends_at_user_line,
    hardware,
    host_reads,
    leaving,
    processes,
    recording,
    storage_of,
    tensor_meta,
    topology,
    transfer,
    user_frame,
    user_line,
    view_of,
    wrap,
)
from .annotate import layout_of, on_device


@ends_at_user_line
@dataclass(slots=True, eq=False)
class Shard:
    """One device's part of a tensor. `XLAShard` is another name for it.

    Attributes:
        data: the shard as a CPU tensor, padded with zeros to the common shard shape where a dim is
            uneven.
        indices: its place in the tensor, without padding (an empty slice for a shard of padding
            only).
        device: its id (`spmd.device_ids`). replica_id: 0 for the first copy of this shard.

    >>> import torch, spmd
    >>> x = spmd.mark_sharding(
    ...     torch.arange(16.0).to("xla"), spmd.Mesh(range(8), (8,), ("data",)), ("data",)
    ... )
    >>> shard = spmd.local_shards(x)[3]
    >>> shard.device, shard.indices, shard.data.tolist()
    (3, (slice(6, 8, None),), [6.0, 7.0])
    """

    data: torch.Tensor
    indices: tuple[slice, ...]
    device: int
    replica_id: int

    @property
    def unpadded_data(self) -> torch.Tensor:
        """The shard without padding. An assignment writes into `data`."""
        return self.data[
            tuple(slice(0, max(index.stop - index.start, 0)) for index in self.indices)
        ]

    @unpadded_data.setter
    def unpadded_data(self, new: torch.Tensor) -> None:
        if new.shape != self.unpadded_data.shape:
            # An array that every device has as a whole is at no place (`spmd.torch_xla` has `...`
            # for its indices).
            shape = (
                f"{list(self.unpadded_data.shape)}"
                f"{'' if self.indices is ... else f' at {_written(self.indices)}'}"
            )
            raise ValueError(f"unpadded_data: expected shape {shape}, got {list(new.shape)}")
        self.unpadded_data.copy_(new)

    @property
    def shard_device(self) -> str:
        """The device in PyTorch/XLA's notation: "CPU:3"."""
        return f"{hardware.devices()[self.device].platform.upper()}:{self.device}"


XLAShard = Shard  # PyTorch/XLA's name


def _written(indices: Sequence[slice]) -> str:
    """The text of indices: [0:2, 4:8]."""
    return f"[{', '.join(f'{index.start}:{index.stop}' for index in indices)}]"


@ends_at_user_line
def local_shards(tensor: torch.Tensor) -> list[Shard]:
    """The shards of a tensor on this process's devices, in order of device id; a sync.

    Raises TypeError for a tensor that is not on xla, ValueError for a view (its base has the
    shards).

    >>> import torch, spmd
    >>> [shard.data.shape for shard in spmd.local_shards(torch.ones(4, 2, device="xla"))]
    [torch.Size([4, 2])]
    """
    target = on_device(tensor, "local_shards")
    if view_of(target) is not None:
        raise ValueError(
            "local_shards: a view has no shards of its own; pass its base, or .clone() it first"
        )
    leaving("local_shards", repr(tensor_meta(target)))
    with host_reads.leased(storage_of(target), "local_shards", on_device=True) as lease:
        buffer, _ = lease.placed()
        shard_slices = sorted(
            buffer.addressable_shards, key=lambda shard_slice: topology.ordinal(shard_slice.device)
        )
        return [
            _shard(shard_slice, buffer.shape, tensor_meta(target).shape)
            for shard_slice in shard_slices
        ]


def _shard(shard_slice: jax.Shard, padded: tuple[int, ...], shape: tuple[int, ...]) -> Shard:
    bounds = [index.indices(dim) for index, dim in zip(shard_slice.index, padded, strict=True)]
    indices = tuple(
        slice(min(start, dim), min(stop, dim))
        for (start, stop, _), dim in zip(bounds, shape, strict=True)
    )
    return Shard(
        transfer.host_tensor(np.asarray(shard_slice.data)),
        indices,
        topology.ordinal(shard_slice.device),
        shard_slice.replica_id,
    )


@ends_at_user_line
def from_local_shards(
    shards: Iterable["torch.Tensor | Shard"],
    mesh: Any,
    partition_spec: Sequence[Any] | None = None,
    shape: Sequence[int] | None = None,
) -> torch.Tensor:
    """Returns a tensor on xla made of the shards of this process's devices; no device or host holds
    the full tensor.

    The inverse of `local_shards`. With several processes all must call it, each with the shards of
    its own devices.

    Args:
        shards: a CPU tensor for each of the mesh's devices that belong to this process, in order of
            device id, or a `Shard` each, which has its device. All have the shape of a shard: in an
            uneven dim the last ones are padded, with any values. Copies of one shard hold the same
            numbers.
        mesh, partition_spec: as in `mark_sharding`; no dim may be left to the partitioner.
        shape: of the tensor; None: the shard's shape times the number of shards in each dim. It may
            be shorter by padding, as long as the shard's shape follows from it.

    Raises TypeError for another type than a CPU tensor, ValueError for a wrong number, shape, dtype
    or device, for copies that differ, or for a shape that does not fit; the error says which.
    Source: `jax.make_array_from_single_device_arrays`; `torch_xla`'s
    `_global_tensor_from_cpu_shards`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh(range(8), (8,), ("data",))
    >>> x = spmd.from_local_shards(
    ...     [torch.full((2,), float(i)) for i in range(8)], mesh, ("data",), (15,)
    ... )
    >>> x.shape, x.sum().item()
    (torch.Size([15]), 49.0)
    """
    listed = _listed(shards, "from_local_shards")
    first = next((shard.data if isinstance(shard, Shard) else shard for shard in listed), None)
    if not isinstance(first, torch.Tensor):  # `_placed` checks the others
        kind = "none" if first is None else type(first).__name__
        raise TypeError(
            f"from_local_shards: expected a CPU tensor for each local device, got {kind}"
        )
    rank, dtype = first.dim(), first.dtype
    sharding = layout_of(mesh, partition_spec, rank, "from_local_shards")
    if sharding.is_open:
        raise ValueError(
            f"from_local_shards: {sharding!r} leaves a dim to the partitioner; shards need a "
            "sharding of every dim"
        )
    full = _full_shape(tuple(first.shape), sharding, shape)
    if processes.several():
        call = f"from_local_shards of {dense_meta(full, dtype)!r} as {sharding!r}"
        processes.agree_once(call, call.encode(), user_line())
    meta = dense_meta(full, dtype)
    placed = _placed(listed, full, dtype, sharding, "from_local_shards")
    if recording.value is not None:
        return abstract(meta, sharding)
    if not meta.numel:
        return torch.empty(full, dtype=dtype, device="cpu").to("xla")
    parts = [
        part
        for shard_slice, data in placed
        for part in transfer.upload_shard(transfer.host_array(data), shard_slice, full, sharding)
    ]
    return tensor_of(meta, transfer.joined(parts, full, sharding), sharding)


def _listed(shards: Any, caller: str) -> list["torch.Tensor | Shard"]:
    if isinstance(shards, torch.Tensor):
        raise TypeError(
            f"{caller}: expected a list of a CPU tensor for each local device, got one tensor of "
            f"shape {list(shards.shape)}; if it is the full one, write "
            'spmd.mark_sharding(tensor.to("xla"), mesh, spec)'
        )
    return list(shards)


def _full_shape(
    shard_shape: tuple[int, ...], sharding: Sharding, shape: Sequence[int] | None
) -> tuple[int, ...]:
    """The shape of a tensor with shards of this shape: the given one, checked, or that without
    padding."""
    padded = tuple(
        dim * cut for dim, cut in zip(shard_shape, sharding.tiles(len(shard_shape)), strict=True)
    )
    full = padded if shape is None else tuple(int(dim) for dim in shape)
    if len(full) != len(shard_shape) or sharding.shard_shape(full) != shard_shape:
        raise ValueError(
            f"from_local_shards: shards of shape {list(shard_shape)} under {sharding!r} make a "
            f"tensor of shape {list(padded)}, less padding of the last ones; got "
            f"shape={list(full)}"
        )
    return full


@ends_at_user_line
def load_local_shards_(
    tensor: torch.Tensor, shards: Iterable["torch.Tensor | Shard"]
) -> torch.Tensor:
    """Overwrites a tensor with the shards of this process's devices, in place; returns the tensor.

    Its sharding stays. With several processes each gives the shards of its own devices. The
    tensor's old value, if recorded, is never computed.

    Args:
        tensor: on xla, not a view. shards: as in `from_local_shards`: one for each local device
            that holds a shard, of the shape of `local_shards`' data; they are not cast.

    Raises as `from_local_shards` does, and ValueError for a view. Source:
    `XLAShardedTensor.load_local_shards_`.

    >>> import torch, spmd
    >>> x = spmd.mark_sharding(
    ...     torch.zeros(8, device="xla"), spmd.Mesh(range(8), (8,), ("data",)), ("data",)
    ... )
    >>> shards = spmd.local_shards(x)
    >>> for shard in shards:
    ...     shard.unpadded_data = torch.tensor([float(shard.device)])
    >>> spmd.load_local_shards_(x, shards).tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    """
    target = on_device(tensor, "load_local_shards_")
    if not can_fill(target) and target.numel():
        raise ValueError(
            "load_local_shards_: expected a dense tensor that is no view, got a view; pass its base"
        )
    shape = tuple(target.shape)
    sharding = _lies_as(target).closed()
    listed = _listed(shards, "load_local_shards_")
    placed = _placed(listed, shape, target.dtype, sharding, "load_local_shards_")
    if target.numel():
        filling = Filling(target)
        for shard_slice, data in placed:
            filling.put(shard_slice, data)
    return tensor


def _placed(
    shards: list["torch.Tensor | Shard"],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    sharding: Sharding,
    caller: str,
) -> list[tuple[transfer.ShardSlice, torch.Tensor]]:
    """The distinct shards of a tensor in this process, each with its data, without padding, in
    memory of its own."""
    shard_slices = transfer.shards_here(shape, sharding)
    devices = sorted(
        topology.ordinal(device) for shard_slice in shard_slices for device in shard_slice.devices
    )
    data = dict(zip(_devices_of(shards, devices, caller), shards, strict=True))
    by_device = {
        device: shard.data if isinstance(shard, Shard) else shard for device, shard in data.items()
    }
    wide = sharding.shard_shape(shape)
    for device, shard in by_device.items():
        if not isinstance(shard, torch.Tensor) or shard.device.type != "cpu":
            kind = (
                f"one on {shard.device}"
                if isinstance(shard, torch.Tensor)
                else type(shard).__name__
            )
            raise TypeError(
                f"{caller}: expected a CPU tensor for each local device, got {kind} for device "
                f"{device}"
            )
        if tuple(shard.shape) != wide:
            raise ValueError(
                f"{caller}: expected shards of shape {list(wide)}, as a tensor of shape "
                f"{list(shape)} has under {sharding!r}, got {list(shard.shape)} for device "
                f"{device}"
            )
        if shard.dtype is not dtype:
            raise ValueError(
                f"{caller}: expected shards of {dtype}, got {shard.dtype} for device {device}"
            )
    return [(shard_slice, _agreed(shard_slice, by_device, caller)) for shard_slice in shard_slices]


def _devices_of(shards: list[Any], local_devices: list[int], caller: str) -> list[int]:
    """The device of each shard: its `device`, else by its position."""
    if len(shards) != len(local_devices):
        raise ValueError(
            f"{caller}: expected a shard for each of this process's {len(local_devices)} devices "
            f"that hold one (ids {', '.join(map(str, local_devices))}), got {len(shards)}"
        )
    if not all(isinstance(shard, Shard) for shard in shards):
        return local_devices
    devices = [shard.device for shard in shards]
    wrong = [
        device for device in devices if device not in local_devices or devices.count(device) > 1
    ]
    if wrong:
        raise ValueError(
            f"{caller}: expected one shard for each of the devices "
            f"{', '.join(map(str, local_devices))}, got shards of {', '.join(map(str, devices))}"
        )
    return devices


def _agreed(
    shard_slice: transfer.ShardSlice, data: dict[int, torch.Tensor], caller: str
) -> torch.Tensor:
    """The data of a shard, in memory of its own; raises ValueError where its devices were given
    different data."""
    inside = tuple(slice(0, dim) for dim in shard_slice.shape)
    first, *replicas = [topology.ordinal(device) for device in shard_slice.devices]
    shard_data = data[first].detach()[inside].clone(memory_format=torch.contiguous_format)
    for replica in replicas:
        if data[replica] is not data[first] and not _same_bits(
            shard_data, data[replica].detach()[inside]
        ):
            raise ValueError(
                f"{caller}: devices {first} and {replica} hold the same shard, "
                f"{_written(shard_slice.indices)}, but were given different numbers for it"
            )
    return shard_data


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if two tensors hold the same bytes, so that a NaN equals itself."""
    return transfer.host_array(a).tobytes() == transfer.host_array(b).tobytes()


# --- a value whose shards come in -----------------------------------------------------------------


def tensor_of(
    meta: Meta, buffer: jax.Array, sharding: Sharding, *, is_annotated: bool = True
) -> torch.Tensor:
    """A tensor on xla whose value is an array on the devices, in this sharding, padded as it is
    stored."""
    data = DeviceData(meta, buffer=buffer, sharding=sharding, source=user_frame())
    return wrap(meta, Storage(data, meta, sharding if is_annotated else None))


def can_fill(tensor: XlaTensor) -> bool:
    """True if a tensor's memory can be filled shard by shard: all of it is the tensor's, in torch's
    own order."""
    meta = tensor_meta(tensor)
    return view_of(tensor) is None and meta.numel > 0 and meta is dense_meta(meta.shape, meta.dtype)


def sharding_of(tensor: XlaTensor) -> Sharding:
    """Returns the sharding of a tensor; that of data on no device yet is the default one."""
    return annotations.current_sharding(tensor) or hardware.default_sharding()


def _lies_as(tensor: XlaTensor) -> Sharding:
    """The sharding on the devices where a tensor lies: those of its block, for a row of a stack
    sharded over rows."""
    sharding, value = sharding_of(tensor), storage_of(tensor).value
    if not sharding.spec.stack or type(value) is not DeviceData or value.stored_row is None:
        return sharding
    store, row = value.stored_row
    return store.lies_as(row)


class Filling:
    """The shards of one tensor's next value; the tensor takes it when the last of them is here."""

    def __init__(self, tensor: XlaTensor, when_done: Callable[[], Any] = lambda: None):
        if recording.value is not None:
            raise AbstractError(
                f"loading data at {user_line()}: spmd.plan records the step and runs nothing"
            )
        self.tensor = tensor
        self.shape = tensor_meta(tensor).shape
        self.sharding = _lies_as(tensor)
        self.shards = transfer.shards_here(self.shape, self.sharding)
        self._when_done = when_done
        self._parts: list[jax.Array] = []
        self._missing = len(self.shards)
        self._lock = threading.Lock()  # several threads may read files

    def put(self, shard: transfer.ShardSlice, data: torch.Tensor) -> None:
        """Uploads one shard, a CPU tensor of the tensor's dtype that is not written any more."""
        parts = transfer.upload_shard(transfer.host_array(data), shard, self.shape, self.sharding)
        with self._lock:
            self._parts += parts
            self._missing -= 1
            is_last = not self._missing
        if is_last:
            self.take(transfer.joined(self._parts, self.shape, self.sharding))

    def take(self, buffer: jax.Array) -> None:
        """Makes an array in this sharding, padded as it is stored, the tensor's value."""
        torch.autograd.graph.increment_version(self.tensor)
        with LOCK:
            storage, sharding = storage_of(self.tensor), sharding_of(self.tensor)
            data = DeviceData(
                tensor_meta(self.tensor), buffer=buffer, sharding=self.sharding, source=user_frame()
            )
            stored_row = storage.value.stored_row if type(storage.value) is DeviceData else None
            storage.write(data)
            if self.sharding.devices != sharding.devices:
                data.take_row(stored_row, sharding)
            storage.home = data.sharding
        self._when_done()


class Target:
    """A shard of a filling while parts of it are written: the data of `staged` is uploaded when all
    of it has come."""

    def __init__(self, filling: Filling, shard: transfer.ShardSlice):
        self.filling, self.shard = filling, shard
        self._data: torch.Tensor | None = None
        self._left = max(1, torch.Size(shard.shape).numel())
        self._lock = threading.Lock()

    def staged(self) -> "Staged":
        """The shard as a CPU tensor to be written, at once or part by part."""
        with self._lock:
            if self._data is None:
                self._data = torch.empty(
                    self.shard.shape, dtype=self.filling.tensor.dtype, device="cpu"
                )
            result = self._data.as_subclass(Staged)
        result.target = self
        return result

    def written(self, numel: int) -> None:
        """Counts written elements; none is written twice."""
        with self._lock:
            self._left -= numel
            data, done = self._data, self._left <= 0
            self._data = None if done else data
        if done:
            assert data is not None
            self.filling.put(self.shard, data)


class Staged(torch.Tensor):
    """A CPU tensor, or a part of one, that reports copies into it to its target."""

    target: Target

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        if func is torch.Tensor.copy_:
            args[0].target.written(args[0].numel())
        elif isinstance(result, Staged) and args and isinstance(args[0], Staged):
            result.target = args[0].target
        return result


def targets(filling: Filling) -> Iterator[tuple[tuple[int, ...], Target]]:
    """Each shard that has data, with its first indices; shards of padding alone are filled here."""
    for shard in filling.shards:
        if 0 in shard.shape:
            filling.put(shard, torch.empty(shard.shape, dtype=filling.tensor.dtype, device="cpu"))
        else:
            yield begins(shard.indices), Target(filling, shard)


def begins(indices: Sequence[slice]) -> tuple[int, ...]:
    """The first index of a shard in each dim."""
    return tuple(index.start for index in indices)

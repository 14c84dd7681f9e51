"""The values of a save: their buffers are lent and read to the host one shard after the other,
while steps go on."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from ...core import (
    Sharding,
    XlaTensor,
    buffer_leases,
    host_copy,
    host_reads,
    storage_of,
    transfer,
    view_of,
)
from ...tensors.shards import can_fill
from .step_saving import ShardBytes

_CALL = "saving a checkpoint"


class _Member(NamedTuple):
    """A tensor in a lent array: its name and shape, and its row where the array is a store's."""

    name: str
    shape: tuple[int, ...]
    row: int | None


class StagedState:
    """Tensors by name, as they are now; a later write into one is not seen.

    A tensor on devices is lent and not copied: a program that would overwrite it takes a copy on
    the devices first, and waits where these copies would take more than `room` bytes. CPU tensors
    are copied, unless nothing else runs until they are written. tensors: their facts.
    """

    def __init__(self, room: Callable[[], float], *, is_copied: bool = True) -> None:
        self._is_copied = is_copied
        self.lender = buffer_leases.Lender(room)
        self.tensors: dict[str, dict[str, Any]] = {}
        # By what tied weights share: the name, and the tensor, so that no other one gets its
        # identity.
        self._names: dict[Any, tuple[str, torch.Tensor]] = {}
        self._arrays: dict[int, tuple[jax.Array, list[_Member]]] = {}
        self._on_host: dict[str, torch.Tensor] = {}

    def put(self, tensor: torch.Tensor, path: str) -> str:
        """Takes a tensor; returns its name, that of an earlier one where they are tied."""
        key = identity(tensor)
        if key in self._names:
            return self._names[key][0]
        self._names[key] = path, tensor
        facts: dict[str, Any] = {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
        }
        if isinstance(tensor, XlaTensor):
            if can_fill(tensor):
                lease = host_reads.lent_to(self.lender, storage_of(tensor), _CALL)
                array, sharding = lease.placed()
                _, members = self._arrays.setdefault(id(array), (array, []))
                if members:
                    self.lender.give_back(array)  # it is lent once
                members.append(_Member(path, tuple(facts["shape"]), lease.row))
                self.tensors[path] = {
                    **facts,
                    "on_host": False,
                    "sharding": _text(sharding, len(facts["shape"])),
                }
                return path
            # A view has no shards of its own; each process has all of it.
            self._on_host[path] = host_copy(tensor, _CALL, together=True)
        elif tensor.layout is not torch.strided or tensor.is_meta:
            raise TypeError(
                f"CheckpointManager: {path} is a {tensor.layout} tensor on {tensor.device}, "
                "without data"
            )
        else:
            host_tensor = tensor.detach()
            self._on_host[path] = (
                host_tensor.clone(memory_format=torch.contiguous_format)
                if self._is_copied
                else host_tensor
            )
        self.tensors[path] = {**facts, "on_host": True}
        return path

    def seal(self) -> None:
        """Ends the taking of tensors, which are kept alive no longer."""
        self._names.clear()

    def shards(self) -> Iterator[ShardBytes]:
        """Yields the shards that this process writes: of each, its first copy. At most two of the
        arrays' are on the host at a time: one that is written and one on its way."""
        for name, tensor in self._on_host.items():
            if tensor.numel():
                data = transfer.host_array(tensor).reshape(-1).view(np.uint8).data
                yield ShardBytes(name, (0,) * tensor.dim(), tuple(tensor.shape), data)
        waiting = [
            (key, shard.index, shard.data)
            for key, (array, _) in self._arrays.items()
            for shard in array.addressable_shards
            if shard.replica_id == 0
        ]
        for key in self._arrays.keys() - {key for key, _, _ in waiting}:
            self._give_back(key)
        coming = ((key, index, _on_its_way(data)) for key, index, data in waiting)
        following = next(coming, None)
        while following is not None:
            (key, index, arriving), following = following, next(coming, None)
            host: Any = np.asarray(arriving)
            for member in self._arrays[key][1]:
                yield from _cut(host, index, member)
            del host, arriving
            if following is None or following[0] != key:  # the shards of an array follow each other
                self._give_back(key)

    def _give_back(self, key: int) -> None:
        array, _ = self._arrays.pop(key)
        self.lender.give_back(array)

    def close(self) -> None:
        """Gives back what is still lent."""
        for key in [*self._arrays]:
            self._give_back(key)
        self._on_host.clear()


def _text(sharding: Sharding, rank: int) -> dict[str, Any]:
    """A sharding as the manifest says it."""
    axes = {name: size for name, size in sharding.mesh_axes().items() if size > 1}
    return {"mesh": axes, "spec": str(sharding.partition_spec(rank)), "memory": sharding.memory}


def identity(tensor: torch.Tensor) -> Any:
    """A key that tensors have in common where they are one, as tied weights are."""
    if not isinstance(tensor, XlaTensor):
        address = tensor.untyped_storage().data_ptr() if tensor.numel() else id(tensor)
        return address, tensor.storage_offset(), tensor.dtype, tuple(tensor.shape), tensor.stride()
    return id(storage_of(tensor)) if view_of(tensor) is None else id(tensor)


def _on_its_way(data: jax.Array) -> jax.Array:
    """The same shard as another array, whose copy to the host has begun and is freed with it; the
    CPU's devices need none."""
    result = jax.make_array_from_single_device_arrays(data.shape, data.sharding, [data])
    if next(iter(data.devices())).platform != "cpu":
        result.copy_to_host_async()
    return result


def _cut(host: np.ndarray, index: tuple[slice, ...], member: _Member) -> Iterator[ShardBytes]:
    """Yields the part of a shard that is of one tensor, without padding; none of padding alone."""
    if member.row is not None:
        start, stop, _ = index[0].indices(member.row + 1)
        if not start <= member.row < stop:
            return
        host, index = host[member.row - start], index[1:]
    begins = tuple(part.start or 0 for part in index)
    shape = tuple(
        min(size, dim - begin)
        for size, dim, begin in zip(host.shape, member.shape, begins, strict=True)
    )
    if min(shape, default=1) > 0 and math.prod(shape):
        part = np.ascontiguousarray(host[tuple(slice(0, size) for size in shape)])
        yield ShardBytes(member.name, begins, shape, part.reshape(-1).view(np.uint8).data)

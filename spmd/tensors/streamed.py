"""A tensor's next value while its shards come in, so that no host holds more than one; tensors of such values."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import torch

from ..core import (
    LOCK,
    AbstractError,
    DeviceData,
    Meta,
    Sharding,
    ShardSlice,
    Storage,
    XlaTensor,
    annotations,
    dense_meta,
    hardware,
    recording,
    storage_of,
    tensor_meta,
    transfer,
    user_frame,
    user_line,
    view_of,
    wrap,
)


def tensor_of(meta: Meta, buffer: jax.Array, sharding: Sharding, *, is_annotated: bool = True) -> torch.Tensor:
    """A tensor on xla whose value is an array on the devices, in this sharding, padded as it is stored."""
    data = DeviceData(meta, buffer=buffer, sharding=sharding, source=user_frame())
    return wrap(meta, Storage(data, meta, sharding if is_annotated else None))


def can_fill(tensor: XlaTensor) -> bool:
    """True if a tensor's memory can be filled shard by shard: all of it is the tensor's, in torch's own order."""
    meta = tensor_meta(tensor)
    return view_of(tensor) is None and meta.numel > 0 and meta is dense_meta(meta.shape, meta.dtype)


class Filling:
    """The shards of one tensor's next value; the tensor takes it when the last of them is here."""

    def __init__(self, tensor: XlaTensor, when_done: Callable[[], Any] = lambda: None):
        if recording() is not None:
            raise AbstractError(f"loading data at {user_line()}: spmd.plan records the step and runs nothing")
        self.tensor = tensor
        self.shape = tensor_meta(tensor).shape
        self.sharding = annotations.current_sharding(tensor) or hardware.default_sharding()
        self.shards = transfer.shards_here(self.shape, self.sharding)
        self._when_done = when_done
        self._parts: list[jax.Array] = []
        self._missing = len(self.shards)
        self._lock = threading.Lock()  # several threads may read files

    def put(self, shard: ShardSlice, data: torch.Tensor) -> None:
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
            storage_of(self.tensor).write(
                DeviceData(tensor_meta(self.tensor), buffer=buffer, sharding=self.sharding, source=user_frame())
            )
            storage_of(self.tensor).home = self.sharding
        self._when_done()


class Target:
    """A shard of a filling while parts of it are written: the data of `staged` is uploaded when all of it has come."""

    def __init__(self, filling: Filling, shard: ShardSlice):
        self.filling, self.shard = filling, shard
        self._data: torch.Tensor | None = None
        self._left = max(1, torch.Size(shard.shape).numel())
        self._lock = threading.Lock()

    def staged(self) -> "Staged":
        """The shard as a CPU tensor to be written, at once or part by part."""
        with self._lock:
            if self._data is None:
                self._data = torch.empty(self.shard.shape, dtype=self.filling.tensor.dtype, device="cpu")
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

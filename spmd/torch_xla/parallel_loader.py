"""`torch_xla.distributed.parallel_loader`: a loader whose batches come on the device, sharded, one sync apart."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ..tensors.runtime import sync
from .nested import mapped
from .sharding_spec import ShardingSpec

InputSharding = ShardingSpec | Mapping[str, ShardingSpec | None] | None


class MpDeviceLoader:
    """A loader's batches on the device: each CPU tensor is uploaded, sharded by a spec, and a sync ends each step.

    Args:
        loader: anything that is iterated over, such as a `torch.utils.data.DataLoader`.
        device: the logical device.
        input_sharding: a `ShardingSpec` for each tensor of a batch, or one (or None) for each key of batches that are
            dicts. A tensor of fewer dims takes the spec's first entries; dims after the spec's are not split. None:
            not sharded.
        batches_per_execution: the number of batches between two syncs.
        batchdim, loader_prefetch_size, device_prefetch_size, host_to_device_transfer_threads: have no meaning here.

    Raises ValueError for specs by key where a batch is no dict, KeyError for a key that has no spec, TypeError for
    other arguments. Source: `torch_xla.distributed.parallel_loader.MpDeviceLoader`.

    >>> import torch, spmd
    >>> spec = spmd.torch_xla.ShardingSpec(spmd.Mesh([0], (1,), ("data",)), ("data", None))
    >>> loader = spmd.torch_xla.parallel_loader.MpDeviceLoader([torch.ones(4, 2)], "xla", input_sharding=spec)
    >>> [batch.device.type for batch in loader], len(loader)
    (['xla'], 1)
    """

    def __init__(self, loader: Iterable[Any], device: Any = "xla", **kwargs: Any):
        for name in kwargs:
            if name not in _KEYWORDS:
                raise TypeError(f"MpDeviceLoader: expected one of {', '.join(_KEYWORDS)}, got {name!r}")
        self._loader = loader
        self._device = device
        self._parallel_loader_kwargs = kwargs  # Hugging Face's Trainer sets input_sharding in it

    def __iter__(self) -> Iterator[Any]:
        given = self._parallel_loader_kwargs
        every = given.get("batches_per_execution", 1)
        sharding = given.get("input_sharding")
        for number, batch in enumerate(self._loader):
            if number % every == 0:
                sync()  # ends the step of the batch before
            yield to_device(batch, self._device, sharding)
        sync()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # raises as the loader does

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # of an object that is being copied
            raise AttributeError(name)
        return getattr(self._loader, name)  # dataset, batch_size, sampler, set_epoch


_KEYWORDS = (
    "batchdim", "batches_per_execution", "loader_prefetch_size", "device_prefetch_size",
    "host_to_device_transfer_threads", "input_sharding",
)  # fmt: skip


class ParallelLoader:
    """The loader of several devices: with one logical device, `per_device_loader` is an `MpDeviceLoader`.

    Args: cpu_loader: as `loader` of `MpDeviceLoader`; devices: the logical device in a list; the others: as there.
    Raises ValueError for several devices. Source: `torch_xla.distributed.parallel_loader.ParallelLoader`.

    >>> import torch, spmd
    >>> loader = spmd.torch_xla.parallel_loader.ParallelLoader([torch.ones(2)], ["xla"])
    >>> [batch.device.type for batch in loader.per_device_loader("xla")]
    ['xla']
    """

    def __init__(self, cpu_loader: Iterable[Any], devices: Iterable[Any], **kwargs: Any):
        given = list(devices)
        if len(given) != 1:
            raise ValueError(f"ParallelLoader: expected the one logical device, xla:0, in a list, got {given!r}")
        self._loader = MpDeviceLoader(cpu_loader, given[0], **kwargs)

    def per_device_loader(self, device: Any) -> MpDeviceLoader:
        """The loader of the device."""
        return self._loader

    def close(self) -> None:
        """Does nothing: no thread runs."""


def to_device(batch: Any, device: Any, sharding: InputSharding) -> Any:
    """Returns a batch with its CPU tensors on the device; the rest of the structure stays as it is."""
    if isinstance(sharding, Mapping):
        if not isinstance(batch, Mapping):
            raise ValueError(
                f"input_sharding: expected batches that are dicts for specs by key, got {type(batch).__name__}"
            )
        missing = [key for key in batch if key not in sharding]
        if missing:
            raise KeyError(
                f"input_sharding: expected a spec (or None) for each key of a batch, none is of {missing[0]!r}"
            )
        parts = {key: to_device(value, device, sharding[key]) for key, value in batch.items()}
        made = copy.copy(batch)
        made.update(parts)  # type: ignore[attr-defined]  # a mapping that loaders fill
        return made
    return mapped(lambda value: _uploaded(value, device, sharding), batch)


def _uploaded(value: Any, device: Any, sharding: ShardingSpec | None) -> Any:
    if sharding is None or not isinstance(value, torch.Tensor):
        return value.to(device)
    if value.device.type != "cpu":
        return value
    entries = tuple(sharding.partition_spec)[: value.dim()]
    spec = (*entries, *[None] * (value.dim() - len(entries)))
    return ShardingSpec(sharding.mesh, spec, sharding.minibatch).apply(value)

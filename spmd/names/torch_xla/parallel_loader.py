"""`torch_xla.distributed.parallel_loader`: a loader that uploads ahead of the step, one sync
apart."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ...core import Sharding, hardware, processes
from ...jobs.data.ahead import Ahead, going_on
from ...jobs.data.placing import tensors, uploaded
from ...jobs.data.trees import Path, mapped, moves
from ...tensors.runtime import sync
from . import data_parallel
from .sharding_spec import ShardingSpec, sent

InputSharding = ShardingSpec | Mapping[str, ShardingSpec | None] | None


class MpDeviceLoader:
    """A loader's batches on the device: a thread uploads the next ones, sharded by a spec; a sync
    ends each step.

    It is `spmd.DataLoader` with PyTorch/XLA's arguments: the source runs in the thread, which ends
    with the iterator.

    Args:
        loader: anything that is iterated over, such as a `torch.utils.data.DataLoader`.
        device: the logical device.
        input_sharding: a `ShardingSpec` for each tensor of a batch, or one (or None) for each key
            of batches that are dicts. A tensor of fewer dims takes the spec's first entries; dims
            after the spec's are not split. None: not sharded; with several devices such a tensor is
            uploaded by the program that reads it first.
        batches_per_execution: the number of batches between two syncs.
        device_prefetch_size: the number of uploaded batches that may wait, 2 where none is given.
        batchdim: the dim of the rows, by which batches are joined.
        loader_prefetch_size, host_to_device_transfer_threads: have no meaning here.

    In a function of `torch_xla.launch` or `xmp.spawn` without an input_sharding, as many batches as
    there are devices are joined, in their order, and split over all devices: what the loaders of as
    many ranks give together.

    A tensor that is as long as no other in a dim after its first, as texts are, is uploaded by the
    program that reads it, as are all of its name from then on: that program may pad it, and serve
    all lengths.

    Raises ValueError for specs by key where a batch is no dict, KeyError for a key that has no
    spec, TypeError for other arguments, and what the loader raises, at the line of the loop.
    Source: `torch_xla.distributed.parallel_loader.MpDeviceLoader`.

    >>> import torch, spmd
    >>> spec = spmd.torch_xla.ShardingSpec(spmd.Mesh([0], (1,), ("data",)), ("data", None))
    >>> loader = spmd.torch_xla.parallel_loader.MpDeviceLoader(
    ...     [torch.ones(4, 2)], "xla", input_sharding=spec
    ... )
    >>> [batch.device.type for batch in loader], len(loader)
    (['xla'], 1)
    """

    def __init__(self, loader: Iterable[Any], device: Any = "xla", **kwargs: Any):
        for name in kwargs:
            if name not in _KEYWORDS:
                raise TypeError(
                    f"MpDeviceLoader: expected one of {', '.join(_KEYWORDS)}, got {name!r}"
                )
        self._loader = loader
        self._device = device
        self._parallel_loader_kwargs = kwargs  # Hugging Face's Trainer sets input_sharding in it
        self._trailing: dict[Path, Any] = {}
        self._threads: list[Ahead[Any, Any]] = []
        self._num_replicas = (
            1 if torch.device(device).type != "xla" else data_parallel.current.num_replicas
        )
        if self._num_replicas > 1:
            data_parallel.pad_samplers(loader, self._num_replicas)

    def __iter__(self) -> Iterator[Any]:
        self._threads = going_on(self._threads)
        data_parallel.current.has_loader = True
        options = self._parallel_loader_kwargs
        sharding, batches = options.get("input_sharding"), self._loader
        if self._joins():
            dim = options.get("batchdim", 0)
            sharding = data_parallel.spec_of_rows(dim)
            batches = data_parallel.joined(self._loader, self._num_replicas, dim)
        uploads = _Uploads(self._device, sharding, self._trailing)
        ahead: Ahead[Any, Any] = Ahead(uploads.prepare, options.get("device_prefetch_size", 2))
        ahead.pulled = iter(batches)
        self._threads.append(ahead)
        try:
            yield from _synced(ahead, uploads, options.get("batches_per_execution", 1))
        finally:  # the loop's end, an exception, a `break`, or the collection of this generator
            ahead.stop()

    def close(self) -> None:
        """Ends the threads of all iterations and waits for them."""
        for ahead in self._threads:
            ahead.stop()
        self._threads = going_on(self._threads)

    def __len__(self) -> int:
        if self._joins():
            return data_parallel.num_joined(self._loader, self._num_replicas)
        return len(self._loader)  # type: ignore[arg-type]  # raises as the loader does

    def _joins(self) -> bool:
        return self._num_replicas > 1 and self._parallel_loader_kwargs.get("input_sharding") is None

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # of an object that is being copied
            raise AttributeError(name)
        return getattr(self._loader, name)  # dataset, batch_size, sampler, set_epoch

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_threads": []}


def _synced(ahead: Ahead[Any, Any], uploads: "_Uploads", every: int) -> Iterator[Any]:
    """The batches that a thread prepares, with a sync before every so many of them, and at the
    end."""
    for number in itertools.count():
        is_due = number % every == 0
        if is_due:
            sync()  # the step of the batch before runs while this one is waited for
        try:
            tree = ahead.next_item()
        except StopIteration:
            if not is_due:
                sync()
            return
        yield uploads.finish(tree)


_KEYWORDS = (
    "batchdim",
    "batches_per_execution",
    "loader_prefetch_size",
    "device_prefetch_size",
    "host_to_device_transfer_threads",
    "input_sharding",
)


class ParallelLoader:
    """The loader of several devices: with one logical device, `per_device_loader` is an
    `MpDeviceLoader`.

    Args: cpu_loader: as `loader` of `MpDeviceLoader`; devices: the logical device in a list; the
    others: as there. Raises ValueError for several devices. Source:
    `torch_xla.distributed.parallel_loader.ParallelLoader`.

    >>> import torch, spmd
    >>> loader = spmd.torch_xla.parallel_loader.ParallelLoader([torch.ones(2)], ["xla"])
    >>> [batch.device.type for batch in loader.per_device_loader("xla")]
    ['xla']
    """

    def __init__(
        self, cpu_loader: Iterable[Any], devices: Iterable[Any], *args: Any, **kwargs: Any
    ):
        listed = list(devices)
        if len(listed) != 1:
            raise ValueError(
                f"ParallelLoader: expected the one logical device, xla:0, in a list, got {listed!r}"
            )
        self._loader = MpDeviceLoader(
            cpu_loader, listed[0], **dict(zip(_KEYWORDS, args, strict=False)), **kwargs
        )

    def per_device_loader(self, device: Any) -> MpDeviceLoader:
        """The loader of the device."""
        return self._loader

    def close(self) -> None:
        """Ends the loader's threads and waits for them."""
        self._loader.close()


class _Uploads:
    """The two halves of a batch's way to the device: the upload, in a thread, and the tensors, in
    the caller's.

    trailing: by the path of a tensor the sizes of its dims after the first; None once two have
    differed.
    """

    def __init__(self, device: Any, sharding: InputSharding, trailing: dict[Path, Any]) -> None:
        self._device = torch.device(device)
        self._sharding = sharding
        self._trailing = trailing
        self._is_alone = len(hardware.devices()) == 1

    def prepare(self, batch: Any) -> Any:
        """Uploads what can be: returns the batch with an `Upload` in the place of each such
        tensor."""

        def placed(path: Path, value: Any) -> Any:
            if not _is_data(value) or self._device.type != "xla":
                return value
            sharding = self._placement(path, value)
            if sharding is None:  # a snapshot: the source goes on, and may write into its memory
                result = value.clone()
                result.__dict__.update(value.__dict__)
                return result
            result = uploaded(value, sharding)
            result.is_annotated = self._spec(path, value) is not None
            return result

        _check_keys(batch, self._sharding)
        return mapped(batch, moves, placed)

    def finish(self, tree: Any) -> Any:
        """Returns the batch of this tree on the device."""
        return mapped(
            tensors(tree),
            moves,
            lambda path, value: sent(value, self._device, self._spec(path, value)),
        )

    def _spec(self, path: Path, value: Any) -> ShardingSpec | None:
        """The spec of a tensor, with as many entries as it has dims."""
        spec = self._sharding[path[0]] if isinstance(self._sharding, Mapping) else self._sharding
        if spec is None or not isinstance(value, torch.Tensor):
            return None
        entries = tuple(spec.partition_spec)[: value.dim()]
        return ShardingSpec(
            spec.mesh, (*entries, *[None] * (value.dim() - len(entries))), spec.minibatch
        )

    def _placement(self, path: Path, value: torch.Tensor) -> Sharding | None:
        """The sharding in which a thread uploads a tensor; None where it does not."""
        spec = self._spec(path, value)
        if value.__dict__:  # of torch._dynamo.mark_dynamic
            return None
        sizes = tuple(value.shape[1:])
        if self._trailing.setdefault(path, sizes) != sizes:
            self._trailing[path] = None
        if self._trailing[path] is None:
            return None
        if spec is None:
            return hardware.default_sharding() if self._is_alone else None
        # With several processes the full values of each are compared, by the program that reads
        # them.
        sharding = spec.xla_spec(value) if spec.minibatch or not processes.several() else None
        return None if sharding is None else sharding.closed()


def _is_data(value: Any) -> bool:
    """True for a CPU tensor that is in no graph of autograd's."""
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not value.requires_grad
    )


def _check_keys(batch: Any, sharding: InputSharding) -> None:
    if not isinstance(sharding, Mapping):
        return
    if not isinstance(batch, Mapping):
        raise ValueError(
            "input_sharding: expected batches that are dicts for specs by key, got "
            f"{type(batch).__name__}"
        )
    missing = [key for key in batch if key not in sharding]
    if missing:
        raise KeyError(
            "input_sharding: expected a spec (or None) for each key of a batch, none is of "
            f"{missing[0]!r}"
        )

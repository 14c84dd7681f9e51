"""Data parallelism of `torch_xla.launch` and `xmp.spawn`: one process takes the batches of all of
theirs, joined.

A script that theirs would run once a device runs once, as rank 0 of 1, so that its samplers give
every row. A loader joins as many of its batches as there are devices, and splits them over a mesh
of all devices: means over the rows of such a batch, and their gradients, are the means over the
ranks of theirs.
"""

import contextlib
import functools
import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch.utils.data.distributed import DistributedSampler

from ...core import hardware, held, user_line
from ...jobs.data.trees import Path, mapped, moves, name_of
from ...mesh.mesh import Mesh
from .sharding_spec import ShardingSpec


@dataclass
class _Launch:
    """num_replicas: the number of batches that a loader joins: 1 outside of `launch`, and where the
    script shards its batches (`xr.use_spmd`). has_loader: batches came by a loader, joined or
    sharded by the script."""

    num_replicas: int = 1
    has_loader: bool = False


current = _Launch()


@contextlib.contextmanager
def launched(is_single: bool) -> Iterator[None]:
    """A block whose loaders join batches for all devices; is_single: for one device, so that they
    join none. A process group that is made inside ends with it, as with the processes of theirs."""
    num_replicas = 1 if is_single else len(hardware.devices())
    had_group = torch.distributed.is_initialized()
    try:
        with held(current, num_replicas=num_replicas, has_loader=False):
            yield
    finally:
        if torch.distributed.is_initialized() and not had_group:
            torch.distributed.destroy_process_group()


def check_loader(caller: str) -> None:
    """Warns, once a launch, where gradients are to be of all devices' batches, and these came by no
    loader."""
    if current.num_replicas > 1 and not current.has_loader:
        current.has_loader = True
        line = user_line()
        warnings.warn_explicit(
            f"{caller}: the batches of this launch came by no MpDeviceLoader, so each step has "
            f"one batch, not the {current.num_replicas} of {current.num_replicas} devices; wrap "
            "the loader in MpDeviceLoader, or call xr.use_spmd() and shard the batches",
            UserWarning,
            "?" if line.code is None else line.code.co_filename,
            line.number,
        )


def spec_of_rows(dim: int) -> ShardingSpec:
    """The sharding of a joined batch: the rows, in this dim, over all devices."""
    count = len(hardware.devices())
    return ShardingSpec(Mesh(range(count), (count,), ("data",)), (*[None] * dim, "data"))


def pad_samplers(loader: Any, count: int) -> None:
    """Lets the DistributedSampler of a loader give the rows that the samplers of `count` ranks give
    together.

    These repeat the first rows, or drop the last, to give each rank as many.
    """
    for holder in (loader, getattr(loader, "batch_sampler", None)):
        sampler = getattr(holder, "sampler", None)
        if isinstance(sampler, DistributedSampler) and sampler.num_replicas == 1:
            rows = len(sampler.dataset)  # type: ignore[arg-type]  # the sampler needs it itself
            padding = 0 if sampler.drop_last else count - 1
            sampler.num_samples = sampler.total_size = (rows + padding) // count * count


def num_joined(loader: Any, count: int) -> int:
    """The number of batches that `joined` gives."""
    return (len(loader) + (0 if getattr(loader, "drop_last", False) else count - 1)) // count


def joined(loader: Iterable[Any], count: int, dim: int) -> Iterator[Any]:
    """Joins each `count` batches of a loader; those that are left are one, or none where the loader
    drops its last."""
    # `iter` of it begins nothing again, as that of a SampleGenerator does
    batches = (batch for batch in loader)
    while group := [*itertools.islice(batches, count)]:
        if len(group) == count or not getattr(loader, "drop_last", False):
            yield mapped(
                group[0],
                _is_leaf,
                lambda path, _: _join([_at(path, batch) for batch in group], dim, path),
            )


def _is_leaf(value: Any) -> bool:
    """True for tensors and other values, and for lists of texts, which have one for each row."""
    if moves(value) or callable(value):
        return True
    if isinstance(value, (tuple, list)):
        return bool(value) and all(isinstance(item, (str, bytes)) for item in value)
    return not (isinstance(value, Mapping) or hasattr(value, "__dict__"))


def _at(path: Path, batch: Any) -> Any:
    return functools.reduce(
        lambda tree, key: (
            tree[key] if isinstance(tree, (Mapping, tuple, list)) else getattr(tree, key)
        ),
        path,
        batch,
    )


def _join(values: list[Any], dim: int, path: Path) -> Any:
    first = values[0]
    try:
        match first:
            case torch.Tensor() if first.dim() > dim:
                return torch.cat(values, dim)
            case np.ndarray() if first.ndim > dim:
                return np.concatenate(values, dim)
            case tuple() | list() if moves(first):
                raise ValueError("a packed sequence")
            case tuple() | list():
                return type(first)(itertools.chain.from_iterable(values))
            case _ if all(bool(value == first) for value in values):
                return first
        problem = f"{first!r} and others"
    except (RuntimeError, ValueError) as error:
        problem = str(error)
    raise ValueError(
        f"MpDeviceLoader: {name_of(path) or 'a batch'} cannot be joined over the {len(values)} "
        f"batches of as many devices ({problem}); let the loader give tensors of one shape, as by "
        "padding, or call xr.use_spmd()"
    )

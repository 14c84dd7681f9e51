"""Placing: the sharding of each tensor of a batch, its upload in a loader's thread, and the tensors
made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from ...core import (
    Meta,
    Sharding,
    abstract,
    dense_meta,
    dtypes,
    processes,
    recording,
    transfer,
    user_line,
)
from ...mesh.hints import listed
from ...mesh.mesh import Mesh
from ...mesh.notes import note_idle
from ...mesh.partition_spec import PartitionSpec
from ...mesh.placements import are_placements
from ...tensors.shards import tensor_of
from .trees import Path, is_data, leaves, mapped, name_of, with_mask


@dataclass(slots=True, eq=False)
class Upload:
    """A tensor's data on the devices: what a thread may make that records nothing.

    It is annotated by default.
    """

    meta: Meta
    array: jax.Array
    sharding: Sharding
    is_annotated: bool = True


class Specs:
    """The specs of a batch's tensors on a mesh: one for all, or by name, with a default for other
    names."""

    def __init__(self, mesh: Mesh, spec: Any, default: Any) -> None:
        self.mesh = mesh
        self._by_name = dict(_named(spec)) if isinstance(spec, Mapping) else {}
        self._default = default if isinstance(spec, Mapping) else spec
        for entry in (*self._by_name.values(), self._default):
            if isinstance(entry, (tuple, list)) and not are_placements(entry):
                # An unknown axis raises at the user's line.
                mesh.sharding(PartitionSpec(*entry), len(entry), "DataLoader")

    def check(self, batch: Any) -> None:
        """Raises ValueError that names the tensors of a batch without a spec."""
        if self._default is None:
            missing = [name_of(path) for path, _ in leaves(batch) if self._spec(path) is None]
            if missing:
                raise ValueError(
                    "DataLoader: expected a spec for each tensor of the batch, got none for "
                    f"{listed(missing)} (there are: {listed(self._by_name)}); add them, or give "
                    "default=P(...) for all others"
                )

    def sharding(self, path: Path, rank: int) -> Sharding:
        """The sharding of the tensor at a path."""
        spec = _fitted(self._spec(path), rank, path) if rank else PartitionSpec()
        return self.mesh.sharding(spec, rank, f"DataLoader: {_called(path)}").closed()

    def _spec(self, path: Path) -> Any:
        """The spec of the longest name that the path begins with."""
        for length in range(len(path), 0, -1):
            if name_of(path[:length]) in self._by_name:
                return self._by_name[name_of(path[:length])]
        return self._default


def _named(specs: Mapping[Any, Any], above: Path = ()) -> list[tuple[str, Any]]:
    specs_by_name: list[tuple[str, Any]] = []
    for key, spec in specs.items():
        is_inner = isinstance(spec, Mapping)
        specs_by_name += (
            _named(spec, (*above, key)) if is_inner else [(name_of((*above, key)), spec)]
        )
    return specs_by_name


def _fitted(spec: Any, rank: int, path: Path) -> Any:
    """A spec with as many entries as a tensor has dims: missing ones are None, and so are those
    that are left out."""
    if not isinstance(spec, (tuple, list)) or are_placements(spec):
        return spec
    entries = list(spec)
    while len(entries) > rank and entries[-1] is None:
        entries.pop()
    if len(entries) > rank:
        raise ValueError(
            f"DataLoader: {PartitionSpec(*spec)!r} has {len(entries)} entries, but "
            f"{_called(path)} has {rank} dim(s); "
            f'give it a spec of its own: spec={{"{name_of(path) or "name"}": P(...), ...}}'
        )
    return PartitionSpec(*entries, *[None] * (rank - len(entries)))


def _called(path: Path) -> str:
    return repr(name_of(path)) if path else "the batch"


class Placing:
    """The upload of host batches.

    It compiles nothing and records nothing, so that any thread may do it.
    """

    def __init__(self, specs: Specs, lengths: Sequence[int], padding: Any) -> None:
        self.specs = specs
        self._lengths = tuple(sorted(lengths))
        self._padding = padding
        self._is_in_place = _is_in_place(specs.mesh.get_jax_mesh().devices.flat[0])

    def place(self, batch: Any, num_valid: int | None, rows: int | None) -> Any:
        """Uploads a batch: a tree with an `Upload` for each tensor; with `rows` its first
        `num_valid` rows, padded."""
        self.specs.check(batch)

        def placed(path: Path, value: Any) -> Upload:
            array = self._array(path, value, self._shape(path, tuple(value.shape), rows), num_valid)
            sharding = self.specs.sharding(path, array.ndim)
            if not processes.several():
                note_idle("DataLoader", array.shape, sharding)
            return _uploaded(path, array, sharding)

        result = mapped(batch, is_data, placed)
        for upload in _all_placed(result):
            upload.array.block_until_ready()  # the source may write into its memory now
        return result

    def with_mask(self, tree: Any, num_valid: int, rows: int, key: str) -> Any:
        """The uploaded batch with the mask of its first `num_valid` rows, sharded like the rows of
        its first tensor."""
        first = next(placed for placed in _all_placed(tree) if placed.meta.shape)
        spec = first.sharding.partition_spec(len(first.meta.shape))[:1]
        mask = _uploaded(
            (key,), np.arange(rows) < num_valid, self.specs.mesh.sharding(spec, 1, "DataLoader")
        )
        return with_mask(tree, _is_placed, mask, key)

    def _shape(self, path: Path, shape: tuple[int, ...], rows: int | None) -> tuple[int, ...]:
        """The shape in which a tensor is uploaded: with all rows, and the next length of the given
        ones."""
        if rows is not None and shape:
            shape = (rows, *shape[1:])
        named = isinstance(self._padding, Mapping)
        if not self._lengths or len(shape) < 2 or (named and name_of(path) not in self._padding):
            return shape
        fitting = next((length for length in self._lengths if length >= shape[1]), None)
        if fitting is None:
            raise ValueError(
                f"DataLoader: {_called(path)} has shape {list(shape)}, longer in dim 1 than the "
                f"last of lengths={self._lengths}; add a longer one, or cut the data to it"
            )
        return (shape[0], fitting, *shape[2:])

    def _array(
        self, path: Path, value: Any, shape: tuple[int, ...], num_valid: int | None
    ) -> np.ndarray:
        """The values, padded to the shape, in memory of their own or, where nothing reads it later,
        the value's."""
        if isinstance(value, torch.Tensor) and (
            value.device.type != "cpu" or value.layout is not torch.strided
        ):
            raise TypeError(
                f"DataLoader: expected dense tensors on the CPU, got {_called(path)} on "
                f"{value.device} ({value.layout}); the loader moves them to the device"
            )
        array = transfer.host_array(value) if isinstance(value, torch.Tensor) else value
        if array.shape == shape and num_valid is None and not self._is_in_place:
            return np.asarray(array, order="C")
        source = array if num_valid is None or not shape else array[:num_valid]
        padded = torch.empty(shape, dtype=dtypes.to_torch_dtype(array.dtype), device="cpu")
        if source.shape != shape:
            padded.fill_(
                self._padding.get(name_of(path), 0)
                if isinstance(self._padding, Mapping)
                else self._padding
            )
        result = transfer.host_array(padded)
        result[tuple(slice(0, dim) for dim in source.shape)] = source
        return result


def _is_in_place(device: jax.Device) -> bool:
    """True for the CPU, which reads the host's memory in place; others have copied it when the
    upload is done."""
    return device.platform == "cpu"


def _uploaded(path: Path, array: np.ndarray, sharding: Sharding) -> Upload:
    try:
        return _placed(array, sharding)
    except ValueError as error:
        raise ValueError(
            f"DataLoader: {_called(path)}: {error}. For a last batch of fewer rows there is "
            'last="pad" and last="drop"'
        ) from error


def _placed(array: np.ndarray, sharding: Sharding) -> Upload:
    meta = dense_meta(
        transfer.global_shape(array.shape, sharding), dtypes.to_torch_dtype(array.dtype)
    )
    sharding = sharding if meta.numel else sharding.replicated()  # there is nothing to shard
    return Upload(meta, transfer.upload_part(array, meta.shape, sharding), sharding)


def uploaded(value: torch.Tensor, sharding: Sharding) -> Upload:
    """Uploads a dense CPU tensor, this process's part of it; the source may write into its memory
    afterwards."""
    value = value.detach()
    if _is_in_place(next(iter(sharding.jax.device_set))):
        value = value.clone(memory_format=torch.contiguous_format)
    result = _placed(transfer.host_array(value), sharding)
    result.array.block_until_ready()
    return result


def _is_placed(value: Any) -> bool:
    return isinstance(value, Upload)


def _all_placed(tree: Any) -> list[Upload]:
    return [placed for _, placed in leaves(tree, _is_placed)]


def tensors(tree: Any) -> Any:
    """Returns an uploaded batch with tensors on xla, of the calling thread.

    With several processes all must call it.
    """
    if processes.several():
        parts = ", ".join(f"{placed.meta!r} as {placed.sharding!r}" for placed in _all_placed(tree))
        call = f"a loader's batch of {parts}"
        processes.agree_once(call, call.encode(), user_line())
    plan = recording.value

    def tensor(_: Path, placed: Upload) -> torch.Tensor:
        if plan is not None and not plan.has_values:
            return abstract(placed.meta, placed.sharding)
        return tensor_of(
            placed.meta, placed.array, placed.sharding, is_annotated=placed.is_annotated
        )

    return mapped(tree, _is_placed, tensor)

"""Shards out and in: the pieces that this process's devices hold of a tensor, and tensors made of such pieces."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from .annotate import layout_of, on_device
from .core.engine import reads
from .core.engine.abstract import recording
from .core.engine.filling import Filling, can_fill
from .core.ir.graph import Leaf
from .core.ir.meta import dense_meta
from .core.ir.source import user_frame, user_line
from .core.lazy.annotate import current_sharding
from .core.lazy.cell import Cell
from .core.lazy.tensor import abstract, wrap
from .core.pjrt import agreement, devices, processes, transfer
from .core.pjrt.host import leaving
from .core.pjrt.transfer import Piece, host_array, host_tensor
from .core.sharding.topology import ordinal
from .core.sharding.value import Sharding


@dataclass(slots=True, eq=False)
class Shard:
    """One device's piece of a tensor. `XLAShard` is another name for it.

    Attributes:
        data: the piece as a CPU tensor, padded with zeros to the common shard shape where a dim is uneven.
        indices: where the piece lies in the whole, without padding (an empty slice for a piece of padding only).
        device: its id (`spmd.device_ids`). replica_id: 0 for the first copy of this piece.
    """

    data: torch.Tensor
    indices: tuple[slice, ...]
    device: int
    replica_id: int

    @property
    def unpadded_data(self) -> torch.Tensor:
        """The piece without padding. What is assigned is written into `data`."""
        return self.data[tuple(slice(0, max(index.stop - index.start, 0)) for index in self.indices)]

    @unpadded_data.setter
    def unpadded_data(self, new: torch.Tensor) -> None:
        if new.shape != self.unpadded_data.shape:
            raise ValueError(
                f"unpadded_data: expected shape {list(self.unpadded_data.shape)} at {_written(self.indices)}, got "
                f"{list(new.shape)}"
            )
        self.unpadded_data.copy_(new)

    @property
    def shard_device(self) -> str:
        """The device as PyTorch/XLA wrote it: "CPU:3"."""
        return f"{devices.devices()[self.device].platform.upper()}:{self.device}"


XLAShard = Shard  # PyTorch/XLA's name


def _written(indices: Sequence[slice]) -> str:
    """A place in a tensor as one writes it: [0:2, 4:8]."""
    return f"[{', '.join(f'{index.start}:{index.stop}' for index in indices)}]"


def local_shards(tensor: torch.Tensor) -> list[Shard]:
    """The pieces of a tensor that this process's devices hold, in order of device id; a barrier.

    Raises TypeError for a tensor that is not on xla, ValueError for a view (its base has the shards).

    >>> import torch, spmd
    >>> [shard.data.shape for shard in spmd.local_shards(torch.ones(4, 2, device="xla"))]
    [torch.Size([4, 2])]
    """
    target = on_device(tensor, "local_shards")
    if target._view is not None:
        raise ValueError("local_shards: a view has no shards of its own; pass its base, or .clone() it first")
    leaving("local_shards", repr(target._meta))
    with reads.leased(target._cell, "local_shards", on_device=True) as lease:
        buffer, _ = lease.placed()
        pieces = sorted(buffer.addressable_shards, key=lambda piece: ordinal(piece.device))
        return [_shard(piece, buffer.shape, target._meta.shape) for piece in pieces]


def _shard(piece: jax.Shard, padded: tuple[int, ...], shape: tuple[int, ...]) -> Shard:
    bounds = [index.indices(dim) for index, dim in zip(piece.index, padded, strict=True)]
    indices = tuple(slice(min(start, dim), min(stop, dim)) for (start, stop, _), dim in zip(bounds, shape, strict=True))
    return Shard(host_tensor(np.asarray(piece.data)), indices, ordinal(piece.device), piece.replica_id)


def from_local_shards(
    shards: Iterable["torch.Tensor | Shard"],
    mesh: Any,
    partition_spec: Sequence[Any] | None = None,
    shape: Sequence[int] | None = None,
) -> torch.Tensor:
    """A tensor on xla put together from the pieces of this process's devices; no device or host sees the whole.

    The inverse of `local_shards`. With several processes all must call it, each with the pieces of its own devices.

    Args:
        shards: a CPU tensor for each of the mesh's devices that belong to this process, in order of device id, or a
            `Shard` each, which says its device. All have the shape of a shard: in an uneven dim the last are padded,
            with what does not matter. Copies of one piece hold the same numbers.
        mesh, partition_spec: as in `mark_sharding`; no dim may be left to the partitioner.
        shape: of the whole; None: as many shards as the spec cuts each dim into. It may be shorter by padding, less
            than what one more piece would hold.

    Raises TypeError for what is no CPU tensor, ValueError for a wrong number, shape, dtype or device, for copies that
    differ, or for a shape that does not fit, and says which. Source: `jax.make_array_from_single_device_arrays`;
    `torch_xla`'s `_global_tensor_from_cpu_shards`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh(range(8), (8,), ("data",))
    >>> x = spmd.from_local_shards([torch.full((2,), float(i)) for i in range(8)], mesh, ("data",), (15,))
    >>> x.shape, x.sum().item()
    (torch.Size([15]), 49.0)
    """
    given = list(shards)
    pieces = [shard.data if isinstance(shard, Shard) else shard for shard in given]
    if not pieces or not all(isinstance(piece, torch.Tensor) and piece.device.type == "cpu" for piece in pieces):
        wrong = next((piece for piece in pieces if not isinstance(piece, torch.Tensor)), None)
        found = "none" if not pieces else type(wrong).__name__ if wrong is not None else "one on xla"
        raise TypeError(f"from_local_shards: expected a CPU tensor for each local device, got {found}")
    rank, dtype = pieces[0].dim(), pieces[0].dtype
    sharding = layout_of(mesh, partition_spec, rank, "from_local_shards")
    if sharding.is_open:
        raise ValueError(f"from_local_shards: {sharding!r} leaves a dim to the partitioner; shards are cut already")
    whole = _whole_shape(tuple(pieces[0].shape), sharding, shape)
    if processes.several():
        what = f"from_local_shards of {dense_meta(whole, dtype)!r}"
        agreement.agree_once(what, f"{what} {sharding!r}".encode(), user_line())
    meta = dense_meta(whole, dtype)
    placed = _placed(given, whole, dtype, sharding, "from_local_shards")
    if recording() is not None:
        return abstract(meta, sharding)
    if not meta.numel:
        return wrap(meta, Cell(Leaf(meta, host=host_array(torch.empty(whole, dtype=dtype, device="cpu"))), meta))
    parts = [part for piece, data in placed for part in transfer.upload_piece(host_array(data), piece, whole, sharding)]
    buffer = transfer.joined(parts, whole, sharding)
    leaf = Leaf(meta, buffer=buffer, sharding=sharding, source=user_frame())
    return wrap(meta, Cell(leaf, meta, sharding))


def _whole_shape(piece: tuple[int, ...], sharding: Sharding, shape: Sequence[int] | None) -> tuple[int, ...]:
    """The shape of what is cut into pieces of this one, all of them or without some padding."""
    full = tuple(dim * cut for dim, cut in zip(piece, sharding.tiles(len(piece)), strict=True))
    whole = full if shape is None else tuple(int(dim) for dim in shape)
    if len(whole) != len(piece) or sharding.shard_shape(whole) != piece:
        raise ValueError(
            f"from_local_shards: shards of shape {list(piece)} under {sharding!r} make a tensor of shape {list(full)}, "
            f"less padding of the last ones; got shape={list(whole)}"
        )
    return whole


def load_local_shards_(tensor: torch.Tensor, shards: Iterable["torch.Tensor | Shard"]) -> torch.Tensor:
    """Overwrites a tensor with the pieces of this process's devices, in place; returns the tensor.

    Its layout stays. With several processes each gives the pieces of its own devices. What the tensor held is never
    computed.

    Args:
        tensor: on xla, not a view. shards: as in `from_local_shards`: one for each local device that holds a piece, of
            the shape of `local_shards`' data; they are not cast.

    Raises as `from_local_shards` does, and ValueError for a view. Source: `XLAShardedTensor.load_local_shards_`.

    >>> import torch, spmd
    >>> x = spmd.mark_sharding(torch.zeros(8, device="xla"), spmd.Mesh(range(8), (8,), ("data",)), ("data",))
    >>> shards = spmd.local_shards(x)
    >>> for shard in shards:
    ...     shard.unpadded_data = torch.tensor([float(shard.device)])
    >>> spmd.load_local_shards_(x, shards).tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    """
    target = on_device(tensor, "load_local_shards_")
    if not can_fill(target) and target.numel():
        raise ValueError("load_local_shards_: expected a whole tensor in dense order, got a view; pass its base")
    shape = tuple(target.shape)
    sharding = (current_sharding(target) or devices.default_sharding()).closed()
    placed = _placed(list(shards), shape, target.dtype, sharding, "load_local_shards_")
    if target.numel():
        filling = Filling(target)
        for piece, data in placed:
            filling.put(piece, data)
    return tensor


def _placed(
    shards: list["torch.Tensor | Shard"],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    sharding: Sharding,
    caller: str,
) -> list[tuple[Piece, torch.Tensor]]:
    """The distinct pieces of a tensor that are to be here, each with its data, without padding and nobody else's."""
    pieces = transfer.pieces_here(shape, sharding)
    here = sorted(ordinal(device) for piece in pieces for device in piece.devices)
    data = dict(zip(_devices_of(shards, here, caller), shards, strict=True))
    found = {device: shard.data if isinstance(shard, Shard) else shard for device, shard in data.items()}
    wide = sharding.shard_shape(shape)
    for device, each in found.items():
        if not isinstance(each, torch.Tensor) or each.device.type != "cpu":
            kind = f"one on {each.device}" if isinstance(each, torch.Tensor) else type(each).__name__
            raise TypeError(f"{caller}: expected a CPU tensor for each local device, got {kind} for device {device}")
        if tuple(each.shape) != wide:
            raise ValueError(
                f"{caller}: expected shards of shape {list(wide)}, as a tensor of shape {list(shape)} has under "
                f"{sharding!r}, got {list(each.shape)} for device {device}"
            )
        if each.dtype is not dtype:
            raise ValueError(f"{caller}: expected shards of {dtype}, got {each.dtype} for device {device}")
    return [(piece, _agreed(piece, found, caller)) for piece in pieces]


def _devices_of(shards: list[Any], here: list[int], caller: str) -> list[int]:
    """The device of each shard: what it says, else its place in order."""
    if len(shards) != len(here):
        raise ValueError(
            f"{caller}: expected a shard for each of this process's {len(here)} devices that hold one (ids "
            f"{', '.join(map(str, here))}), got {len(shards)}"
        )
    if not all(isinstance(shard, Shard) for shard in shards):
        return here
    said = [shard.device for shard in shards]
    wrong = [device for device in said if device not in here or said.count(device) > 1]
    if wrong:
        raise ValueError(
            f"{caller}: expected one shard for each of the devices {', '.join(map(str, here))}, got shards of "
            f"{', '.join(map(str, said))}"
        )
    return said


def _agreed(piece: Piece, data: dict[int, torch.Tensor], caller: str) -> torch.Tensor:
    """What the devices that hold a piece have been given of it, which must be the same, in memory of its own."""
    inside = tuple(slice(0, dim) for dim in piece.shape)
    first, *others = [ordinal(device) for device in piece.devices]
    kept = data[first].detach()[inside].clone(memory_format=torch.contiguous_format)
    for other in others:
        if data[other] is not data[first] and not _same_bits(kept, data[other].detach()[inside]):
            raise ValueError(
                f"{caller}: devices {first} and {other} hold the same piece, {_written(piece.indices)}, but were given "
                "different numbers for it"
            )
    return kept


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same; what is not a number equals itself."""
    return host_array(one).tobytes() == host_array(other).tobytes()

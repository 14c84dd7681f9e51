"""The plan of a restore: what each process will read, upload and hold, before anything is read."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

from ...core import Sharding, XlaTensor, annotations, hardware, transfer
from ...tensors.shards import can_fill
from .places import UrlPath
from .plain_values import dtype_of
from .restoring import Restoring
from .state_entries import checked
from .step_reader import StepReader


@dataclass(frozen=True)
class ProcessPlan:
    """The figures of a process, in bytes.

    Attributes:
        process: its index. bytes_read: from the files of the step: a shard is read as a whole, as its checksum is that
            of all its bytes, and once. bytes_uploaded: to its devices, each copy counted. peak_host_bytes: at most, for
            what is read, without what the process has already and with the mapped pages of a file.
    """

    process: int
    bytes_read: int
    bytes_uploaded: int
    peak_host_bytes: int


@dataclass(frozen=True)
class RestorePlan:
    """The figures of a restore, which `print` shows as a table.

    Attributes:
        step: the step. path: its folder. processes: the figures of each process.
        joined: the tensors of which a device's shard needs bytes of several saved ones, each with how many at most.
    """

    step: int
    path: str
    processes: tuple[ProcessPlan, ...]
    joined: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("process", "read from files", "uploaded to devices", "host memory at most")]
        rows += [
            (str(one.process), *map(_size, (one.bytes_read, one.bytes_uploaded, one.peak_host_bytes)))
            for one in self.processes
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
        most = sorted(self.joined.items(), key=lambda item: -item[1])
        lines.append(f"tensors of which a shard is joined from several saved ones: {len(most)}")
        lines += [f"    {name}: {count}" for name, count in most[:8]] + (["    ..."] if len(most) > 8 else [])
        return "\n".join([f"step {self.step} in {self.path}", *lines])


def _size(count: float) -> str:
    units = ["B", "KB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:,.0f} {units[0]}" if units[0] == "B" else f"{count:,.1f} {units[0]}"


def planned(reader: StepReader, state: Any, step: int, count: int) -> RestorePlan:
    """The plan of a restore by so many processes; raises what the restore would raise before it reads."""
    restores = [_Counting(reader, state, (process, count)) for process in range(count)]
    joined: Counter[str] = Counter()
    for restore in restores:
        restore.walk()
        joined |= restore.joined
    return RestorePlan(step, str(reader.path), tuple(restore.plan() for restore in restores), dict(joined))


class _Counting(Restoring):
    """A restore that reads nothing, and counts what a process would."""

    def __init__(self, reader: StepReader, state: Any, process: tuple[int, int]) -> None:
        super().__init__(reader, state, process)
        self.joined: Counter[str] = Counter()
        self._compared: set[tuple[str, int]] = set()
        self._fetched: dict[tuple[str, int], int] = {}
        self._name: str | None = None
        self._read_bytes = self._uploaded = self._kept = self._peak = 0

    def plan(self) -> ProcessPlan:
        """The figures so far."""
        return ProcessPlan(self._process[0], self._read_bytes, self._uploaded, self._peak)

    def walk(self) -> None:
        """Goes through the state as `run` does, and loads nothing."""
        for path, value in checked(self.state, "CheckpointManager.plan_restore").items():
            self._state(path, value)

    def _fill_now(self, target: torch.Tensor, name: str) -> None:
        if isinstance(target, XlaTensor) and can_fill(target):
            self._count_shards(name, _sharding(target), target.dtype)
            return
        whole = self._whole(name)
        if isinstance(target, XlaTensor):
            self._uploaded += target.numel() * target.element_size()
            whole += target.numel() * target.element_size()
        self._peak = max(self._peak, self._kept + whole)

    def _like(self, parameter: XlaTensor, name: str) -> torch.Tensor:
        stored = self.reader.tensors[name]
        sharding, dtype = _sharding(parameter), dtype_of(stored["dtype"])
        if self._is_like(parameter, name):
            self._count_shards(name, sharding, dtype)
        else:
            whole = math.prod(stored["shape"]) * dtype.itemsize
            self._peak = max(self._peak, self._kept + self._whole(name))
            self._uploaded += whole * len(transfer.shards_of((), sharding, self._process[0])[0].devices)
        return torch.empty(0, device="cpu")

    def _read(self, name: str) -> torch.Tensor:
        stored = self.reader.tensors[name]
        self._peak = max(self._peak, self._kept + self._whole(name))
        result = torch.empty(
            stored["shape"], dtype=dtype_of(stored["dtype"]), device="cpu"
        )  # whose pages are not touched
        self._kept += result.nbytes
        return result

    def _whole(self, name: str) -> int:
        """Counts a read of all of a tensor; returns the host memory that it takes."""
        stored = self.reader.tensors[name]
        transient = self._count_read(name, [(0, dim) for dim in stored["shape"]])
        return math.prod(stored["shape"]) * dtype_of(stored["dtype"]).itemsize + transient

    def _count_shards(self, name: str, sharding: Sharding, dtype: torch.dtype) -> None:
        """Counts a tensor on devices that is filled shard by shard."""
        stored = self.reader.tensors[name]
        shape, size = tuple(stored["shape"]), dtype_of(stored["dtype"]).itemsize
        wide = math.prod(sharding.shard_shape(shape)) * dtype.itemsize
        for shard in transfer.shards_of(shape, sharding, self._process[0]):
            numel = math.prod(shard.shape)
            transient = self._count_read(name, [(one.start, one.stop) for one in shard.indices])
            cast = numel * dtype.itemsize if str(dtype) != f"torch.{stored['dtype']}" else 0
            padded = wide if wide != numel * dtype.itemsize else 0
            self._uploaded += numel * dtype.itemsize * len(shard.devices)
            self._peak = max(self._peak, self._kept + transient + numel * size + cast + padded)

    def _count_read(self, name: str, bounds: list[tuple[int, int]]) -> int:
        """Counts a read of some elements; returns the bytes of saved shards that are on the host for it."""
        is_fetched = isinstance(self.reader.path, UrlPath)
        if name != self._name:
            self._fetched.clear()
            self._name = name
        needed = [shard for shard, _ in self.reader.needed(name, bounds)]
        if len(needed) > 1:
            self.joined[name] = max(len(needed), self.joined[name])
        for shard in needed:
            key = shard["file"], shard["offset"]
            if key not in (self._fetched if is_fetched else self._compared):
                self._read_bytes += shard["bytes"]
            self._compared.add(key)
            self._fetched[key] = shard["bytes"]
        if is_fetched:
            return sum(self._fetched.values())
        return max((shard["bytes"] for shard in needed), default=0)


def _sharding(tensor: XlaTensor) -> Sharding:
    return annotations.current_sharding(tensor) or hardware.default_sharding()

"""The plan of a restore: what each process will read, upload and hold, before anything is read."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

from ...core import Sharding, XlaTensor, transfer
from ...tensors.shards import can_fill, sharding_of
from .places import UrlPath
from .plain_values import dtype_of
from .restoring import Restoring
from .step_reader import StepReader, overlaps


@dataclass(frozen=True)
class ProcessPlan:
    """The figures of a process, in bytes.

    Attributes:
        process: its index. bytes_read: from the files of the step: a shard is read as a whole, as
            its checksum is that of all its bytes, and once. bytes_uploaded: to its devices, each
            copy counted. peak_host_bytes: at most, for what is read, without what the process has
            already and with the mapped pages of a file.

    >>> import tempfile, torch, spmd
    >>> manager, state = (
    ...     spmd.CheckpointManager(tempfile.mkdtemp()),
    ...     {"weight": torch.ones(8, 4, device="xla")},
    ... )
    >>> saved = manager.save(7, state)
    >>> manager.wait()
    >>> manager.plan_restore(state).processes[0].bytes_read
    128
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
        joined: the tensors of which a device's shard needs bytes of several saved ones, each with
            how many at most.

    >>> import tempfile, torch, spmd
    >>> manager, state = (
    ...     spmd.CheckpointManager(tempfile.mkdtemp()),
    ...     {"weight": torch.ones(8, 4, device="xla")},
    ... )
    >>> saved = manager.save(7, state)
    >>> manager.wait()
    >>> plan = manager.plan_restore(state)
    >>> plan.step, plan.joined
    (7, {})
    """

    step: int
    path: str
    processes: tuple[ProcessPlan, ...]
    joined: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [
            ("process", "read from files", "uploaded to devices", "host memory at most")
        ]
        rows += [
            (
                str(process.process),
                *map(_size, (process.bytes_read, process.bytes_uploaded, process.peak_host_bytes)),
            )
            for process in self.processes
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
            for row in rows
        ]
        most = sorted(self.joined.items(), key=lambda item: -item[1])
        lines.append(f"tensors of which a shard is joined from several saved ones: {len(most)}")
        lines += [f"    {name}: {count}" for name, count in most[:8]] + (
            ["    ..."] if len(most) > 8 else []
        )
        return "\n".join([f"step {self.step} in {self.path}", *lines])


def _size(count: float) -> str:
    units = ["B", "KB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:,.0f} {units[0]}" if units[0] == "B" else f"{count:,.1f} {units[0]}"


def planned(reader: StepReader, state: Any, step: int, count: int) -> RestorePlan:
    """The plan of a restore by so many processes; raises what the restore would raise before it
    reads."""
    restores = [_Counting(reader, state, (process, count)) for process in range(count)]
    processes = tuple(restore.plan() for restore in restores)
    joined: Counter[str] = Counter()
    for restore in restores:
        joined |= restore.joined
    return RestorePlan(step, str(reader.path), processes, dict(joined))


class _Counting(Restoring):
    """A restore that reads nothing, and counts what a process would."""

    def __init__(self, reader: StepReader, state: Any, process: tuple[int, int]) -> None:
        super().__init__(reader, state, process)
        self.joined: Counter[str] = Counter()
        self._is_fetched = isinstance(reader.path, UrlPath)
        # shards that were read: of a URL, those of the tensor
        self._saved: dict[tuple[str, int], int] = {}
        self._name: str | None = None
        self._read_bytes = self._uploaded = self._kept = self._peak = 0

    def plan(self) -> ProcessPlan:
        """Goes through the state as `run` does, and loads nothing; returns the figures."""
        for path, value in self._present.items():
            self._state(path, value)
        return ProcessPlan(self._process[0], self._read_bytes, self._uploaded, self._peak)

    def _fill_now(self, target: torch.Tensor, name: str) -> None:
        if isinstance(target, XlaTensor) and can_fill(target):
            self._count_shards(name, sharding_of(target), target.dtype)
        else:
            uploaded = target.nbytes if isinstance(target, XlaTensor) else 0
            self._uploaded += uploaded
            self._count_read(name, other_bytes=uploaded)

    def _like(self, parameter: XlaTensor, name: str) -> torch.Tensor:
        sharding = sharding_of(parameter)
        if self._is_like(parameter, name):
            self._count_shards(name, sharding, dtype_of(self.reader.tensors[name]["dtype"]))
        else:
            copies = len(transfer.shards_of((), sharding, self._process[0])[0].devices)
            self._uploaded += self._count_read(name) * copies
        return torch.empty(0, device="cpu")

    def _read(self, name: str) -> torch.Tensor:
        self._kept += self._count_read(name)
        # the pages of a tensor that is not filled are not touched
        stored = self.reader.tensors[name]
        return torch.empty(stored["shape"], dtype=dtype_of(stored["dtype"]), device="cpu")

    def _count_shards(self, name: str, sharding: Sharding, dtype: torch.dtype) -> None:
        """Counts a tensor on devices that is filled shard by shard."""
        stored = self.reader.tensors[name]
        shape = tuple(stored["shape"])
        wide = math.prod(sharding.shard_shape(shape)) * dtype.itemsize
        for shard in transfer.shards_of(shape, sharding, self._process[0]):
            size = math.prod(shard.shape) * dtype.itemsize
            cast = size if dtype != dtype_of(stored["dtype"]) else 0
            self._uploaded += size * len(shard.devices)
            self._count_read(name, shard.indices, other_bytes=cast + (wide if wide != size else 0))

    def _count_read(
        self, name: str, indices: tuple[slice, ...] | None = None, *, other_bytes: int = 0
    ) -> int:
        """Counts a read of some elements (None: all), with `other_bytes` on the host besides;
        returns their bytes."""
        stored = self.reader.tensors[name]
        indices = tuple(slice(0, dim) for dim in stored["shape"]) if indices is None else indices
        if name != self._name and self._is_fetched:
            self._saved.clear()
        self._name = name
        shards = [shard for shard, *_ in overlaps(stored["shards"], indices)]
        needed = {(shard["file"], shard["offset"]): shard["bytes"] for shard in shards}
        if len(needed) > 1:
            self.joined[name] = max(len(needed), self.joined[name])
        self._read_bytes += sum(size for key, size in needed.items() if key not in self._saved)
        self._saved |= needed
        # Bytes of saved shards: fetched ones stay until all of the tensor is read, of a map one is
        # in memory at a time.
        saved = sum(self._saved.values()) if self._is_fetched else max(needed.values(), default=0)
        size = (
            math.prod(index.stop - index.start for index in indices)
            * dtype_of(stored["dtype"]).itemsize
        )
        self._peak = max(self._peak, self._kept + saved + size + other_bytes)
        return size

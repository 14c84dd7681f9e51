"""Batches with fewer rows than the others: kept, dropped or padded, the same way in every
process."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...core import ProcessError, config, processes
from .resumable import Position, SourcePass
from .trees import leaves, name_of

LAST = ("keep", "drop", "pad")
_ENDED = -1  # in place of a number of rows: the process has no more batches


@dataclass(slots=True)
class HostBatch:
    """A batch of the source, the position after it, and the number of its rows that are data; None:
    all, unpadded."""

    batch: Any
    position: Position
    num_valid: int | None = None


class RowCounts:
    """The number of rows of a full batch, and the choice for batches with fewer.

    full: the source's `batch_size`, else the number of rows of its first batch; None until that is
    known.
    """

    def __init__(self, last: str, batch_size: Any) -> None:
        if last not in LAST:
            raise ValueError(
                f"DataLoader: expected last to be one of {', '.join(map(repr, LAST))}, got {last!r}"
            )
        self.last = last
        self.full = batch_size if isinstance(batch_size, int) else None

    def batches(self, iteration: SourcePass, is_stopped: Callable[[], bool]) -> Iterator[HostBatch]:
        """The source's batches that are to be uploaded.

        `is_stopped` ends a wait for other processes.
        """
        if self.last == "keep":
            yield from (HostBatch(batch, position) for batch, position in iteration)
            return
        together = _Together(is_stopped) if processes.several() else None
        items, batch, position = iter(iteration), None, None
        for number in itertools.count():
            item = next(items, None)
            batch, position = item or (batch, position)
            count = _ENDED if item is None else self._counted(batch)
            counts = [count] if together is None else together.counts(number, count)
            if {*counts} == {_ENDED} or (self.last == "drop" and _ENDED in counts):
                return
            if self.last == "drop" and any(count != self.full for count in counts):
                continue
            if position is None:
                raise ValueError(
                    'DataLoader: last="pad": this process has no batch, and others have; give '
                    "each process at least one"
                )
            yield HostBatch(batch, position, None if self.last == "drop" else max(count, 0))

    def _counted(self, batch: Any) -> int:
        """The rows of a batch.

        Raises ValueError where its tensors differ in it, or where it has too many.
        """
        shapes = {name_of(path): tuple(leaf.shape) for path, leaf in leaves(batch) if leaf.ndim}
        counts = {shape[0] for shape in shapes.values()}
        if len(counts) != 1:
            listed = ", ".join(f"{name!r} {list(shape)}" for name, shape in shapes.items())
            raise ValueError(
                f"DataLoader: last={self.last!r} needs the same number of rows in every tensor of "
                f"a batch, got {listed or 'no tensor with rows'}; "
                'last="keep" takes any'
            )
        (count,) = counts
        self.full = self.full or count
        if count > self.full:
            raise ValueError(
                f"DataLoader: last={self.last!r} needs batches of at most {self.full} rows, as "
                "the source's batch_size "
                f'or its first batch has, got {count}; last="keep" takes any'
            )
        return count


_iterations = itertools.count()  # the same in all processes, as they run the same program


class _Together:
    """The rows of the same batch in all processes, reported by each in the store that they
    share."""

    def __init__(self, is_stopped: Callable[[], bool]) -> None:
        self._place = f"spmd/jobs/data/{next(_iterations)}"
        self._is_stopped = is_stopped

    def counts(self, number: int, num_rows: int) -> list[int]:
        """The rows of batch `number` in each process, or `_ENDED`; that alone when this one is to
        stop."""
        processes.publish(f"{self._place}/{number}/{processes.index()}", str(num_rows))
        counts = [self._count(number, process) for process in range(processes.count())]
        if None in counts:
            return [_ENDED]
        if number:  # all have read it, as each has come to the next
            processes.client().key_value_delete(f"{self._place}/{number - 1}/{processes.index()}")
        return [count for count in counts if count is not None]

    def _count(self, number: int, process: int) -> int | None:
        deadline = time.monotonic() + config.process_timeout_seconds
        while not self._is_stopped():
            count = processes.polled(f"{self._place}/{number}/{process}", 0.5)
            if count is not None:
                return int(count)
            if time.monotonic() > deadline:
                raise ProcessError(
                    f"process {processes.index()} has waited {config.process_timeout_seconds} s "
                    f"(config.process_timeout_seconds) for batch {number} of process {process}: "
                    'with last="drop" and last="pad" all processes iterate over their loaders in '
                    "the same order"
                )
        return None

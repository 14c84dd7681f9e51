"""A trace as a table: the modules and lines that the devices' time goes to, and the host's."""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from ...core import ends_at_user_line
from ..planning.report import VIEWS, text_of
from .trace_files import MODULE, ROWS

_SHOWN = 25  # rows
_OPS = 3  # of a row
_KEYS = ("module", "op", "line")


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One row of a summary: what it is about, its ops, the number of its instructions that ran,
    their seconds on all devices together, their share of the devices' time, and the bytes that they
    read and wrote."""

    name: str
    ops: tuple[str, ...]
    count: int
    seconds: float
    share: float
    bytes: int


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """The answer of `summary`; `print` shows it as a table.

    Attributes:
        rows: of the devices, the longest first. host: by row of the host ("record", "sync",
            "compile", "dispatch", "wait", "upload") the number of its blocks, and their seconds; a
            sync encloses its compiles and dispatches.
        by: the choice of rows. num_steps, step_seconds: the number of `StepTrace` blocks, and their
            mean. num_devices: of those with rows.

    >>> import tempfile, torch, spmd
    >>> folder = tempfile.mkdtemp()
    >>> with spmd.profiler.trace(folder):
    ...     loss = torch.ones(4, device="xla").sum().item()
    >>> summary = spmd.profiler.summary(folder, by="op")
    >>> summary.num_devices, "compile" in summary.host, all(row.seconds > 0 for row in summary.rows)
    (1, True, True)
    """

    rows: tuple[SummaryRow, ...]
    host: dict[str, tuple[int, float]]
    by: str = "module"
    num_steps: int = 0
    step_seconds: float = 0.0
    num_devices: int = 0

    def __rich__(self) -> Any:
        return VIEWS["table"]().summed(self)

    def __repr__(self) -> str:
        return text_of(self)

    def texts(self) -> Iterator[tuple[str, ...]]:
        """The texts of the rows that are shown: name, ops, count, time, share, bytes."""
        for row in self.rows[:_SHOWN]:
            more = f" + {len(row.ops) - _OPS}" if len(row.ops) > _OPS else ""
            ops = ", ".join(op.removeprefix("aten.") for op in row.ops[:_OPS]) + more
            yield (
                row.name,
                ops,
                f"{row.count:,}",
                _time(row.seconds),
                f"{row.share:.1%}",
                f"{row.bytes:,}",
            )

    def lines(self) -> Iterator[str]:
        """The lines below the table."""
        hidden = self.rows[_SHOWN:]
        if hidden:
            yield (
                f"and {len(hidden):,} rows more, {sum(row.share for row in hidden):.1%} of the time"
            )
        total = sum(row.seconds for row in self.rows)
        yield f"devices: {_time(total)} on {self.num_devices}"
        if self.num_steps:
            yield f"steps: {self.num_steps:,} of {_time(self.step_seconds)}"
        rows = (
            f"{name} {_time(seconds)} in {count:,}" for name, (count, seconds) in self.host.items()
        )
        yield f"host: {', '.join(rows)}"


@ends_at_user_line
def summary(folder: str | PathLike[str], *, by: str = "module") -> Summary:
    """Sums the newest trace of a folder up: module, ops, time, share, bytes.

    The time of a device's row is its own: that of a loop without its body's. Bytes are those of the
    operands and the results of each instruction, of all devices together. A fusion of several
    modules' ops has a row of its own that names them; what belongs to no module has its line.
    Several processes are summed.

    Args:
        folder: that was given to `trace`, or one inside it. by: "module", "op" or "line".

    Raises FileNotFoundError where the folder has no trace, ValueError for another `by`.

    >>> import tempfile, torch, spmd
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()).to("xla")
    >>> x, folder = torch.ones(2, 4, device="xla"), tempfile.mkdtemp()
    >>> with spmd.profiler.trace(folder):
    ...     y = model(x)
    ...     spmd.sync()
    >>> any("0" in row.name for row in spmd.profiler.summary(folder).rows)
    True
    """
    if by not in _KEYS:
        raise ValueError(f"summary: expected by= one of {', '.join(map(repr, _KEYS))}, got {by!r}")
    events = [event for file in _files(Path(folder)) for event in _events(file)]
    steps = [event["dur"] for event in events if "step_num" in event["args"]]
    host = {name: [event["dur"] for event in events if event["row"] == name] for name in ROWS}
    return Summary(
        tuple(_table(_own_times(event for event in events if "hlo_op" in event["args"]), by)),
        {name: (len(times), sum(times) / 1e6) for name, times in host.items()},
        by,
        len(steps),
        sum(steps) / max(len(steps), 1) / 1e6,
        len({(event["file"], event["pid"]) for event in events if "hlo_op" in event["args"]}),
    )


def _files(folder: Path) -> list[Path]:
    """The files of the newest trace in a folder: one for each process."""
    files = sorted(folder.rglob("*.trace.json.gz"), key=lambda path: path.parent.name)
    if not files:
        raise FileNotFoundError(
            f"summary: {folder} has no *.trace.json.gz; give it the folder of spmd.profiler.trace"
        )
    newest = {path.parents[3] if len(path.parents) > 3 else path.parent: path for path in files}
    return [*newest.values()]


def _events(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt") as opened:
        events = json.load(opened)["traceEvents"]
    rows = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in events
        if e["name"] == "thread_name" and e["ph"] == "M"
    }
    for event in events:
        if event["ph"] == "X":
            args = event.get("args", {})
            yield {
                **event,
                "args": args,
                "file": str(file),
                "row": rows.get((event["pid"], event["tid"]), ""),
            }


def _own_times(events: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], float]]:
    """Yields blocks with their microseconds, without those of the blocks inside them."""
    by_thread: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        by_thread[event["file"], event["pid"], event["tid"]].append(event)
    for thread in by_thread.values():
        thread.sort(key=lambda event: (event["ts"], -event["dur"]))
        times = [event["dur"] for event in thread]
        around: list[int] = []
        for index, event in enumerate(thread):
            while around and thread[around[-1]]["ts"] + thread[around[-1]]["dur"] <= event["ts"]:
                around.pop()
            if around:
                times[around[-1]] -= event["dur"]
            around.append(index)
        yield from zip(thread, (max(time, 0.0) for time in times), strict=True)


def _table(blocks: Iterable[tuple[dict[str, Any], float]], by: str) -> Iterator[SummaryRow]:
    """Yields the rows of the devices' blocks, the longest first."""
    # by the name of a row
    groups: defaultdict[str, list[tuple[dict[str, Any], float]]] = defaultdict(list)
    for event, time in blocks:
        event_args = event["args"]
        groups[event_args.get(by, "") or event_args.get("line", "") or _unnamed(event_args)].append(
            (event_args, time)
        )
    times = {name: sum(time for _, time in group) for name, group in groups.items()}
    total = sum(times.values()) or 1.0
    for name in sorted(times, key=lambda name: -times[name]):
        times_of_ops: defaultdict[str, float] = defaultdict(float)
        for event_args, time in groups[name]:
            for op in filter(None, event_args.get("op", "").split(", ")):
                times_of_ops[op] += time
        ops = tuple(sorted(times_of_ops, key=lambda op: -times_of_ops[op]))
        num_bytes = sum(int(event_args.get("bytes", 0)) for event_args, _ in groups[name])
        yield SummaryRow(
            name, ops, len(groups[name]), times[name] / 1e6, times[name] / total, num_bytes
        )


def _unnamed(event_args: dict[str, Any]) -> str:
    """The row of what XLA or jax added by itself: a copy, or a program that moves data between
    devices."""
    module = event_args.get("hlo_module", "")
    return f"({event_args['hlo_op'].rstrip('.0123456789')})" if module == MODULE else f"({module})"


def _time(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.3f} ms"

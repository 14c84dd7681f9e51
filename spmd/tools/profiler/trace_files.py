"""The files of a trace: jax's `*.xplane.pb`, and `*.trace.json.gz` made of it for Perfetto, with
the user's names."""

import gzip
import json
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from ...core import trace_rows
from ...core.extend import Module, Program
from ..hlo.hlo_collectives import origins

# --- names of instructions ------------------------------------------------------------------------


_SHOWN = 3  # names in a row's title; its arguments have all


class Label(NamedTuple):
    """The words of a device's row for an instruction: module paths, ops and lines of all that it
    was made of, the one that names it first; the bytes that it reads and writes; whether it runs
    others, as a loop does."""

    modules: tuple[str, ...]
    ops: tuple[str, ...]
    lines: tuple[str, ...]
    num_bytes: int

    @property
    def title(self) -> str:
        """The modules and ops in short; "" where neither is known."""
        return ": ".join(filter(None, (_short([*filter(None, self.modules)]), _short(self.ops))))


def _short(names: Sequence[str]) -> str:
    more = f" + {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return " + ".join(names[:_SHOWN]) + more


def labels_of(program: Program) -> dict[str, Label]:
    """Returns the label of each instruction of a program, by the instruction's name."""
    all_lines = list(map(str, program.lines))
    labels: dict[str, Label] = {}
    for name, places, num_bytes in origins(
        Module(program.executable.as_text()), len(program.entries)
    ):
        paths = dict.fromkeys(_path(program, index) for index in places)
        ops = dict.fromkeys(program.entries[index].name for index in places)
        lines = dict.fromkeys(all_lines[index] for index in places)
        labels[name] = Label(tuple(paths), tuple(ops), tuple(lines), num_bytes)
    return labels


def _path(program: Program, index: int) -> str:
    """The path of an op's module; of an op in a loop over equal layers, the paths of all of them as
    one."""
    if not program.paths:
        return ""
    for first, iterations, period in program.loops:
        if first <= index < first + period:
            places = [index + i * period for i in range(iterations)]
            if places[-1] < len(program.entries):
                same = [
                    layer_index
                    for layer_index in places
                    if program.entries[layer_index] is program.entries[index]
                ]
                return _joined([program.paths[layer_index] for layer_index in same])
    return program.paths[index]


_NUMBER = re.compile(r"\d+")


def _joined(paths: Sequence[str]) -> str:
    """One path for paths that differ in a number: "layers.*.fc" of "layers.0.fc" and "layers.1.fc";
    else the first."""
    columns = list(zip(*(path.split(".") for path in paths), strict=False))
    starred = [
        column[0] if len(set(column)) == 1 else _NUMBER.sub("*", column[0]) for column in columns
    ]
    return ".".join(starred)


# --- files ----------------------------------------------------------------------------------------


MODULE = "jit_spmd"  # XLA's name of every program that this library compiles
_HOST = 1  # Perfetto's process of the host's rows; those of devices follow
_FIRST_DEVICE = 100
ROWS = ("record", "sync", "compile", "dispatch", "wait", "upload")


class _Event(NamedTuple):
    """A row's block: times in nanoseconds from the beginning of the trace. plane, line: the
    profiler's of it."""

    plane: str
    line: str
    name: str
    start: float
    duration: float
    stats: dict[str, Any]


def complete(folder: Path, programs: Mapping[int, Program]) -> Path:
    """Writes the trace that is the newest in a folder as Perfetto's file, with names by the
    programs that ran in it, in place of jax's; returns the folder of its files."""
    newest = max(
        (folder / "plugins" / "profile").iterdir(), key=lambda path: path.stat().st_mtime_ns
    )
    (planes,) = newest.glob("*.xplane.pb")
    events = list(_read(planes))
    trace = {"displayTimeUnit": "ms", "traceEvents": [*_rows(events, _names(events, programs))]}
    with gzip.open(
        planes.with_name(planes.name.replace(".xplane.pb", ".trace.json.gz")), "wt"
    ) as file:
        json.dump(trace, file)
    return newest


def _read(path: Path) -> Iterator[_Event]:
    # jaxlib makes this type at the first event; where warnings are errors, Python's warning of it
    # ends the process. The filter stays: other threads may set and put back theirs meanwhile.
    warnings.filterwarnings(
        "ignore", "builtin type event_stats has no __module__", DeprecationWarning
    )
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                if event.name.startswith(("end: ", "ThreadpoolListener")):
                    continue
                stats = {str(name): value for name, value in event.stats}
                yield _Event(
                    plane.name, line.name, event.name, event.start_ns, event.duration_ns, stats
                )


def _key(event: _Event) -> Any:
    """The program that a device ran, as the profiler knows it."""
    return event.stats.get("program_id", event.stats["hlo_module"])


def _is_ours(event: _Event) -> bool:
    return event.stats.get("hlo_module") == MODULE and "hlo_op" in event.stats


def _names(events: list[_Event], programs: Mapping[int, Program]) -> dict[Any, dict[str, Label]]:
    """Finds which program each of the profiler's programs is, and returns the labels of its
    instructions.

    The profiler numbers programs by itself. One of ours that has all of the instructions, and was
    dispatched as often, is the same; of several such, those that were dispatched first ran first.
    """
    ran: defaultdict[Any, set[str]] = defaultdict(set)
    runs: defaultdict[Any, set[Any]] = defaultdict(set)
    for event in sorted(filter(_is_ours, events), key=lambda event: event.start):
        ran[_key(event)].add(event.stats["hlo_op"])
        runs[_key(event)].add(event.stats.get("run_id"))
    dispatched = [
        int(event.stats["program"])
        for event in sorted(events, key=lambda event: event.start)
        if event.name == f"{trace_rows.PREFIX}dispatch"
    ]
    counts = Counter(dispatched)
    labels = {number: labels_of(programs[number]) for number in counts if number in programs}
    names: dict[Any, dict[str, Label]] = {}
    for key, ops in ran.items():
        fitting = [number for number in counts if number in labels and ops <= labels[number].keys()]
        # stable: else as they were dispatched
        fitting.sort(key=lambda number: counts[number] != len(runs[key]))
        if fitting:
            names[key] = labels.pop(fitting[0])
    return names


def _rows(
    events: list[_Event], names: Mapping[Any, Mapping[str, Label]]
) -> Iterator[dict[str, Any]]:
    """Yields Perfetto's events: a process for the host, with rows of this library first, and one
    for each device."""
    rows: dict[tuple[int, str], int] = {
        (_HOST, row): index for index, row in enumerate(("steps", *ROWS))
    }
    processes = {_HOST: "host"}
    for event in events:
        row, label = event.line, None
        process = _HOST if event.plane.startswith("/host") else _device_plane(event.plane)
        if _is_ours(event):
            label = names.get(_key(event), {}).get(event.stats["hlo_op"])
            process = (
                _FIRST_DEVICE + int(event.stats["device_ordinal"]) if process == _HOST else process
            )
        elif event.name.startswith(trace_rows.PREFIX):
            row = event.name.removeprefix(trace_rows.PREFIX)
        elif "step_num" in event.stats:
            row = "steps"
        processes.setdefault(process, f"device {process - _FIRST_DEVICE}")
        thread = rows.setdefault((process, row), len(rows))
        yield {
            "ph": "X",
            "pid": process,
            "tid": thread,
            "ts": event.start / 1e3,
            "dur": event.duration / 1e3,
            **_named(event, label),
        }
    for process, name in processes.items():
        yield _meta("process_name", process, 0, name=name)
        yield _meta("process_sort_index", process, 0, sort_index=process)
    for (process, name), thread in rows.items():
        if process in processes:
            yield _meta("thread_name", process, thread, name=name)
            yield _meta("thread_sort_index", process, thread, sort_index=thread)


def _device_plane(name: str) -> int:
    """The process of a plane of an accelerator, "/device:GPU:0"."""
    digits = "".join(filter(str.isdigit, name.partition(" ")[0]))
    return _FIRST_DEVICE + int(digits or 0)


def _meta(kind: str, process: int, thread: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": kind, "args": args}


def _named(event: _Event, label: Label | None) -> dict[str, Any]:
    """The name and the arguments of a block."""
    args = {name: str(value) for name, value in event.stats.items() if name[0] != "_"}
    name = event.name.removeprefix(trace_rows.PREFIX)
    if "step_num" in event.stats:
        name = f"{name} {event.stats['step_num']}"
    if label is None:
        return {"name": name, "args": args}
    label_values = {"module": label.modules, "op": label.ops, "line": label.lines}
    args |= {key: ", ".join(filter(None, values)) for key, values in label_values.items()}
    return {"name": label.title or name, "args": args | {"bytes": label.num_bytes}}

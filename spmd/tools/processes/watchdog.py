"""The watchdog of several processes: which program does not end, which processes have not come to
it, and which are silent.

Its thread takes no lock that recording or compiling holds, and calls neither jax nor the store of
the processes, which may hang themselves: what it knows of the others is what the thread of
`agreement` has heard last.
"""

import functools
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core import config, forking, in_flight, processes
from ...core.extend import Line, Program, user_lines

BEAT = 2.0  # seconds between two signs of life of a process
SILENT = 8.0  # seconds without one, after which the others say so
_PERIOD = 0.5  # seconds between two looks
_SHOWN = 3  # collectives of a program that hangs

Record = Mapping[str, Any]  # what a process publishes (`agreement`), with the items of `present`


@dataclass
class _Heard:
    """The last news of the other processes. records: the last of each, with the time at which it
    was new. answered: the time of the store's last answer. printed: the kinds of texts that were,
    each once. notices:
    kinds and texts for the others to print. silent: the processes that are, by their last sign of
    life."""

    records: dict[int, tuple[float, Record]] = field(default_factory=dict)
    answered: float = field(default_factory=time.monotonic)
    printed: set[str] = field(default_factory=set)
    notices: list[tuple[str, str]] = field(default_factory=list)
    silent: dict[int, int] = field(default_factory=dict)
    wants_records: bool = False
    reported: int = -1  # the event of the last program that was reported
    thread: threading.Thread | None = None


_heard = _Heard()
forking.on_bad_fork(lambda: _heard.records.clear())


def present() -> dict[str, Any]:
    """The part of a process's record that changes with time: a sign of life, its place, and where
    its Python is."""
    return {
        "beat": int(time.monotonic() / BEAT),
        "host": f"{socket.gethostname()}, pid {os.getpid()}",
        "pid": (os.getpid(), _machine()),
        "now": str(_main_line()),
    }


_INSTALLED = (os.path.dirname(os.__file__) + os.sep, f"{os.sep}site-packages{os.sep}")


def _main_line() -> Line:
    """The line at which the main thread is, in code that is the user's; else the nearest of another
    library."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    nearest = Line(*user_lines.place_of(frame))
    while frame is not None:
        if not user_lines.is_library(frame.f_code) and not any(
            part in frame.f_code.co_filename for part in _INSTALLED
        ):
            return Line(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return nearest


def start() -> None:
    """Starts the thread, once."""
    if _heard.thread is None:
        _heard.thread = threading.Thread(target=_watch, name="spmd-watchdog", daemon=True)
        _heard.thread.start()


def heard(records: Sequence[Record]) -> None:
    """Notes the records of the processes, and that the store has answered."""
    timestamp = time.monotonic()
    _heard.answered = timestamp
    for record in records:
        _, earlier = _heard.records.get(record["process"], (timestamp, None))
        if earlier is None or (earlier["beat"], earlier["count"]) != (
            record["beat"],
            record["count"],
        ):
            _heard.records[record["process"]] = timestamp, record


def wants_records() -> bool:
    """True where the other processes' records are needed, which the first one always reads: where a
    program hangs."""
    return _heard.wants_records


def dead() -> list[str]:
    """Describes the silent processes that are gone from this machine. jax would take up to a minute
    to abort the others, and print nothing but its own stack; of other machines it has to."""
    timestamp = time.monotonic()
    return [
        f"process {process} ({record['host']}) has died without a word: it was killed, or the "
        f"machine was short of memory. {_last(record)}"
        for process, (heard_at, record) in list(_heard.records.items())
        if timestamp - heard_at > SILENT and not record["ended"] and _is_gone(*record["pid"])
    ]


def _is_gone(pid: int, machine: str) -> bool:
    """True for a process of this machine that has ended, or is waited for by its parent alone."""
    if not machine or machine != _machine():
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@functools.cache
def _machine() -> str:
    """A text that processes share where their ids are of one table; empty on a system that has
    none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink(
            "/proc/self/ns/pid"
        )
    except OSError:
        return ""


def pass_on() -> None:
    """Publishes texts for the other processes, each once, and prints theirs, one of a kind."""
    notices, _heard.notices = _heard.notices, []
    for kind, text in notices:
        processes.publish(f"spmd/notices/{kind}/{processes.index()}", text, allow_overwrite=True)
    for key, text in processes.published("spmd/notices/").items():
        hear(key.removeprefix("spmd/notices/").partition("/")[0], text)


def hear(kind: str, text: str) -> None:
    """Prints a text, unless one of its kind was printed."""
    if kind not in _heard.printed:
        _tell(kind, text)


def _tell(kind: str, text: str) -> None:
    _heard.printed.add(kind)
    print(f"spmd: {text}", file=sys.stderr, flush=True)


def _announce(kind: str, text: str) -> None:
    """Prints a text, here and in the other processes."""
    _tell(kind, text)
    _heard.notices.append((kind, text))


# --- the thread -----------------------------------------------------------------------------------


def _watch() -> None:
    looked = time.monotonic()
    while processes.client() is not None:
        time.sleep(_PERIOD)
        timestamp = time.monotonic()
        # this process was stopped itself, and has heard nothing since
        if timestamp - looked > SILENT / 2:
            _heard.answered = timestamp
            _heard.records = {
                process: (timestamp, record) for process, (_, record) in _heard.records.items()
            }
        looked = timestamp
        _look_at_programs(timestamp)
        if processes.index() == 0:
            _look_at_processes(timestamp)
        elif timestamp - _heard.answered > SILENT:
            hear(
                f"store {_heard.answered}",
                "process 0, which keeps the store of all processes, has not answered process "
                f"{processes.index()} for {timestamp - _heard.answered:.0f} s: it is stopped, "
                "dead, or its machine or network is down.",
            )


def _look_at_processes(timestamp: float) -> None:
    """Says which processes are silent, and which are heard again."""
    for process, (heard_at, record) in list(_heard.records.items()):
        if process == processes.index() or record["ended"]:
            continue
        beat = _heard.silent.get(process)
        if beat is None and timestamp - heard_at > SILENT:
            _heard.silent[process] = record["beat"]
            _announce(
                f"process {process} is silent since beat {record['beat']}",
                f"process {process} ({record['host']}) has been silent for "
                f"{timestamp - heard_at:.0f} s: it is stopped, dead, or its machine or network is "
                f"down. {_last(record)}",
            )
        elif beat is not None and timestamp - heard_at <= SILENT:
            del _heard.silent[process]
            kind = f"process {process} is heard after beat {beat}"
            _announce(kind, f"process {process} ({record['host']}) is heard again.")


def _look_at_programs(timestamp: float) -> None:
    """Says which program has not ended for `config.hang_seconds`."""
    limit = config.hang_seconds
    oldest = next((run for run in in_flight.started() if not in_flight.is_done(run.result)), None)
    age = 0.0 if oldest is None else timestamp - oldest.launch_time
    _heard.wants_records = bool(limit) and age > limit / 2
    if oldest is not None and limit and age > limit and _heard.reported != oldest.event:
        _heard.reported = oldest.event
        _announce(f"event {oldest.event}", _report(oldest, age, timestamp))


def _report(run: in_flight.Started, age: float, timestamp: float) -> str:
    program = run.maker()
    name = "a program" if program is None else f"the program of {program.name} at {program.line}"
    lines = [
        f"process {processes.index()} of {processes.count()} ({present()['host']}) waits: {name} "
        f"was started {age:.0f} s ago as event {run.event:,} and has not ended "
        f"(config.hang_seconds is {config.hang_seconds}).",
        *_collectives(program),
    ]
    peers = {
        process: entry for process, entry in _heard.records.items() if process != processes.index()
    }
    late = {
        process: record for process, (_, record) in peers.items() if record["count"] < run.event
    }
    for process, record in sorted(late.items()):
        silent = timestamp - peers[process][0]
        words = f" It has been silent for {silent:.0f} s." if silent > SILENT else ""
        lines.append(
            f"process {process} ({record['host']}) has not come to it.{words} {_last(record)}"
        )
    unheard = sorted(set(range(processes.count())) - {processes.index(), *peers})
    if unheard:
        lines.append(f"nothing has been heard of process(es) {', '.join(map(str, unheard))}.")
    if not late and not unheard:
        lines.append(
            "All processes have started it: a device, the network, or a callback to Python does "
            "not answer."
        )
    return "\n    ".join(lines)


def _collectives(program: Program | None) -> list[str]:
    if program is None or not program.facts.exchanges:
        return []
    exchanges = program.facts.exchanges
    lines = [f"It waits in one of its {len(exchanges)} collective(s), of which the first are"]
    for collective, op_index in exchanges[:_SHOWN]:
        by = (
            ""
            if op_index is None
            else f" for {program.entries[op_index].name}, {program.lines[op_index]}"
        )
        axes = f" over {', '.join(collective.axes)}" if collective.axes else ""
        lines.append(f"  {collective.kind} of {collective.bytes:,} bytes{axes}{by}")
    return lines


def _last(record: Record) -> str:
    last = record["last"][-1] if record["last"] else "none"
    return f"Its last event was {last}; its main thread was at {record['now']}."

"""The proof that all processes do the same, and the end of all where they do not.

A compile, a run, a call that all processes take part in is an event; each has a digest of all
events up to it. A new program is compared by all processes before it is compiled (`agree`). An
event that recurs is only noted (`note`): a thread publishes each process's latest digests, and the
first process compares them. A difference is a mismatch, which every process raises at its next
event; a process that hangs in a collective by then is ended by its thread, with the same message.
See docs/decisions/processes.md.
"""

import atexit
import hashlib
import json
import os
import re
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import jax

from ...core import ProcessError, compile_log, config, forking, messages, processes
from ...core.extend import Line
from . import watchdog

_PERIOD = 0.5  # seconds between two looks of the thread
_PATIENCE = 10.0  # seconds of waiting before a message on stderr
_GRACE = 5.0  # seconds that a process has to raise a mismatch by itself
# seconds that the first process, with which the store ends, has for all to have raised it
_LAST_GRACE = 30.0
_WINDOW = 256  # events whose digests are published
_LAST = 32  # those of them whose texts are
_SHOWN = 4  # events and lines of the compile log that a message shows


Record = dict[str, Any]  # what a process publishes, as JSON has it


class Event(NamedTuple):
    """An event of all processes: the digest of all events up to it, its description, and the user's
    line."""

    digest: str
    description: str
    line: Line


@dataclass
class _State:
    """The events of this process, and the state of its comparison with the others."""

    lock: threading.Lock = field(default_factory=lambda: forking.survives_fork(threading.Lock()))
    chain: bytes = b""
    count: int = 0
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    has_ended: bool = False
    mismatch: str | None = None
    has_reported: bool = False  # the mismatch has been raised or printed
    thread: threading.Thread | None = None
    # a key of the store that all have read when the next one is made
    last_agreed: str | None = None


_state = _State()


# As `processes.digest` writes them.
_DIGESTS = re.compile(r"(\w+) #([0-9a-f]{8})")
_ALL_DIGESTS = re.compile(r"[,;] its \w+ #[0-9a-f]{8}(?:, \w+ #[0-9a-f]{8})*,?")


def note(event: str, mark: bytes, line: Line) -> int:
    """Adds an event to this process's chain and returns its number.

    event: its description, which differs wherever the mark does (see `processes.digest`).
    Raises ProcessError where the processes were found to differ.
    """
    join()
    _raise_mismatch()
    with _state.lock:
        # A chain: one digest stands for all events so far, so that a difference is found by the
        # last one.
        _state.chain = hashlib.blake2b(_state.chain + mark, digest_size=16).digest()
        _state.events.append(Event(_state.chain[:4].hex(), event, line))
        _state.count += 1
        return _state.count


def agree(event: str, mark: bytes, line: Line) -> None:
    """Adds an event and waits until every process has come to it.

    Returns in all processes, or raises ProcessError in all with what each does. Waits at most
    `config.process_timeout_seconds`, and prints after a while that it does.
    """
    number, store = note(event, mark, line), processes.client()
    where = f"{_ALL_DIGESTS.sub('', event)} at {line}"
    come, agreed = f"spmd/come/{number}/", f"spmd/agreed/{number}"
    processes.publish(f"{come}{processes.index()}", json.dumps(_record()))
    # The first process compares for all: each with each would be quadratic in a pod.
    if processes.index() == 0:
        _gather(come, where)
        processes.publish(agreed, "")
        store.key_value_delete(come)
        # All have read the key of the last agreement when they come to the next one; the store
        # keeps no history.
        if _state.last_agreed is not None:
            store.key_value_delete(_state.last_agreed)
        _state.last_agreed = agreed
    elif _wait_for(agreed, _deadline() + _GRACE, f"{where}, for process 0") is None:
        _raise_absent(where, [0])


def _gather(come: str, location: str) -> None:
    """Waits, in the first process, for all others and compares their events."""
    deadline = _deadline()
    absent = []
    for process in range(1, processes.count()):
        text = _wait_for(f"{come}{process}", deadline, f"{location}, for process {process}")
        if text is None:
            absent.append(process)
        else:
            _compare([json.loads(text)])
            # Where they differ, the mismatch is published by now, and this process raises it as all
            # others do.
            _raise_mismatch()
    if absent:
        _raise_absent(location, absent)


def _deadline() -> float:
    return time.monotonic() + config.process_timeout_seconds


def _wait_for(key: str, deadline: float, location: str) -> str | None:
    """Returns the value of a key once it is there, None after the deadline; raises a mismatch found
    meanwhile."""
    quiet_until = time.monotonic() + _PATIENCE
    while True:
        if time.monotonic() > quiet_until:
            # One line a wait is enough.
            quiet_until = deadline
            messages.say(f"process {processes.index()} waits with {location}", "waiting")
        _raise_mismatch()
        seconds = min(_PERIOD, max(deadline - time.monotonic(), 0.001))
        text = processes.polled(key, seconds)
        if text is not None or time.monotonic() >= deadline:
            return text


# --- the mismatch ---------------------------------------------------------------------------------


def _record(num_texts: int = _LAST) -> Record:
    """Returns what this process publishes for the others."""
    with _state.lock:
        events, count = list(_state.events), _state.count
    last = events[-num_texts:]
    return {
        "process": processes.index(),
        "count": count,
        "digests": [event.digest for event in events],
        "last": [
            f"event {count - len(last) + i + 1:,}: {event.description} at {event.line}"
            for i, event in enumerate(last)
        ],
        "ledger": [str(record) for record in compile_log.compiles()[-_SHOWN:]],
        "ended": _state.has_ended,
        "error": repr(sys.last_value) if hasattr(sys, "last_value") else "",
        **watchdog.present(),
    }


_ADVICE = (
    "All processes must record and sync the same ops in the same order, with the same numbers "
    "(learning rate, random seed): look for a branch on the process (a read in one of them of a "
    "value that has not been synced, or is sharded over processes, is such a branch: read it in "
    "all, and print in one), for a seed of its own, for data or shapes that differ between "
    "processes (a batch of its own goes through spmd.from_process_local), and for a process that "
    "has failed."
)


def _compare(records: list[Record]) -> None:
    """Compares the events of other processes with those of this one, the first; a difference is a
    mismatch."""
    mine = _record(_WINDOW)
    for peer_record in records:
        start = _first_difference(mine, peer_record)
        if start is not None:
            why = f"{_apart(mine, peer_record, start)}, and every program is one of all processes"
        elif (peer_record["ended"] and peer_record["count"] < mine["count"]) or (
            mine["ended"] and mine["count"] < peer_record["count"]
        ):
            ended = (
                peer_record
                if peer_record["ended"] and peer_record["count"] < mine["count"]
                else mine
            )
            by = f" by {ended['error']}" if ended["error"] else ""
            why = (
                f"process {ended['process']} has ended{by}, and others go on to programs of all "
                "processes"
            )
        else:
            continue
        text = f"{why}.\n{_reported(mine, start)}\n{_reported(peer_record, start)}\n{_ADVICE}"
        return _publish_mismatch(text, start or 0)


def _first_difference(local_record: Record, peer_record: Record) -> int | None:
    """Returns the first event, of those that both records show, at which two chains differ."""
    chains = [
        dict(enumerate(record["digests"], record["count"] - len(record["digests"]) + 1))
        for record in (local_record, peer_record)
    ]
    return min(
        (i for i in chains[0].keys() & chains[1].keys() if chains[0][i] != chains[1][i]),
        default=None,
    )


def _apart(local_record: Record, peer_record: Record, start: int) -> str:
    """States from which event on two records differ, and in what, where their texts are of one
    kind."""
    if start > 1 and start - 1 <= max(
        record["count"] - len(record["digests"]) for record in (local_record, peer_record)
    ):
        return f"at event {start:,} or earlier the processes began to differ"
    texts = [_DIGESTS.split(_text_of(record, start)) for record in (local_record, peer_record)]
    first, second = (dict(zip(parts[1::3], parts[2::3], strict=True)) for parts in texts)
    differing = [name for name in first if name in second and first[name] != second[name]]
    return f"from event {start:,} on the processes differ" + (
        f" (in its {', '.join(differing)})" if differing else ""
    )


def _text_of(record: Record, number: int) -> str:
    """Returns the text of an event, "" where it is no longer published."""
    return next((text for text in record["last"] if text.startswith(f"event {number:,}: ")), "")


def _reported(record: Record, start: int | None = None) -> str:
    """Returns the last events of a process, or those from an event on, and its compile log, as
    text."""
    first = (
        len(record["last"]) - _SHOWN
        if start is None
        else len(record["last"]) - (record["count"] - start) - 2
    )
    events = record["last"][max(first, 0) :][:_SHOWN]
    if start is not None and not _text_of(record, start) and start <= record["count"]:
        events = [
            (
                f"event {start:,} to event {record['count'] - len(record['last']):,}: see its own "
                "error"
            ),
            *events,
        ]
    lines = [f"Process {record['process']}{' (ended)' if record['ended'] else ''}:", *events]
    lines += ["its compile log:", *record["ledger"]] if record["ledger"] else []
    return "\n    ".join(lines)


def _raise_absent(location: str, absent: list[int]) -> None:
    record_of = {record["process"]: record for record in _published()}
    reports = "\n".join(
        _reported(record_of[process]) for process in absent[:_SHOWN] if process in record_of
    )
    _publish_mismatch(
        f"process {processes.index()} has waited {config.process_timeout_seconds} s "
        f"(config.process_timeout_seconds) with {location}, to which process(es) "
        f"{', '.join(map(str, absent))} have not come. All processes must call it.\n{reports}"
    )
    _raise_mismatch()


def _publish_mismatch(text: str, start: int = 0) -> None:
    """Publishes a mismatch, which every process raises, and the event at which it began (0: at
    none)."""
    _state.mismatch = text
    processes.publish("spmd/verdict/text", json.dumps([text, start]), allow_overwrite=True)


def _with_own(text: str, start: int) -> str:
    """Returns a mismatch with this process's event at its start, of which the first process may not
    know any more."""
    text_here = _text_of(_record(_WINDOW), start)
    return (
        text
        if not text_here or text_here in text
        else f"{text}\nIn process {processes.index()} that was {text_here}"
    )


def _raise_mismatch() -> None:
    if _state.mismatch is not None:
        if not _state.has_reported:  # the cause, ahead of this process's own frames
            messages.say(_state.mismatch.partition("\n")[0], "mismatch", is_error=True)
        try:
            _has_reported()
        except jax.errors.JaxRuntimeError as error:
            # the store has ended with the first process; the mismatch is why
            raise ProcessError(_state.mismatch) from error
        raise ProcessError(_state.mismatch)


def _has_reported() -> None:
    _state.has_reported = True
    processes.publish(f"spmd/told/{processes.index()}", "", allow_overwrite=True)


# --- the thread -----------------------------------------------------------------------------------


def join() -> None:
    """Starts the thread that watches the other processes; once."""
    if _state.thread is None:
        _state.thread = threading.Thread(target=_watch, name="spmd-processes", daemon=True)
        _state.thread.start()
        watchdog.start()
        atexit.register(_leave)


def _watch() -> None:
    # Published on a change, and as a sign of life at each beat.
    published: tuple[int, bool, int] | None = None
    found_at = None
    while processes.client() is not None:
        state = (_state.count, _state.has_ended, int(time.monotonic() / watchdog.BEAT))
        try:
            if state != published:
                _publish()
                published = state
            _look()
        except jax.errors.JaxRuntimeError:
            return  # the store is gone with its process, which jax reports by itself
        if _state.mismatch is not None:
            found_at = found_at or time.monotonic()
            if not _state.has_reported and time.monotonic() - found_at > _GRACE:
                _end()
        time.sleep(_PERIOD)


def _publish() -> None:
    processes.publish(f"spmd/at/{processes.index()}", json.dumps(_record()), allow_overwrite=True)


def _published() -> list[Record]:
    return [json.loads(text) for text in processes.published("spmd/at/").values()]


def _look() -> None:
    """Reads a published mismatch; in the first process, compares the records."""
    records = _published() if processes.index() == 0 or watchdog.wants_records() else []
    watchdog.heard(records)
    if processes.index() == 0 and _state.mismatch is None:
        _compare([record for record in records if record["process"] != 0])
        for text in watchdog.dead()[:1] if _state.mismatch is None else ():
            _publish_mismatch(text)
        have_ended = _state.has_ended and all(record["ended"] for record in records)
        if _state.mismatch is None and have_ended and len(records) == processes.count():
            processes.publish("spmd/ended", "", allow_overwrite=True)
    for text in processes.published("spmd/verdict/").values():
        _state.mismatch = _with_own(*json.loads(text))
    watchdog.pass_on()


def _leave() -> None:
    """Waits, at the end of this process, for the others, which may still need it, unless there is a
    mismatch."""
    if forking.is_in_bad_fork():
        return
    _state.has_ended = True
    try:
        while _state.mismatch is None and processes.client() is not None:
            if processes.polled("spmd/ended", _PERIOD) is not None:
                return
    finally:
        if _state.mismatch is not None:
            _end()


def _end() -> NoReturn:
    """Ends this process, which may hang in a collective, and prints why; the first one last of
    all."""
    if not _state.has_reported:
        print(f"spmd: {_state.mismatch}", file=sys.stderr)
        _has_reported()
    sys.stdout.flush()
    sys.stderr.flush()
    deadline = time.monotonic() + _LAST_GRACE
    while processes.index() == 0 and time.monotonic() < deadline:
        if len(processes.published("spmd/told/")) >= processes.count() - len(watchdog.dead()):
            break
        time.sleep(_PERIOD)
    os._exit(1)

"""Programs that another process compiled and this one was given: their setting is compared at once, their graphs when a
program is missing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core import messages, points
from ...core.extend import Graph, Line, Requested, persistent
from . import program_folder

# Names of the setting whose value is a digest, by what differs where they do.
_DIGESTS = {"source": "this library's own source", "cpu": "the processor or its features", "topology": "the devices"}


def load_programs(path: str | Path) -> int:
    """Has this process take its programs from a folder that `Plan.save_program` or `spmd.warm` has written; returns
    their number.

    Call it once the devices are chosen (`spmd.simulate`, `spmd.initialize`) and before the first step, in every
    process. A program that the folder has is loaded instead of compiled; for one that it has not, a line on stderr says
    what differs from the nearest that it has. The folder's files are executed: load only those that you trust.

    Raises ValueError for a folder without such programs, and for programs of another setting: versions, devices, XLA's
    flags, jax's options; it names the first difference. Source: `jax.experimental.serialize_executable`.

    >>> import spmd
    >>> spmd.load_programs("no such folder")
    Traceback (most recent call last):
        ...
    ValueError: load_programs: expected a folder that plan.save_program or spmd.warm has written, of version 1; ...
    """
    path = Path(path) / persistent.process()
    folder = program_folder.add(path)
    difference = _setting_difference(folder.setting)
    if difference:
        program_folder.remove(path)
        raise ValueError(f"load_programs: the programs in {path} cannot run here: {difference}; write them again here")
    if tell_missing not in points.before_making:
        points.before_making.append(tell_missing)
    return len(folder.programs)


def _setting_difference(before: Any) -> str:
    now = persistent.readable()
    for name in {**now, **before}:
        was, value = before.get(name), now.get(name)
        if was != value:
            if name in _DIGESTS:
                return f"{_DIGESTS[name]} differs ({name})"
            return f"{name} is {value!r} here, and was {was!r} where they were compiled"
    return ""


def tell_missing(graph: Graph, line: Line) -> None:
    """Says on stderr, once for a line, why no given program is that of a graph which is about to be compiled, if one is
    of mostly the same ops."""
    for folder in program_folder.known():
        now = persistent.listing(Requested(graph, 0))
        nearest = max(folder.programs, key=lambda before: num_common(before, now), default=None)
        if nearest is None or 2 * num_common(nearest, now) < max(len(nearest["ops"]), len(now["ops"])):
            continue
        why = _setting_difference(folder.setting) or listed_difference(nearest, now)
        text = f"a program is compiled that {folder.path.name} lacks, {line.short()}: {why}"
        messages.say(text, f"not given {line}", f"a program of {line} is compiled that {folder.path} lacks: {why}")


# --- the first difference of two graphs as plain text -----------------------------------------------------------------


Listing = Mapping[str, Any]


def num_common(before: Listing, now: Listing) -> int:
    """Counts the places at which two graphs have an op of one name."""
    return sum(old[0] == new[0] for old, new in zip(before["ops"], now["ops"], strict=False))


def listed_difference(before: Listing, now: Listing) -> str:
    """Returns the first difference of a graph from one that was written, in words."""
    return (
        _flag(before, now)
        or _input(before, now)
        or _ops(before, now)
        or _rest(before, now)
        or "the same graph, on other devices or compiled in another way"
    )


def _flag(before: Listing, now: Listing) -> str:
    for name, value in now["flags"].items():
        was = before["flags"].get(name)
        if value != was:
            return f"spmd.config.{name} is now {value!r}, in the saved program {was!r}"
    return ""


def _input(before: Listing, now: Listing) -> str:
    """Describes the first input that differs, where there are as many inputs and the same kinds of ops."""
    if len(before["inputs"]) != len(now["inputs"]) or _names(before) != _names(now):
        return ""
    for index, (old, new) in enumerate(zip(before["inputs"], now["inputs"], strict=True)):
        if old[0] != new[0]:
            return f"input {index} is now {new[0]}, in the saved program {old[0]}"
    for index, (old, new) in enumerate(zip(before["inputs"], now["inputs"], strict=True)):
        if old[1] != new[1]:
            return f"input {index} ({new[0]}) is now sharded as {new[1]}, in the saved program as {old[1]}"
    return ""


def _names(one: Listing) -> Sequence[str]:
    return [op[0] for op in one["ops"]]


def _ops(before: Listing, now: Listing) -> str:
    count = "" if len(before["ops"]) == len(now["ops"]) else f" ({len(now['ops'])} ops, saved {len(before['ops'])})"
    for index, (old, new) in enumerate(zip(before["ops"], now["ops"], strict=False)):
        if old != new:
            line = now["lines"][index]
            return f"op {index} at {line} is now {new[1]}, in the saved program {old[1]}{_hint(old, new)}{count}"
    return f"the number of ops differs{count}" if count else ""


def _hint(old: Sequence[str], new: Sequence[str]) -> str:
    return "; they differ in the layouts of operands, or in what this text leaves out" if old[1] == new[1] else ""


def _rest(before: Listing, now: Listing) -> str:
    for name, words in (("wiring", "an op reads another value"), ("donated", "another input may be written over")):
        if before[name] != now[name]:
            return words
    if before["results"] != now["results"]:
        counts = len(now["results"]), len(before["results"])
        return f"other results are kept, or in other shardings ({counts[0]} results, saved {counts[1]})"
    return ""

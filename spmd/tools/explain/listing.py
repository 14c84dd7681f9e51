"""A program's graph as plain text that is written next to it, and the first difference from the graph of a job."""

from collections.abc import Mapping, Sequence
from typing import Any

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

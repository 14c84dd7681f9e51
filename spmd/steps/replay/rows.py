"""A recorded call in the graph's own terms, by which two calls are compared: the ops, their
operands' places, numbers.

[Note: checks] Guards compare the Python state that they can see. State of objects in C (ctypes,
arrays, context variables) is none of it. So some calls whose guards hold run as Python, and are the
step: what they record must be what the replay would have run. Rows hold no data and no tensor of a
call, so that they can be kept with a recording.
"""

import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from ...core import DeviceData, config, observation, processes
from ...core.extend import OpSpec, user_lines, walks
from .observed_call import ObservedCall
from .recipe import (
    Constant,
    Derived,
    Filled,
    NewTensor,
    OfArgument,
    OfReplaced,
    OfResult,
    OfState,
    Recipe,
    Uploaded,
)
from .replay import source_of

_COMPARED = (str, bytes, int, float, complex, np.generic)


class Rows:
    """The ops of a call by program, each as (op spec, operands, scalar arguments, line), and where
    its results go.

    An operand is the position of its op and of the result, or the origin of an input.
    """

    def __init__(self, call: ObservedCall, recipe: Recipe):
        places: list[dict[Any, Hashable]] = []

        def place(value: Any, run: int = -1) -> Hashable:
            node = walks.origin(value)
            return (
                places[run][value]
                if node is None
                else (places[run][node], walks.result_index(value))
            )

        def of_result(origin: OfResult) -> Hashable:
            run, index = origin
            return run, place(call.observation.ran[run].graph.roots[index], run)

        name = partial(_name, recipe, of_result)
        new = [
            *(new for *_, new in recipe.gradients),
            *(new for *_, new in recipe.slots),
            *recipe.result,
        ]
        used: set[Any] = {tensor.over for tensor in new if isinstance(tensor, NewTensor)}
        used |= {source_of(origin) for origins in recipe.inputs for origin in origins}
        self._programs: list[list[Any]] = []
        writes: list[Hashable] = []
        for ran, origins, roots in zip(
            call.observation.ran, recipe.inputs, recipe.roots, strict=True
        ):
            # Other results are of tensors that the call drops: which of these are alive at its end
            # is chance.
            targets = [
                (x, to)
                for x, to in zip(ran.graph.roots, roots, strict=True)
                if to in used or not isinstance(to, OfResult)
            ]
            nodes, _ = walks.topological([value for value, _ in targets])
            places.append(dict(zip(ran.graph.inputs, map(name, origins), strict=True)))
            places[-1] |= {node: position for position, node in enumerate(nodes)}
            self._programs.append(
                [
                    (
                        node.op,
                        [*map(place, node.operands)],
                        node.numbers,
                        user_lines.node_line(node),
                    )
                    for node in nodes
                ]
            )
            writes += [
                (len(places), place(value), name(target))
                for value, target in targets
                if not isinstance(target, OfResult)
            ]
        writes += [(key, name(new)) for _, key, new in recipe.slots]
        writes += [
            (id(tensor), name(new))
            for tensor, _, new in recipe.gradients
            if isinstance(new, NewTensor)
        ]
        self._writes, self._results = Counter(writes), list(map(name, recipe.result))

    def differences(self, later: "Rows", passed: Callable[[Any], Any]) -> Iterator[str]:
        """The differences of a later call in words. passed: the number that a replay would have
        passed in place of a recorded one; None for none."""
        for rows, later_rows in zip_longest(self._programs, later._programs, fillvalue=()):
            for old, new in zip_longest(rows, later_rows):
                op, *_, line = new or old
                for words in (
                    ["is new"]
                    if old is None
                    else ["is gone"]
                    if new is None
                    else _changes(old, new, passed)
                ):
                    yield f"{op.name} at {line} {words}"
        for old, new in zip_longest(self._results, later._results):
            if old != new:
                yield f"a result is {new}, and was {old}"
        if self._writes != later._writes:
            yield "it writes other tensors"


def _name(recipe: Recipe, of_result: Callable[[OfResult], Hashable], origin: Any) -> Hashable:
    """An origin in terms that another call has, too."""
    match origin:
        case OfState(number):
            return id(recipe.storages[number])
        case OfReplaced(number):
            container, key, _ = recipe.replaced[number]
            # in another dict at each call
            return id(container) if key is None else ("replaced", key)
        case OfResult():
            return of_result(origin)
        case Constant(data):
            return _text_of(data)
        case Filled(meta, number):
            return meta, repr(number)
        case Uploaded(_, tensor):
            return tensor if isinstance(tensor, int) else id(tensor)
        case Derived(of):
            return "derived", _name(recipe, of_result, of)
        case NewTensor(over, meta):
            return _name(recipe, of_result, over), meta
    # Other objects than plain values are new ones at each call.
    return (
        origin
        if isinstance(origin, OfArgument)
        else repr(origin)
        if isinstance(origin, _COMPARED)
        else None
    )


def _changes(old: Any, new: Any, passed: Callable[[Any], Any]) -> Iterator[str]:
    # The function in an opaque op is another object at each call.
    if old[0] is not new[0] and not (new[0].is_opaque and _interface(old[0]) == _interface(new[0])):
        yield f"is {new[0]!r}, and was {old[0]!r}"
    for old_read, new_read in zip_longest(old[1], new[1]):
        if old_read != new_read:
            yield (
                f"reads {new_read}, and read {old_read}"
                if isinstance(new_read, str)
                else "reads another value than it did"
            )
    for number, new_read in zip_longest(map(passed, old[2]), new[2]):
        if number is not None and _bits(number) != _bits(new_read):
            yield f"has {new_read}, and had {number}"


def _interface(op: OpSpec) -> Hashable:
    return op.name, op.metas, op.operands, op.numbers, re.sub(" at 0x[0-9a-f]+", "", op.statics)


def _bits(number: float) -> Hashable:
    """A number by its bits; a draw by its place among the draws of a call."""
    return number.index if isinstance(number, observation.DrawNumber) else float(number).hex()


def _text_of(data: DeviceData) -> str:
    """The first values of data that the host made, and a digest of all on this process's
    devices."""
    shards = [] if data.host is not None else data.placed()[0].addressable_shards
    parts = [*map(np.asarray, {str(shard.index): shard.data for shard in shards}.values())] or [
        np.asarray(data.host)
    ]
    digest = hashlib.sha256(
        b"".join([repr(data.meta).encode(), *(part.tobytes() for part in parts)])
    ).hexdigest()
    return f"{np.array2string(parts[0].ravel()[:4])} ({digest[:16]})"


class Schedule:
    """The calls at which a recording is checked: its 4th, 8th, 16th, 32nd and 64th replay, then as
    often as 1 % of the time of its replays allows, and at least every `config.check_replays`-th.

    since: the replays since it was recorded, or checked.
    """

    _FIRST = (4, 8, 16, 32, 64)
    _SHARE = 0.01

    def __init__(self) -> None:
        self.since = self._count = 0
        self._seconds = self._cost = 0.0  # of the replays since then, and of the last check

    def is_due(self) -> bool:
        """True if the next call is to be checked."""
        if self._count < self._FIRST[-1]:
            is_early = self._count + 1 in self._FIRST
        else:  # clocks would have each of several processes check another call
            is_early = self._seconds * self._SHARE >= self._cost and not processes.several()
        return config.check_replays > 0 and (is_early or self.since + 1 >= config.check_replays)

    def replayed(self, began: float) -> None:
        """Counts a replay that began at this time."""
        self._count, self.since = self._count + 1, self.since + 1
        self._seconds += time.perf_counter() - began

    def checked(self, began: float) -> None:
        """Notes a check that has found no difference."""
        self._count, self.since = self._count + 1, 0
        self._seconds, self._cost = 0.0, time.perf_counter() - began

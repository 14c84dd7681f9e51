"""Isomorphic iterations: the stretches of a graph that repeat, and where each operand of an iteration's ops comes from.

Unlike in `unsynced_loops`, which cuts a graph into programs, an iteration may be short, and may read the ys of an
earlier run, as a backward pass does.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..core import DeviceData
from ..core.extend import Bounded, Carry, Const, Local, Node, OpSpec, Source, Value, Xs, stretches, walks


class Run(NamedTuple):
    """Iterations in a graph: nodes[start : start + period * iterations]."""

    start: int
    period: int
    iterations: int

    @property
    def stop(self) -> int:
        return self.start + self.period * self.iterations


# A run covers at least one of so many shares of a graph: ops in any order have runs of three everywhere.
_SHARES = 256
# The runs of a graph, by which of its symbols are equal; cached, as a sync whose lengths differ needs them at each run.
_known: Bounded[bytes, list[Run]] = Bounded(256)


def runs_in(nodes: Sequence[Node]) -> list[Run]:
    """Returns the stretches of a graph that repeat, none inside another, by their symbols alone."""
    symbols = stretches.numbered([stretches.symbol(node) for node in nodes])
    known = _known.get(symbols.tobytes())
    return _known.keep(symbols.tobytes(), _search(symbols)) if known is None else known


def _search(symbols: np.ndarray) -> list[Run]:
    taken, found = np.zeros(len(symbols), bool), list[Run]()
    while longest := stretches.repeated([symbols], taken, 1)[:1]:
        ((start, stop, period),) = longest
        run = Run(start, period, (stop - start) // period)
        if _SHARES * period * run.iterations < len(symbols):
            break
        found.append(run)
        taken[run.start : run.stop] = True
    return sorted(found)


@dataclass(slots=True)
class Iterations:
    """A run whose iterations are isomorphic: the source of each operand of each op (`ir.loops`).

    carry: per carried value the op and result that compute it; inits: their initial values. sames: the consts; xs: each
    as (run, op, result, first iteration, step), or the data of each iteration.
    """

    run: Run
    sources: list[list[Source]]
    carry: list[tuple[int, int]]
    inits: list[Value]
    sames: list[Value]
    xs: list[tuple[int, int, int, int, int] | tuple[DeviceData, ...]]


def iterations_of(
    nodes: Sequence[Node], run: Run, position: dict[Node, int], before: Sequence[Run]
) -> Iterations | None:
    """Returns the wiring of a run's iterations; None if they are not isomorphic. before: the graph's earlier runs."""
    result = Iterations(run, [], [], [], [], [])
    seen: dict[Any, int] = {}
    for offset in range(run.period):
        iteration = [nodes[run.start + offset + run.period * i] for i in range(run.iterations)]
        if len({len(node.operands) for node in iteration}) > 1:
            return None
        sources: list[Source] = []
        for values in zip(*(node.operands for node in iteration), strict=True):
            source = _source(values, result, position, before, seen)
            if source is None:
                return None
            sources.append(source)
        result.sources.append(sources)
    return result


def _source(
    values: Sequence[Value], made: Iterations, position: dict[Node, int], before: Sequence[Run], seen: dict[Any, int]
) -> Source | None:
    first, run = values[0], made.run
    if all(_is_same(value, first) for value in values):
        return Const(_number(seen, (Const, walks.value_name(first)), made.sames, first))
    result, *others = set(map(walks.result_index, values[1:]))
    if others:
        return None
    places = [None if (maker := walks.origin(value)) is None else position[maker] for value in values]
    if None not in places[1:]:
        offsets = [
            place - run.start - run.period * iteration
            for iteration, place in enumerate(places)
            if place is not None and iteration
        ]
        offset = offsets[0]
        if len(set(offsets)) == 1 and 0 <= offset < run.period:
            return Local(offset, result) if places[0] == run.start + offset else None
        if len(set(offsets)) == 1 and -run.period <= offset < 0:
            offset += run.period
            key = (Carry, offset, result, walks.value_name(first))
            if key not in seen:
                seen[key] = len(made.carry)
                made.carry.append((offset, result))
                made.inits.append(first)
            return Carry(seen[key])
        if places[0] is not None:
            return _row(places, result, made, before, seen)  # type: ignore[arg-type]
        return None
    data = tuple(value for value in values if type(value) is DeviceData and not value.is_state)
    if len(data) == len(values) and len({(device_data.meta, device_data.sharding) for device_data in data}) == 1:
        return Xs(_number(seen, (Xs, data), made.xs, data))
    return None


def _row(
    places: Sequence[int], result: int, made: Iterations, before: Sequence[Run], seen: dict[Any, int]
) -> Xs | None:
    for number, run in enumerate(before):
        iterations = [(place - run.start) // run.period for place in places]
        offsets = {(place - run.start) % run.period for place in places}
        steps = {later - earlier for earlier, later in itertools.pairwise(iterations)}
        if len(offsets) == 1 and len(steps) == 1 and all(0 <= iteration < run.iterations for iteration in iterations):
            row = (number, offsets.pop(), result, iterations[0], steps.pop())
            return Xs(_number(seen, (Xs, row), made.xs, row))
    return None


def _number(seen: dict[Any, int], key: Any, listed: list[Any], item: Any) -> int:
    if key not in seen:
        seen[key] = len(listed)
        listed.append(item)
    return seen[key]


def _is_same(one: Value, other: Value) -> bool:
    return bool(walks.value_name(one) == walks.value_name(other))


def isomorphic_runs(nodes: Sequence[Node]) -> list[Iterations]:
    """Returns the runs of a graph with isomorphic iterations; iterations at the ends that are not are left out."""
    position = {node: index for index, node in enumerate(nodes)}
    found: list[Iterations] = []
    for run in runs_in(nodes):
        for first, last in ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)):
            shorter = Run(run.start + first * run.period, run.period, run.iterations - first - last)
            if shorter.iterations < stretches.FEWEST_ITERATIONS:
                continue
            iterations = iterations_of(nodes, shorter, position, [iterations.run for iterations in found])
            if iterations is not None and (iterations.carry or iterations.xs):
                found.append(iterations)
                break
    return found


def collapsed(nodes: Sequence[Node], iterations: Sequence[Iterations]) -> Iterator[str]:
    """Yields the names of a graph's ops, those of each run's iterations once."""
    at = 0
    for found in iterations:
        yield from (node.op.name for node in nodes[at : found.run.start + found.run.period])
        yield "iterations"
        at = found.run.stop
    yield from (node.op.name for node in nodes[at:])


def dynamic_starts_in(nodes: Sequence[Node], run: Run) -> Iterator[OpSpec]:
    """Yields the ops of a run whose starts differ between iterations, with the start as an operand."""
    for place in range(run.start, run.start + run.period):
        ops = {node.op for node in nodes[place : run.stop : run.period]}
        if len(ops) > 1:
            yield from (op.dynamic_start[0] for op in ops if op.dynamic_start is not None)


def taken(node: Node) -> list[int]:
    """Returns the size of each dim from which an op with a start takes elements."""
    if not node.operands or node.op.name not in ("aten.slice.Tensor", "aten.select.int"):
        return []
    given, result = node.operands[0].meta.shape, node.meta.shape
    if len(given) == len(result):
        return [size for size, part in zip(given, result, strict=True) if size != part]
    return [next(size for dim, size in enumerate(given) if (*given[:dim], *given[dim + 1 :]) == result)]

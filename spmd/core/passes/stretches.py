"""Stretches of a graph that repeat: equal ops at equal distances, whatever connects them."""

from collections.abc import Iterator, Sequence

import numpy as np

from ..graph.graph import Node
from ..graph.op import OpSpec

# The fewest iterations of a loop.
FEWEST_ITERATIONS = 3
# The most equal ops after an op to which its distance is counted; the most periods that are tried.
_LAGS = 12
_PERIODS = 16
# The rarest kinds of ops whose distances are tried, too; the distances of them that are tried for each number of ops.
_RAREST = 16
_EACH = 4


def symbol(node: Node) -> OpSpec:
    """Returns the op with a dynamic start, which is the same for all starts; other ops as they are."""
    return node.op.dynamic_start[0] if node.op.dynamic_start is not None else node.op


def numbered(ops: Sequence[OpSpec]) -> np.ndarray:
    """Returns a number for each op, equal for equal ops."""
    numbers: dict[OpSpec, int] = {}
    return np.array([numbers.setdefault(op, len(numbers)) for op in ops], np.int64)


def repeated(
    symbols: Sequence[np.ndarray], taken: np.ndarray, least: int, *, fewest: int = FEWEST_ITERATIONS, shortest: int = 1
) -> list[tuple[int, int, int]]:
    """Returns stretches (start, stop, period) of ops that are not taken, in which every op is that of a period earlier;
    those that spare most ops first, all of them at least `least`.

    symbols: each array has a number per op, equal for ops that may be the same op of two iterations. fewest: the fewest
    iterations. shortest: of a shorter period the least multiple of that many ops is taken.
    """
    found = {stretch for numbers in symbols for stretch in _stretches_of(numbers, taken, least, fewest, shortest)}
    return [(start, stop, -period) for _, period, start, stop in sorted(found, reverse=True)]


def _stretches_of(
    symbols: np.ndarray, taken: np.ndarray, least: int, fewest: int, shortest: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yields such stretches as (ops spared, -period, start, stop)."""
    symbols = np.where(taken, -1 - np.arange(len(symbols)), symbols)  # a taken op is equal to no other
    for period in {period * -(-shortest // period) for period in _periods(symbols, least)}:
        is_equal = np.concatenate(([False], symbols[:-period] == symbols[period:], [False]))
        edges = np.flatnonzero(is_equal[1:] != is_equal[:-1])
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            spared = (end - start) // period * period
            if spared >= max(least, (fewest - 1) * period):
                yield spared, -period, start, end + period


def _periods(symbols: np.ndarray, least: int) -> list[int]:
    """Returns the candidate periods: the distances at which most ops have an equal one, no multiples of such; and those
    of the rarest ops, which an iteration that has layers inside has once."""
    order = np.argsort(symbols, kind="stable")
    _, kinds, occurrences = np.unique(symbols, return_inverse=True, return_counts=True)
    rarest = np.argsort(np.where(occurrences > 1, occurrences, len(symbols)), kind="stable")[:_RAREST]
    rare = order[np.isin(kinds[order], rarest)]
    counts = np.zeros(len(symbols) + 1, np.int64)
    often: set[int] = set()
    for lag in range(1, min(_LAGS, len(symbols) - 1) + 1):
        counts += np.bincount(_distances(symbols, order, lag), minlength=len(counts))
        found, times = np.unique(_distances(symbols, rare, lag), return_counts=True)
        often |= set(found[np.argsort(-times, kind="stable")[:_EACH]].tolist())
    likely: list[int] = []
    for period in np.argsort(-counts, kind="stable").tolist():
        if counts[period] < least or len(likely) == _PERIODS:
            break
        if not any(period % shorter == 0 and counts[shorter] >= counts[period] for shorter in likely):
            likely.append(period)
    return sorted(often.union(likely))


def _distances(symbols: np.ndarray, places: np.ndarray, lag: int) -> np.ndarray:
    """Returns the distances of those of these places, in order of their symbols, that are of one and `lag` apart."""
    is_same = symbols[places[lag:]] == symbols[places[:-lag]]
    return (places[lag:] - places[:-lag])[is_same]

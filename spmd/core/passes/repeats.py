"""Repeats: stretches of equal ops, and the loops among them: layers forward and backward, an
optimizer's parameters.

Stretches are iterations of one loop if their ops and wiring are equal, and each operand from
outside is a const (one value for all), a carry (a result of the iteration before) or an x (a
different value for each).
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from ..graph.graph import Node, Value, origin, result_index, value_name
from ..graph.op import OpSpec
from ..loop.found_loop import Candidate, Result, candidate_of
from ..lower.region import is_annotation
from ..lower.stack_rows import TAKE_ROWS
from .equal_masks import KNOWN_MASK

# The fewest ops that a loop spares.
FEWEST_OPS = 8


def find_loops(
    nodes: Sequence[Node], roots: Sequence[Value], *, splits: bool = False
) -> list[Candidate]:
    """Returns the loops of a graph, in order; they do not overlap.

    splits: a loop ends where a value changes that iterations in a row share, as layers of one kind
    share their positions: it is a const there, and no x that has a copy for each iteration.
    """
    position = {node: i for i, node in enumerate(nodes)}
    # Ops as numbers: as they are and, where some have a dynamic start, with all starts equal.
    masks = [_mask_of(node) for node in nodes]
    symbols = [numbered([(node.op, mask) for node, mask in zip(nodes, masks, strict=True)])]
    if any(node.op.dynamic_start is not None for node in nodes):
        symbols.append(numbered([*zip(map(symbol, nodes), masks, strict=True)]))
    in_loop = np.zeros(len(nodes), bool)
    tried: set[tuple[int, int, int]] = set()
    loops: list[Candidate] = []
    # Loops that save much less are searched again outside of these: most distances
    # between equal ops are within its iterations.
    while new_loops := _most_saving(nodes, symbols, position, in_loop, tried, splits):
        loops += new_loops
    loops.sort(key=lambda loop: loop.start)
    if loops:
        _note_readers(loops, nodes, roots, position)
        _orient_rows(loops)
    return loops


def _most_saving(
    nodes: Sequence[Node],
    symbols: Sequence[np.ndarray],
    position: dict[Node, int],
    in_loop: np.ndarray,
    tried: set[tuple[int, int, int]],
    splits: bool,
) -> list[Candidate]:
    """Returns the loop that saves most ops, and the loops that save at least half as many; marks
    their ops in `in_loop`."""
    loops: list[Candidate] = []
    min_saved = 0
    for start, stop, period in periodic_stretches(symbols, in_loop, FEWEST_OPS):
        # Stretches are in descending order of saved ops.
        if (stop - start) // period * period - period < min_saved:
            break
        for free_stretch in _outside_loops(in_loop, start, stop):
            if (*free_stretch, period) in tried:
                continue
            tried.add((*free_stretch, period))
            loop = _fit(nodes, position, *free_stretch, period)
            if loop is not None and splits:
                first, length = _shared_run(loop)
                if FEWEST_ITERATIONS <= length < loop.iterations:
                    loop = _loop(nodes, position, loop.start + first * period, period, length)
            if loop is not None:
                loops.append(loop)
                in_loop[loop.start : loop.stop] = True
                min_saved = min_saved or (loop.iterations - 1) * loop.period // 2
    return loops


def _shared_run(loop: Candidate) -> tuple[int, int]:
    """Returns the longest run of iterations, as (first, number), in which no value changes that
    neighbours share."""
    changes = {0, loop.iterations}
    for values in loop.xs:
        names = [*map(value_name, values)]
        new = [i for i in range(1, len(names)) if names[i] != names[i - 1]]
        changes.update(new if len(new) < len(names) - 1 else ())
    runs = [(stop - start, -start) for start, stop in itertools.pairwise(sorted(changes))]
    length, first = max(runs)
    return -first, length


def _outside_loops(in_loop: np.ndarray, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yields the parts of a stretch that are in no loop."""
    for is_in_loop, group in itertools.groupby(range(start, stop), key=in_loop.__getitem__):
        if not is_in_loop:
            indices = list(group)
            yield indices[0], indices[-1] + 1


# --- the wiring -----------------------------------------------------------------------------------


def _fit(
    nodes: Sequence[Node], position: dict[Node, int], start: int, stop: int, period: int
) -> Candidate | None:
    """Returns the longest loop in a periodic stretch of ops, or None if the wiring of its
    iterations differs."""
    iterations = (stop - start) // period
    # The loop may begin at any of the first `spare` ops.
    spare = stop - start - iterations * period
    if iterations < FEWEST_ITERATIONS or (iterations - 1) * period < FEWEST_OPS:
        return None
    if spare:
        start += _least_carried(nodes, position, start, period, spare)
    wiring = [
        _wiring(nodes, position, start + iteration * period, period)
        for iteration in range(iterations)
    ]
    usable_runs = (
        _without_peeled(nodes, position, start, period, wiring, *run)
        for run in _isomorphic_runs(wiring)
    )
    first_iteration, stop_iteration = max(usable_runs, key=lambda run: run[1] - run[0])
    if (
        stop_iteration - first_iteration < FEWEST_ITERATIONS
        or (stop_iteration - first_iteration - 1) * period < FEWEST_OPS
    ):
        return None
    return _loop(
        nodes, position, start + first_iteration * period, period, stop_iteration - first_iteration
    )


def _least_carried(
    nodes: Sequence[Node], position: dict[Node, int], start: int, period: int, spare: int
) -> int:
    """Returns by how many ops to shift the first iteration so that iterations pass the fewest bytes
    to each other."""
    # Of each value that the second iteration reads from itself or the first: the indices of its op
    # and of its last reader, and its bytes.
    spans: dict[object, tuple[int, int, int]] = {}
    for index in range(start + period, start + 2 * period):
        for operand in nodes[index].operands:
            maker = origin(operand)
            maker_index = -1 if maker is None else position[maker]
            if maker_index >= max(start, index - period):
                spans[value_name(operand)] = (maker_index, index, operand.meta.nbytes)
    carried = np.zeros(period, np.int64)
    # A value is carried over every cut between the op that makes it and its last reader.
    for maker_index, last_read, nbytes in spans.values():
        for cut in range(maker_index + 1, last_read + 1):
            carried[(cut - start) % period] += nbytes
    return int(np.argmin(carried[: min(spare, period - 1) + 1]))


# The place of the op that makes an operand, from the start of the iteration on (below 0: in the one
# before), and the index among its results; None for a value from outside, or from more than one
# iteration before.
_Wired = tuple[int, int] | None


def _wiring(
    nodes: Sequence[Node], position: dict[Node, int], base: int, period: int
) -> tuple[_Wired, ...]:
    """Returns the wiring of each operand of one iteration."""
    wired: list[_Wired] = []
    for operand in itertools.chain.from_iterable(
        node.operands for node in nodes[base : base + period]
    ):
        maker = origin(operand)
        maker_index = -1 if maker is None else position[maker]
        wired.append(
            (maker_index - base, result_index(operand))
            if maker_index >= max(base - period, 0)
            else None
        )
    return tuple(wired)


def _isomorphic_runs(wiring: list[tuple[_Wired, ...]]) -> Iterator[tuple[int, int]]:
    """Yields runs of isomorphic iterations as (first, stop), with the iteration before if it may
    begin the loop."""
    for _, run in itertools.groupby(range(len(wiring)), key=wiring.__getitem__):
        first, *others = run
        yield (
            first - bool(first and _may_begin(wiring[first - 1], wiring[first])),
            first + len(others) + 1,
        )


def _may_begin(first: tuple[_Wired, ...], second: tuple[_Wired, ...]) -> bool:
    """True if an iteration may be the first of a loop with this wiring: it reads data in place of a
    carry."""
    return all(
        a == b or all(wired is None or wired[0] < 0 for wired in (a, b))
        for a, b in zip(first, second, strict=True)
    )


def _without_peeled(
    nodes: Sequence[Node],
    position: dict[Node, int],
    start: int,
    period: int,
    wiring: list[tuple[_Wired, ...]],
    first: int,
    stop: int,
) -> tuple[int, int]:
    """Returns the run without its first iterations, up to the last one whose results are read by an
    iteration later than the next."""
    for iteration in range(first + 2, stop):
        base = start + iteration * period
        operands = itertools.chain.from_iterable(
            node.operands for node in nodes[base : base + period]
        )
        for operand, wired in zip(operands, wiring[iteration], strict=True):
            maker = origin(operand) if wired is None else None
            if maker is not None and position[maker] >= start + first * period:
                first = (position[maker] - start) // period + 1
    return first, stop


def _loop(
    nodes: Sequence[Node], position: dict[Node, int], start: int, period: int, iterations: int
) -> Candidate | None:
    """Returns the loop of these isomorphic iterations. None if dynamic starts differ and no x is a
    weight: that is an RNN's recurrence over its inputs, not layers.
    """
    early, has_dynamic_start = _early(nodes, position, start, period, iterations)
    loop = candidate_of(nodes, position, start, period, iterations, early)
    return (
        loop if not has_dynamic_start or any(_is_weight(values[0]) for values in loop.xs) else None
    )


def _early(
    nodes: Sequence[Node], position: dict[Node, int], start: int, period: int, iterations: int
) -> tuple[frozenset[int], bool]:
    """Returns the indices in an iteration of ops whose dynamic start differs per iteration and that
    read no result of the loop; and whether any op's start differs."""
    early: set[int] = set()
    has_dynamic_start = False
    for index in range(period):
        nodes_at_index = nodes[start + index : start + period * iterations : period]
        if all(node.op is nodes_at_index[0].op for node in nodes_at_index):
            continue
        has_dynamic_start = True
        makers = [origin(operand) for node in nodes_at_index for operand in node.operands]
        offsets = [position[maker] - start for maker in makers if maker is not None]
        if all(offset < 0 or offset % period in early for offset in offsets):
            early.add(index)
    return frozenset(early), has_dynamic_start


def _is_weight(value: Value) -> bool:
    """True for data, and for an annotation of data, such as the gather of a weight or of its
    cast."""
    maker = origin(value)
    return maker is None or is_annotation(maker)


# --- the results that are read outside of the loops -----------------------------------------------


def _note_readers(
    loops: Sequence[Candidate],
    nodes: Sequence[Node],
    roots: Sequence[Value],
    position: dict[Node, int],
) -> None:
    """Finds the results of each loop that are read outside of it."""
    owner: list[Candidate | None] = [None] * len(nodes)
    for loop in loops:
        for index in range(loop.start, loop.stop):
            owner[index] = None if (index - loop.start) % loop.period in loop.early else loop
    read_iterations: defaultdict[int, dict[Result, set[int]]] = defaultdict(dict)

    def note(value: Value, reader: Candidate | None) -> None:
        """Notes a value's iteration and place if a loop makes it and its reader is outside of that
        loop."""
        maker = origin(value)
        if maker is None:
            return
        maker_index = position[maker]
        loop = owner[maker_index]
        if loop is not None and loop is not reader:
            iteration, index = divmod(maker_index - loop.start, loop.period)
            read_iterations[id(loop)].setdefault((index, result_index(value)), set()).add(iteration)

    for node, reader in zip(nodes, owner, strict=True):
        for operand in node.operands:
            note(operand, reader)
    for root in roots:
        note(root, None)
    as_rows = {value_name(value) for loop in loops for values in loop.xs for value in values}
    as_rows |= {
        value_name(operand)
        for node in nodes
        if type(node.op.lowering) in TAKE_ROWS
        for operand in node.operands
    }
    root_names = set(map(value_name, roots))
    for loop in loops:
        for result, iterations in read_iterations[id(loop)].items():
            (loop.last if iterations == {loop.iterations - 1} else loop.ys).append(result)
            # The last row is one of the stack, too, if it is read as a row, or is a root like the
            # one before it.
            second_last_name, last_name = (
                loop.name(loop.iterations - 2, result),
                loop.name(loop.iterations - 1, result),
            )
            if last_name in as_rows or root_names.issuperset((second_last_name, last_name)):
                loop.ended.add(result)


def _orient_rows(loops: Sequence[Candidate]) -> None:
    """Sets `backwards` of each loop so that a value has one row number in all of them: a backward
    pass reads the rows of the forward in reverse order."""
    row_of: dict[object, int] = {}
    for loop in loops:
        # The direction in which the rows of the xs go, as earlier loops have numbered them.
        votes: Counter[int] = Counter()
        for values in loop.xs:
            first, second = (row_of.get(value_name(value)) for value in values[:2])
            if first is not None and second is not None:
                votes[second - first] += 1
        loop.backwards = votes[-1] > votes[1]
        for values in loop.xs:
            for iteration, value in enumerate(values):
                row_of.setdefault(value_name(value), loop.row(iteration))
        for result in loop.ys:
            for index, name in enumerate(loop.names(result)):
                row_of.setdefault(name, index)


# The fewest iterations of a loop.
FEWEST_ITERATIONS = 3
# For an op, the number of the next equal ops whose distances are counted; the most periods that are
# tried.
_LAGS = 12
_PERIODS = 16
# The rarest kinds of ops whose distances are tried, too; the distances of them that are tried for
# each number of ops.
_RAREST = 16
_EACH = 4


def symbol(node: Node) -> OpSpec:
    """Returns the op with a dynamic start, which is the same for all starts; other ops as they
    are."""
    return node.op.dynamic_start[0] if node.op.dynamic_start is not None else node.op


def _mask_of(node: Node) -> OpSpec | None:
    """Returns the op of the mask of attention that an op reads. Layers under several masks are no
    iterations of one loop: it would stack the masks, as data."""
    makers = (origin(operand) for operand in node.operands)
    return next((x.op for x in makers if x is not None and x.op.name == KNOWN_MASK), None)


def numbered(ops: Sequence[Hashable]) -> np.ndarray:
    """Returns a number for each op, equal for equal ops."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(op, len(numbers)) for op in ops], np.int64)


def periodic_stretches(
    symbols: Sequence[np.ndarray],
    in_loop: np.ndarray,
    min_saved: int,
    *,
    fewest: int = FEWEST_ITERATIONS,
    shortest: int = 1,
) -> list[tuple[int, int, int]]:
    """Returns periodic stretches of ops outside of loops as (start, stop, period), by descending
    number of saved ops, which is at least `min_saved`.

    symbols: arrays with a number per op, equal for ops that may match between iterations. fewest:
    the fewest iterations. shortest: a shorter period is replaced by its least multiple of that many
    ops.
    """
    stretches = {
        stretch
        for numbers in symbols
        for stretch in _stretches_of(numbers, in_loop, min_saved, fewest, shortest)
    }
    return [(start, stop, -period) for _, period, start, stop in sorted(stretches, reverse=True)]


def _stretches_of(
    symbols: np.ndarray, in_loop: np.ndarray, min_saved: int, fewest: int, shortest: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yields the stretches of `periodic_stretches` as (ops saved, -period, start, stop)."""
    # an op in a loop is equal to no other
    symbols = np.where(in_loop, -1 - np.arange(len(symbols)), symbols)
    for period in {period * -(-shortest // period) for period in _periods(symbols, min_saved)}:
        is_equal = np.concatenate(([False], symbols[:-period] == symbols[period:], [False]))
        edges = np.flatnonzero(is_equal[1:] != is_equal[:-1])
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            saved = (end - start) // period * period
            if saved >= max(min_saved, (fewest - 1) * period):
                yield saved, -period, start, end + period


def _periods(symbols: np.ndarray, min_saved: int) -> list[int]:
    """Returns candidate periods: the commonest distances between equal ops, without multiples; and
    those of the rarest ops, which an iteration with layers inside has once."""
    # Equal ops are neighbours in this order. A lag is a distance in it, a period one in the graph.
    order = np.argsort(symbols, kind="stable")
    _, kinds, occurrences = np.unique(symbols, return_inverse=True, return_counts=True)
    rarest = np.argsort(np.where(occurrences > 1, occurrences, len(symbols)), kind="stable")[
        :_RAREST
    ]
    rare = order[np.isin(kinds[order], rarest)]
    counts = np.zeros(len(symbols) + 1, np.int64)
    rare_distances: set[int] = set()
    for lag in range(1, min(_LAGS, len(symbols) - 1) + 1):
        counts += np.bincount(_distances(symbols, order, lag), minlength=len(counts))
        distances, frequency = np.unique(_distances(symbols, rare, lag), return_counts=True)
        rare_distances |= set(distances[np.argsort(-frequency, kind="stable")[:_EACH]].tolist())
    common_periods: list[int] = []
    for period in np.argsort(-counts, kind="stable").tolist():
        if counts[period] < min_saved or len(common_periods) == _PERIODS:
            break
        if not any(
            period % shorter == 0 and counts[shorter] >= counts[period]
            for shorter in common_periods
        ):
            common_periods.append(period)
    return sorted(rare_distances.union(common_periods))


def _distances(symbols: np.ndarray, indices: np.ndarray, lag: int) -> np.ndarray:
    """Returns the distances between indices of one symbol, `lag` apart in a list sorted by
    symbol."""
    is_same = symbols[indices[lag:]] == symbols[indices[:-lag]]
    return (indices[lag:] - indices[:-lag])[is_same]

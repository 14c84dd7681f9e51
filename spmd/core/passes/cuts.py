"""Cuts of a graph into several programs: of one too long for a single program, or one that will not
come again."""

import itertools
import math
import zlib
from collections.abc import Hashable, Sequence

from ..base.config import config
from ..base.pace import pace
from ..base.tables import Bounded
from ..graph.graph import Graph, Node, origin, result_index, stretch_wiring
from ..graph.meta import Meta
from ..graph.op import OpSpec
from ..graph.source import node_line
from . import dynamic, pass_result, scan_layers
from .pass_result import Cut, Outcome, Sync, runs
from .repeats import symbol

SCAN = "scan layers"

# Cuts by the graph's key: a warm step searches nothing.
_cuts: Bounded[Hashable, list[int]] = Bounded(512)
# A cut keeps the values that cross it in memory, gathered, and forgoes recompute. So a step that
# loops shorten by this factor stays one program, even if it is long (a model with layers of several
# kinds in turn).
_SHARE_OF_LOWERED = 2
# Once iterations of a loop have run by themselves, the rest of the graph is no usual step: it is
# cut above this part of the limit.
_SHARE_OF_REST = 4


def forget() -> None:
    """Forgets where graphs were cut."""
    _cuts.clear()


def long_again(graph: Graph, sync: Sync) -> Outcome:
    """Cuts a graph that `long` has cut before at the same places."""
    ends = _cuts.get(sync.key)
    return "" if ends is None else Cut(graph.nodes, ends, "as before")


def long(graph: Graph, sync: Sync) -> Outcome:
    """Cuts a graph of more than `config.max_program_ops` ops, equal layers counted once."""
    nodes, limit = graph.nodes, config.max_program_ops
    if sync.is_rest or pace.has_cut:
        limit //= _SHARE_OF_REST
    if not is_long(graph, limit):
        return ""
    ends = _cuts.keep(sync.key, [*stretches(nodes, limit), len(nodes)])
    return Cut(nodes, ends, f"more than {limit:,} ops")


def is_long(graph: Graph, limit: int) -> bool:
    """True if a graph has more ops than this, and no loops that shorten it enough: of a loop one
    iteration is compiled."""
    num_ops = len(graph.nodes)
    return num_ops > limit and scan_layers.num_lowered(_joined(graph)) > max(
        limit, num_ops // _SHARE_OF_LOWERED
    )


def _joined(graph: Graph) -> Graph:
    """The graph after the compile passes that make one op of many, as of an optimizer's iterations
    over equal matrices, each of which a cut would keep from the others."""
    for name, run, needs in pass_result.COMPILE_PASSES:
        if name == SCAN:
            break
        if runs(needs, graph):
            graph, _ = run(graph, True)
    return graph


def stretches(nodes: Sequence[Node], length: int, *, recurs: bool = True) -> list[int]:
    """Returns the cuts of a graph without a loop into stretches of at most `length` ops.

    Equal stretches share a program. So of several lengths the cheapest is taken: the cost is that
    of compiling each new kind of stretch, and of running each stretch in every step.

    recurs: True for a graph that runs often: twice the compile time costs four times as much. A
    graph that may run once is cut short, into stretches that other graphs share, and new stretches
    dominate the cost.
    """
    symbols = [symbol(node) for node in nodes]
    lines = [index for index in range(1, len(nodes)) if not is_within_line(nodes, index)]
    marks = _marks(symbols, lines)
    wiring = _Wiring(nodes, symbols)
    min_cost, best_ends, best_kinds = math.inf, list[int](), _Kinds()
    for scale in (None, *_SCALES) if recurs else _SHORT_SCALES:
        ends = _by_line(nodes, length) if scale is None else _by_marks(marks, scale, length)
        kinds = wiring.kinds(ends)
        uncompiled = [
            spans[0] for kind, spans in kinds.items() if recurs or kind not in _recent_kinds.rows
        ]
        to_compile = sum(_PER_PROGRAM + wiring.num_ops(start, stop) for start, stop in uncompiled)
        cost = (
            2 * to_compile**2 / length + _PER_STRETCH * len(ends)
            if recurs
            else to_compile + len(ends) / 2
        )
        if cost < min_cost:
            min_cost, best_ends, best_kinds = cost, ends, kinds
    for kind, spans in best_kinds.items():
        first_start, first_stop = spans[0]
        for start, stop in spans[1:]:
            dynamic.note_dynamic_start(nodes[first_start:first_stop], nodes[start:stop])
        if not recurs:
            _recent_kinds.keep(kind, True)
    return best_ends


# The kinds of stretches from recent cuts of graphs that may run only once.
_Kinds = dict[tuple[Hashable, ...], list[tuple[int, int]]]
_recent_kinds: Bounded[tuple[Hashable, ...], bool] = Bounded(4096)
# The average ops of a stretch, for several ways to cut a graph.
_SHORT_SCALES = (16, 8, 4, 2)
_SCALES = (512, 128, 32, *_SHORT_SCALES)
# In ops to compile, of some 8 ms each (2 cores): the overhead of a program; and the overhead, over
# a hundred steps, of a stretch that is run by itself.
_PER_PROGRAM = 4
_PER_STRETCH = 4


def _marks(symbols: Sequence[OpSpec], lines: Sequence[int]) -> list[float]:
    """Returns for each cut a hash from 0 to 1 of the ops around it, equal in all graphs and
    processes.

    Cuts at low hashes are at equal places of recurring ops. Where the user's line changes, the hash
    is divided by four, as cuts between lines are better.
    """
    hash_of = {
        symbol: zlib.crc32(f"{symbol.name}{symbol.operands}{symbol.metas}".encode())
        for symbol in set(symbols)
    }
    hashes = [hash_of[symbol] for symbol in symbols]
    marks, before_previous, previous = [], 0, 0
    for op_hash in hashes:
        marks.append(
            ((before_previous * 31 + previous * 7 + op_hash) * 0x9E3779B1 >> 8 & 0xFFFF) / 0x10000
        )
        before_previous, previous = previous, op_hash
    for index in lines:
        marks[index] /= 4
    return marks


def _by_marks(marks: Sequence[float], scale: int, length: int) -> list[int]:
    """Returns cuts with a mark below 1 / scale, about `scale` ops apart, at most `length` ops."""
    ends, start, longest = [], 0, min(2 * scale, length)
    for index in range(1, len(marks)):
        ops = index - start
        if ops >= longest or (ops >= scale // 4 and marks[index] * scale < 1):
            ends.append(index)
            start = index
    return ends


class _Wiring:
    """Decides which stretches of a graph are one program: isomorphic, with the same results read
    later."""

    def __init__(self, nodes: Sequence[Node], symbols: Sequence[OpSpec]):
        position = {node: index for index, node in enumerate(nodes)}
        self.nodes = nodes
        self.symbols = symbols
        self.ops_before = list(
            itertools.accumulate((len(spec.lowering.elements) or 1 for spec in symbols), initial=0)
        )
        self.last_read = [0] * len(nodes)
        for index, node in enumerate(nodes):
            for maker in map(origin, node.operands):
                if maker in position:
                    self.last_read[position[maker]] = index

    def num_ops(self, start: int, stop: int) -> int:
        """Returns the number of ops of a stretch to compile, those of a list one by one."""
        return self.ops_before[stop] - self.ops_before[start]

    def kinds(self, ends: Sequence[int]) -> "_Kinds":
        """Groups the stretches that end at these places, and the one behind the last, by the key of
        their program."""
        kinds: _Kinds = {}
        for start, stop in itertools.pairwise([0, *ends, len(self.symbols)]):
            operands, _ = stretch_wiring(self.nodes[start:stop])
            are_read = [last_read >= stop for last_read in self.last_read[start:stop]]
            kind = (*self.symbols[start:stop], *are_read, *operands)
            kinds.setdefault(kind, []).append((start, stop))
        return kinds


def _by_line(nodes: Sequence[Node], length: int) -> list[int]:
    """Returns the cuts of a graph about every `length` ops: at a line boundary with little carried
    across."""
    carried = carried_bytes(nodes, {node: i for i, node in enumerate(nodes)})
    ends, start = [], 0
    while len(nodes) - start > length:
        # The last half of a stretch: within it, between two lines where the fewest bytes cross.
        places = range(start + length // 2 + 1, start + length + 1)
        start = min(places, key=lambda end: (is_within_line(nodes, end), carried[end], -end))
        ends.append(start)
    return ends


def is_within_line(nodes: Sequence[Node], index: int) -> bool:
    """True if a cut at this index would divide the ops of one line."""
    if not index:
        return False
    line, next_line = node_line(nodes[index - 1]), node_line(nodes[index])
    return line.code is next_line.code and line.number == next_line.number


def carried_bytes(nodes: Sequence[Node], position: dict[Node, int]) -> list[int]:
    """Returns for each place between two ops the bytes of values computed before it and read after
    it."""
    last_reads: dict[object, tuple[int, int, Meta]] = {}
    for index, node in enumerate(nodes):
        for operand in node.operands:
            maker = origin(operand)
            if maker in position:
                last_reads[maker, result_index(operand)] = (position[maker], index, operand.meta)
    # By cut, the bytes of values that first cross it, less those that no longer do.
    change_at = [0] * (len(nodes) + 2)
    for result, read, meta in last_reads.values():
        change_at[result + 1] += meta.nbytes
        change_at[read + 1] -= meta.nbytes
    carried, total = [], 0
    for difference in change_at:
        total += difference
        carried.append(total)
    return carried

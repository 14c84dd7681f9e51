"""Cuts of list ops over thousands of tensors into programs of some hundred elements each.

XLA's compile time grows faster than the number of buffers of a program: an AdamW step over 2,000
small tensors takes four times that over 1,000, most of it the assignment of buffers. Programs of
equal elements are one program, which is compiled once.
"""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..base.config import config
from ..base.tables import Bounded
from ..graph.graph import (
    Graph,
    Name,
    Node,
    Value,
    replace_operands,
    results,
    stretch_wiring,
    value_name,
)
from ..graph.op import OpSpec, Part
from ..sharding.value import Sharding
from . import scan_layers
from .cuts import is_long, stretches
from .list_elements import Chain, element_chains, is_split
from .pass_result import Cut, Outcome, Sync

# The elements of a program: more take longer to compile than several programs, fewer are more
# launches.
_ELEMENTS = 256


class _Chunk(NamedTuple):
    """Some elements of the list op at a position of a graph, as a list op; the indices of its
    operands, numbers and results are those of the whole list op."""

    position: int
    op: OpSpec
    operands: Sequence[int]
    numbers: Sequence[int]
    results: Sequence[int]


# An op by its position, or a chunk.
_Step = int | _Chunk


class _Cuts(NamedTuple):
    """The ops and chunks of a graph in order, and the ends of its programs among them."""

    steps: Sequence[_Step]
    ends: Sequence[int]


# By the graph's key: a warm step searches nothing.
_cuts: Bounded[Hashable, _Cuts] = Bounded(512)


def cut_again(graph: Graph, sync: Sync) -> Outcome:
    """Cuts a graph that `cut` has cut before at the same places."""
    cuts = _cuts.get(sync.key)
    return "" if cuts is None else _cut(graph, cuts, "as before")


def cut(graph: Graph, sync: Sync) -> Outcome:
    """Cuts a graph with a list op of more than `config.max_program_ops` elements that are not rows
    of a loop's stacks: one program for the ops before it and the rows, then programs of the other
    elements of consecutive list ops, those that read each other's results together."""
    limit, nodes = config.max_program_ops, graph.nodes
    if not any(len(node.op.lowering.elements) > limit for node in nodes):
        return ""
    rows = scan_layers.rows_of_loops(graph)
    position = {node: index for index, node in enumerate(nodes)}
    steps, ends = list[_Step](), set[int]()
    for are_lists, run in itertools.groupby(nodes, is_split):
        members = list(run)
        chains = element_chains(members)[0] if are_lists else []
        row_chains = [chain for chain in chains if not rows.isdisjoint(_names(chain))]
        if len(chains) - len(row_chains) <= limit:
            steps += map(position.__getitem__, members)
            continue
        steps += _chunks(row_chains, position)
        for program in _programs(set(map(id, row_chains)), chains, graph):
            ends.add(len(steps))
            steps += _chunks(program, position)
        ends.add(len(steps))
    if not ends:
        return ""
    if is_long(graph, limit):
        for start, end in itertools.pairwise([0, *sorted(ends), len(steps)]):
            stretch = [nodes[step] for step in steps[start:end] if isinstance(step, int)]
            if len(stretch) > limit:
                ends.update(start + index for index in stretches(stretch, limit))
    cuts = _cuts.keep(sync.key, _Cuts(steps, sorted({*ends, len(steps)} - {0})))
    return _cut(
        graph,
        cuts,
        f"list ops of more than {limit:,} elements",
    )


def _names(chain: Chain) -> Iterator[Name]:
    """Yields the names of what the elements of a chain read of their list ops' operands, and of
    their results."""
    for element in chain:
        operands = element.list_op.operands
        yield from (value_name(operands[index]) for index in element.part.operands)
        yield from element.names()


def _programs(
    of_rows: Container[int], chains: Sequence[Chain], graph: Graph
) -> Iterator[list[Chain]]:
    """Yields the chains of each program. Isomorphic chains become programs of one size, if there
    are enough of them; a program of others has several kinds.

    of_rows: the ids of chains that are left out.
    """
    shardings: dict[object, Sharding] = dict(zip(graph.inputs, graph.shardings, strict=True))
    isomorphic: defaultdict[Hashable, list[Chain]] = defaultdict(list)
    for chain in chains:
        if id(chain) not in of_rows:
            isomorphic[_kind(chain, shardings)].append(chain)
    mixed = list[Chain]()
    for members in isomorphic.values():
        if len(members) < _ELEMENTS:
            mixed += members
            continue
        num_programs = -(-len(members) // _ELEMENTS)
        yield from _even(members, num_programs)
    yield from _even(mixed, -(-len(mixed) // _ELEMENTS))


def _even(chains: Sequence[Chain], num_programs: int) -> Iterator[list[Chain]]:
    """Yields the chains in order as this number of programs, of one size or one less."""
    for number in range(num_programs):
        start, stop = (len(chains) * index // num_programs for index in (number, number + 1))
        yield list(chains[start:stop])


def _kind(chain: Chain, shardings: Mapping[object, Sharding]) -> Hashable:
    """Returns what is equal for isomorphic chains: ops, wiring, and the shardings of inputs."""
    operands, outside = stretch_wiring([element.node for element in chain])
    ops = [(element.list_op, element.node.op, len(element.part.numbers)) for element in chain]
    return (*ops, *operands, *map(shardings.get, outside))


def _chunks(chains: Sequence[Chain], position: Mapping[Node, int]) -> list[_Chunk]:
    """Returns the elements of chains as list ops, in the order of those of which they are a
    part."""
    by_list_op: defaultdict[Node, list[Part]] = defaultdict(list)
    for element in itertools.chain.from_iterable(chains):
        by_list_op[element.list_op].append(element.part)
    return [
        _chunk(position[list_op], list_op.op, by_list_op[list_op])
        for list_op in sorted(by_list_op, key=position.__getitem__)
    ]


def _chunk(position: int, op: OpSpec, parts: Sequence[Part]) -> _Chunk:
    """Returns some elements of a list op as a list op of their own."""
    operands, numbers, indices = (
        _indices(getattr(part, name) for part in parts)
        for name in ("operands", "numbers", "results")
    )
    renumbered = tuple(
        [
            Part(
                part.op,
                tuple(map(operands.__getitem__, part.operands)),
                tuple(map(numbers.__getitem__, part.numbers)),
                tuple(map(indices.__getitem__, part.results)),
            )
            for part in parts
        ]
    )
    chunk_op = OpSpec.of(
        op.name,
        dataclasses.replace(op.lowering, elements=renumbered),  # type: ignore[call-arg]
        tuple([op.metas[index] for index in indices]),
        tuple([op.operands[index] for index in operands]),
        numbers="".join([op.numbers[index] for index in numbers]),
        statics=f"{len(parts)} tensors",
    )
    return _Chunk(position, chunk_op, [*operands], [*numbers], [*indices])


def _indices(used: Iterable[Sequence[int]]) -> dict[int, int]:
    """Returns the number of each index in the order of their first use."""
    return {
        index: number
        for number, index in enumerate(dict.fromkeys(itertools.chain.from_iterable(used)))
    }


def _cut(graph: Graph, cuts: _Cuts, description: str) -> Cut:
    """Cuts a graph with chunks in place of its long list ops."""
    nodes, replaced = list[Node](), dict[object, Value]()
    for step in cuts.steps:
        if isinstance(step, int):
            nodes.append(graph.nodes[step])
            replace_operands(replaced, nodes[-1:])
            continue
        list_op = graph.nodes[step.position]
        operands = [list_op.operands[index] for index in step.operands]
        node = Node(
            step.op,
            tuple([replaced.get(value_name(operand), operand) for operand in operands]),
            [list_op.numbers[index] for index in step.numbers],
            list_op.code,
            list_op.instruction,
            list_op.sequence,
        )
        node.serial = list_op.serial
        is_tuple = len(list_op.op.metas) > 1
        names = [(list_op, index) if is_tuple else list_op for index in step.results]
        replaced |= zip(names, results(node), strict=True)
        nodes.append(node)
    return Cut(nodes, cuts.ends, description, replaced=replaced)

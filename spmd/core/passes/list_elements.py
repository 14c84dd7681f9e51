"""Elements of list ops as ops of their own, and loops over the elements that are rows of stacks on
the host.

Each list op by itself, as those of an offloaded optimizer, would fetch the stacks that it reads in
full.
"""

import itertools
from collections import defaultdict
from collections.abc import Collection, Container, Hashable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from ..graph.graph import (
    Graph,
    Name,
    Node,
    Value,
    components,
    results,
    stretch_wiring,
    value_name,
)
from ..graph.op import Part
from ..graph.rewrite import Rewrite, Rule, rewrite
from ..graph.store import full_stores
from ..loop.found_loop import Candidate, candidate_of, found_loop, written_over
from ..loop.loop_op import Loop
from ..loop.row_ops import PutRow
from ..lower.stack_rows import ANY_MEMORY
from ..sharding.value import HOST


class Element(NamedTuple):
    """One element of a list op; node: the element as an op of its own, part: the element in the
    list op."""

    node: Node
    list_op: Node
    part: Part

    def names(self) -> list[Name]:
        """Returns the names of its results, as results of the list op."""
        is_tuple = len(self.list_op.op.metas) > 1
        return [(self.list_op, index) if is_tuple else self.list_op for index in self.part.results]


# The elements of several list ops that read each other's results, in order.
Chain = list[Element]


def is_split(node: Node) -> bool:
    """True for a list op that its elements can replace: they share no result, and have the metas of
    its results."""
    op, parts = node.op, node.op.lowering.elements
    indices = list(itertools.chain.from_iterable(part.results for part in parts))
    return (
        len(parts) > 1
        and len(indices) == len(set(indices)) == len(op.metas)
        and all(tuple(op.metas[index] for index in part.results) == part.op.metas for part in parts)
    )


def element_chains(run: Sequence[Node]) -> tuple[list[Chain], dict[Name, Value]]:
    """Returns the chains of elements of consecutive list ops, each of the elements that read each
    other's results; and by the name of a list op's result the element's result."""
    elements: dict[Node, Element] = {}
    by_name: dict[Name, Value] = {}
    for list_op in run:
        for part in list_op.op.lowering.elements:
            list_operands = (list_op.operands[index] for index in part.operands)
            operands = tuple(
                [by_name.get(value_name(operand), operand) for operand in list_operands]
            )
            numbers = [list_op.numbers[index] for index in part.numbers] if list_op.numbers else ()
            node = Node(
                part.op, operands, numbers, list_op.code, list_op.instruction, list_op.sequence
            )
            elements[node] = Element(node, list_op, part)
            by_name |= zip(elements[node].names(), results(node), strict=True)
    return [
        [elements[node] for node in sorted(members, key=lambda node: node.serial)]
        for members in components(list(elements))
    ], by_name


RowPosition = tuple[Hashable, int]  # a stack, the index of a row in it


def loops_over_rows(graph: Graph, may_scan: bool) -> tuple[Graph, str]:
    """Returns the graph with a loop for the elements of list ops on rows of one stack on the host,
    which fetches a row at a time, whether or not layers may be scanned; and the number of loops,
    in words."""
    if all(sharding.memory != HOST for sharding in graph.shardings):
        return graph, ""
    positions, on_host = _stacks(graph)
    readers: defaultdict[Name, set[Node | None]] = defaultdict(set)
    for node, operands in [*((node, node.operands) for node in graph.nodes), (None, graph.roots)]:
        for operand in operands:
            readers[value_name(operand)].add(node)
    rules: dict[Node, Rule] = {}
    num_loops = 0
    # Runs of consecutive list ops.
    for is_list, group in itertools.groupby(graph.nodes, _is_fetched):
        run = list(group)
        chains, by_name = element_chains(run) if is_list else ([], {})
        loops = _loops(chains, positions, on_host)
        if loops:
            outside = {name for name in by_name if not readers[name].issubset(run)}
            rules |= {
                run[0]: partial(_put, chains, loops, by_name, outside),
                **dict.fromkeys(run[1:], Rewrite.drop),
            }
            num_loops += len(loops)
    return (
        (rewrite(graph, rules), f"{num_loops} loops over rows on the host")
        if rules
        else (graph, "")
    )


def _is_fetched(node: Node) -> bool:
    """True for a list op that would fetch its operands in full."""
    return is_split(node) and type(node.op.lowering) not in ANY_MEMORY


def _stacks(graph: Graph) -> tuple[dict[Name, RowPosition], set[Hashable]]:
    """Returns the stack and the row of each value that is a row, and the stacks on the host."""
    groups = [*graph.stack_groups, *graph.columns]
    # Inputs in no group may be the rows of a store.
    single = set(range(len(graph.inputs))).difference(*groups)
    groups += full_stores(graph.inputs, single)
    positions: dict[Name, RowPosition] = {
        graph.inputs[i]: (group, row) for group in groups for row, i in enumerate(group)
    }
    on_host: set[Hashable] = {group for group in groups if graph.shardings[group[0]].memory == HOST}
    for node in graph.nodes:
        lowering = node.op.lowering
        if isinstance(lowering, Loop):
            for run in lowering.rows()[1]:
                positions |= {(node, index): ((node, run), row) for row, index in enumerate(run)}
                if lowering.memory_of(lowering.root_of(run.start)) == HOST:
                    on_host.add((node, run))
        elif isinstance(lowering, PutRow):
            positions |= {(node, index): (node, index) for index in range(len(node.op.metas))}
    return positions, on_host


def _loops(
    chains: Sequence[Chain], positions: Mapping[Name, RowPosition], on_host: Container[Hashable]
) -> list[tuple[Chain, Candidate]]:
    """Returns loops over isomorphic chains on rows of one set of stacks, at least one of them on
    the host; each loop with its elements."""
    isomorphic: defaultdict[Hashable, list[tuple[list[int], Chain]]] = defaultdict(list)
    for chain in chains:
        # Chains of one wiring on the same stacks are iterations of one loop, in the order of their
        # rows.
        wiring, stacks, rows = _wiring(chain, positions)
        if any(stack in on_host for stack in stacks):
            isomorphic[wiring, stacks].append((rows, chain))
    loops = []
    for members in isomorphic.values():
        if len(members) > 1:
            members.sort(key=itemgetter(0))
            elements = [element for _, chain in members for element in chain]
            nodes = [element.node for element in elements]
            position = {node: index for index, node in enumerate(nodes)}
            loops.append(
                (elements, candidate_of(nodes, position, 0, len(members[0][1]), len(members)))
            )
    return loops


def _wiring(
    chain: Chain, positions: Mapping[Name, RowPosition]
) -> tuple[tuple[Hashable, ...], tuple[Hashable, ...], list[int]]:
    """Returns the wiring of a chain; for each value that it reads from outside, the stack of which
    the value is a row, or the value's name; and the rows of those in stacks."""
    operands, outside = stretch_wiring([element.node for element in chain])
    ops = [(element.list_op, element.node.op, len(element.part.numbers)) for element in chain]
    stacks = tuple(positions[name][0] if name in positions else name for name in outside)
    rows = [positions[name][1] for name in outside if name in positions]
    return (*ops, *operands), stacks, rows


def _put(
    chains: Sequence[Chain],
    loops: Sequence[tuple[Chain, Candidate]],
    by_name: Mapping[Name, Value],
    outside: Collection[Name],
    new: Rewrite,
    first_list_op: Node,
) -> None:
    """Adds loops, and the other elements of consecutive list ops. outside: the results that other
    ops read."""
    # The elements' results overwrite the inputs that the list ops' results did.
    over_list = written_over(new.old)
    over_element = {
        value_name(value): over_list[name] for name, value in by_name.items() if name in over_list
    }
    outside_names = {value_name(by_name[name]) for name in outside}

    def numbers_of(element: Element) -> list[float | int]:
        return [new.numbers[element.list_op][index] for index in element.part.numbers]

    looped_nodes = set[Node]()
    for elements, candidate in loops:
        # The ys: results of the body that ops outside read in any iteration.
        results_of_body = [
            (op_index, result)
            for op_index, node in enumerate(candidate.body())
            for result in range(len(node.op.metas))
        ]
        candidate.ys = [
            result
            for result in results_of_body
            if not outside_names.isdisjoint(candidate.names(result))
        ]
        loop = found_loop(candidate, over_element)
        # The loop's scalar arguments, out of those of the list ops.
        numbers = [
            numbers_of(elements[iteration * candidate.period + op_index])[number_index]
            for op_index, iteration, number_index in loop.numbers
        ]
        body = [
            new.old.sources.get(element.list_op, (element.list_op,))[0]
            for element in elements[: candidate.period]
        ]
        loop_results = results(new.add(loop.op, loop.operands, first_list_op, numbers, body))
        new.new_values |= {name: loop_results[index] for name, index in loop.results.items()}
        looped_nodes.update(candidate.nodes)
    for element in itertools.chain.from_iterable(chains):
        if element.node not in looped_nodes:
            added = new.add(
                element.node.op, element.node.operands, element.list_op, numbers_of(element)
            )
            new.replace(results(element.node), added)
    new.new_values |= {name: new.value(value) for name, value in by_name.items()}

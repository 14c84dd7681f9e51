"""List ops of a graph that is cut into stretches become an op for each element, those of one element side by side.

An optimizer's list op is another op for each number of parameters; one parameter's ops are the same in every graph.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..ir.graph import Node, Value, origin, results, value_name
from ..ir.op import Entry


def replaced(nodes: Sequence[Node]) -> dict[Any, Value]:
    """Results of the ops of single elements that stand for those of the list ops of a graph, by name."""
    made: dict[Any, Value] = {}
    for are_lists, run in itertools.groupby(nodes, _is_list):
        if are_lists:
            _replace_run(list(run), made)
    return made


def put(made: Mapping[Any, Value], nodes: Iterable[Node]) -> None:
    """Has these ops read what stands for the results of list ops."""
    for node in nodes:
        if any(value_name(operand) in made for operand in node.operands):
            node.operands = tuple([made.get(value_name(operand), operand) for operand in node.operands])


def _is_list(node: Node) -> bool:
    return len(node.entry.lowering.elements) > 1 and _is_each_its_own(node.entry)


def _is_each_its_own(entry: Entry) -> bool:
    """Tells whether elements share nothing, and each makes what the list op says of it."""
    parts = entry.lowering.elements
    own = list(itertools.chain.from_iterable(part.results for part in parts))
    return len(own) == len(set(own)) == len(entry.metas) and all(
        tuple(entry.metas[place] for place in part.results) == part.entry.metas for part in parts
    )


def _replace_run(lists: Sequence[Node], made: dict[Any, Value]) -> None:
    """The elements of list ops that follow each other: chains of ops that read of the run only their own chain."""
    chain: dict[Node, int] = {}
    joined: list[int] = []

    def first(number: int) -> int:
        while joined[number] != number:
            number = joined[number]
        return number

    for node in lists:
        values = results(node)
        for part in node.entry.lowering.elements:
            operands = [node.operands[place] for place in part.operands]
            operands = [made.get(value_name(operand), operand) for operand in operands]
            numbers = [node.numbers[place] for place in part.numbers]
            one = Node(part.entry, tuple(operands), numbers, node.code, node.instruction, node.sequence)
            read = sorted({first(chain[maker]) for maker in map(origin, operands) if maker in chain})
            chain[one] = read[0] if read else len(joined)
            if not read:
                joined.append(len(joined))
            for number in read[1:]:
                joined[number] = read[0]
            made |= zip([value_name(values[place]) for place in part.results], results(one), strict=True)
    ordered = sorted(chain, key=lambda one: first(chain[one]))
    for one, serial in zip(ordered, _between(lists[-1].serial, len(ordered)), strict=True):
        one.serial = serial


def _between(serial: float, count: int) -> Iterator[float]:
    """Numbers for ops that stand behind one op and before the next."""
    return (serial + (place + 1) / (count + 1) for place in range(count))

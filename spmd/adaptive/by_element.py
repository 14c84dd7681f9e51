"""List ops of a graph that is cut into stretches become an op per element, those of one element next to each other.

An optimizer's list op is another op for each number of parameters; one parameter's ops are the same in every graph.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from ..core.extend import Node, OpSpec, Value, walks


def replaced(nodes: Sequence[Node]) -> dict[Any, Value]:
    """Returns the results of the single elements' ops that stand for those of a graph's list ops, by name."""
    result: dict[Any, Value] = {}
    for are_lists, run in itertools.groupby(nodes, _is_list):
        if are_lists:
            _replace_run(list(run), result)
    return result


def _is_list(node: Node) -> bool:
    return len(node.op.lowering.elements) > 1 and _is_each_its_own(node.op)


def _is_each_its_own(op: OpSpec) -> bool:
    """True if the elements share no results, and each element's metas are those that the list op has for it."""
    parts = op.lowering.elements
    own = list(itertools.chain.from_iterable(part.results for part in parts))
    return len(own) == len(set(own)) == len(op.metas) and all(
        tuple(op.metas[place] for place in part.results) == part.op.metas for part in parts
    )


def _replace_run(lists: Sequence[Node], made: dict[Any, Value]) -> None:
    """Replaces consecutive list ops by chains of ops: within the run, an op reads only results of its own chain."""
    chain: dict[Node, int] = {}
    joined: list[int] = []

    def first(number: int) -> int:
        while joined[number] != number:
            number = joined[number]
        return number

    for node in lists:
        values = walks.results(node)
        for part in node.op.lowering.elements:
            operands = [node.operands[place] for place in part.operands]
            operands = [made.get(walks.value_name(operand), operand) for operand in operands]
            numbers = [node.numbers[place] for place in part.numbers]
            one = Node(part.op, tuple(operands), numbers, node.code, node.instruction, node.sequence)
            read = sorted({first(chain[maker]) for maker in map(walks.origin, operands) if maker in chain})
            chain[one] = read[0] if read else len(joined)
            if not read:
                joined.append(len(joined))
            for number in read[1:]:
                joined[number] = read[0]
            made |= zip([walks.value_name(values[place]) for place in part.results], walks.results(one), strict=True)
    ordered = sorted(chain, key=lambda one: first(chain[one]))
    for one, serial in zip(ordered, _between(lists[-1].serial, len(ordered)), strict=True):
        one.serial = serial


def _between(serial: float, count: int) -> Iterator[float]:
    """Yields serial numbers for ops after one op and before the next."""
    return (serial + (place + 1) / (count + 1) for place in range(count))

"""List ops over stacks on the host, as those of an offloaded optimizer: lowered as loops that fetch a row at a time.

Each op by itself would take the stacks that it reads to the device in full. So the parts of several consecutive list
ops for one element are taken together; the elements whose operands are neighbouring rows are the iterations of a loop.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..graph.graph import DeviceData, Graph, Name, Node, Value, origin, result_index, results, value_name
from ..graph.op import Part
from ..lower.build import lists_of
from ..lower.lower import Layout, Lists, PackedNumbers, Values, made_of
from ..lower.stack_rows import ANY_MEMORY, Made, StackRow, fetched, move_rows, plain
from ..sharding.constrain import space_of
from ..sharding.value import HOST
from .found_loop import Candidate, Over, Result, candidate_of, found_loop, written_over


class HostResults(NamedTuple):
    """The results of a program with arrays on the host, by name. over: the input that each is written over; readers:
    the ops that read each, None for the results of the program."""

    over: Over
    readers: Mapping[object, Collection[Node | None]]

    @staticmethod
    def of(graph: Graph) -> "HostResults":
        readers: defaultdict[object, set[Node | None]] = defaultdict(set)
        for root in graph.roots:
            readers[value_name(root)].add(None)
        for node in graph.nodes:
            for operand in node.operands:
                readers[value_name(operand)].add(node)
        return HostResults(written_over(graph), readers)


class Step(NamedTuple):
    """One element of a list op; node: the element as an op of its own, of: the list op, part: the element in it."""

    node: Node
    of: Node
    part: Part

    def names(self) -> list[Name]:
        """Returns the names of its results, as results of the list op."""
        several = len(self.of.op.metas) > 1
        return [(self.of, place) if several else self.of for place in self.part.results]


# The steps of a run of list ops for one element, in order: each reads values from outside and of earlier steps.
Chain = list[Step]


def element_chains(run: Sequence[Node]) -> tuple[list[Chain], dict[Name, Value]]:
    """Returns the elements of consecutive list ops, those that read each other's results together, in order; and by
    the name of a list op's result the element's result."""
    chains: dict[int, Chain] = {}
    number_of: dict[Node | None, int] = {}
    by_name: dict[Name, Value] = {}
    for of in run:
        for part in of.op.lowering.elements:
            list_operands = (of.operands[place] for place in part.operands)
            operands = tuple([by_name.get(value_name(operand), operand) for operand in list_operands])
            numbers = [of.numbers[place] for place in part.numbers] if of.numbers else ()
            node = Node(part.op, operands, numbers, of.code, of.instruction, of.sequence)
            read = sorted({number_of[maker] for maker in map(origin, operands) if maker in number_of})
            first = read[0] if read else len(number_of)
            chain = chains.setdefault(first, [])
            for number in read[1:]:
                chain += chains.pop(number)
            chain.append(Step(node, of, part))
            number_of |= dict.fromkeys([step.node for step in chain] if read[1:] else [node], first)
            by_name |= zip(chain[-1].names(), results(node), strict=True)
    order = {of: index for index, of in enumerate(run)}
    return [sorted(chains[number], key=lambda step: order[step.of]) for number in sorted(chains)], by_name


class Update(NamedTuple):
    """A loop whose iterations are the chains of elements, in order; over: as in `HostResults`."""

    steps: list[Step]
    loop: Candidate
    over: Over


def _vector(numbers: Sequence[jax.Array], dtype: type) -> jax.Array:
    return jnp.stack(numbers) if numbers else jnp.zeros((0,), dtype)


def lists_at(nodes: Sequence[Node], start: int) -> Sequence[Node]:
    """Returns the consecutive list ops from a place on, up to an op that takes stacks in any memory."""
    stop = start
    while stop < len(nodes):
        lowering = nodes[stop].op.lowering
        if not lowering.elements or type(lowering) in ANY_MEMORY:
            break
        stop += 1
    return nodes[start:stop]


def find(run: Sequence[Node], values: Mapping[Value, Sequence[Made]], written: HostResults) -> list[Update]:
    """Returns the loops over stacks on the host in a run of list ops."""
    inside = set(run)
    taken = [made_of(operand, values) for node in run for operand in node.operands if origin(operand) not in inside]
    if not any(map(_is_on_host, taken)):
        return []
    isomorphic: defaultdict[object, list[tuple[list[int], Chain]]] = defaultdict(list)
    for chain in element_chains(run)[0]:
        wiring, taken = _wiring(chain, values)
        if any(map(_is_on_host, taken)) and _keeps_dtypes(chain):
            isomorphic[wiring].append(([one.index for one in taken if isinstance(one, StackRow)], chain))
    updates = []
    for members in isomorphic.values():
        members.sort(key=lambda member: member[0])
        updates += [_update(chains, inside, written) for chains in _neighbours(members) if len(chains) > 1]
    return updates


class _Tracing(NamedTuple):
    """The program in which list ops are lowered: see `lower.Lists`. numbers: the scalar arguments of each op."""

    values: Values
    numbers: Mapping[Node, list[jax.Array]]
    apply: Callable[..., Sequence[Made]]
    layout_of: Layout

    def lower(self, run: Sequence[Node], found: Sequence[Update]) -> None:
        """Adds the results of a run of list ops to the values: first these loops, then the other elements."""
        nothing: dict[Value, Sequence[Any]] = {node: [None] * len(node.op.metas) for node in run}
        self.values.update(nothing)
        for update in found:
            self._loop(update)
        looped = {(step.of, step.part.results) for update in found for step in update.steps}
        for node in run:
            parts = tuple([part for part in node.op.lowering.elements if (node, part.results) not in looped])
            if parts:
                both = zip(self.values[node], self._elements(node, parts), strict=True)
                self.values[node] = [other if known is None else known for known, other in both]

    def _loop(self, update: Update) -> None:
        """Adds the results of the steps of a loop."""
        loop = found_loop(update.loop, update.over)
        node = Node(loop.op, tuple(loop.operands))
        numbers: dict[str, list[jax.Array]] = {"f": [], "i": []}
        for op_index, iteration, k in loop.numbers:
            step = update.steps[iteration * update.loop.period + op_index]
            numbers[step.node.op.numbers[k]].append(self.numbers[step.of][step.part.numbers[k]])
        vectors = [_vector(numbers["f"], jnp.float64), _vector(numbers["i"], jnp.int64)]
        operands = [made_of(operand, self.values) for operand in node.operands]
        body = [step.of for step in update.steps[: update.loop.period]]
        result = self.apply(node, operands, vectors, list(map(self.layout_of, node.operands)), None, body)
        for old, after, written in node.op.lowering.replaced(operands, result):  # type: ignore[attr-defined]  # a `Loop`
            move_rows(old, after, written, self.values)
        for step in update.steps:
            of_list = list(self.values[step.of])
            for value, op_index in zip(results(step.node), step.part.results, strict=True):
                if value_name(value) in loop.results:
                    of_list[op_index] = result[loop.results[value_name(value)]]
            self.values[step.of] = of_list

    def _elements(self, node: Node, parts: tuple[Part, ...]) -> Sequence[Made]:
        """Returns the results of a list op for these elements alone."""
        layouts, numbers = list(map(self.layout_of, node.operands)), self.numbers[node]
        operands = _alone([made_of(operand, self.values) for operand in node.operands], parts)
        operands = fetched(operands, _places(parts), layouts)
        lowering: Any = dataclasses.replace(node.op.lowering, parts=parts)  # type: ignore[call-arg]  # of list ops
        return self.apply(node, [], numbers, layouts, lambda _: lowering.lower(node.op, operands, numbers, layouts))


def _alone(operands: Sequence[Made], parts: Sequence[Part]) -> list[Made]:
    """Returns the operands of a list op, with each row that is the only one read of its stack as an array of its own:
    of a stack on the host only that row is fetched then."""
    read = Counter(id(row.stack) for place in _places(parts) if isinstance(row := operands[place], StackRow))
    return [plain(row) if isinstance(row, StackRow) and read[id(row.stack)] == 1 else row for row in operands]


def _places(parts: Sequence[Part]) -> list[int]:
    return sorted({place for part in parts for place in part.operands})


def _is_on_host(made: Made) -> bool:
    return isinstance(made, StackRow) and space_of(made.stack) == HOST


def _keeps_dtypes(chain: Chain) -> bool:
    """True if the elements' results have the dtypes and shapes of the list ops' results: nothing is cast for a target
    of another dtype."""
    return all(
        meta.struct == step.of.op.metas[place].struct
        for step in chain
        for meta, place in zip(step.node.op.metas, step.part.results, strict=True)
    )


def _wiring(chain: Chain, values: Mapping[Value, Sequence[Made]]) -> tuple[tuple[object, ...], list[Made]]:
    """Returns the wiring of a chain, equal for two chains whose operands are rows of the same stacks; and its operands
    from outside, each once."""
    position: dict[Node | None, int] = {}
    outer: dict[Name, tuple[int, Made]] = {}
    wired: list[object] = []
    for index, step in enumerate(chain):
        wired.append((step.of, step.node.op, len(step.part.numbers)))
        for operand in step.node.operands:
            index_of_maker = position.get(origin(operand))
            if index_of_maker is None:
                wired.append(outer.setdefault(value_name(operand), (len(outer), made_of(operand, values)))[0])
            else:
                wired.append((index_of_maker, result_index(operand)))
        position[step.node] = index
    taken = [made for _, made in outer.values()]
    return (*wired, *(id(made.stack if isinstance(made, StackRow) else made) for made in taken)), taken


def _neighbours(members: list[tuple[list[int], Chain]]) -> Iterator[list[Chain]]:
    """Yields the chains, sorted by their rows, in groups whose rows follow each other."""
    start = 0
    for end in range(1, len(members) + 1):
        if end == len(members) or any(b != a + 1 for a, b in zip(members[end - 1][0], members[end][0], strict=True)):
            yield [chain for _, chain in members[start:end]]
            start = end


def _update(chains: Sequence[Chain], inside: Collection[Node], written: HostResults) -> Update:
    """Returns the loop of isomorphic chains."""
    over: dict[Name, DeviceData] = {}
    kept: dict[Result, None] = {}
    for chain in chains:
        for index, step in enumerate(chain):
            for k, (name, value) in enumerate(zip(step.names(), results(step.node), strict=True)):
                if any(reader not in inside for reader in written.readers.get(name, ())):
                    kept[index, k] = None
                if name in written.over:
                    over[value_name(value)] = written.over[name]
    steps = [step for chain in chains for step in chain]
    nodes = [step.node for step in steps]
    position = {node: index for index, node in enumerate(nodes)}
    loop = candidate_of(nodes, position, 0, len(chains[0]), len(chains))
    loop.ys = list(kept)
    return Update(steps, loop, over)


def _lists_of(graph: Graph) -> Lists:
    written = HostResults.of(graph)

    def lists(
        nodes: Sequence[Node], place: int, values: Values, numbers: PackedNumbers, apply: Any, layout_of: Layout
    ) -> int:
        run = lists_at(nodes, place)
        updates = find(run, values, written) if run else []
        if updates:
            _Tracing(values, {node: numbers.of(node.op) for node in run}, apply, layout_of).lower(run, updates)
        return len(run) if updates else 0

    return lists


lists_of.append(_lists_of)

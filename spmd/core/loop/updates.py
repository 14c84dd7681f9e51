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

from ..graph.graph import DeviceData, Graph, Node, Value, origin, value_name, walk
from ..graph.loops import Candidate, Const, Local, Result, Source, Xs
from ..graph.op import Part
from ..lower.build import lists_of
from ..lower.lower import Layout, Lists, Made, Numbers, Row, Values, fetched, made_of, move_rows, plain
from ..sharding.constrain import space_of
from ..sharding.value import DEVICE, HOST
from .found_loop import Over, found_loop


class Written(NamedTuple):
    """The results of a program with arrays on the host, by name. over: the input that each is written over; readers:
    the ops that read each, None for the results of the program."""

    over: Over
    readers: Mapping[object, Collection[Node | None]]

    @staticmethod
    def of(graph: Graph) -> "Written":
        if all(sharding.memory == DEVICE for sharding in graph.shardings):
            return NOTHING
        over = {
            value_name(graph.roots[i]): device_data
            for device_data, i in zip(graph.inputs, graph.onto, strict=False)
            if i is not None
        }
        readers: defaultdict[object, set[Node | None]] = defaultdict(set)
        for root in graph.roots:
            readers[value_name(root)].add(None)
        for node in graph.nodes:
            for operand in node.operands:
                readers[value_name(operand)].add(node)
        return Written(over, readers)


NOTHING: "Written" = Written({}, {})


class Step(Node):
    """One element of a list op as an op of its own, without scalar arguments; of: the list op, part: the element."""

    __slots__ = ("of", "part")

    def __init__(self, of: Node, part: Part):
        operands = tuple([of.operands[place] for place in part.operands])
        super().__init__(part.op, operands, (), of.code, of.instruction, of.sequence)
        self.of = of
        self.part = part

    def names(self) -> list[Any]:
        """Returns the names of its results, as results of the list op."""
        several = len(self.of.op.metas) > 1
        return [(self.of, place) if several else self.of for place in self.part.results]


# The steps of a run of list ops for one element, in order: each reads values from outside and of earlier steps.
Chain = list[Step]


class Update(NamedTuple):
    """A loop whose iterations are the chains of elements, in order; over: as in `Written`."""

    steps: list[Step]
    loop: Candidate
    over: Over


def _vector(numbers: Sequence[jax.Array], dtype: Any) -> jax.Array:
    return jnp.stack(numbers) if numbers else jnp.zeros((0,), dtype)


def lists_at(nodes: Sequence[Node], start: int) -> Sequence[Node]:
    """Returns the consecutive list ops from a place on, up to an op that takes stacks in any memory."""
    stop = start
    while stop < len(nodes):
        lowering = nodes[stop].op.lowering
        if not lowering.elements or lowering.any_memory:
            break
        stop += 1
    return nodes[start:stop]


def find(run: Sequence[Node], values: Mapping[Value, Sequence[Made]], written: Written) -> list[Update]:
    """Returns the loops over stacks on the host in a run of list ops."""
    inside = set(run)
    taken = [made_of(operand, values) for node in run for operand in node.operands if origin(operand) not in inside]
    if not any(map(_is_on_host, taken)):
        return []
    isomorphic: defaultdict[object, list[tuple[list[int], Chain]]] = defaultdict(list)
    for chain in _chains(run):
        wiring, taken = _wiring(chain, values)
        if any(map(_is_on_host, taken)) and _keeps_dtypes(chain):
            isomorphic[wiring].append(([one.index for one in taken if isinstance(one, Row)], chain))
    found = []
    for members in isomorphic.values():
        members.sort(key=lambda member: member[0])
        found += [_update(chains, inside, written) for chains in _neighbours(members) if len(chains) > 1]
    return found


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
        found = found_loop(update.loop, update.over)
        node = Node(found.op, tuple(found.operands))
        own: dict[str, list[jax.Array]] = {"f": [], "i": []}
        for place, iteration, k in found.numbers:
            step = update.steps[iteration * update.loop.period + place]
            own[step.op.numbers[k]].append(self.numbers[step.of][step.part.numbers[k]])
        vectors = [_vector(own["f"], jnp.float64), _vector(own["i"], jnp.int64)]
        operands = [made_of(operand, self.values) for operand in node.operands]
        body = [step.of for step in update.steps[: update.loop.period]]
        result = self.apply(node, operands, vectors, list(map(self.layout_of, node.operands)), None, body)
        for before, after, written in node.op.lowering.replaced(operands, result):  # type: ignore[attr-defined]  # a `Loop`
            move_rows(before, after, written, self.values)
        for step in update.steps:
            known = list(self.values[step.of])
            for index, place in enumerate(step.part.results):
                name = (step, index) if len(step.op.metas) > 1 else step
                if name in found.results:
                    known[place] = result[found.results[name]]
            self.values[step.of] = known

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
    read = Counter(id(one.stack) for place in _places(parts) if isinstance(one := operands[place], Row))
    return [plain(one) if isinstance(one, Row) and read[id(one.stack)] == 1 else one for one in operands]


def _places(parts: Sequence[Part]) -> list[int]:
    return sorted({place for part in parts for place in part.operands})


def _is_on_host(made: Made) -> bool:
    return isinstance(made, Row) and space_of(made.stack) == HOST


def _keeps_dtypes(chain: Chain) -> bool:
    """True if the elements' results have the dtypes and shapes of the list ops' results: nothing is cast for a target
    of another dtype."""
    return all(
        meta.struct == step.of.op.metas[place].struct
        for step in chain
        for meta, place in zip(step.op.metas, step.part.results, strict=True)
    )


def _chains(run: Sequence[Node]) -> list[Chain]:
    """Returns the elements of list ops, those that read each other's results together, in order."""
    at: dict[object, Chain] = {}  # the chain that computes a value
    chains: dict[int, Chain] = {}
    for node in run:
        for part in node.op.lowering.elements:
            step = Step(node, part)
            read = {id(chain): chain for operand in step.operands if (chain := at.get(value_name(operand))) is not None}
            joined = [*(one for chain in read.values() for one in chain), step]
            for name in read:
                del chains[name]
            chains[id(joined)] = joined
            at |= {name: joined for one in joined for name in one.names()}
    order = {node: i for i, node in enumerate(run)}
    return [sorted(chain, key=lambda step: order[step.of]) for chain in chains.values()]


def _wiring(chain: Chain, values: Mapping[Value, Sequence[Made]]) -> tuple[Any, list[Made]]:
    """Returns the wiring of a chain, equal for two chains whose operands are rows of the same stacks; and its operands
    from outside, each once."""
    inner: dict[object, Any] = {}
    outer: dict[object, tuple[int, Made]] = {}
    wired: list[Any] = []
    for index, step in enumerate(chain):
        wired.append((step.of, step.op, len(step.part.numbers)))
        for operand in step.operands:
            name = value_name(operand)
            if name not in inner and name not in outer:
                outer[name] = len(outer), made_of(operand, values)
            wired.append(inner[name] if name in inner else outer[name][0])
        inner |= {name: (index, k) for k, name in enumerate(step.names())}
    taken = [one for _, one in outer.values()]
    return (*wired, *(id(one.stack if isinstance(one, Row) else one) for one in taken)), taken


def _neighbours(members: list[tuple[list[int], Chain]]) -> Iterator[list[Chain]]:
    """Yields the chains, sorted by their rows, in groups whose rows follow each other."""
    start = 0
    for end in range(1, len(members) + 1):
        if end == len(members) or any(b != a + 1 for a, b in zip(members[end - 1][0], members[end][0], strict=True)):
            yield [chain for _, chain in members[start:end]]
            start = end


def _update(chains: Sequence[Chain], inside: Collection[Node], written: Written) -> Update:
    """Returns the loop of isomorphic chains."""
    over: dict[object, DeviceData] = {}
    kept: dict[Result, None] = {}
    for chain in chains:
        for index, step in enumerate(chain):
            for k, name in enumerate(step.names()):
                if any(reader not in inside for reader in written.readers.get(name, ())):
                    kept[index, k] = None
                if name in written.over:
                    over[(step, k) if len(step.op.metas) > 1 else step] = written.over[name]
    steps = [step for chain in chains for step in chain]
    sources, same, rows = _sources(chains)
    return Update(
        steps,
        Candidate(steps, 0, len(chains[0]), len(chains), sources, frozenset(), (), same, rows, ys=list(kept)),
        over,
    )


_Outside = tuple[Value, ...]  # an operand from outside, for each iteration


def _sources(chains: Sequence[Chain]) -> tuple[tuple[tuple[Source, ...], ...], _Outside, tuple[_Outside, ...]]:
    """Returns the operands of each op of an iteration (see `Candidate`): their sources, the consts, the xs."""
    inner: dict[object, Source] = {}
    same: dict[object, tuple[Const, Value]] = {}
    rows: dict[object, tuple[Xs, _Outside]] = {}
    sources: list[tuple[Source, ...]] = []
    for index, steps in enumerate(zip(*chains, strict=True)):
        taken: list[Source] = []
        for values in zip(*(step.operands for step in steps), strict=True):
            names = tuple(map(value_name, values))
            if names[0] in inner:
                taken.append(inner[names[0]])
            elif len(set(names)) == 1:
                taken.append(same.setdefault(names[0], (Const(len(same)), values[0]))[0])
            else:
                taken.append(rows.setdefault(names, (Xs(len(rows)), values))[0])
        sources.append(tuple(taken))
        inner |= {name: Local(index, k) for k, name in enumerate(steps[0].names())}
    return tuple(sources), tuple(value for _, value in same.values()), tuple(values for _, values in rows.values())


def _lists_of(graph: Graph) -> Lists | None:
    memories = {node.op.memory for node in walk(graph.nodes)} | {sharding.memory for sharding in graph.shardings}
    if HOST not in memories:
        return None
    written = Written.of(graph)

    def lists(
        nodes: Sequence[Node], place: int, values: Values, numbers: Numbers, apply: Any, layout_of: Layout
    ) -> int:
        run = lists_at(nodes, place)
        found = find(run, values, written) if run else []
        if found:
            _Tracing(values, {node: numbers.of(node.op) for node in run}, apply, layout_of).lower(run, found)
        return len(run) if found else 0

    return lists


lists_of.append(_lists_of)

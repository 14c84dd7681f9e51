"""List ops over stacks on the host, as those of an offloaded optimizer: lowered as loops that fetch a row at a time.

Each op by itself would take the stacks that it reads to the device, whole. So what several list ops, one behind the
other, make of one element is taken together; the elements whose operands are neighbouring rows are the turns of a loop.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..ir.graph import Graph, Leaf, Node, Value, origin, value_name
from ..ir.loops import Inner, Loop, Result, Rows, Same, Source
from ..ir.op import Part
from ..sharding.constrain import space_of
from ..sharding.value import DEVICE, HOST, Sharding
from .fori_loop import Drawn, Over, lower_loop
from .rows import Made, Row, fetched, made_of, plain


class Written(NamedTuple):
    """What comes of the results of a program with arrays on the host, by name: over: the leaf that each is written
    over; readers: the ops that read each, None for who takes what the program gives."""

    over: Over
    readers: Mapping[Any, Collection[Node | None]]

    @staticmethod
    def of(graph: Graph) -> "Written":
        if all(lies.memory == DEVICE for lies in graph.lies):
            return NOTHING
        over = {
            value_name(graph.roots[i]): leaf for leaf, i in zip(graph.leaves, graph.onto, strict=False) if i is not None
        }
        readers: defaultdict[Any, set[Node | None]] = defaultdict(set)
        for root in graph.roots:
            readers[value_name(root)].add(None)
        for node in graph.nodes:
            for operand in node.operands:
                readers[value_name(operand)].add(node)
        return Written(over, readers)


NOTHING = Written({}, {})


class Step(Node):
    """One element of a list op as an op of its own, without its lifted numbers; of: the list op, part: the element."""

    __slots__ = ("of", "part")

    def __init__(self, of: Node, part: Part):
        operands = tuple([of.operands[place] for place in part.operands])
        super().__init__(part.entry, operands, (), of.code, of.instruction, of.sequence)
        self.of = of
        self.part = part

    def names(self) -> list[Any]:
        """Of its results, as those of the list op."""
        several = len(self.of.entry.metas) > 1
        return [(self.of, place) if several else self.of for place in self.part.results]


Chain = list[Step]  # what a run of list ops makes of one element, each step of what is outside and of the steps before


class Update(NamedTuple):
    """A loop whose turns are the chains of elements, one behind the other; over: as `Written` has it."""

    steps: list[Step]
    loop: Loop
    over: Over

    def drawn(self, numbers: Mapping[Node, Sequence[jax.Array]]) -> Drawn:
        """The lifted numbers of an op in a turn, of those of the list ops."""

        def of_turn(place: int, turn: jax.Array | int) -> list[jax.Array]:
            steps = self.steps[place :: self.loop.period]
            own = numbers[steps[0].of]
            taken = zip(*(step.part.numbers for step in steps), strict=True)
            return [
                own[places[0]] if len(set(places)) == 1 else jnp.stack([own[place] for place in places])[turn]
                for places in taken
            ]

        return of_turn


def lists_at(nodes: Sequence[Node], start: int, stops: Collection[int]) -> Sequence[Node]:
    """The list ops one behind the other from a place on, as far as no loop starts and none takes stacks as they are."""
    stop = start
    while stop < len(nodes) and stop not in stops:
        lowering = nodes[stop].entry.lowering
        if not lowering.elements or lowering.any_memory:
            break
        stop += 1
    return nodes[start:stop]


def find(run: Sequence[Node], values: Mapping[Value, Sequence[Made]], written: Written) -> list[Update]:
    """The loops over stacks on the host in a run of list ops."""
    inside = set(run)
    taken = [made_of(operand, values) for node in run for operand in node.operands if origin(operand) not in inside]
    if not any(map(_is_away, taken)):
        return []
    alike: defaultdict[Any, list[tuple[list[int], Chain]]] = defaultdict(list)
    for chain in _chains(run):
        wiring, taken = _wiring(chain, values)
        if any(map(_is_away, taken)) and _keeps_dtypes(chain):
            alike[wiring].append(([one.index for one in taken if isinstance(one, Row)], chain))
    found = []
    for members in alike.values():
        members.sort(key=lambda member: member[0])
        found += [_update(chains, inside, written) for chains in _neighbours(members) if len(chains) > 1]
    return found


def lower(
    found: Sequence[Update],
    run: Sequence[Node],
    values: dict[Value, Sequence[Made]],
    numbers: Sequence[list[jax.Array]],
    apply: Callable[..., Sequence[Made]],
    layout_of: Callable[[Value], Sharding | None],
) -> None:
    """Adds what a run of list ops makes to the values of a program: these loops, then the other elements."""
    of_node = dict(zip(run, numbers, strict=True))
    nothing: dict[Value, Sequence[Any]] = {node: [None] * len(node.entry.metas) for node in run}
    values |= nothing
    for update in found:
        lower_loop(update.loop, values, update.drawn(of_node), apply, layout_of, update.over)
        for step in update.steps:
            known = list(values[step.of])
            for place, one in zip(step.part.results, values.pop(step), strict=True):
                known[place] = one
            values[step.of] = known
    looped = {(step.of, step.part.results) for update in found for step in update.steps}
    for node in run:
        rest = tuple([part for part in node.entry.lowering.elements if (node, part.results) not in looped])
        if rest:
            others = _lowered(node, rest, values, of_node[node], apply, layout_of)
            values[node] = [other if one is None else one for one, other in zip(values[node], others, strict=True)]


def _lowered(
    node: Node,
    parts: tuple[Part, ...],
    values: Mapping[Value, Sequence[Made]],
    numbers: list[jax.Array],
    apply: Callable[..., Sequence[Made]],
    layout_of: Callable[[Value], Sharding | None],
) -> Sequence[Made]:
    """What a list op makes of these elements alone."""
    layouts = list(map(layout_of, node.operands))
    operands = fetched(_alone([made_of(operand, values) for operand in node.operands], parts), _places(parts), layouts)
    lowering: Any = dataclasses.replace(node.entry.lowering, parts=parts)  # type: ignore[call-arg]  # of list ops
    return apply(node, [], numbers, layouts, lambda _: lowering.lower(node.entry, operands, numbers, layouts))


def _alone(operands: Sequence[Made], parts: Sequence[Part]) -> list[Made]:
    """The operands of a list op, those rows as arrays of their own that are the only one read of a stack:
    of the host's no more than such a row is fetched then."""
    read = Counter(id(one.stack) for place in _places(parts) if isinstance(one := operands[place], Row))
    return [plain(one) if isinstance(one, Row) and read[id(one.stack)] == 1 else one for one in operands]


def _places(parts: Sequence[Part]) -> list[int]:
    return sorted({place for part in parts for place in part.operands})


def _is_away(made: Made) -> bool:
    return isinstance(made, Row) and space_of(made.stack) == HOST


def _keeps_dtypes(chain: Chain) -> bool:
    """Whether what elements make is what the list ops hand on: nothing is cast for a target of another dtype."""
    return all(
        meta.struct == step.of.entry.metas[place].struct
        for step in chain
        for meta, place in zip(step.entry.metas, step.part.results, strict=True)
    )


def _chains(run: Sequence[Node]) -> list[Chain]:
    """The elements of list ops, those that read each other's results together, in order."""
    at: dict[Any, Chain] = {}  # in which chain a value is made
    chains: dict[int, Chain] = {}
    for node in run:
        for part in node.entry.lowering.elements:
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
    """What two chains share whose operands are rows of the same stacks; the operands from outside, each once."""
    inner: dict[Any, Any] = {}
    outer: dict[Any, tuple[int, Made]] = {}
    wired: list[Any] = []
    for place, step in enumerate(chain):
        wired.append((step.of, step.entry, len(step.part.numbers)))
        for operand in step.operands:
            name = value_name(operand)
            if name not in inner and name not in outer:
                outer[name] = len(outer), made_of(operand, values)
            wired.append(inner[name] if name in inner else outer[name][0])
        inner |= {name: (place, k) for k, name in enumerate(step.names())}
    taken = [one for _, one in outer.values()]
    return (*wired, *(id(one.stack if isinstance(one, Row) else one) for one in taken)), taken


def _neighbours(members: list[tuple[list[int], Chain]]) -> Iterator[list[Chain]]:
    """The chains, sorted by their rows, whose rows follow each other."""
    start = 0
    for end in range(1, len(members) + 1):
        if end == len(members) or any(b != a + 1 for a, b in zip(members[end - 1][0], members[end][0], strict=True)):
            yield [chain for _, chain in members[start:end]]
            start = end


def _update(chains: Sequence[Chain], inside: Collection[Node], written: Written) -> Update:
    """The loop of chains that are wired alike."""
    over: dict[Any, Leaf] = {}
    kept: dict[Result, None] = {}
    for chain in chains:
        for place, step in enumerate(chain):
            for k, name in enumerate(step.names()):
                if any(reader not in inside for reader in written.readers.get(name, ())):
                    kept[place, k] = None
                if name in written.over:
                    over[(step, k) if len(step.entry.metas) > 1 else step] = written.over[name]
    steps = [step for chain in chains for step in chain]
    sources, same, rows = _sources(chains)
    return Update(
        steps, Loop(steps, 0, len(chains[0]), len(chains), sources, frozenset(), (), same, rows, kept=list(kept)), over
    )


_Outside = tuple[Value, ...]  # an operand that is made outside, in each turn


def _sources(chains: Sequence[Chain]) -> tuple[tuple[tuple[Source, ...], ...], _Outside, tuple[_Outside, ...]]:
    """What each op of a turn reads (see `Loop`): the sources, what is the same in all turns, the rows."""
    inner: dict[Any, Source] = {}
    same: dict[Any, tuple[Same, Value]] = {}
    rows: dict[Any, tuple[Rows, _Outside]] = {}
    sources: list[tuple[Source, ...]] = []
    for place, steps in enumerate(zip(*chains, strict=True)):
        taken: list[Source] = []
        for values in zip(*(step.operands for step in steps), strict=True):
            names = tuple(map(value_name, values))
            if names[0] in inner:
                taken.append(inner[names[0]])
            elif len(set(names)) == 1:
                taken.append(same.setdefault(names[0], (Same(len(same)), values[0]))[0])
            else:
                taken.append(rows.setdefault(names, (Rows(len(rows)), values))[0])
        sources.append(tuple(taken))
        inner |= {name: Inner(place, k) for k, name in enumerate(steps[0].names())}
    return tuple(sources), tuple(value for _, value in same.values()), tuple(values for _, values in rows.values())

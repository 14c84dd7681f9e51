"""A stretch of isomorphic iterations (`ir.loops.Candidate`) as one op (`lower.loop_op.Loop`)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..graph.graph import DeviceData, Graph, Name, Node, TupleElement, Value, origin, result_index, value_name
from ..graph.loops import FOUND_LOOP, Candidate, Carry, Const, Local, Result, Source, Xs
from ..graph.op import OpSpec
from ..lower.region import Region
from ..sharding.value import DEVICE, HOST
from .loop_counter import EACH, Step
from .loop_op import Loop, Y, loop_op

# By the name of a value, the input whose buffer it takes.
Over = Mapping[Name, DeviceData]


def written_over(graph: Graph) -> Over:
    """Returns, by the name of each result that takes an input's buffer, that input."""
    pairs = zip(graph.inputs, graph.onto, strict=False)
    return {value_name(graph.roots[place]): data for data, place in pairs if place is not None}


def candidate_of(
    nodes: Sequence[Node],
    position: Mapping[Node, int],
    start: int,
    period: int,
    iterations: int,
    early: frozenset[int] = frozenset(),
) -> Candidate:
    """Returns the candidate of isomorphic iterations, without the results that are read outside; early: as in it.

    position: of the nodes; a value of an op that has none, or of one before the start, is from outside.
    """

    def inside(value: Value) -> Result | None:
        maker = origin(value)
        place = -1 if maker is None else position.get(maker, -1) - start
        return (place, result_index(value)) if place >= 0 and place % period not in early else None

    carried: dict[object, tuple[int, Result, Value]] = {}
    same: dict[object, tuple[int, Value]] = {}
    rows: dict[tuple[Name, ...], tuple[int, tuple[Value, ...]]] = {}
    sources: list[tuple[Source, ...]] = []
    stop = start + iterations * period
    for place in range(start, start + period):
        taken: list[Source] = []
        for k, operand in enumerate(() if place - start in early else nodes[place].operands):
            if (local := inside(operand)) is not None:
                taken.append(Local(*local))
                continue
            values = tuple([nodes[i].operands[k] for i in range(place, stop, period)])
            if (result := inside(values[1])) is not None:
                key = (result, value_name(operand))
                taken.append(Carry(carried.setdefault(key, (len(carried), result, operand))[0]))
                continue
            names = tuple(map(value_name, values))
            if all(name is names[0] or name == names[0] for name in names):
                taken.append(Const(same.setdefault(names[0], (len(same), operand))[0]))
            else:
                taken.append(Xs(rows.setdefault(names, (len(rows), values))[0]))
        sources.append(tuple(taken))
    carry = tuple((result, initial) for _, result, initial in carried.values())
    consts, xs = tuple(value for _, value in same.values()), tuple(values for _, values in rows.values())
    return Candidate(nodes, start, period, iterations, tuple(sources), early, carry, consts, xs)


class FoundLoop(NamedTuple):
    """The op of a stretch.

    operands: in its order. body: the ops of the first iteration that the body's are made of. numbers: its scalar
    arguments, each as (place in an iteration, iteration, index among those of the op). results: by the name of a value
    of the graph, the index of the result that it becomes. stacks: the ys whose stacks have rows for values that later
    ops make: the y, the names of its rows, and these values by row.
    """

    op: OpSpec
    operands: list[Value]
    body: list[Node]
    numbers: list[tuple[int, int, int]]
    results: dict[object, int]
    stacks: list[tuple[Y, dict[int, Any], dict[int, Value]]]


def found_loop(found: Candidate, over: Over, is_before: Callable[[Value], bool] = lambda value: False) -> FoundLoop:
    """Returns the op of a candidate.

    over: by the name of a value, the input whose buffer it takes. is_before: whether a value from outside is computed
    before the found.
    """
    order = range(found.iterations)[:: -1 if found.backwards else 1]  # the iterations by row
    given = [value.meta for value in (*found.consts, *(value for _, value in found.carry))]
    inputs = [DeviceData(meta, is_abstract=True) for meta in (*given, *(values[0].meta for values in found.xs))]
    constants, fixed = len(found.consts), len(given)
    start_of = {Const: 0, Carry: constants, Xs: fixed}
    made: dict[int, Node] = {}

    def value_of(result: Result) -> Value:
        node = made[result[0]]
        return node if len(node.op.metas) == 1 else TupleElement(node, result[1])

    steps: list[Step] = []
    numbers: list[tuple[int, int, int]] = []
    for index, node in enumerate(found.body()):
        if index in found.early:
            continue
        operands = [
            value_of(source) if isinstance(source, Local) else inputs[source.slot + start_of[type(source)]]
            for source in found.sources[index]
        ]
        op, positions = node.op, found.positions(index)
        if positions is not None:
            assert op.dynamic_start is not None, "iterations differ in start positions alone"
            op = op.dynamic_start[0]
            steps.append(tuple(positions[iteration] for iteration in order))
        for k in range(len(node.op.numbers)):
            steps.append(EACH)
            numbers += [(index, iteration, k) for iteration in order]
        made[index] = Node(op, tuple(operands), (0,) * len(op.numbers), node.code, node.instruction, node.sequence)

    carried = {result: slot for slot, (result, _) in reversed(list(enumerate(found.carry)))}
    last = [result for result in found.last if result not in carried]
    roots = [value_of(result) for result, _ in found.carry] + [value_of(result) for result in last]
    results = {found.name(found.iterations - 1, result): slot for result, slot in carried.items()}
    start = len(found.carry)
    results |= {found.name(found.iterations - 1, result): start + i for i, result in enumerate(last)}
    ys: list[Y] = []
    filled: list[Value] = []
    stacks: list[tuple[Y, dict[int, Any], dict[int, Value]]] = []
    start += len(last)
    for result in found.ys:
        if result in carried:
            slot = carried[result]
            y, names = _entered(found, result, slot)
            roots.append(inputs[constants + slot])
        else:
            y, names, known, late = _kept(found, result, over, is_before)
            filled += known
            stacks += [(y, names, late)] if late else []
            roots.append(value_of(result))
        results |= {names[row]: start + i for i, row in enumerate(y.rows_of(found.iterations))}
        start += y.num_rows(found.iterations)
        ys.append(y)
    loop = Loop(
        Region(list(made.values()), inputs, roots), found.iterations, constants, len(found.carry),
        (False,) * len(found.xs), tuple(ys), tuple(steps), reverse=found.backwards, num_last=len(last),
    )  # fmt: skip
    operands = [*found.consts, *(value for _, value in found.carry)]
    operands += [values[iteration] for values in found.xs for iteration in order]
    operands += filled
    op = loop_op(FOUND_LOOP, loop, [operand.meta for operand in operands], statics=f"{found.iterations} iterations")
    body = [node for index, node in enumerate(found.body()) if index not in found.early]
    return FoundLoop(op, operands, body, numbers, results, stacks)


def _entered(found: Candidate, result: Result, slot: int) -> tuple[Y, dict[int, Any]]:
    """Returns the y of a carried value that is read outside for more than the last iteration, as each iteration
    receives it, and the names of the values in its rows."""
    count = found.iterations
    has_end = result in found.ended and found.node(0, result[0]).op.memory == DEVICE
    before = int(has_end and found.backwards)
    names = {before + found.row(0): value_name(found.carry[slot][1])}
    names |= {before + found.row(i + 1): found.name(i, result) for i in range(count - 1)}
    y = Y(before=before, after=int(has_end and not before), has_end=has_end)
    if has_end:
        names[y.end_of(count)] = found.name(count - 1, result)
    return y, names


def _kept(
    found: Candidate, result: Result, over: Over, is_before: Callable[[Value], bool]
) -> tuple[Y, dict[int, Any], list[Value], dict[int, Value]]:
    """Returns the y of another result, the names of the values in its rows, the operands that fill rows of it, and the
    values that later ops write into others."""
    others = {} if found.node(0, result[0]).op.memory == HOST else found.peeled.get(result, {})
    before = -min(0, *others) if others else 0
    names = {before + row: name for row, name in enumerate(found.names(result))}
    known = {before + row: value for row, value in sorted(others.items()) if is_before(value)}
    late = {before + row: value for row, value in sorted(others.items()) if not is_before(value)}
    names |= {row: value_name(value) for row, value in known.items()}
    inputs = tuple([over.get(found.name(iteration, result)) for iteration in range(found.iterations)])
    is_over = inputs[0] is not None and inputs in found.xs
    if is_over and inputs[0].meta.struct != found.node(0, result[0]).op.metas[result[1]].struct:  # type: ignore[union-attr]
        is_over = False
    after = len(others) - before
    slot = found.xs.index(inputs) if is_over else None
    return Y(before=before, after=after, filled=tuple(known), over=slot), names, list(known.values()), late

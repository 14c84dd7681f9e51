"""A stretch of isomorphic iterations (`Candidate`) as one op (`loop_op.Loop`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..graph.graph import (
    DeviceData,
    Graph,
    Name,
    Node,
    TupleElement,
    Value,
    origin,
    result_index,
    value_name,
)
from ..graph.op import OpSpec
from ..lower.lower import FOUND_LOOP
from ..lower.region import Region
from ..sharding.value import DEVICE, HOST
from .loop_counter import EACH, Step
from .loop_op import Loop, Y, loop_op

Result = tuple[int, int]  # of an iteration: the op's index in it, the index of the op's result


class Entering(NamedTuple):
    """An operand that is no result of the same iteration.

    kind: "carry", from the iteration before, in the first one the initial value of
    `Candidate.carry[slot]`; "consts", `Candidate.consts[slot]` in every iteration; "xs", a
    different value from outside in each iteration, `Candidate.xs[slot]`.
    """

    kind: str
    slot: int


Source = Result | Entering


@dataclass(slots=True)
class Candidate:
    """Isomorphic iterations of equally many ops, one after the other in a graph.

    Attributes:
        start: the number of nodes before the loop.
        period: the number of ops of an iteration.
        iterations: the trip count.
        sources: for each op of an iteration, the sources of its operands.
        early: the positions of hoisted ops, whose results are xs: their dynamic start differs by
            iteration, and they read no result of the loop.
        carry: the results passed to the next iteration, each with its initial value.
        ys: the results of which the values of several iterations are read outside.
        last: the results of which only the last iteration's value is read outside.
        ended: the carries in ys whose final value is a row, too.
        peeled: for a result, by row, values from outside the loop before or after the rows of its
            ys: the gradient of a layer whose backward differs.
        backwards: True if row 0 belongs to the last iteration, as in a backward pass.
    """

    nodes: Sequence[Node]
    start: int
    period: int
    iterations: int
    sources: tuple[tuple[Source, ...], ...]
    early: frozenset[int]
    carry: tuple[tuple[Result, Value], ...]
    consts: tuple[Value, ...]
    xs: tuple[tuple[Value, ...], ...]
    ys: list[Result] = field(default_factory=list)
    last: list[Result] = field(default_factory=list)
    ended: set[Result] = field(default_factory=set)
    peeled: dict[Result, dict[int, Value]] = field(default_factory=dict)
    backwards: bool = False

    @property
    def stop(self) -> int:
        return self.start + self.period * self.iterations

    def body(self) -> Sequence[Node]:
        """Returns the ops of the first iteration."""
        return self.nodes[self.start : self.start + self.period]

    def node(self, iteration: int, index: int) -> Node:
        return self.nodes[self.start + iteration * self.period + index]

    def ops_at(self, index: int) -> Sequence[Node]:
        """Returns the op at one index of an iteration, for all iterations."""
        return self.nodes[self.start + index : self.stop : self.period]

    def positions(self, index: int) -> Sequence[int] | None:
        """Returns the dynamic start of the op at an index in each iteration; None if all have the
        same op there."""
        ops = [node.op for node in self.ops_at(index)]
        if all(op is ops[0] for op in ops):
            return None
        return [op.dynamic_start[1] for op in ops if op.dynamic_start is not None]

    def row(self, iteration: int) -> int:
        """Returns the row of an iteration in the stacks of the ys; the same function maps a row to
        its iteration."""
        return self.iterations - 1 - iteration if self.backwards else iteration

    def name(self, iteration: int, result: Result) -> Name:
        """Returns the name, as `value_name` has it, of one result of an iteration."""
        op_index, result_index_of_op = result
        node = self.node(iteration, op_index)
        return node if len(node.op.metas) == 1 else (node, result_index_of_op)

    def names(self, result: Result) -> list[Name]:
        """Returns the names of one result in every iteration, by row."""
        return [self.name(self.row(row), result) for row in range(self.iterations)]


# By the name of a value, the input whose buffer it takes.
Over = Mapping[Name, DeviceData]


def written_over(graph: Graph) -> Over:
    """Returns the inputs whose buffers results take, by the results' names."""
    pairs = zip(graph.inputs, graph.onto, strict=False)
    return {value_name(graph.roots[root]): data for data, root in pairs if root is not None}


def candidate_of(
    nodes: Sequence[Node],
    position: Mapping[Node, int],
    start: int,
    period: int,
    iterations: int,
    early: frozenset[int] = frozenset(),
) -> Candidate:
    """Returns the candidate of isomorphic iterations. Its `ys` and `last` are still empty: the
    caller adds the results that are read outside. early: see `Candidate`.

    position: node -> its place. Values of ops without a place, or before `start`, are from outside.
    """

    def result_in_loop(value: Value) -> Result | None:
        """Returns (op index from `start` on, result index); None for a value from outside."""
        maker = origin(value)
        index = -1 if maker is None else position.get(maker, -1) - start
        return (index, result_index(value)) if index >= 0 and index % period not in early else None

    # The slots of the carry, the consts and the xs: operands with an equal key share a slot.
    carried: dict[object, tuple[int, Result, Value]] = {}
    constants: dict[object, tuple[int, Value]] = {}
    rows_of_xs: dict[tuple[Name, ...], tuple[int, tuple[Value, ...]]] = {}
    sources: list[tuple[Source, ...]] = []
    stop = start + iterations * period
    for index in range(start, start + period):
        operand_sources: list[Source] = []
        for operand_index, operand in enumerate(
            () if index - start in early else nodes[index].operands
        ):
            if (local := result_in_loop(operand)) is not None:
                operand_sources.append(local)
                continue
            # An operand from outside of the first iteration: a carry if the second one reads a
            # result of the first.
            values = tuple([nodes[i].operands[operand_index] for i in range(index, stop, period)])
            if (result := result_in_loop(values[1])) is not None:
                key = (result, value_name(operand))
                operand_sources.append(
                    Entering("carry", carried.setdefault(key, (len(carried), result, operand))[0])
                )
                continue
            names = tuple(map(value_name, values))
            # One value in all iterations: a constant; else an x.
            if all(name is names[0] or name == names[0] for name in names):
                operand_sources.append(
                    Entering("consts", constants.setdefault(names[0], (len(constants), operand))[0])
                )
            else:
                operand_sources.append(
                    Entering("xs", rows_of_xs.setdefault(names, (len(rows_of_xs), values))[0])
                )
        sources.append(tuple(operand_sources))
    carry = tuple((result, initial) for _, result, initial in carried.values())
    consts, xs = (
        tuple(value for _, value in constants.values()),
        tuple(values for _, values in rows_of_xs.values()),
    )
    return Candidate(nodes, start, period, iterations, tuple(sources), early, carry, consts, xs)


class FoundLoop(NamedTuple):
    """The op of a stretch.

    operands: the loop's, in its order. body: the ops of the first iteration that became the body.
    numbers: the loop's scalar arguments, each as (op index in an iteration, iteration, index among
    those of the op). results: by the name of a value of the graph, the index of the result that it
    becomes. stacks: the ys whose stacks have rows for late values, made by later ops: (the y, the
    names of all of its rows, the late values by row).
    """

    op: OpSpec
    operands: list[Value]
    body: list[Node]
    numbers: list[tuple[int, int, int]]
    results: dict[Name, int]
    stacks: list[tuple[Y, dict[int, Name], dict[int, Value]]]


def found_loop(
    candidate: Candidate, over: Over, is_before: Callable[[Value], bool] = lambda value: False
) -> FoundLoop:
    """Returns the op of a candidate.

    over: by the name of a value, the input whose buffer it takes. is_before: True for a value from
    outside that is computed before the loop; default: for none.
    """
    iterations_by_row = range(candidate.iterations)[:: -1 if candidate.backwards else 1]
    metas = [value.meta for value in (*candidate.consts, *(value for _, value in candidate.carry))]
    inputs = [
        DeviceData(meta, is_abstract=True)
        for meta in (*metas, *(values[0].meta for values in candidate.xs))
    ]
    num_constants, num_before_xs = len(candidate.consts), len(metas)
    start_of = {"consts": 0, "carry": num_constants, "xs": num_before_xs}
    nodes: dict[int, Node] = {}

    def value_of(result: Result) -> Value:
        node = nodes[result[0]]
        return node if len(node.op.metas) == 1 else TupleElement(node, result[1])

    steps: list[Step] = []
    numbers: list[tuple[int, int, int]] = []
    # The ops of the first iteration, over the body's inputs.
    for index, node in enumerate(candidate.body()):
        if index in candidate.early:
            continue
        operands = [
            inputs[source.slot + start_of[source.kind]]
            if isinstance(source, Entering)
            else value_of(source)
            for source in candidate.sources[index]
        ]
        op, positions = node.op, candidate.positions(index)
        if positions is not None:
            assert op.dynamic_start is not None, "iterations differ in start positions alone"
            op = op.dynamic_start[0]
            steps.append(tuple(positions[iteration] for iteration in iterations_by_row))
        for number_index in range(len(node.op.numbers)):
            steps.append(EACH)
            numbers += [(index, iteration, number_index) for iteration in iterations_by_row]
        # The body has no numbers of its own: the loop's op has them for each iteration.
        nodes[index] = Node(
            op, tuple(operands), (0,) * len(op.numbers), node.code, node.instruction, node.sequence
        )

    # The results: the carry, the last values, then the rows of each y. A result that is carried in
    # several slots is read from the first.
    carried = {result: slot for slot, (result, _) in reversed(list(enumerate(candidate.carry)))}
    last = [result for result in candidate.last if result not in carried]
    roots = [value_of(result) for result, _ in candidate.carry] + [
        value_of(result) for result in last
    ]
    results = {
        candidate.name(candidate.iterations - 1, result): slot for result, slot in carried.items()
    }
    next_result = len(candidate.carry)
    results |= {
        candidate.name(candidate.iterations - 1, result): next_result + i
        for i, result in enumerate(last)
    }
    ys: list[Y] = []
    filled: list[Value] = []
    stacks: list[tuple[Y, dict[int, Name], dict[int, Value]]] = []
    next_result += len(last)
    for result in candidate.ys:
        if result in carried:
            slot = carried[result]
            y, names = _carry_y(candidate, result, slot)
            roots.append(inputs[num_constants + slot])
        else:
            y, names, filled_values, late = _result_y(candidate, result, over, is_before)
            filled += filled_values
            stacks += [(y, names, late)] if late else []
            roots.append(value_of(result))
        results |= {
            names[row]: next_result + i for i, row in enumerate(y.rows_of(candidate.iterations))
        }
        next_result += len(y.rows_of(candidate.iterations))
        ys.append(y)
    loop = Loop(
        Region(list(nodes.values()), inputs, roots),
        candidate.iterations,
        num_constants,
        len(candidate.carry),
        (False,) * len(candidate.xs),
        tuple(ys),
        tuple(steps),
        reverse=candidate.backwards,
        num_last=len(last),
    )
    operands = [*candidate.consts, *(value for _, value in candidate.carry)]
    operands += [values[iteration] for values in candidate.xs for iteration in iterations_by_row]
    operands += filled
    op = loop_op(
        FOUND_LOOP,
        loop,
        [operand.meta for operand in operands],
        statics=f"{candidate.iterations} iterations",
    )
    body = [node for index, node in enumerate(candidate.body()) if index not in candidate.early]
    return FoundLoop(op, operands, body, numbers, results, stacks)


def _carry_y(candidate: Candidate, result: Result, slot: int) -> tuple[Y, dict[int, Name]]:
    """Returns the stack of a carry of which later ops read several iterations, as (Y, names of its
    rows)."""
    count = candidate.iterations
    # An iteration stacks the carry that it receives: the initial value, or the result of the
    # iteration before. The result of the last one (has_end) is a row of its own: behind these, or
    # before them if rows run backwards.
    has_end = result in candidate.ended and candidate.node(0, result[0]).op.memory == DEVICE
    rows_before = int(has_end and candidate.backwards)
    received = [value_name(candidate.carry[slot][1])]
    received += [candidate.name(i, result) for i in range(count - 1)]
    names = {rows_before + candidate.row(i): name for i, name in enumerate(received)}
    y = Y(first=rows_before, after=int(has_end and not rows_before), has_end=has_end)
    if has_end:
        names[y.end_of(count)] = candidate.name(count - 1, result)
    return y, names


def _result_y(
    candidate: Candidate, result: Result, over: Over, is_before: Callable[[Value], bool]
) -> tuple[Y, dict[int, Name], list[Value], dict[int, Value]]:
    """Returns, for a result that is no carry, (its Y, names by row, operands of the loop that fill
    peeled rows, peeled values by row that later ops compute)."""
    # A stack on the host has no rows but those of the iterations.
    peeled = (
        {} if candidate.node(0, result[0]).op.memory == HOST else candidate.peeled.get(result, {})
    )
    rows_before = -min(0, *peeled) if peeled else 0
    names = {rows_before + row: name for row, name in enumerate(candidate.names(result))}
    filled = {rows_before + row: value for row, value in sorted(peeled.items()) if is_before(value)}
    late = {
        rows_before + row: value for row, value in sorted(peeled.items()) if not is_before(value)
    }
    names |= {row: value_name(value) for row, value in (filled | late).items()}
    # If each row is written over the matching row of one of the xs, the stack is written in place.
    overwritten = tuple(
        [over.get(candidate.name(iteration, result)) for iteration in range(candidate.iterations)]
    )
    rows_after = len(peeled) - rows_before
    overwritten_x = candidate.xs.index(overwritten) if overwritten in candidate.xs else None
    return (
        Y(first=rows_before, after=rows_after, filled=tuple(filled), over=overwritten_x),
        names,
        list(filled.values()),
        late,
    )

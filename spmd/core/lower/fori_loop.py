"""Lowers a loop of a graph as one loop of the program: one iteration is lowered, and runs `iterations` times."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from ..ir.graph import DeviceData, Node, TupleElement, Value, value_name
from ..ir.loops import Carry, Const, Local, Loop, Result, Source, Xs
from ..ir.op import Arrays
from ..ops import split
from ..sharding.constrain import constrain, in_memory, space_of
from ..sharding.value import DEVICE, HOST, Sharding
from . import peeled
from .loop_counter import count_up, first_iteration, row_at, with_row
from .stack_rows import Made, Row, Stretch, made_of, plain, replace, rows, rows_on_device, stretch, taken

# Computes the results of an op from its operands, in place of its own rule.
Lower = Callable[[Sequence[jax.Array]], Sequence[jax.Array]]
# Lowers one op: (node, operands, scalar arguments, known shardings of operands, a rule or None: its own) -> results.
Apply = Callable[[Node, list[Made], list[jax.Array], list[Sharding | None], Lower | None], Sequence[Made]]
Layout = Callable[[Value], Sharding | None]
# The scalar arguments of (an op's place in the iteration, the iteration's number).
Drawn = Callable[[int, jax.Array | int], list[jax.Array]]
# By the name of a value, the input whose buffer it takes.
Over = Mapping[Any, DeviceData]
# Lowers one iteration of (its number, carried values, rows read); returns the function from a result to its array.
Run = Callable[[jax.Array, Sequence[jax.Array], Sequence[jax.Array]], Callable[[Result], jax.Array]]
# State between two iterations: number, carry, results of the last one, stacks of results, stacks of carries.
State = tuple[jax.Array, list[jax.Array], list[jax.Array], list[jax.Array], list[jax.Array]]


def lower_loop(
    loop: Loop, values: dict[Value, Sequence[Made]], drawn: Drawn, apply: Apply, layout_of: Layout, over: Over
) -> None:
    """Adds the results of a loop that are read outside of it to the values of a program."""
    layouts = [[_layout(loop, source, layout_of) for source in taken] for taken in loop.sources]
    for place in sorted(loop.early):
        _lower_early(loop, place, values, drawn, apply, layout_of)
    same = [plain(made_of(value, values)) for value in loop.consts]
    stretches = [stretch([made_of(value, values) for value in row]) for row in loop.xs]
    initial = [plain(made_of(value, values)) for _, value in loop.carry]
    dynamic_start = [None if place in loop.early else _start_positions(loop, place) for place in range(loop.period)]

    def run(
        iteration: jax.Array, before: Sequence[jax.Array], rows: Sequence[jax.Array]
    ) -> Callable[[Result], jax.Array]:
        """Lowers one iteration; `before` are the carried values, `rows` the rows that it reads."""
        made: list[Sequence[Made]] = []

        def operand(source: Source) -> jax.Array:
            if isinstance(source, Local):
                return plain(made[source.place][source.result])
            return (before if isinstance(source, Carry) else same if isinstance(source, Const) else rows)[source.slot]

        for place, node in enumerate(loop.body()):
            if place in loop.early:
                made.append(())
                continue
            operands: list[Made] = [operand(source) for source in loop.sources[place]]
            own, starts, lower = drawn(place, iteration), dynamic_start[place], None
            if starts is not None:
                lower = partial(_lower_dynamic_start, node, row_at(starts, iteration), own, layouts[place])
            made.append(apply(node, operands, own, layouts[place], lower))
        return lambda where: plain(made[where[0]][where[1]])

    if _is_from_host(loop, stretches):
        shardings = [_layout(loop, Xs(slot), layout_of) for slot in range(len(loop.xs))]
        made = _row_by_row(loop, run, stretches, shardings, over, values)
    elif _is_elementwise(loop):
        made = _in_one(loop, run, stretches)
    else:
        made = _in_iterations(loop, run, stretches, initial, values)
    values.update(made)  # type: ignore[arg-type]  # an unread result is None


def _lower_early(
    loop: Loop, place: int, values: dict[Value, Sequence[Made]], drawn: Drawn, apply: Apply, layout_of: Layout
) -> None:
    """Adds the results, of all iterations, of the ops at a place that run before the loop, to the program's values."""
    nodes, positions = loop.at(place), loop.positions(place)
    assert positions is not None and nodes[0].op.dynamic_start is not None, "its position differs between iterations"
    run = nodes[0].op.dynamic_start[0].lowering.taken
    if run is not None and len({value_name(node.operands[0]) for node in nodes}) == 1:
        slices = taken(plain(made_of(nodes[0].operands[0], values)), run, positions)
        if slices is not None:
            values.update({node: (one,) for node, one in zip(nodes, slices, strict=True)})
            return
    for iteration, node in enumerate(nodes):
        operands = [made_of(operand, values) for operand in node.operands]
        values[node] = apply(node, operands, drawn(place, iteration), list(map(layout_of, node.operands)), None)


def _start_positions(loop: Loop, place: int) -> jax.Array | None:
    """Returns the start position of the op at a place, by iteration; None if it is the same in each."""
    positions = loop.positions(place)
    return None if positions is None else jnp.asarray(np.array(positions, np.int64))


def _lower_dynamic_start(
    node: Node, position: jax.Array, numbers: list[jax.Array], layouts: list[Sharding | None], arrays: Arrays
) -> Sequence[jax.Array]:
    assert node.op.dynamic_start is not None, "iterations differ in start positions alone"
    return node.op.dynamic_start[0].lower(arrays, [position, *numbers], layouts)


def _in_iterations(
    loop: Loop, run: Run, stretches: Sequence[Stretch], initial: list[jax.Array], values: dict[Value, Sequence[Made]]
) -> dict[Node, list[Made | None]]:
    """Lowers the loop as a loop of the program."""
    carried = {result: slot for slot, (result, _) in reversed(list(enumerate(loop.carry)))}
    on_host = [result for result in loop.ys if result not in carried and _memory(loop, result) == HOST]
    kept = [result for result in loop.ys if result not in carried and result not in on_host]
    entered = [result for result in loop.ys if result in carried and _memory(loop, result) == DEVICE]
    entered_on_host = [result for result in loop.ys if result in carried and result not in entered]
    ends = [result in loop.ended for result in entered]
    # For each, the row with the value that the first iteration is given.
    firsts = [loop.iterations - 1 + is_ended if loop.backwards else 0 for is_ended in ends]
    step = -1 if loop.backwards else 1
    before_first = {where: peeled.num_before(loop, where) for where in kept}
    last = [result for result in loop.last if result not in carried]
    # Shardings that are known outside (`ops.split`) are known inside, and the other way round.
    sharding_before, row_sharding = (
        list(map(split.sharding_of, initial)),
        [split.row_sharding(array) for array, _, _ in stretches],
    )
    found: dict[Result, NamedSharding | None] = {}

    def iteration_of(state: State, _: None) -> tuple[State, list[jax.Array]]:
        iteration, before, lasts, buffers, carry_stacks = state
        at = loop.iterations - 1 - iteration if loop.backwards else iteration
        rows = [row_at(array, first + by * iteration) for array, first, by in stretches]
        with split.inside((*before, *rows), (*sharding_before, *row_sharding)):
            result = run(iteration, before, rows)
            found.update({where: split.sharding_of(result(where)) for where in (*last, *kept, *on_host)})
        after = (
            iteration + 1,
            [_like(result(where), start) for (where, _), start in zip(loop.carry, before, strict=True)],
            [_like(result(where), empty) for where, empty in zip(last, lasts, strict=True)],
            [
                with_row(buffer, result(where), at + before_first[where])
                for buffer, where in zip(buffers, kept, strict=True)
            ],
            [
                with_row(carry_stack, before[carried[where]], first + step * iteration)
                for carry_stack, where, first in zip(carry_stacks, entered, firsts, strict=True)
            ],
        )
        return after, [*(result(where) for where in on_host), *(before[carried[where]] for where in entered_on_host)]

    initial = [in_memory(start, _memory(loop, where)) for start, (where, _) in zip(initial, loop.carry, strict=True)]
    state: State = (
        first_iteration(),
        initial,
        [in_memory(_empty(loop, where), _memory(loop, where)) for where in last],
        [peeled.filled(_empty(loop, where, peeled.num_rows(loop, where)), loop, where, values) for where in kept],
        [_empty(loop, where, loop.iterations + is_ended) for where, is_ended in zip(entered, ends, strict=True)],
    )
    (_, after, lasts, buffers, carry_stacks), stacks = _all_iterations(
        loop, iteration_of, state, bool(on_host or entered_on_host)
    )
    entered_sharding = [sharding_before[carried[where]] for where in (*entered, *entered_on_host)]
    for array, sharding in zip((*after, *lasts), (*sharding_before, *(found[where] for where in last)), strict=True):
        split.note(array, sharding)
    kept_sharding = [found[where] for where in (*kept, *on_host)]
    rows_made = (*buffers, *stacks[: len(on_host)], *carry_stacks, *stacks[len(on_host) :])
    for array, sharding in zip(rows_made, (*kept_sharding, *entered_sharding), strict=True):
        split.note(array, split.behind_rows(sharding))

    made = _nothing(loop)
    for (place, index), slot in carried.items():
        made[loop.node(loop.iterations - 1, place)][index] = after[slot]
    for (place, index), array in zip(last, lasts, strict=True):
        made[loop.node(loop.iterations - 1, place)][index] = array
    for result, buffer in zip([*kept, *on_host], [*buffers, *stacks[: len(on_host)]], strict=True):
        _note_rows(loop, result, buffer, made, before_first.get(result, 0))
    for where, buffer in zip(kept, buffers, strict=True):
        peeled.note(loop, where, buffer, values)
    for (place, index), stack in zip(entered_on_host, stacks[len(on_host) :], strict=True):
        slot = carried[place, index]
        for iteration in range(loop.iterations - 1):
            made[loop.node(iteration, place)][index] = Row(stack, loop.row(iteration + 1))
        replace(loop.carry[slot][1], Row(stack, loop.row(0), initial[slot]), values)
    for (place, index), carry_stack, first, is_ended in zip(entered, carry_stacks, firsts, ends, strict=True):
        slot = carried[place, index]
        end = after[slot]
        if is_ended:
            carry_stack = with_row(carry_stack, end, first + step * loop.iterations)
        for iteration in range(loop.iterations - 1):
            made[loop.node(iteration, place)][index] = Row(carry_stack, first + step * (iteration + 1))
        made[loop.node(loop.iterations - 1, place)][index] = (
            Row(carry_stack, first + step * loop.iterations, end) if is_ended else end
        )
        replace(loop.carry[slot][1], Row(carry_stack, first, initial[slot]), values)
    return made


def _all_iterations(
    loop: Loop, iteration_of: Callable[..., tuple[State, list[jax.Array]]], state: State, has_stacks: bool
) -> tuple[State, list[jax.Array]]:
    """Returns the state after the last iteration, and the stacks that the iterations leave in the host's memory."""
    if has_stacks:  # By jax.lax.scan: a buffer made here would be on the device first.
        return jax.lax.scan(iteration_of, state, length=loop.iterations, reverse=loop.backwards)
    return count_up(loop.iterations, lambda state: iteration_of(state, None)[0], state), []


def _in_one(loop: Loop, run: Run, stretches: Sequence[Stretch]) -> dict[Node, list[Made | None]]:
    """Computes all iterations at once (`jax.vmap`): they are independent, and their results no larger than their
    operands."""
    wanted = [*loop.ys, *loop.last]
    arrays = [
        rows(
            Stretch(
                array,
                first + (step * (loop.iterations - 1) if loop.backwards else 0),
                -step if loop.backwards else step,
            ),
            loop.iterations,
        )
        for array, first, step in stretches
    ]

    def iteration_of(iteration: jax.Array, rows: list[jax.Array]) -> list[jax.Array]:
        result = run(iteration, (), rows)
        return [result(where) for where in wanted]

    iterations = jnp.arange(loop.iterations)
    made = _nothing(loop)
    found = jax.vmap(iteration_of, out_axes=0)(jnp.flip(iterations) if loop.backwards else iterations, arrays)
    for result, array in zip(wanted, found, strict=True):
        _note_rows(loop, result, array, made)
    return made


def _is_from_host(loop: Loop, stretches: Sequence[Stretch]) -> bool:
    """True if independent iterations read rows of stacks on the host, as those of an offloaded optimizer do."""
    is_on_host = any(space_of(array) == HOST for array, _, _ in stretches)
    return is_on_host and not loop.carry and all(_memory(loop, where) == DEVICE for where in (*loop.ys, *loop.last))


def _row_by_row(
    loop: Loop,
    run: Run,
    stretches: Sequence[Stretch],
    shardings: Sequence[Sharding | None],
    over: Over,
    values: dict[Value, Sequence[Made]],
) -> dict[Node, list[Made | None]]:
    """Lowers the loop so that each iteration fetches its rows and writes each result over the row that it replaces.

    So no stack on the host is ever on the device in full; a result that replaces no row becomes a stack on the device.
    """
    wanted = [*loop.ys, *loop.last]
    slots = {where: slot for where in wanted if (slot := _row_written(loop, where, over)) is not None}
    new = [where for where in wanted if where not in slots]
    row_sharding = [split.row_sharding(array) for array, _, _ in stretches]
    found: dict[Result, NamedSharding | None] = {}

    def iteration_of(state: tuple[jax.Array, list[jax.Array], list[jax.Array]]) -> Any:
        iteration, written, buffers = state
        arrays = [array for array, _, _ in stretches]
        for slot, array in zip(slots.values(), written, strict=True):
            arrays[slot] = array
        places = [first + by * iteration for _, first, by in stretches]
        there = [row_at(array, place) for array, place in zip(arrays, places, strict=True)]
        read = list(map(plain, rows_on_device(there, shardings)))
        with split.inside(read, row_sharding):
            result = run(iteration, (), read)
            found.update({where: split.sharding_of(result(where)) for where in new})
        written = [
            with_row(array, in_memory(result(where), space_of(array)), places[slot])
            for array, (where, slot) in zip(written, slots.items(), strict=True)
        ]
        at = loop.iterations - 1 - iteration if loop.backwards else iteration
        buffers = [with_row(buffer, result(where), at) for buffer, where in zip(buffers, new, strict=True)]
        return iteration + 1, written, buffers

    start = [stretches[slot].array for slot in slots.values()], [_empty(loop, where, loop.iterations) for where in new]
    _, written, buffers = count_up(loop.iterations, iteration_of, (first_iteration(), *start))
    made = _nothing(loop)
    for where, buffer in zip(new, buffers, strict=True):
        split.note(buffer, split.behind_rows(found[where]))
        _note_rows(loop, where, buffer, made)
    for (where, slot), array in zip(slots.items(), written, strict=True):
        before, first, by = stretches[slot]
        split.note(array, split.sharding_of(before))
        for iteration in range(loop.iterations):
            made[loop.node(iteration, where[0])][where[1]] = Row(array, first + by * iteration)
        _move_rows(before, array, {first + by * iteration for iteration in range(loop.iterations)}, values)
    return made


def _row_written(loop: Loop, where: Result, over: Over) -> int | None:
    """Returns the slot of the rows (`Loop.xs`) that a result replaces, one in each iteration; None if there is none."""
    inputs = tuple([over.get(loop.name(iteration, where)) for iteration in range(loop.iterations)])
    if inputs[0] is None or inputs[0].meta.struct != loop.node(0, where[0]).op.metas[where[1]].struct:
        return None
    return loop.xs.index(inputs) if inputs in loop.xs else None


def _move_rows(before: jax.Array, after: jax.Array, written: set[int], values: dict[Value, Sequence[Made]]) -> None:
    """Makes the unwritten rows of a stack refer to the new stack: a reader of the old one would need a copy."""

    def moved(made: Made) -> Made:  # or None: an unread result
        if isinstance(made, Row) and made.stack is before and made.index not in written:
            return Row(after, made.index)
        return made

    for value, made in values.items():
        values[value] = [moved(one) for one in made]


def _is_elementwise(loop: Loop) -> bool:
    """True if the iterations are independent, as an optimizer's are, and no op's results are larger than its
    operands."""
    body = [node for place, node in enumerate(loop.body()) if place not in loop.early]
    return not loop.carry and all(
        node.op.sharding is None
        and node.op.memory == DEVICE
        and not node.op.lowering.regions
        and not node.op.lowering.opaque
        and all(meta.shape in ((), *(operand.shape for operand in node.op.operands)) for meta in node.op.metas)
        and len({operand.shape for operand in node.op.operands if operand.shape}) == 1
        for node in body
    )


def _memory(loop: Loop, where: Result) -> str:
    """Returns the memory kind of a result of an iteration."""
    return loop.node(0, where[0]).op.memory


def _like(array: jax.Array, other: jax.Array) -> jax.Array:
    """Returns a carried value in the dtype and the memory of its initial value."""
    return in_memory(array.astype(other.dtype), space_of(other))


def _nothing(loop: Loop) -> dict[Node, list[Made | None]]:
    return {
        node: [None] * len(node.op.metas)
        for place in range(loop.period)
        if place not in loop.early
        for node in loop.at(place)
    }


def _note_rows(
    loop: Loop, result: Result, array: jax.Array, made: dict[Node, list[Made | None]], before: int = 0
) -> None:
    place, index = result
    for iteration in range(loop.iterations):
        made[loop.node(iteration, place)][index] = Row(array, loop.row(iteration) + before)


def _layout(loop: Loop, source: Source, layout_of: Layout) -> Sharding | None:
    """Returns the sharding that an operand is known to have in all iterations; None if unknown."""
    if isinstance(source, Const):
        return layout_of(loop.consts[source.slot])
    if isinstance(source, Xs):
        known = set(map(layout_of, loop.xs[source.slot]))
    else:
        place, index = loop.carry[source.slot][0] if isinstance(source, Carry) else source
        node = loop.node(0, place)
        known = {layout_of(node if len(node.op.metas) == 1 else TupleElement(node, index))}
        if isinstance(source, Carry):
            known.add(layout_of(loop.carry[source.slot][1]))
    return known.pop() if len(known) == 1 else None


def _empty(loop: Loop, where: Result, *rows: int) -> jax.Array:
    """Returns the buffer into which the loop writes a result of each iteration."""
    place, index = where
    op = loop.node(0, place).op
    struct = op.metas[index].struct
    array = jnp.zeros((*rows, *struct.shape), struct.dtype)
    if op.sharding is None or len(op.metas) > 1 or op.sharding.padded_shape(struct.shape) != struct.shape:
        return array
    return constrain(array, op.sharding.behind_rows() if rows else op.sharding)

"""A loop of a graph as one loop of the program: one turn is lowered, and runs once for each."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from ..ir.graph import Leaf, Node, Pick, Value, value_name
from ..ir.loops import Carried, Inner, Loop, Result, Rows, Same, Source
from ..ir.op import Arrays
from ..ops import split
from ..sharding.constrain import constrain, in_memory, space_of
from ..sharding.value import DEVICE, HOST, Sharding
from . import beside
from .rows import Made, Row, Stretch, made_of, plain, replace, rows, rows_on_device, stretch, taken
from .turns import count_up, first_turn, row_at, with_row

# Makes the results of an op of its operands, in place of its own rule.
Lower = Callable[[Sequence[jax.Array]], Sequence[jax.Array]]
# Lowers one op: (node, operands, lifted numbers, how each operand is known to lie, a rule or None: its own) -> results.
Apply = Callable[[Node, list[Made], list[jax.Array], list[Sharding | None], Lower | None], Sequence[Made]]
Layout = Callable[[Value], Sharding | None]
# The lifted numbers of (an op of a turn, the turn).
Drawn = Callable[[int, jax.Array | int], list[jax.Array]]
# By the name of a value, the leaf that it is written over.
Over = Mapping[Any, Leaf]
# One turn of (its number, carried values, rows read), lowered: what it makes.
Run = Callable[[jax.Array, Sequence[jax.Array], Sequence[jax.Array]], Callable[[Result], jax.Array]]
# Between two turns: its number, what is carried, the last turn's results, rows made so far, and those read at entries.
State = tuple[jax.Array, list[jax.Array], list[jax.Array], list[jax.Array], list[jax.Array]]


def lower_loop(
    loop: Loop, values: dict[Value, Sequence[Made]], drawn: Drawn, apply: Apply, layout_of: Layout, over: Over
) -> None:
    """Adds what a loop makes, as far as others read it, to the values of a program."""
    layouts = [[_layout(loop, source, layout_of) for source in taken] for taken in loop.sources]
    for place in sorted(loop.early):
        _lower_early(loop, place, values, drawn, apply, layout_of)
    same = [plain(made_of(value, values)) for value in loop.same]
    stretches = [stretch([made_of(value, values) for value in row]) for row in loop.rows]
    initial = [plain(made_of(value, values)) for _, value in loop.carried]
    moving = [None if place in loop.early else _moving(loop, place) for place in range(loop.period)]

    def run(turn: jax.Array, before: Sequence[jax.Array], rows: Sequence[jax.Array]) -> Callable[[Result], jax.Array]:
        """Lowers one turn; where it is one of many, these are the carried values and the rows that it reads."""
        made: list[Sequence[Made]] = []

        def operand(source: Source) -> jax.Array:
            if isinstance(source, Inner):
                return plain(made[source.place][source.result])
            return (before if isinstance(source, Carried) else same if isinstance(source, Same) else rows)[source.slot]

        for place, node in enumerate(loop.body()):
            if place in loop.early:
                made.append(())
                continue
            operands: list[Made] = [operand(source) for source in loop.sources[place]]
            own, moves, lower = drawn(place, turn), moving[place], None
            if moves is not None:
                lower = partial(_lower_moving, node, row_at(moves, turn), own, layouts[place])
            made.append(apply(node, operands, own, layouts[place], lower))
        return lambda where: plain(made[where[0]][where[1]])

    if _is_from_host(loop, stretches):
        lie = [_layout(loop, Rows(slot), layout_of) for slot in range(len(loop.rows))]
        made = _row_by_row(loop, run, stretches, lie, over, values)
    elif _is_elementwise(loop):
        made = _in_one(loop, run, stretches)
    else:
        made = _in_turns(loop, run, stretches, initial, values)
    values.update(made)  # type: ignore[arg-type]  # what nobody reads is None


def _lower_early(
    loop: Loop, place: int, values: dict[Value, Sequence[Made]], drawn: Drawn, apply: Apply, layout_of: Layout
) -> None:
    """Adds what the ops at a place make in all turns, which is done before the loop, to the values of a program."""
    nodes, positions = loop.at(place), loop.positions(place)
    assert positions is not None and nodes[0].entry.moving is not None, "it takes another position in each turn"
    run = nodes[0].entry.moving[0].lowering.taken
    if run is not None and len({value_name(node.operands[0]) for node in nodes}) == 1:
        pieces = taken(plain(made_of(nodes[0].operands[0], values)), run, positions)
        if pieces is not None:
            values.update({node: (piece,) for node, piece in zip(nodes, pieces, strict=True)})
            return
    for turn, node in enumerate(nodes):
        operands = [made_of(operand, values) for operand in node.operands]
        values[node] = apply(node, operands, drawn(place, turn), list(map(layout_of, node.operands)), None)


def _moving(loop: Loop, place: int) -> jax.Array | None:
    """Where the op at a place takes elements from, by turn, if not from the same position in each."""
    positions = loop.positions(place)
    return None if positions is None else jnp.asarray(np.array(positions, np.int64))


def _lower_moving(
    node: Node, position: jax.Array, numbers: list[jax.Array], layouts: list[Sharding | None], arrays: Arrays
) -> Sequence[jax.Array]:
    assert node.entry.moving is not None, "turns differ in positions alone"
    return node.entry.moving[0].lower(arrays, [position, *numbers], layouts)


def _in_turns(
    loop: Loop, run: Run, stretches: Sequence[Stretch], initial: list[jax.Array], values: dict[Value, Sequence[Made]]
) -> dict[Node, list[Made | None]]:
    """The loop as a loop of the program."""
    carried = {result: slot for slot, (result, _) in reversed(list(enumerate(loop.carried)))}
    away = [result for result in loop.kept if result not in carried and _memory(loop, result) == HOST]
    kept = [result for result in loop.kept if result not in carried and result not in away]
    entered = [result for result in loop.kept if result in carried and _memory(loop, result) == DEVICE]
    entered_away = [result for result in loop.kept if result in carried and result not in entered]
    ends = [result in loop.ended for result in entered]
    # In which row each has what the first turn is given.
    firsts = [loop.turns - 1 + is_ended if loop.backwards else 0 for is_ended in ends]
    step = -1 if loop.backwards else 1
    before_first = {where: beside.num_before(loop, where) for where in kept}
    last = [result for result in loop.last if result not in carried]
    # What is known outside of how values are split (`ops.split`) is known inside, and the other way round.
    before_lie, rows_lie = list(map(split.lies, initial)), [split.row_lies(array) for array, _, _ in stretches]
    found: dict[Result, NamedSharding | None] = {}

    def turn_of(state: State, _: None) -> tuple[State, list[jax.Array]]:
        turn, before, lasts, buffers, entries = state
        at = loop.turns - 1 - turn if loop.backwards else turn
        rows = [row_at(array, first + by * turn) for array, first, by in stretches]
        with split.inside((*before, *rows), (*before_lie, *rows_lie)):
            result = run(turn, before, rows)
            found.update({where: split.lies(result(where)) for where in (*last, *kept, *away)})
        after = (
            turn + 1,
            [_like(result(where), start) for (where, _), start in zip(loop.carried, before, strict=True)],
            [_like(result(where), empty) for where, empty in zip(last, lasts, strict=True)],
            [
                with_row(buffer, result(where), at + before_first[where])
                for buffer, where in zip(buffers, kept, strict=True)
            ],
            [
                with_row(entry, before[carried[where]], first + step * turn)
                for entry, where, first in zip(entries, entered, firsts, strict=True)
            ],
        )
        return after, [*(result(where) for where in away), *(before[carried[where]] for where in entered_away)]

    initial = [in_memory(start, _memory(loop, where)) for start, (where, _) in zip(initial, loop.carried, strict=True)]
    state: State = (
        first_turn(),
        initial,
        [in_memory(_empty(loop, where), _memory(loop, where)) for where in last],
        [beside.filled(_empty(loop, where, beside.num_rows(loop, where)), loop, where, values) for where in kept],
        [_empty(loop, where, loop.turns + is_ended) for where, is_ended in zip(entered, ends, strict=True)],
    )
    (_, after, lasts, buffers, entries), stacks = _all_turns(loop, turn_of, state, bool(away or entered_away))
    entered_lie = [before_lie[carried[where]] for where in (*entered, *entered_away)]
    for array, lies in zip((*after, *lasts), (*before_lie, *(found[where] for where in last)), strict=True):
        split.note(array, lies)
    kept_lie = [found[where] for where in (*kept, *away)]
    rows_made = (*buffers, *stacks[: len(away)], *entries, *stacks[len(away) :])
    for array, lies in zip(rows_made, (*kept_lie, *entered_lie), strict=True):
        split.note(array, split.behind_rows(lies))

    made = _nothing(loop)
    for (place, index), slot in carried.items():
        made[loop.node(loop.turns - 1, place)][index] = after[slot]
    for (place, index), array in zip(last, lasts, strict=True):
        made[loop.node(loop.turns - 1, place)][index] = array
    for result, buffer in zip([*kept, *away], [*buffers, *stacks[: len(away)]], strict=True):
        _note_rows(loop, result, buffer, made, before_first.get(result, 0))
    for where, buffer in zip(kept, buffers, strict=True):
        beside.note(loop, where, buffer, values)
    for (place, index), stack in zip(entered_away, stacks[len(away) :], strict=True):
        slot = carried[place, index]
        for turn in range(loop.turns - 1):
            made[loop.node(turn, place)][index] = Row(stack, loop.row(turn + 1))
        replace(loop.carried[slot][1], Row(stack, loop.row(0), initial[slot]), values)
    for (place, index), entry, first, is_ended in zip(entered, entries, firsts, ends, strict=True):
        slot = carried[place, index]
        end = after[slot]
        if is_ended:
            entry = with_row(entry, end, first + step * loop.turns)
        for turn in range(loop.turns - 1):
            made[loop.node(turn, place)][index] = Row(entry, first + step * (turn + 1))
        made[loop.node(loop.turns - 1, place)][index] = Row(entry, first + step * loop.turns, end) if is_ended else end
        replace(loop.carried[slot][1], Row(entry, first, initial[slot]), values)
    return made


def _all_turns(
    loop: Loop, turn_of: Callable[..., tuple[State, list[jax.Array]]], state: State, has_stacks: bool
) -> tuple[State, list[jax.Array]]:
    """The state after the last turn, and what the turns leave in the host's memory."""
    if has_stacks:  # By a scan: a buffer of our own would first be made on the device.
        return jax.lax.scan(turn_of, state, length=loop.turns, reverse=loop.backwards)
    return count_up(loop.turns, lambda state: turn_of(state, None)[0], state), []


def _in_one(loop: Loop, run: Run, stretches: Sequence[Stretch]) -> dict[Node, list[Made | None]]:
    """All turns at once: none of them needs another, and what they make is no more than what they read."""
    wanted = [*loop.kept, *loop.last]
    arrays = [
        rows(
            Stretch(
                array, first + (step * (loop.turns - 1) if loop.backwards else 0), -step if loop.backwards else step
            ),
            loop.turns,
        )
        for array, first, step in stretches
    ]

    def turn_of(turn: jax.Array, rows: list[jax.Array]) -> list[jax.Array]:
        result = run(turn, (), rows)
        return [result(where) for where in wanted]

    turns = jnp.arange(loop.turns)
    made = _nothing(loop)
    found = jax.vmap(turn_of, out_axes=0)(jnp.flip(turns) if loop.backwards else turns, arrays)
    for result, array in zip(wanted, found, strict=True):
        _note_rows(loop, result, array, made)
    return made


def _is_from_host(loop: Loop, stretches: Sequence[Stretch]) -> bool:
    """Whether turns that need no other turn read rows of stacks on the host, as those of an offloaded optimizer do."""
    is_away = any(space_of(array) == HOST for array, _, _ in stretches)
    return is_away and not loop.carried and all(_memory(loop, where) == DEVICE for where in (*loop.kept, *loop.last))


def _row_by_row(
    loop: Loop,
    run: Run,
    stretches: Sequence[Stretch],
    lie: Sequence[Sharding | None],
    over: Over,
    values: dict[Value, Sequence[Made]],
) -> dict[Node, list[Made | None]]:
    """The loop as one that fetches its rows turn by turn, and writes each result over the row that it is to replace.

    So no stack on the host is ever on the device; what is written over nothing becomes a stack there.
    """
    wanted = [*loop.kept, *loop.last]
    slots = {where: slot for where in wanted if (slot := _row_written(loop, where, over)) is not None}
    new = [where for where in wanted if where not in slots]
    rows_lie = [split.row_lies(array) for array, _, _ in stretches]
    found: dict[Result, NamedSharding | None] = {}

    def turn_of(state: tuple[jax.Array, list[jax.Array], list[jax.Array]]) -> Any:
        turn, written, buffers = state
        arrays = [array for array, _, _ in stretches]
        for slot, array in zip(slots.values(), written, strict=True):
            arrays[slot] = array
        places = [first + by * turn for _, first, by in stretches]
        there = [row_at(array, place) for array, place in zip(arrays, places, strict=True)]
        read = list(map(plain, rows_on_device(there, lie)))
        with split.inside(read, rows_lie):
            result = run(turn, (), read)
            found.update({where: split.lies(result(where)) for where in new})
        written = [
            with_row(array, in_memory(result(where), space_of(array)), places[slot])
            for array, (where, slot) in zip(written, slots.items(), strict=True)
        ]
        at = loop.turns - 1 - turn if loop.backwards else turn
        buffers = [with_row(buffer, result(where), at) for buffer, where in zip(buffers, new, strict=True)]
        return turn + 1, written, buffers

    start = [stretches[slot].array for slot in slots.values()], [_empty(loop, where, loop.turns) for where in new]
    _, written, buffers = count_up(loop.turns, turn_of, (first_turn(), *start))
    made = _nothing(loop)
    for where, buffer in zip(new, buffers, strict=True):
        split.note(buffer, split.behind_rows(found[where]))
        _note_rows(loop, where, buffer, made)
    for (where, slot), array in zip(slots.items(), written, strict=True):
        before, first, by = stretches[slot]
        split.note(array, split.lies(before))
        for turn in range(loop.turns):
            made[loop.node(turn, where[0])][where[1]] = Row(array, first + by * turn)
        _move_rows(before, array, {first + by * turn for turn in range(loop.turns)}, values)
    return made


def _row_written(loop: Loop, where: Result, over: Over) -> int | None:
    """Which of the loop's rows a result is written over, turn by turn."""
    leaves = tuple([over.get(loop.name(turn, where)) for turn in range(loop.turns)])
    if leaves[0] is None or leaves[0].meta.struct != loop.node(0, where[0]).entry.metas[where[1]].struct:
        return None
    return loop.rows.index(leaves) if leaves in loop.rows else None


def _move_rows(before: jax.Array, after: jax.Array, written: set[int], values: dict[Value, Sequence[Made]]) -> None:
    """Has the rows of a stack that were not written be those of the new one: who read the old one would need a copy."""

    def moved(made: Made) -> Made:  # or None: what nobody reads
        if isinstance(made, Row) and made.stack is before and made.index not in written:
            return Row(after, made.index)
        return made

    for value, made in values.items():
        values[value] = [moved(one) for one in made]


def _is_elementwise(loop: Loop) -> bool:
    """Whether turns are independent, as those of an optimizer are, and no op makes more than it reads."""
    body = [node for place, node in enumerate(loop.body()) if place not in loop.early]
    return not loop.carried and all(
        node.entry.sharding is None
        and node.entry.memory == DEVICE
        and not node.entry.lowering.regions
        and not node.entry.lowering.opaque
        and all(meta.shape in ((), *(operand.shape for operand in node.entry.operands)) for meta in node.entry.metas)
        and len({operand.shape for operand in node.entry.operands if operand.shape}) == 1
        for node in body
    )


def _memory(loop: Loop, where: Result) -> str:
    """Where a turn leaves a result."""
    return loop.node(0, where[0]).entry.memory


def _like(array: jax.Array, other: jax.Array) -> jax.Array:
    """The value as a loop hands it on: in the dtype and the memory that it began in."""
    return in_memory(array.astype(other.dtype), space_of(other))


def _nothing(loop: Loop) -> dict[Node, list[Made | None]]:
    return {
        node: [None] * len(node.entry.metas)
        for place in range(loop.period)
        if place not in loop.early
        for node in loop.at(place)
    }


def _note_rows(
    loop: Loop, result: Result, array: jax.Array, made: dict[Node, list[Made | None]], before: int = 0
) -> None:
    place, index = result
    for turn in range(loop.turns):
        made[loop.node(turn, place)][index] = Row(array, loop.row(turn) + before)


def _layout(loop: Loop, source: Source, layout_of: Layout) -> Sharding | None:
    """How an operand is known to lie in every turn."""
    if isinstance(source, Same):
        return layout_of(loop.same[source.slot])
    if isinstance(source, Rows):
        known = set(map(layout_of, loop.rows[source.slot]))
    else:
        place, index = loop.carried[source.slot][0] if isinstance(source, Carried) else source
        node = loop.node(0, place)
        known = {layout_of(node if len(node.entry.metas) == 1 else Pick(node, index))}
        if isinstance(source, Carried):
            known.add(layout_of(loop.carried[source.slot][1]))
    return known.pop() if len(known) == 1 else None


def _empty(loop: Loop, where: Result, *rows: int) -> jax.Array:
    """What the loop writes a result of each turn into."""
    place, index = where
    entry = loop.node(0, place).entry
    struct = entry.metas[index].struct
    array = jnp.zeros((*rows, *struct.shape), struct.dtype)
    if entry.sharding is None or len(entry.metas) > 1 or entry.sharding.padded_shape(struct.shape) != struct.shape:
        return array
    return constrain(array, entry.sharding.behind_rows() if rows else entry.sharding)

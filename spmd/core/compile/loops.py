"""A loop of a graph as one loop of the program: one turn is lowered, and runs once for each."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from ..ir.graph import Leaf, Node, Pick, Value
from ..ir.loops import Carried, Inner, Loop, Result, Rows, Same, Source
from ..sharding.constrain import constrain
from ..sharding.value import Sharding
from .numbers import Numbers
from .rows import Made, Row, plain, stretch

# Lowers one op: (node, operands, lifted numbers, how each operand is known to lie) -> results.
Apply = Callable[[Node, list[Made], Sequence[jax.Array], list[Sharding | None]], Sequence[Made]]
Layout = Callable[[Value], Sharding | None]


def lower_loop(
    loop: Loop, values: dict[Value, Sequence[Made]], numbers: Numbers, apply: Apply, layout_of: Layout
) -> None:
    """Adds what a loop makes, as far as others read it, to the values of a program."""
    body = loop.body()
    layouts = [[_layout(loop, source, layout_of) for source in taken] for taken in loop.sources]
    same = [plain(_made(value, values)) for value in loop.same]
    stretches = [stretch([_made(value, values) for value in row]) for row in loop.rows]
    initial = [plain(_made(value, values)) for _, value in loop.carried]
    drawn = numbers.of_turns([node.entry.numbers for node in body], loop.turns)
    carried = {result: slot for slot, (result, _) in reversed(list(enumerate(loop.carried)))}
    kept = [result for result in loop.kept if result not in carried]
    entered = [result for result in loop.kept if result in carried]
    last = [result for result in loop.last if result not in carried]

    def turn_of(turn: jax.Array, state: tuple[list[jax.Array], ...]) -> tuple[list[jax.Array], ...]:
        before, _, buffers, entries = state
        at = loop.turns - 1 - turn if loop.backwards else turn
        made: list[Sequence[Made]] = []

        def operand(source: Source) -> jax.Array:
            if type(source) is Inner:
                return plain(made[source.place][source.result])
            if type(source) is Carried:
                return before[source.slot]
            if type(source) is Same:
                return same[source.slot]
            array, first, step = stretches[source.slot]
            return jax.lax.dynamic_index_in_dim(array, first + step * turn, keepdims=False)

        for place, node in enumerate(body):
            operands: list[Made] = [operand(source) for source in loop.sources[place]]
            made.append(apply(node, operands, drawn(place, turn), layouts[place]))

        def result(where: Result) -> jax.Array:
            return plain(made[where[0]][where[1]])

        return (
            [_like(result(where), start) for (where, _), start in zip(loop.carried, before, strict=True)],
            [result(where) for where in last],
            [_set(buffer, result(where), at) for buffer, where in zip(buffers, kept, strict=True)],
            [_set(entry, before[carried[where]], at + loop.backwards) for entry, where in zip(entries, entered, strict=True)],
        )  # fmt: skip

    state = (
        initial,
        [_empty(loop, where) for where in last],
        [_empty(loop, where, loop.turns) for where in kept],
        [_empty(loop, where, loop.turns + 1) for where in entered],
    )
    after, lasts, buffers, entries = jax.lax.fori_loop(0, loop.turns, turn_of, state)

    made: dict[Node, list[Made | None]] = {
        node: [None] * len(node.entry.metas) for node in loop.nodes[loop.start : loop.stop]
    }
    for (place, index), slot in carried.items():
        made[loop.node(loop.turns - 1, place)][index] = after[slot]
    for (place, index), array in zip(last, lasts, strict=True):
        made[loop.node(loop.turns - 1, place)][index] = array
    for (place, index), buffer in zip(kept, buffers, strict=True):
        for turn in range(loop.turns):
            made[loop.node(turn, place)][index] = Row(buffer, loop.row(turn))
    for (place, index), entry in zip(entered, entries, strict=True):
        slot = carried[place, index]
        end = 0 if loop.backwards else loop.turns
        whole = _set(entry, after[slot], end)
        for turn in range(loop.turns):
            row = loop.turns - 1 - turn if loop.backwards else turn + 1
            made[loop.node(turn, place)][index] = Row(whole, row, after[slot] if row == end else None)
        _set_value(loop.carried[slot][1], Row(whole, loop.turns - end, initial[slot]), values)
    values.update(made)  # type: ignore[arg-type]  # what nobody reads is None


def _made(value: Value, values: dict[Value, Sequence[Made]]) -> Made:
    return values[value.node][value.index] if isinstance(value, Pick) else values[value][0]


def _set_value(value: Value, made: Made, values: dict[Value, Sequence[Made]]) -> None:
    node, index = (value.node, value.index) if isinstance(value, Pick) else (value, 0)
    values[node] = [made if i == index else old for i, old in enumerate(values[node])]


def _layout(loop: Loop, source: Source, layout_of: Layout) -> Sharding | None:
    """How an operand is known to lie in every turn."""
    if type(source) is Same:
        return layout_of(loop.same[source.slot])
    if type(source) is Rows:
        known = set(map(layout_of, loop.rows[source.slot]))
    else:
        place, index = loop.carried[source.slot][0] if type(source) is Carried else source
        node = loop.node(0, place)
        known = {layout_of(node if len(node.entry.metas) == 1 else Pick(node, index))}
        if type(source) is Carried:
            known.add(layout_of(loop.carried[source.slot][1]))
    return known.pop() if len(known) == 1 else None


def _like(array: jax.Array, other: jax.Array) -> jax.Array:
    return array.astype(other.dtype)


def _set(buffer: jax.Array, row: jax.Array, at: jax.Array | int) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(buffer, row, at, 0)


def _empty(loop: Loop, where: Result, *rows: int) -> jax.Array:
    """What the loop writes a result of each turn into."""
    place, index = where
    entry = loop.node(0, place).entry
    struct = entry.metas[index].struct
    array = jnp.zeros((*rows, *struct.shape), struct.dtype)
    if entry.sharding is None or len(entry.metas) > 1 or entry.sharding.padded_shape(struct.shape) != struct.shape:
        return array
    return constrain(array, entry.sharding.with_spec((*((),) * len(rows), *entry.sharding.spec), entry.sharding.memory))

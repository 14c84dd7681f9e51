"""Ops with a body: a scan over rows, a loop that ends by itself, branches. What a body computes is a `Region`.

A scan's operands are its constants, its carry as it begins, and rows; the body reads (constants, carry, a row of each)
and makes (carry, a row of each result). Rows come in one of two ways: as one operand with a dim in front, or as an
operand for each turn, as the weights of layers do; results leave likewise. Where the operands of all turns are the rows
of a stack, the loop runs over it as it is, and so do the results come out as rows of one.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..ir.graph import Node, Region, Value, walk
from ..ir.meta import Meta, dense_meta
from ..ir.op import Arrays, Columns, Entry, Layouts, Lowering
from ..sharding.constrain import constrain
from ..sharding.value import Sharding
from .lower import Vectors, lower_region
from .rows import Made, Row, find_stretch, joined, plain, rows
from .turns import count_up, first_turn, row_at, with_row

# How a lifted number of the body changes from turn to turn: by so much each time (0: not), or EACH: it is given for
# each turn.
EACH = None
Step = int | None


@dataclass(frozen=True, slots=True)
class Scan(Lowering):
    """A loop of so many turns.

    body: its leaves are the constants, the carry, and a row of each x; its roots the carry and a row of each y.
    xs: for each x whether its rows are one operand, [turns, ...], instead of an operand per turn. ys: the same of the
    results, which follow the carry. reverse: the last rows come first. steps: of each lifted number of the body, in the
    order of its nodes; the op has one for each, or `turns` of them for EACH.
    """

    body: Region
    turns: int
    num_constants: int
    num_carried: int
    xs: tuple[bool, ...]
    ys: tuple[bool, ...]
    steps: tuple[Step, ...] = ()
    reverse: bool = False

    def with_steps(self, steps: tuple[Step, ...]) -> "Scan":
        """The same with other numbers."""
        return dataclasses.replace(self, steps=steps)

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.body,)

    @property
    def opaque(self) -> bool:
        return is_opaque(self.regions)

    @property
    def takes_rows(self) -> bool:
        return True

    @property
    def columns(self) -> Columns:
        operands = _runs(self.num_constants + self.num_carried, self.xs, self.turns)
        results = _runs(self.num_carried, self.ys, self.turns)
        return Columns(
            [run for run, is_whole in zip(operands, self.xs, strict=True) if not is_whole],
            [run for run, is_whole in zip(results, self.ys, strict=True) if not is_whole],
        )

    def lower(self, op: Entry, operands: Sequence[Made], numbers: Arrays, layouts: Layouts) -> tuple[Any, ...]:
        fixed = self.num_constants + self.num_carried
        before = list(map(plain, operands[:fixed]))
        constants, carry = before[: self.num_constants], before[self.num_constants :]
        rows, row_layouts = self._rows(operands, layouts)
        leaf_layouts = [*layouts[:fixed], *row_layouts]

        floats, integers = (
            _numbers_by_turn(vector, steps, self.turns)
            for vector, steps in zip(numbers, split_steps(self.body.nodes, self.steps), strict=True)
        )

        def turn(state: Any) -> Any:
            number, carry, buffers = state
            at = self.turns - 1 - number if self.reverse else number
            row = [row_at(array, at) for array in rows]
            own = row_at(floats, at), row_at(integers, at)
            made = lower_region(self.body, 0, [*constants, *carry, *row], own, leaf_layouts)
            ys = zip(buffers, made[self.num_carried :], strict=True)
            return number + 1, _strong(made[: self.num_carried]), [with_row(buffer, y, at) for buffer, y in ys]

        structs = [root.meta.struct for root in self.body.roots[self.num_carried :]]
        buffers = [jnp.zeros((self.turns, *struct.shape), struct.dtype) for struct in structs]
        _, last, stacks = count_up(self.turns, turn, (first_turn(), _strong(carry), buffers))
        return (*last, *self._results(stacks))

    def draws(self, op: Entry) -> Sequence[tuple[int, int]]:
        starts, start = [], 0
        for step in self.steps:
            starts.append(start)
            start += self.turns if step is EACH else 1
        counts = [self.turns if step is EACH else 1 for step in self.steps]
        return [
            (starts[seed] + turn % counts[seed], starts[count] + turn % counts[count])
            for seed, count in draws_in(self.body.nodes)
            for turn in range(max(counts[seed], counts[count]))
        ]

    def _rows(self, operands: Sequence[Made], layouts: Layouts) -> tuple[list[jax.Array], list[Sharding | None]]:
        """The rows of each x as one array, and how one row is known to lie."""
        found: list[jax.Array] = []
        row_layouts: list[Sharding | None] = []
        runs = _runs(self.num_constants + self.num_carried, self.xs, self.turns)
        for run, is_whole in zip(runs, self.xs, strict=True):
            if is_whole:
                found.append(plain(operands[run.start]))
                row_layouts.append(None)
            else:
                stack, layout = stacked(operands[run.start : run.stop], layouts[run.start : run.stop])
                found.append(stack)
                row_layouts.append(layout)
        return found, row_layouts

    def _results(self, stacks: Sequence[jax.Array]) -> Iterator[Made]:
        roots = self.body.roots[self.num_carried :]
        for stack, is_whole, root in zip(stacks, self.ys, roots, strict=True):
            # A row that is annotated in the body: the stack of them lies so, too.
            asked = root.entry.sharding if isinstance(root, Node) and not root.entry.lowering.regions else None
            laid = stack if asked is None else constrain(stack, asked.behind_rows())
            if is_whole:
                yield laid
            else:
                yield from (Row(laid, i) for i in range(self.turns))


def scan_entry(name: str, scan: Scan, operands: Sequence[Meta], *, statics: str = "") -> Entry:
    """The op of a scan over operands like these; `lower` says in which order they come.

    ValueError where the body does not carry on what it is given, or is given rows of another kind.
    """
    body, turns = scan.body, scan.turns
    fixed = scan.num_constants + scan.num_carried
    given = [meta.struct for meta in operands[:fixed]]
    for run, is_whole in zip(_runs(fixed, scan.xs, turns), scan.xs, strict=True):
        meta = operands[run.start]
        given.append(jax.ShapeDtypeStruct(meta.shape[1:], meta.struct.dtype) if is_whole else meta.struct)
    expected = [leaf.meta.struct for leaf in body.leaves]
    if given != expected:
        raise ValueError(f"{name}: the body takes {expected}, the operands give {given}")
    carried = [root.meta.struct for root in body.roots[: scan.num_carried]]
    if carried != expected[scan.num_constants : fixed]:
        raise ValueError(f"{name}: the carry goes in as {expected[scan.num_constants : fixed]}, out as {carried}")
    metas = [dense_meta(root.meta.shape, root.meta.dtype) for root in body.roots]
    results = metas[: scan.num_carried]
    for meta, is_whole in zip(metas[scan.num_carried :], scan.ys, strict=True):
        results += [dense_meta((turns, *meta.shape), meta.dtype)] if is_whole else [meta] * turns
    kinds = _kinds(body.nodes)
    counts = [turns if step is EACH else 1 for step in scan.steps]
    numbers = "".join(kind * count for kind, count in zip(kinds, counts, strict=True))
    return Entry.of(
        name, scan, tuple(results), tuple(operands), numbers=numbers, statics=statics or f"{turns} turns",
        sharding=mesh_in(scan.regions),
    )  # fmt: skip


def _runs(start: int, are_whole: Sequence[bool], turns: int) -> Iterator[range]:
    """The places of the operands, or results, that are each x, or y: one, or one for each turn."""
    for is_whole in are_whole:
        run = range(start, start + (1 if is_whole else turns))
        yield run
        start = run.stop


@dataclass(frozen=True, slots=True)
class While(Lowering):
    """A loop that goes on for as long as a condition says.

    Both regions are given the constants and the carry; the condition makes one bool, the body the next carry. steps: as
    in `Scan`, without EACH, of the condition's lifted numbers and then the body's.
    """

    condition: Region
    body: Region
    num_constants: int
    steps: tuple[int, ...]

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.condition, self.body)

    @property
    def opaque(self) -> bool:
        return is_opaque(self.regions)

    def draws(self, op: Entry) -> Sequence[tuple[int, int]]:
        return ()  # their keys are of this loop alone

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        constants, carry = operands[: self.num_constants], operands[self.num_constants :]
        steps = split_steps([*self.condition.nodes, *self.body.nodes], self.steps)
        start = _strong([jnp.zeros((), np.int64), *carry])

        def run(index: int, turn: jax.Array, carry: Arrays) -> list[jax.Array]:
            now = [
                vector + np.array(step, vector.dtype) * turn.astype(vector.dtype) if any(step) else vector
                for vector, step in zip(numbers, steps, strict=True)
            ]
            own = _parts(now, self.regions)[index]
            return lower_region(self.regions[index], index, [*constants, *carry], own, layouts)

        def goes_on(state: Arrays) -> jax.Array:
            (made,) = run(0, state[0], state[1:])
            return made.reshape(())

        def turn(state: Arrays) -> list[jax.Array]:
            return _strong([state[0] + 1, *run(1, state[0], state[1:])])

        return tuple(jax.lax.while_loop(goes_on, turn, start)[1:])


@dataclass(frozen=True, slots=True)
class Branches(Lowering):
    """One of two regions, by the first operand; both are given the others and make results of the same kinds."""

    if_true: Region
    if_false: Region

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.if_true, self.if_false)

    @property
    def opaque(self) -> bool:
        return is_opaque(self.regions)

    def draws(self, op: Entry) -> Sequence[tuple[int, int]]:
        return draws_in([*self.if_true.nodes, *self.if_false.nodes])

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        parts = _parts(numbers, self.regions)

        def branch(index: int) -> Callable[..., list[jax.Array]]:
            return lambda *given: _strong(lower_region(self.regions[index], index, given, parts[index], layouts[1:]))

        return tuple(jax.lax.cond(operands[0].reshape(()), branch(0), branch(1), *operands[1:]))


def region_entry(name: str, lowering: While | Branches, operands: Sequence[Meta], roots: Sequence[Value]) -> Entry:
    """The op of a loop or of branches that make values like these."""
    nodes = [node for region in lowering.regions for node in region.nodes]
    metas = tuple(dense_meta(root.meta.shape, root.meta.dtype) for root in roots)
    return Entry.of(name, lowering, metas, tuple(operands), numbers=_kinds(nodes), sharding=mesh_in(lowering.regions))


# --- what several kinds share -----------------------------------------------------------------------------------------


def is_opaque(regions: Sequence[Region]) -> bool:
    """See `Lowering.opaque`."""
    return any(node.entry.lowering.opaque for region in regions for node in region.nodes)


def mesh_in(regions: Sequence[Region]) -> Sharding | None:
    """The mesh that a body's annotations name first, replicated over it: an op with a body has it for its own."""
    for region in regions:
        for node in walk(region.nodes):
            if node.entry.sharding is not None:
                return node.entry.sharding.replicated()
    return None


_ANNOTATIONS = frozenset({"mark_sharding", "spmd.unmarked", "spmd.gather", "spmd.renew"})


def is_annotation(node: Node) -> bool:
    """Whether an op says nothing but where its operands lie."""
    return node.entry.name in _ANNOTATIONS


def stacked(values: Sequence[Made], layouts: Layouts) -> tuple[jax.Array, Sharding | None]:
    """Values as one array with a row for each, and the layout that all of them are known to have."""
    layout = layouts[0] if all(other is layouts[0] for other in layouts) else None
    found = find_stretch(values)
    if found is not None:
        return rows(found, len(values)), layout
    stack = joined(values)
    return (stack if layout is None else constrain(stack, layout.behind_rows())), layout


def split_steps(nodes: Sequence[Node], steps: Sequence[Step]) -> tuple[list[Step], list[Step]]:
    """The steps of the floats and of the integers."""
    both: dict[str, list[Step]] = {"f": [], "i": []}
    for kind, step in zip(_kinds(nodes), steps, strict=True):
        both[kind].append(step)
    return both["f"], both["i"]


def _kinds(nodes: Sequence[Node]) -> str:
    return "".join(node.entry.numbers for node in nodes)


def draws_in(nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """Where the draws' seeds and counts are among the lifted numbers of a body (see `Lowering.draws`)."""
    found, start = [], 0
    for node in nodes:
        found += [(start + seed, start + count) for seed, count in node.entry.lowering.draws(node.entry)]
        start += len(node.entry.numbers)
    return found


def body_numbers(region: Region) -> list[float | int]:
    """The lifted numbers with which a region was recorded, in the order of its nodes."""
    return [number for node in region.nodes for number in node.numbers]


def _parts(numbers: Sequence[jax.Array], regions: Sequence[Region]) -> list[Vectors]:
    """The lifted numbers of each of the regions, out of all of them one after the other."""
    parts, floats, integers = [], 0, 0
    for region in regions:
        kinds = _kinds(region.nodes)
        to = floats + kinds.count("f"), integers + kinds.count("i")
        parts.append((numbers[0][floats : to[0]], numbers[1][integers : to[1]]))
        floats, integers = to
    return parts


def _numbers_by_turn(vector: jax.Array, steps: Sequence[Step], turns: int) -> jax.Array:
    """[turns, numbers of the body] of the op's own numbers."""
    places = np.zeros((turns, len(steps)), np.int64)
    start = 0
    for column, step in enumerate(steps):
        places[:, column] = start + (np.arange(turns) if step is EACH else 0)
        start += turns if step is EACH else 1
    made = vector[places] if steps else jnp.zeros((turns, 0), vector.dtype)
    if not any(steps):
        return made
    return made + np.array([step or 0 for step in steps], vector.dtype) * np.arange(turns).astype(vector.dtype)[:, None]


def _strong(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """The arrays with types of their own: jax lets that of a Python number give way, which a loop does not."""
    return [jax.lax.convert_element_type(array, array.dtype) for array in arrays]

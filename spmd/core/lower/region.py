"""Ops with a body: a scan over rows, a loop with a condition, branches. The body is a `Region`.

The operands of a scan are its constants, its initial carry, and the xs; the body reads (constants, carry, a row of each
x) and returns (carry, a row of each y). Rows are passed in one of two ways: as one operand with a leading dim, or as an
operand per iteration, as the weights of layers are; results likewise. If the operands of all iterations are the rows of
a stack, the loop runs over the stack itself, and so do its results come out as rows of one.
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
from ..ir.op import Arrays, Columns, Layouts, Lowering, OpSpec
from ..sharding.constrain import constrain
from ..sharding.value import Sharding
from .loop_counter import count_up, first_iteration, row_at, with_row
from .lower import Vectors, lower_region
from .stack_rows import Made, Row, find_stretch, joined, plain, rows

# The increment of a scalar argument of the body per iteration (0: none), or EACH: the op has one for each iteration.
EACH = None
Step = int | None


@dataclass(frozen=True, slots=True)
class Scan(Lowering):
    """A loop with a fixed trip count.

    body: its inputs are the constants, the carry, and a row of each x; its roots the carry and a row of each y. xs: for
    each x whether its rows are one operand, [iterations, ...], instead of an operand per iteration. ys: the same for
    the results, which follow the carry. reverse: the last rows come first. steps: for each scalar argument of the body,
    in the order of its nodes, its increment; the op has one scalar argument for each, or `iterations` of them for EACH.
    """

    body: Region
    iterations: int
    num_constants: int
    num_carried: int
    xs: tuple[bool, ...]
    ys: tuple[bool, ...]
    steps: tuple[Step, ...] = ()
    reverse: bool = False

    def with_steps(self, steps: tuple[Step, ...]) -> "Scan":
        """Returns the same loop with other steps."""
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
        operands = _runs(self.num_constants + self.num_carried, self.xs, self.iterations)
        results = _runs(self.num_carried, self.ys, self.iterations)
        return Columns(
            [run for run, is_stacked in zip(operands, self.xs, strict=True) if not is_stacked],
            [run for run, is_stacked in zip(results, self.ys, strict=True) if not is_stacked],
        )

    def lower(self, op: OpSpec, operands: Sequence[Made], numbers: Arrays, layouts: Layouts) -> tuple[Any, ...]:
        fixed = self.num_constants + self.num_carried
        before = list(map(plain, operands[:fixed]))
        constants, carry = before[: self.num_constants], before[self.num_constants :]
        rows, row_layouts = self._rows(operands, layouts)
        input_layouts = [*layouts[:fixed], *row_layouts]

        floats, integers = (
            _numbers_by_iteration(vector, steps, self.iterations)
            for vector, steps in zip(numbers, split_steps(self.body.nodes, self.steps), strict=True)
        )

        def iteration(state: Any) -> Any:
            number, carry, buffers = state
            at = self.iterations - 1 - number if self.reverse else number
            row = [row_at(array, at) for array in rows]
            own = row_at(floats, at), row_at(integers, at)
            made = lower_region(self.body, 0, [*constants, *carry, *row], own, input_layouts)
            ys = zip(buffers, made[self.num_carried :], strict=True)
            return number + 1, _strong(made[: self.num_carried]), [with_row(buffer, y, at) for buffer, y in ys]

        structs = [root.meta.struct for root in self.body.roots[self.num_carried :]]
        buffers = [jnp.zeros((self.iterations, *struct.shape), struct.dtype) for struct in structs]
        _, last, stacks = count_up(self.iterations, iteration, (first_iteration(), _strong(carry), buffers))
        return (*last, *self._results(stacks))

    def draws(self, op: OpSpec) -> Sequence[tuple[int, int]]:
        starts, start = [], 0
        for step in self.steps:
            starts.append(start)
            start += self.iterations if step is EACH else 1
        counts = [self.iterations if step is EACH else 1 for step in self.steps]
        return [
            (starts[seed] + iteration % counts[seed], starts[count] + iteration % counts[count])
            for seed, count in draws_in(self.body.nodes)
            for iteration in range(max(counts[seed], counts[count]))
        ]

    def _rows(self, operands: Sequence[Made], layouts: Layouts) -> tuple[list[jax.Array], list[Sharding | None]]:
        """Returns the rows of each x as one array, and the known sharding of one row."""
        found: list[jax.Array] = []
        row_layouts: list[Sharding | None] = []
        runs = _runs(self.num_constants + self.num_carried, self.xs, self.iterations)
        for run, is_stacked in zip(runs, self.xs, strict=True):
            if is_stacked:
                found.append(plain(operands[run.start]))
                row_layouts.append(None)
            else:
                stack, layout = stacked(operands[run.start : run.stop], layouts[run.start : run.stop])
                found.append(stack)
                row_layouts.append(layout)
        return found, row_layouts

    def _results(self, stacks: Sequence[jax.Array]) -> Iterator[Made]:
        roots = self.body.roots[self.num_carried :]
        for stack, is_stacked, root in zip(stacks, self.ys, roots, strict=True):
            # An annotation of a row in the body applies to the stack of them, too.
            requested = root.op.sharding if isinstance(root, Node) and not root.op.lowering.regions else None
            resharded = stack if requested is None else constrain(stack, requested.behind_rows())
            if is_stacked:
                yield resharded
            else:
                yield from (Row(resharded, i) for i in range(self.iterations))


def scan_op(name: str, scan: Scan, operands: Sequence[Meta], *, statics: str = "") -> OpSpec:
    """Returns the op of a scan over operands like these, in the order in which `lower` takes them.

    ValueError if the body returns another carry than it is given, or is given rows of another kind.
    """
    body, iterations = scan.body, scan.iterations
    fixed = scan.num_constants + scan.num_carried
    given = [meta.struct for meta in operands[:fixed]]
    for run, is_stacked in zip(_runs(fixed, scan.xs, iterations), scan.xs, strict=True):
        meta = operands[run.start]
        given.append(jax.ShapeDtypeStruct(meta.shape[1:], meta.struct.dtype) if is_stacked else meta.struct)
    expected = [device_data.meta.struct for device_data in body.inputs]
    if given != expected:
        raise ValueError(f"{name}: the body takes {expected}, the operands give {given}")
    carried = [root.meta.struct for root in body.roots[: scan.num_carried]]
    if carried != expected[scan.num_constants : fixed]:
        raise ValueError(f"{name}: the carry goes in as {expected[scan.num_constants : fixed]}, out as {carried}")
    metas = [dense_meta(root.meta.shape, root.meta.dtype) for root in body.roots]
    results = metas[: scan.num_carried]
    for meta, is_stacked in zip(metas[scan.num_carried :], scan.ys, strict=True):
        results += [dense_meta((iterations, *meta.shape), meta.dtype)] if is_stacked else [meta] * iterations
    kinds = _kinds(body.nodes)
    counts = [iterations if step is EACH else 1 for step in scan.steps]
    numbers = "".join(kind * count for kind, count in zip(kinds, counts, strict=True))
    return OpSpec.of(
        name, scan, tuple(results), tuple(operands), numbers=numbers, statics=statics or f"{iterations} turns",
        sharding=mesh_in(scan.regions),
    )  # fmt: skip


def _runs(start: int, are_stacked: Sequence[bool], iterations: int) -> Iterator[range]:
    """Yields the places of the operands of each x, or of the results of each y: one, or one for each iteration."""
    for is_stacked in are_stacked:
        run = range(start, start + (1 if is_stacked else iterations))
        yield run
        start = run.stop


@dataclass(frozen=True, slots=True)
class While(Lowering):
    """A loop that runs as long as a condition holds.

    Both regions take the constants and the carry; the condition returns one bool, the body the next carry. steps: as in
    `Scan`, without EACH, for the condition's scalar arguments and then the body's.
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

    def draws(self, op: OpSpec) -> Sequence[tuple[int, int]]:
        return ()  # the keys belong to this loop alone

    def lower(self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        constants, carry = operands[: self.num_constants], operands[self.num_constants :]
        steps = split_steps([*self.condition.nodes, *self.body.nodes], self.steps)
        start = _strong([jnp.zeros((), np.int64), *carry])

        def run(index: int, iteration: jax.Array, carry: Arrays) -> list[jax.Array]:
            now = [
                vector + np.array(step, vector.dtype) * iteration.astype(vector.dtype) if any(step) else vector
                for vector, step in zip(numbers, steps, strict=True)
            ]
            own = _parts(now, self.regions)[index]
            return lower_region(self.regions[index], index, [*constants, *carry], own, layouts)

        def goes_on(state: Arrays) -> jax.Array:
            (made,) = run(0, state[0], state[1:])
            return made.reshape(())

        def iteration(state: Arrays) -> list[jax.Array]:
            return _strong([state[0] + 1, *run(1, state[0], state[1:])])

        return tuple(jax.lax.while_loop(goes_on, iteration, start)[1:])


@dataclass(frozen=True, slots=True)
class Branches(Lowering):
    """One of two regions, chosen by the first operand; both take the others and return results of the same kinds."""

    if_true: Region
    if_false: Region

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.if_true, self.if_false)

    @property
    def opaque(self) -> bool:
        return is_opaque(self.regions)

    def draws(self, op: OpSpec) -> Sequence[tuple[int, int]]:
        return draws_in([*self.if_true.nodes, *self.if_false.nodes])

    def lower(self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        parts = _parts(numbers, self.regions)

        def branch(index: int) -> Callable[..., list[jax.Array]]:
            return lambda *given: _strong(lower_region(self.regions[index], index, given, parts[index], layouts[1:]))

        return tuple(jax.lax.cond(operands[0].reshape(()), branch(0), branch(1), *operands[1:]))


def region_op(name: str, lowering: While | Branches, operands: Sequence[Meta], roots: Sequence[Value]) -> OpSpec:
    """Returns the op of a loop or of branches with results like these."""
    nodes = [node for region in lowering.regions for node in region.nodes]
    metas = tuple(dense_meta(root.meta.shape, root.meta.dtype) for root in roots)
    return OpSpec.of(name, lowering, metas, tuple(operands), numbers=_kinds(nodes), sharding=mesh_in(lowering.regions))


# --- what several kinds share -----------------------------------------------------------------------------------------


def is_opaque(regions: Sequence[Region]) -> bool:
    """See `Lowering.opaque`."""
    return any(node.op.lowering.opaque for region in regions for node in region.nodes)


def mesh_in(regions: Sequence[Region]) -> Sharding | None:
    """Returns the first mesh that a body's annotations name, replicated over it: the sharding of an op with a body."""
    for region in regions:
        for node in walk(region.nodes):
            if node.op.sharding is not None:
                return node.op.sharding.replicated()
    return None


_ANNOTATIONS = frozenset({"mark_sharding", "spmd.unmarked", "spmd.gather", "spmd.renew"})


def is_annotation(node: Node) -> bool:
    """True if an op states only the shardings of its operands."""
    return node.op.name in _ANNOTATIONS


def stacked(values: Sequence[Made], layouts: Layouts) -> tuple[jax.Array, Sharding | None]:
    """Returns values as one array with a row for each, and the sharding that all of them are known to have."""
    layout = layouts[0] if all(other is layouts[0] for other in layouts) else None
    found = find_stretch(values)
    if found is not None:
        return rows(found, len(values)), layout
    stack = joined(values)
    return (stack if layout is None else constrain(stack, layout.behind_rows())), layout


def split_steps(nodes: Sequence[Node], steps: Sequence[Step]) -> tuple[list[Step], list[Step]]:
    """Returns the steps of the floats and those of the integers."""
    both: dict[str, list[Step]] = {"f": [], "i": []}
    for kind, step in zip(_kinds(nodes), steps, strict=True):
        both[kind].append(step)
    return both["f"], both["i"]


def _kinds(nodes: Sequence[Node]) -> str:
    return "".join(node.op.numbers for node in nodes)


def draws_in(nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """Returns the places of the draws' seeds and counts among the scalar arguments of a body (see `Lowering.draws`)."""
    found, start = [], 0
    for node in nodes:
        found += [(start + seed, start + count) for seed, count in node.op.lowering.draws(node.op)]
        start += len(node.op.numbers)
    return found


def body_numbers(region: Region) -> list[float | int]:
    """Returns the scalar arguments with which a region was recorded, in the order of its nodes."""
    return [number for node in region.nodes for number in node.numbers]


def _parts(numbers: Sequence[jax.Array], regions: Sequence[Region]) -> list[Vectors]:
    """Returns the scalar arguments of each of the regions, out of those of all in order."""
    parts, floats, integers = [], 0, 0
    for region in regions:
        kinds = _kinds(region.nodes)
        to = floats + kinds.count("f"), integers + kinds.count("i")
        parts.append((numbers[0][floats : to[0]], numbers[1][integers : to[1]]))
        floats, integers = to
    return parts


def _numbers_by_iteration(vector: jax.Array, steps: Sequence[Step], iterations: int) -> jax.Array:
    """Returns the scalar arguments of the body, [iterations, number of them], from those of the op."""
    places = np.zeros((iterations, len(steps)), np.int64)
    start = 0
    for column, step in enumerate(steps):
        places[:, column] = start + (np.arange(iterations) if step is EACH else 0)
        start += iterations if step is EACH else 1
    made = vector[places] if steps else jnp.zeros((iterations, 0), vector.dtype)
    if not any(steps):
        return made
    return (
        made
        + np.array([step or 0 for step in steps], vector.dtype) * np.arange(iterations).astype(vector.dtype)[:, None]
    )


def _strong(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Returns the arrays with strong types: jax may change the weak type of a Python number, which a loop does not
    allow."""
    return [jax.lax.convert_element_type(array, array.dtype) for array in arrays]

"""A loop as one op: a body (`Region`), and how each value passes from iteration to iteration.

The operands are the constants, the initial carry, the xs, and rows of ys that are computed before
the loop. The body reads (constants, carry, a row of each x) and returns (carry, last values, a row
of each y); of a last value, later ops read the last iteration's alone. Rows are passed in one of
two ways: as one operand with a leading dim, or as an operand per row, as the weights of layers are;
results likewise. Where the operands of all iterations are rows of one array, the loop reads that
array itself, and its results come out as rows of one.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...ops import sharded
from ..graph.graph import Node, Region, Value, origin
from ..graph.meta import Meta, dense_meta
from ..graph.op import Arrays, Layouts, Lowering, OpSpec, draws_in, draws_of
from ..graph.stacked import read_row, write_row
from ..lower.lower import FOUND_LOOP, SHARDED_AS, Vectors, lower_region
from ..lower.region import kinds_of, mesh_in, split_steps, strong
from ..lower.stack_rows import (
    ANY_MEMORY,
    TAKE_ROWS,
    Made,
    Stacked,
    StackRow,
    as_rows,
    plain,
    rows_on_device,
)
from ..sharding.constrain import constrain, in_memory, on_device, space_of
from ..sharding.value import DEVICE, HOST, Sharding
from .loop_counter import EACH, Step, by_iteration, count_up


@dataclass(frozen=True, slots=True)
class Y:
    """A result of the body, a row per iteration.

    is_stack: one result, [iterations, ...], instead of one per row. Else the stack may have more
    rows, for values from outside: `first` of them before those of the iterations, and `after`
    behind. Operands of the loop fill the rows `filled`, later ops the others (`PutRow`). has_end:
    the y is a value of the carry as each iteration receives it; the row before or behind is for its
    last value. over: the x whose rows are replaced.
    """

    is_stack: bool = False
    first: int = 0
    after: int = 0
    filled: tuple[int, ...] = ()
    has_end: bool = False
    over: int | None = None

    def rows_of(self, iterations: int) -> list[int]:
        """Returns the rows of the stack that are results of the loop, in order."""
        end = [self.end_of(iterations)] if self.has_end else []
        return sorted([*range(self.first, self.first + iterations), *self.filled, *end])

    def end_of(self, iterations: int) -> int:
        """Returns the row of the last value of the carry."""
        return 0 if self.first else iterations


_GATHERED = "the stack {shape} of a scan is gathered over {{axes}}, as each iteration reads one row"


@dataclass(frozen=True, slots=True)
class Loop(Lowering):
    """A loop whose trip count is `iterations`.

    body: its inputs are the constants, the carry, and a row of each x; its roots the carry,
    `num_last` results and a row of each y. xs: for each x whether its rows are one operand,
    [iterations, ...], instead of an operand per row. steps: for each scalar argument of the body,
    in the order of its nodes, its increment; the op has one scalar argument for each, or
    `iterations` of them for EACH. reverse: the last rows come first.
    """

    body: Region
    iterations: int
    num_constants: int
    num_carried: int
    xs: tuple[bool, ...]
    ys: tuple[Y, ...]
    steps: tuple[Step, ...] = ()
    reverse: bool = False
    num_last: int = 0

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.body,)

    @property
    def num_before_xs(self) -> int:
        return self.num_constants + self.num_carried

    def rows(self) -> tuple[list[range], list[range]]:
        """Returns the operands and the results that are one per iteration: each range is a stack
        group, by row."""
        return (
            [
                run
                for run, is_stacked in zip(self.operand_runs(), self.xs, strict=True)
                if not is_stacked
            ],
            [run for run, y in zip(self.result_runs(), self.ys, strict=True) if not y.is_stack],
        )

    def operand_runs(self) -> Iterator[range]:
        """Yields the indices of the operands of each x: one, or one per row."""
        start = self.num_before_xs
        for is_stacked in self.xs:
            yield range(start, start := start + (1 if is_stacked else self.iterations))

    def result_runs(self) -> Iterator[range]:
        """Yields the indices of the results of each y: one, or one per row."""
        start = self.num_carried + self.num_last
        for y in self.ys:
            yield range(
                start, start := start + (1 if y.is_stack else len(y.rows_of(self.iterations)))
            )

    def lower(
        self, op: OpSpec, operands: Sequence[Made], numbers: Arrays, layouts: Layouts
    ) -> tuple[Any, ...]:
        for run in itertools.compress(self.operand_runs(), self.xs):
            stack = plain(operands[run.start])
            sentence, axes = _GATHERED.format(shape=[*stack.shape]), sharded.axes_at(stack, 0)
            sharded.note_unused(sentence, sharded.mesh(), axes)
        trace = Trace.of(self, operands, numbers, layouts)
        return (
            trace.in_one()
            if self._is_elementwise() and not trace.is_from_host()
            else trace.in_iterations()
        )

    def root_of(self, index: int) -> Value:
        """Returns the body's root that makes a result of the loop. A y may collect the incoming
        carry, an input of the body: its rows are made by the root of the next carry."""
        num_single = self.num_carried + self.num_last
        root_index = index
        if index >= num_single:
            root_index = next(
                num_single + y_index
                for y_index, run in enumerate(self.result_runs())
                if index in run
            )
        root = self.body.roots[root_index]
        carried = self.body.inputs[self.num_constants : self.num_before_xs]
        return self.body.roots[carried.index(root)] if root in carried else root

    def replaced(
        self, operands: Sequence[Made], results: Sequence[Made]
    ) -> Iterator[tuple[jax.Array, jax.Array, set[int]]]:
        """Yields the stacks on the host that are written in place: before, after, and the rows
        written."""
        xs = list(self.operand_runs())
        for y, run in zip(self.ys, self.result_runs(), strict=True):
            rows = [row for row in results[run.start : run.stop] if isinstance(row, StackRow)]
            if y.over is None or not rows or space_of(rows[0].stack) != HOST:
                continue
            old = operands[xs[y.over].start]
            if isinstance(old, StackRow) and old.stack.shape == rows[0].stack.shape:
                yield old.stack, rows[0].stack, {row.index for row in rows}

    def memory_of(self, root: Value) -> str:
        """Returns the memory of a root of the body. A carry has the memory of its next value, found
        through carries that only change places."""
        carried = self.body.inputs[self.num_constants : self.num_before_xs]
        # A carry may take another one's place in each iteration: followed at most once through all.
        for _ in carried:
            root = self.body.roots[carried.index(root)] if root in carried else root
        maker = origin(root)
        return DEVICE if maker is None else maker.op.memory

    def _is_elementwise(self) -> bool:
        """True if the iterations are independent, as an optimizer's are, and no op's results are
        larger than its operands."""
        return not self.num_carried and all(
            node.op.sharding is None
            and node.op.memory == DEVICE
            and not node.op.lowering.regions
            and not node.op.is_opaque
            and all(
                meta.shape in ((), *(operand.shape for operand in node.op.operands))
                for meta in node.op.metas
            )
            and len({operand.shape for operand in node.op.operands if operand.shape}) == 1
            for node in self.body.nodes
        )


# The number of iterations so far, the carry, the last values, the stacks that are written.
_State = tuple[jax.Array, list[jax.Array], list[jax.Array], list[jax.Array]]


@dataclass(slots=True)
class Trace:
    """A loop while it is lowered.

    layouts: the known shardings of the body's inputs. tables: the scalar arguments of the body, the
    floats and the integers: [iterations, number of them].
    """

    loop: Loop
    constants: list[jax.Array]
    carry: list[jax.Array]
    xs: list[Stacked]
    filled: list[Made]
    layouts: list[Sharding | None]
    tables: tuple[jax.Array, jax.Array]

    @staticmethod
    def of(loop: Loop, operands: Sequence[Made], numbers: Arrays, layouts: Layouts) -> "Trace":
        """Returns the trace of a loop: constants and carry as arrays, xs as rows of one array each,
        scalar arguments by iteration."""
        carry = list(map(plain, operands[loop.num_constants : loop.num_before_xs]))
        # Constants are taken to the device once, before the loop.
        constant_operands = list(map(plain, operands[: loop.num_constants]))
        constants = list(
            map(plain, rows_on_device(constant_operands, layouts[: loop.num_constants]))
        )
        xs, row_layouts, fill_start = list[Stacked](), list[Sharding | None](), loop.num_before_xs
        # Each x as the rows of one array, in the sharding that all of its rows have.
        for run, is_stacked in zip(loop.operand_runs(), loop.xs, strict=True):
            fill_start = run.stop
            if is_stacked:
                stack = plain(operands[run.start])
                xs.append(Stacked(on_device(stack), range(loop.iterations)))
                row_layouts.append(None)
                continue
            row_shardings = layouts[run.start : run.stop]
            layout = (
                row_shardings[0]
                if all(sharding is row_shardings[0] for sharding in row_shardings)
                else None
            )
            xs.append(as_rows(operands[run.start : run.stop], layout))
            row_layouts.append(layout)
        steps = split_steps(loop.body.nodes, loop.steps)
        floats, integers = (
            by_iteration(*pair, loop.iterations) for pair in zip(numbers, steps, strict=True)
        )
        # The initial carry, in the memory of its next values: the first roots of the body.
        initial_carry = [
            in_memory(array, loop.memory_of(root))
            for array, root in zip(strong(carry), loop.body.roots, strict=False)
        ]
        body_layouts = [*layouts[: loop.num_before_xs], *row_layouts]
        return Trace(
            loop,
            constants,
            initial_carry,
            xs,
            list(operands[fill_start:]),
            body_layouts,
            (floats, integers),
        )

    def lowered(self, numbers: Vectors, carry: Arrays, rows: Arrays) -> list[jax.Array]:
        """Returns the roots of one iteration, lowered for a carry and a row of each x."""
        return lower_region(
            self.loop.body, 0, [*self.constants, *carry, *rows], numbers, self.layouts
        )

    # --- an iteration after the other -------------------------------------------------------------

    def in_iterations(self) -> tuple[Made, ...]:
        """Lowers the loop as a loop of the program.

        A stack on the host is never on the device as a whole: an iteration fetches its row, and
        writes the result over it.
        """
        loop, num_carried, ys_start = (
            self.loop,
            self.loop.num_carried,
            self.loop.num_carried + self.loop.num_last,
        )
        # The roots: carry [:num_carried], last values [num_carried:ys_start], y rows [ys_start:].
        roots, is_from_host, (floats, integers) = loop.body.roots, self.is_from_host(), self.tables
        # By the index of a y, the x on the host whose rows it is written over.
        x_of_y = {
            y_index: y.over
            for y_index, y in enumerate(loop.ys)
            if is_from_host and y.over is not None
        }
        # The ys whose stacks jax.lax.scan makes on the host.
        ys_on_host = [
            y_index
            for y_index, y in enumerate(loop.ys)
            if loop.memory_of(roots[ys_start + y_index]) == HOST and not y.is_stack
        ]
        ys_on_device = [
            y_index
            for y_index in range(len(loop.ys))
            if y_index not in ys_on_host and y_index not in x_of_y
        ]

        def iteration(state: _State, _: None) -> tuple[_State, list[jax.Array]]:
            """One iteration: reads a row of each x, runs the body, and writes a row of each stack
            that is written in place."""
            iteration_number, carry, last, arrays = state
            row = loop.iterations - 1 - iteration_number if loop.reverse else iteration_number
            targets = [
                target._replace(array=array)
                for target, array in zip(written.values(), arrays, strict=True)
            ]
            # An x that a y is written over is read from the stack as written so far; `targets` has
            # these first.
            current = dict(enumerate(self.xs)) | dict(zip(x_of_y.values(), targets, strict=False))
            x_rows = [x.read(row) for x in current.values()]
            if is_from_host:
                x_rows = list(
                    map(plain, rows_on_device(x_rows, self.layouts[loop.num_constants :]))
                )
            body_roots = self.lowered(
                (read_row(floats, row), read_row(integers, row)), carry, x_rows
            )
            next_carry = [
                _like(new, old) for new, old in zip(body_roots[:num_carried], carry, strict=True)
            ]
            last = [
                _like(new, old)
                for new, old in zip(body_roots[num_carried:ys_start], last, strict=True)
            ]
            arrays = [
                target.write(in_memory(body_roots[ys_start + y_index], space_of(target.array)), row)
                for y_index, target in zip(written, targets, strict=True)
            ]
            return (iteration_number + 1, next_carry, last, arrays), [
                body_roots[ys_start + y_index] for y_index in ys_on_host
            ]

        last = [
            in_memory(_empty(root), loop.memory_of(root)) for root in roots[num_carried:ys_start]
        ]
        iteration_number = jnp.zeros((), np.int32)
        written = {y_index: self.xs[slot] for y_index, slot in x_of_y.items()} | {
            y_index: self._buffer(y_index) for y_index in ys_on_device
        }
        state = iteration_number, self.carry, last, [target.array for target in written.values()]
        if ys_on_host:  # By jax.lax.scan: a buffer made here would be on the device first.
            state, stacks = jax.lax.scan(
                iteration, state, length=loop.iterations, reverse=loop.reverse
            )
        else:
            state, stacks = (
                count_up(loop.iterations, lambda state: iteration(state, None)[0], state),
                [],
            )
        _, carry, last, arrays = state
        stack_of = dict(zip((*written, *ys_on_host), (*arrays, *stacks), strict=True))
        ys = [
            self._results_over(y_index, stack, self.xs[x_of_y[y_index]])
            if y_index in x_of_y
            else self.results(y_index, stack, carry)
            for y_index, stack in sorted(stack_of.items())
        ]
        return (*carry, *last, *itertools.chain.from_iterable(ys))

    def _buffer(self, y_index: int) -> Stacked:
        """Returns the stack of a y before the first iteration, and the rows of the iterations in
        it."""
        y = self.loop.ys[y_index]
        root = self.loop.body.roots[self.loop.num_carried + self.loop.num_last + y_index]
        stack = _empty(root, y.first + self.loop.iterations + y.after)
        stack = self.with_peeled(y_index, stack)
        return Stacked(stack, range(y.first, y.first + self.loop.iterations))

    def with_peeled(self, y_index: int, stack: jax.Array) -> jax.Array:
        """Returns the stack of a y with the operands of the loop that fill rows of it."""
        for row, value in self._peeled_operands(y_index).items():
            stack = write_row(stack, plain(value), row)
        return stack

    def _peeled_operands(self, y_index: int) -> dict[int, Made]:
        """Returns the operands that fill rows of the stack of a y, by row."""
        start = sum(len(y.filled) for y in self.loop.ys[:y_index])
        return dict(zip(self.loop.ys[y_index].filled, self.filled[start:], strict=False))

    def results(
        self, y_index: int, stack: jax.Array, final_carry: Sequence[jax.Array]
    ) -> list[Made]:
        """Returns the results of a y from its stack and the carry behind the last iteration."""
        loop = self.loop
        y, root = loop.ys[y_index], loop.body.roots[loop.num_carried + loop.num_last + y_index]
        carried = loop.body.inputs[loop.num_constants : loop.num_before_xs]
        value_of_row = self._peeled_operands(y_index)
        # A y that is the carry as each iteration receives it: the row of the first iteration is the
        # initial carry, and the end row, which no iteration writes, is the final one.
        if root in carried:
            slot = carried.index(root)
            value_of_row[y.first + (loop.iterations - 1 if loop.reverse else 0)] = self.carry[slot]
            if y.has_end:
                value_of_row[y.end_of(loop.iterations)] = final_carry[slot]
                stack = write_row(stack, final_carry[slot], y.end_of(loop.iterations))
        if y.is_stack:
            # An annotation of a row in the body applies to the stack of them, too.
            requested = _requested_sharding(root)
            return [stack if requested is None else constrain(stack, requested.behind_rows())]
        return [
            StackRow(stack, row, plain(value_of_row[row]) if row in value_of_row else None)
            for row in y.rows_of(loop.iterations)
        ]

    def _results_over(self, y_index: int, stack: jax.Array, rows: Stacked) -> list[Made]:
        """Returns the results of a y: the iterations' are `rows` of `stack`, the peeled rows are
        operands of the loop."""
        y = self.loop.ys[y_index]
        by_row: dict[int, Made] = {
            y.first + number: StackRow(stack, row) for number, row in enumerate(rows.rows)
        }
        by_row |= self._peeled_operands(y_index)
        return [by_row[row] for row in sorted(by_row)]

    # --- all at once, or a row at a time ----------------------------------------------------------

    def in_one(self) -> tuple[Made, ...]:
        """Computes all iterations at once (`jax.vmap`): they are independent, and their results no
        larger than their operands."""
        loop = self.loop
        arrays = [x.alone() for x in self.xs]
        roots = jax.vmap(lambda numbers, read: self.lowered(numbers, (), read))(self.tables, arrays)
        last = [
            read_row(array, 0 if loop.reverse else loop.iterations - 1)
            for array in roots[: loop.num_last]
        ]
        ys: list[Made] = []
        for y_index, array in enumerate(roots[loop.num_last :]):
            ys += (
                [array]
                if loop.ys[y_index].is_stack
                else self._results_over(y_index, array, Stacked(array, range(loop.iterations)))
            )
        return (*last, *ys)

    def is_from_host(self) -> bool:
        """True if independent iterations read rows of stacks on the host, as those of an offloaded
        optimizer do."""
        is_on_host = any(space_of(x.array) == HOST for x in self.xs)
        if not is_on_host or self.carry or any(y.is_stack for y in self.loop.ys):
            return False
        return all(self.loop.memory_of(root) == DEVICE for root in self.loop.body.roots)


TAKE_ROWS.add(Loop)
ANY_MEMORY.add(Loop)


@draws_of.register
def _draws(lowering: Loop, op: OpSpec) -> Sequence[tuple[int, int]]:
    """`OpSpec.draws` of a loop: a row for each draw and iteration."""
    # For each scalar argument of the body: its first index among those of the loop, and its number
    # of values there.
    starts, sizes, start = [], [], 0
    for step in lowering.steps:
        starts.append(start)
        sizes.append(lowering.iterations if step is EACH else 1)
        # A tuple holds the integers of the iterations: the op has no scalar argument for them.
        start += 0 if isinstance(step, tuple) else sizes[-1]
    return [
        (starts[seed] + iteration % sizes[seed], starts[count] + iteration % sizes[count])
        for seed, count in draws_in(lowering.body.nodes)
        for iteration in range(max(sizes[seed], sizes[count]))
    ]


SHARDED_AS[FOUND_LOOP] = lambda node, index: node.op.lowering.root_of(index)  # type: ignore[attr-defined]


def loop_op(name: str, loop: Loop, operands: Sequence[Meta], *, statics: str = "") -> OpSpec:
    """Returns the op of a loop over operands like these, in the order in which `lower` takes them.

    Raises ValueError if the operands do not fit the body's inputs, or its carry changes in kind.
    """
    body, iterations = loop.body, loop.iterations
    # The operands of the body: the constants, the carry, a row of each x.
    operand_structs = [meta.struct for meta in operands[: loop.num_before_xs]]
    for run, is_stacked in zip(loop.operand_runs(), loop.xs, strict=True):
        meta = operands[run.start]
        operand_structs.append(
            jax.ShapeDtypeStruct(meta.shape[1:], meta.struct.dtype) if is_stacked else meta.struct
        )
    expected = [device_data.meta.struct for device_data in body.inputs]
    if operand_structs != expected:
        raise ValueError(f"{name}: the body takes {expected}, the operands give {operand_structs}")
    carried = [root.meta.struct for root in body.roots[: loop.num_carried]]
    if carried != expected[loop.num_constants : loop.num_before_xs]:
        raise ValueError(
            f"{name}: the carry goes in as {expected[loop.num_constants : loop.num_before_xs]}, "
            f"out as {carried}"
        )
    # The results of the loop: the carry, the last values, for each y a stack or its rows.
    metas = [dense_meta(root.meta.shape, root.meta.dtype) for root in body.roots]
    num_single = loop.num_carried + loop.num_last
    results = metas[:num_single]
    for meta, y in zip(metas[num_single:], loop.ys, strict=True):
        stack = dense_meta((iterations, *meta.shape), meta.dtype)
        results += [stack] if y.is_stack else [meta] * len(y.rows_of(iterations))
    steps = zip(kinds_of(body.nodes), loop.steps, strict=True)
    numbers = "".join(
        kind * (iterations if step is EACH else 1)
        for kind, step in steps
        if not isinstance(step, tuple)
    )
    return OpSpec.of(
        name,
        loop,
        tuple(results),
        tuple(operands),
        numbers=numbers,
        statics=statics or f"{iterations} iterations",
        sharding=mesh_in(loop.regions),
    )


def _requested_sharding(root: Value) -> Sharding | None:
    """Returns the annotated sharding of a root of a body, or None."""
    # The sharding of an op with regions is the mesh of its body (see `called_op`).
    return root.op.sharding if isinstance(root, Node) and not root.op.lowering.regions else None


def _like(array: jax.Array, former: jax.Array) -> jax.Array:
    """Returns a carried value in the dtype, the strong type and the memory of its value before."""
    return in_memory(jax.lax.convert_element_type(array, former.dtype), space_of(former))


def _empty(root: Value, *rows: int) -> jax.Array:
    """Returns the zeros of a root's shape, with leading dims `rows`, that the loop writes over."""
    struct = root.meta.struct
    array = jnp.zeros((*rows, *struct.shape), struct.dtype)
    requested = _requested_sharding(root)
    is_single = isinstance(root, Node) and len(root.op.metas) == 1
    if requested is None or not is_single or requested.padded_shape(struct.shape) != struct.shape:
        return array
    return constrain(array, requested.behind_rows() if rows else requested)

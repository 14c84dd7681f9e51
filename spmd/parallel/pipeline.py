"""A loop over layers whose weights lie on the stages of a pipeline: micro-batches pass from stage
to stage, each device computes with the layers that it has.

Every device runs its layers on one micro-batch a tick and sends the result to the next stage
(GPipe: Huang et al. 2019, arXiv:1811.06965); backward is the same loop in the other direction. In
the first and last ticks a stage has no micro-batch yet or any more. Gradients of weights are summed
on the device over the ticks, and over the data axes once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from ..core import Sharding, held, topology
from ..core.extend import (
    Arrays,
    Layouts,
    Loop,
    LoopTrace,
    Lowering,
    OpSpec,
    Region,
    Value,
    constrain,
    floats,
    loop_counter,
    lowering,
    partitioning,
    rules,
    stack_rows,
    user_lines,
    walks,
)
from ..loops.shard_collectives import Group, all_reduce, permute, reduce_scatter
from .micro_batches import SUM, Divided, NotDividedError, State, divide

Axes = tuple[str, ...]
# Between a gradient's sum over the batch and the root of a layer.
_PASSED_ON = frozenset({"mark_sharding", "aten._to_copy", "aten.view"})
# Without a count of the user's, so many micro-batches a stage: a fifth of the ticks are bubbles.
_PER_STAGE = 4


@dataclass(frozen=True, slots=True)
class Pipeline(Lowering):
    """A loop whose iterations are split over the axes `stages` of a mesh, as the rows of the x
    `split` are. micro_batches: of each device's rows of the batch, at most; None: four a stage."""

    loop: Loop
    mesh: Sharding
    stages: Axes
    split: int
    micro_batches: int | None

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.loop.body,)

    def lower(
        self, op: OpSpec, operands: Sequence[Any], numbers: Arrays, layouts: Layouts
    ) -> tuple[Any, ...]:
        trace = LoopTrace.of(self.loop, operands, numbers, layouts)
        try:
            if not self.loop.num_carried:
                raise NotDividedError(None, "pass nothing from layer to layer")
            batch = operands[self.loop.num_constants]
            of_batch = partitioning.axes_of_dims((batch, 0))
            mesh, (known, *_) = of_batch or (None, [()])

            def in_order(carry: Sequence[jax.Array]) -> list[jax.Array]:
                """Returns a carry in the order of axes that the batch has: else the partitioner may
                reorder what it is made of, or what is made of it, all logits say."""
                if not known or mesh is None:
                    return list(carry)
                return [partitioning.placed(x, mesh, known) for x in carry]

            trace.carry = in_order(trace.carry)
            schedule = _Schedule.of(self, trace, known)
            partitioning.note_finding(schedule.in_words(), "schedule")
            results = schedule.lowered()
        except NotDividedError as error:
            node = error.node
            blamed = "they" if node is None else f"{node.op.name} at {user_lines.node_line(node)}"
            raise lowering.LoweringError(
                f"the layers are split over {' x '.join(map(repr, self.stages))}, and cannot run "
                f"on a part of the batch: {blamed} {error}; use equal layers that compute each row "
                "of the batch by itself, or shard their weights over another axis",
                node,
            ) from error
        num_carried = self.loop.num_carried
        return (*in_order(results[:num_carried]), *results[num_carried:])


stack_rows.TAKE_ROWS.add(Pipeline)


class _Rows(NamedTuple):
    """The rows of the stacks: `size` rows, of which those of the iterations begin at `first`; each
    stage has `a_stage` of them, with padding `total`."""

    size: int
    first: int
    a_stage: int
    total: int

    def aligned(self, x: Any, iterations: int) -> jax.Array:
        """Returns a stack with as many rows as the stages take, each at its own place."""
        in_place = isinstance(x.rows, range) and x.rows.step == 1 and x.rows.start == self.first
        array, before = x.array, 0
        if not in_place or array.shape[0] != self.size:
            array, before = x.alone(), self.first
        behind = self.total - before - array.shape[0]
        if not before and not behind:
            return array
        return jnp.pad(array, [(before, behind), *[(0, 0)] * (array.ndim - 1)])


@dataclass(slots=True)
class _Schedule:
    """The pipeline of one loop while it is lowered.

    data: the mesh axes that shard the batch. parts: the micro-batches of a device's rows. divided:
    the body on one micro-batch. rows: of the stacks.
    """

    pipeline: Pipeline
    trace: LoopTrace
    data: Axes
    parts: int
    divided: Divided
    rows: _Rows
    scatters: bool

    @staticmethod
    def of(pipeline: Pipeline, trace: LoopTrace, known: Axes) -> "_Schedule":
        """Returns the pipeline of a loop whose batch is known to be sharded over these axes of the
        traced mesh."""
        loop, mesh = pipeline.loop, pipeline.mesh
        _, spelled = mesh.by_axis()
        batch, sizes = trace.carry[0], mesh.mesh_axes()
        axes = [axis for axis in sizes if set(spelled[axis]) <= set(known)]
        data = tuple(axis for axis in axes if axis not in pipeline.stages)
        shards = math.prod(sizes[axis] for axis in data)
        if batch.shape[0] % shards:
            raise NotDividedError(None, f"have {batch.shape[0]} rows for {shards} shards")
        num_stages = math.prod(sizes[axis] for axis in pipeline.stages)
        parts = _divisor(
            batch.shape[0] // shards, pipeline.micro_batches or _PER_STAGE * num_stages
        )
        manual = frozenset((*pipeline.stages, *data))
        left = mesh if any(sizes[axis] > 1 for axis in sizes if axis not in manual) else None
        divided = divide(loop.body, {loop.num_constants: 0}, shards * parts, manual, left)
        if not all(isinstance(state, int) for state in divided.roots[: loop.num_carried]):
            raise NotDividedError(None, "carry a value that is not of the batch")
        stack = trace.xs[pipeline.split]
        first = stack.rows.start if isinstance(stack.rows, range) and stack.rows.step == 1 else 0
        count = stack.array.shape[0] if isinstance(stack.rows, range) else len(stack.rows)
        a_stage = -(-count // num_stages)
        return _Schedule(
            pipeline,
            trace,
            data,
            parts,
            divided,
            _Rows(count, first, a_stage, a_stage * num_stages),
            set(pipeline.stages) <= set(axes) and not batch.shape[0] // shards % num_stages,
        )

    def in_words(self) -> str:
        """Returns a sentence on the ticks, the bubbles and what passes from stage to stage."""
        pipeline, rows = self.pipeline, self.rows
        stages, layers = rows.total // rows.a_stage, pipeline.loop.iterations
        ticks = self.parts + stages - 1
        carried = self.divided.region.roots[: pipeline.loop.num_carried]
        hop = sum(root.meta.nbytes for root in carried)
        num_rows = carried[0].meta.shape[0]
        return (
            f"{layers} layers on {stages} stages over {' x '.join(pipeline.stages)}, "
            f"{'backward' if pipeline.loop.reverse else 'forward'}: {self.parts} micro-batches of "
            f"{num_rows} row{'s' * (num_rows > 1)} in {ticks} ticks, {(stages - 1) / ticks:.0%} of "
            f"them bubbles; a device sends {hop:,} bytes a tick, {hop * ticks:,} in all"
        )

    # --- around the devices -----------------------------------------------------------------------

    def lowered(self) -> tuple[Any, ...]:
        """Returns the results of the loop."""
        loop, trace = self.pipeline.loop, self.trace
        mesh, spelled = self.pipeline.mesh.by_axis()
        inputs = self.divided.inputs
        num_before = loop.num_before_xs
        stacks = [self.rows.aligned(x, loop.iterations) for x in trace.xs]
        xs = [self._narrowed(index, stack) for index, stack in enumerate(stacks)]
        tables = [self._table(table) for table in trace.tables]
        arrays = [*trace.constants, *trace.carry]
        in_specs = [self._spec(state) for state in inputs[:num_before]]
        x_specs = [self._spec(state, is_stack=True) for state in inputs[num_before:]]
        out_specs = [
            *[self._spec(state, over=self._carried_axes) for state in self._carried],
            *[self._spec(state) for state in self._last],
            *[self._y_spec(index) for index in range(len(loop.ys))],
        ]
        names = {name for axis in (*self.pipeline.stages, *self.data) for name in spelled[axis]}
        groups = _Groups.of(mesh, spelled)

        def on_device(*operands: jax.Array) -> tuple[jax.Array, ...]:
            with (
                held(topology.program, manual_axes=frozenset(names)),
                rules.sharded.call((), ()),  # nothing is known of the values of a shard
                rules.sharded.tracing(self._facts(mesh, names)),
                lowering.unreported(),
            ):
                return tuple(_Device(self, groups, operands).run())

        results = jax.shard_map(
            on_device,
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec(), *in_specs, *x_specs),
            out_specs=tuple(out_specs),
            axis_names=names,
            check_vma=False,
        )(*tables, *arrays, *xs)
        carry = list(results[: loop.num_carried])
        single = loop.num_carried + loop.num_last
        ys: list[Any] = []
        for index, stack in enumerate(results[single:]):
            if single + index in self.divided.added:
                x = stacks[self.divided.added[single + index] - num_before]
                stack = stack + x.astype(stack.dtype)
            ys += trace.results(index, self._stack_of(index, stack), carry)
        return (*carry, *results[loop.num_carried : single], *ys)

    @staticmethod
    def _facts(mesh: Any, names: set[str]) -> Any:
        """Returns the facts on what a device computes: alone, where all axes are manual."""
        facts = rules.sharded.facts()
        is_alone = all(mesh.shape[name] == 1 for name in mesh.axis_names if name not in names)
        return facts._replace(mesh=None, num_devices=1) if is_alone else facts

    def _narrowed(self, index: int, stack: jax.Array) -> jax.Array:
        """Returns the stack of an x, in the dtype that the layers read, sharded as it was: so it is
        gathered."""
        first_x = self.pipeline.loop.num_before_xs
        meta = self.divided.casts.get(first_x + index)
        if meta is None:
            return stack
        layout, narrow = self.trace.layouts[first_x + index], floats.cast(stack, meta.struct.dtype)
        return narrow if layout is None else constrain.constrain(narrow, layout.behind_rows())

    def _table(self, table: jax.Array) -> jax.Array:
        """Returns scalar arguments by row of the stacks."""
        behind = self.rows.total - self.rows.first - table.shape[0]
        return jnp.pad(table, [(self.rows.first, behind), (0, 0)])

    def _stack_of(self, index: int, stack: jax.Array) -> jax.Array:
        """Returns the stack of a y with the rows of the iterations in their places, and those of
        peeled values."""
        loop = self.pipeline.loop
        y, rows = loop.ys[index], self.rows
        count = y.first + loop.iterations + y.after
        if (y.first, count) != (rows.first, rows.total):
            start = rows.first
            stack = jax.lax.slice_in_dim(stack, start, start + loop.iterations)
            if y.first or y.after:
                stack = jnp.pad(stack, [(y.first, y.after), *[(0, 0)] * (stack.ndim - 1)])
        return self.trace.with_peeled(index, stack)

    @property
    def _carried(self) -> Sequence[State]:
        return self.divided.roots[: self.pipeline.loop.num_carried]

    @property
    def _last(self) -> Sequence[State]:
        loop = self.pipeline.loop
        return self.divided.roots[loop.num_carried : loop.num_carried + loop.num_last]

    @property
    def _carried_axes(self) -> Axes:
        """The axes over which the carry leaves: each stage has a part of the rows, where the batch
        is sharded over stages, too."""
        return (*self.data, *self.pipeline.stages) if self.scatters else self.data

    def _spec(
        self, state: State, *, is_stack: bool = False, over: Axes | None = None
    ) -> PartitionSpec:
        """Returns the manual axes of a value, or of a stack of values."""
        dims = [self._names(self.pipeline.stages)] if is_stack else []
        if isinstance(state, int):
            dims += [None] * state
            dims += [self._names(self.data if over is None else over)]
        return PartitionSpec(*dims)

    def _y_spec(self, index: int) -> PartitionSpec:
        state = self.state_of_y(index)
        if state != SUM:
            return self._spec(state, is_stack=True)
        dim, axes = self.scatter_of(index)
        dims = [self._names(self.pipeline.stages), *[None] * dim]
        return PartitionSpec(*dims, self._names(axes)) if axes else PartitionSpec(dims[0])

    def _names(self, axes: Axes) -> Axes | None:
        _, spelled = self.pipeline.mesh.by_axis()
        return tuple(name for axis in axes for name in spelled[axis]) or None

    def state_of_y(self, index: int) -> State:
        loop = self.pipeline.loop
        return self.divided.roots[loop.num_carried + loop.num_last + index]

    def exchanged(self, index: int) -> tuple[Sharding | None, Any]:
        """Returns the sharding that the body requests of a y, and the dtype in which it is made,
        before any cast: devices exchange its sum in this one."""
        loop, sharding = self.pipeline.loop, None
        value = loop.body.roots[loop.num_carried + loop.num_last + index]
        while (maker := walks.origin(value)) is not None and maker.op.name in _PASSED_ON:
            sharding = sharding or maker.op.sharding
            value = maker.operands[0]
        return sharding, value.meta.struct.dtype

    def scatter_of(self, index: int) -> tuple[int, Axes]:
        """Returns the dim along which a sum over the batch is scattered over data axes, and these
        axes, as its annotation requests; none without one."""
        (sharding, _), sizes = self.exchanged(index), self.pipeline.mesh.mesh_axes()
        loop = self.pipeline.loop
        shape = loop.body.roots[loop.num_carried + loop.num_last + index].meta.shape
        for dim, of_dim in enumerate(sharding.spec.dims if sharding is not None else ()):
            axes = tuple(axis for axis in of_dim.axes if axis in self.data)
            shards = math.prod(sizes[axis] for axis in axes)
            if axes and axes == of_dim.axes and not shape[dim] % shards:
                return dim, axes
        return 0, ()


class _Groups(NamedTuple):
    """The axes of the user's mesh as the traced one names them. widens: see `Group`."""

    sizes: dict[str, int]
    widens: bool
    spelled: dict[str, Axes]

    @staticmethod
    def of(mesh: Any, spelled: dict[str, Axes]) -> "_Groups":
        """Returns the groups of a pipeline's axes; raises NeedsShardyError under GSPMD."""
        # GSPMD refuses manual axes beside others ("Incompatible manual sharding"), and leaves the
        # CPU a product of bfloat16 that it cannot run (jaxlib 0.10.2).
        if partitioning.partitioner() == "gspmd":
            raise rules.sharded.NeedsShardyError("GSPMD does not partition a pipeline")
        # XLA's CPU compiler ends the process at some sums of 16 bits.
        return _Groups(dict(mesh.shape), mesh.devices.flat[0].platform == "cpu", spelled)

    def group(self, axes: Axes) -> Group:
        """Returns the group of this shard along axes of the user's mesh."""
        names = tuple(name for axis in axes for name in self.spelled[axis])
        size = math.prod(self.sizes[name] for name in names)
        shard = jax.lax.axis_index(names) if names else jnp.zeros((), jnp.int32)
        return Group(names, size, shard, widens=self.widens)


# Whether what is computed is of a micro-batch and a layer; None where nothing else is computed.
_Live = jax.Array | None
# The tick, what arrives from the stage before, the results of the last layer by micro-batch, the
# last values, the rows of each y.
_State = tuple[jax.Array, list[jax.Array], list[jax.Array], list[jax.Array], list[jax.Array]]


class _Device:
    """One device's part of a pipeline, as it is traced."""

    def __init__(self, schedule: _Schedule, groups: _Groups, operands: Sequence[jax.Array]):
        loop = schedule.pipeline.loop
        self.schedule, self.groups, self.loop = schedule, groups, loop
        self.floats, self.integers, *arrays = operands
        inputs, num_before = schedule.divided.inputs, loop.num_before_xs
        self.arrays = [
            self._by_part(array, state)
            for array, state in zip(arrays[:num_before], inputs[:num_before], strict=True)
        ]
        self.xs = [
            self._by_part(array, state, behind=1)
            for array, state in zip(arrays[num_before:], inputs[num_before:], strict=True)
        ]
        # Where a partitioner may add collectives, devices must not take different branches: XLA
        # pairs the permutations of a CPU's devices in the order of arrival (jaxlib 0.10.2).
        manual = (*schedule.pipeline.stages, *schedule.data)
        self.skips = all(
            size == 1
            for axis, size in groups.sizes.items()
            if axis not in {name for axis in manual for name in groups.spelled[axis]}
        )
        self.stages = groups.group(schedule.pipeline.stages)
        index = self.stages.shard.astype(jnp.int32)
        self.stage = index
        # The place in the order in which micro-batches pass.
        self.place = self.stages.size - 1 - index if loop.reverse else index

    def _by_part(self, array: jax.Array, state: State, behind: int = 0) -> jax.Array:
        """Returns an array with a dim for the micro-batches in front of its own dims, behind the
        rows of a stack; one without the batch as it is."""
        if not isinstance(state, int):
            return array
        parts, dim = self.schedule.parts, state + behind
        sizes = (parts, array.shape[dim] // parts)
        apart = array.reshape(*array.shape[:dim], *sizes, *array.shape[dim + 1 :])
        return jnp.moveaxis(apart, dim, behind)

    def _joined(self, array: jax.Array, state: State, behind: int = 0) -> jax.Array:
        """Returns the array that `_by_part` takes apart."""
        if not isinstance(state, int):
            return array
        dim = state + behind
        apart = jnp.moveaxis(array, behind, dim)
        size = apart.shape[dim] * apart.shape[dim + 1]
        return apart.reshape(*apart.shape[:dim], size, *apart.shape[dim + 2 :])

    def run(self) -> list[jax.Array]:
        """Returns the shards of carry, last values and stacks of ys."""
        schedule, loop = self.schedule, self.loop
        parts, num_stages = schedule.parts, self.stages.size
        ticks = parts + num_stages - 1
        roots = schedule.divided.region.roots
        single = loop.num_carried + loop.num_last
        carried = [_zeros(root.meta) for root in roots[: loop.num_carried]]
        outs = [_zeros(root.meta, parts) for root in roots[: loop.num_carried]]
        lasts = [
            self._buffer(root, state)
            for root, state in zip(
                roots[loop.num_carried : single],
                schedule.divided.roots[loop.num_carried : single],
                strict=True,
            )
        ]
        ys = [
            self._buffer(root, schedule.state_of_y(index), schedule.rows.a_stage)
            for index, root in enumerate(roots[single:])
        ]
        ring = [(i, (i - 1 if loop.reverse else i + 1) % num_stages) for i in range(num_stages)]

        def tick(state: _State) -> _State:
            number, arrived, outs, lasts, ys = state
            part = number - self.place
            is_busy = (part >= 0) & (part < parts)
            part = jnp.clip(part, 0, parts - 1)
            entering = [
                jnp.where(self.place == 0, _row(array, part), sent)
                for array, sent in zip(self.arrays[loop.num_constants :], arrived, strict=True)
            ]

            def compute(carry: Any, outs: Any, lasts: Any, ys: Any) -> Any:
                carry, lasts, ys = self._layers(part, is_live, carry, lasts, ys)
                outs = [
                    _written(out, array, 0, (part,), is_live)
                    for out, array in zip(outs, carry, strict=True)
                ]
                return carry, outs, lasts, ys

            if self.skips:
                is_live = None
                # plans read the scope
                with jax.named_scope(f"runs={parts}of{ticks}"):
                    carry, outs, lasts, ys = jax.lax.cond(
                        is_busy, compute, lambda *state: state, entering, outs, lasts, ys
                    )
            else:
                is_live = is_busy
                carry, outs, lasts, ys = compute(entering, outs, lasts, ys)
            sent = [permute(array, ring, self.stages) for array in carry]
            return number + 1, sent, outs, lasts, ys

        start = np.int32(0)
        _, _, outs, lasts, ys = loop_counter.count_up(
            ticks, tick, (jnp.asarray(start), carried, outs, lasts, ys)
        )
        states = schedule.divided.roots
        results = [
            self._left(out, state)
            for out, state in zip(outs, states[: loop.num_carried], strict=True)
        ]
        results += [
            self._of_last(last, state, root)
            for last, state, root in zip(
                lasts,
                states[loop.num_carried : single],
                roots[loop.num_carried : single],
                strict=True,
            )
        ]
        results += [
            self._summed(y, index, root)
            for index, (y, root) in enumerate(zip(ys, roots[single:], strict=True))
        ]
        return results

    # --- a tick -----------------------------------------------------------------------------------

    def _layers(self, part: jax.Array, is_live: _Live, carry: Any, lasts: Any, ys: Any) -> Any:
        """Returns carry, last values and ys behind the layers of this stage, on one micro-batch."""
        rows, loop = self.schedule.rows, self.loop
        first, stop = rows.first, rows.first + loop.iterations
        is_full = not first and stop == rows.total

        def layer(state: Any) -> Any:
            number, carry, lasts, ys = state
            local = rows.a_stage - 1 - number if loop.reverse else number
            row = self.stage * np.int32(rows.a_stage) + local
            is_layer = (row >= first) & (row < stop)

            def compute(is_live: _Live, carry: Any, lasts: Any, ys: Any) -> Any:
                return self._layer(part, local, row, is_live, carry, lasts, ys)

            if is_full:
                new = compute(is_live, carry, lasts, ys)
            elif self.skips:
                new = jax.lax.cond(
                    is_layer, partial(compute, None), lambda *state: state, carry, lasts, ys
                )
            else:
                assert is_live is not None
                after, lasts, ys = compute(is_live & is_layer, carry, lasts, ys)
                new = (
                    [
                        jnp.where(is_layer, array, old)
                        for array, old in zip(after, carry, strict=True)
                    ],
                    lasts,
                    ys,
                )
            return number + 1, *new

        state = (jnp.zeros((), np.int32), carry, lasts, ys)
        if rows.a_stage == 1:
            return layer(state)[1:]
        return loop_counter.count_up(rows.a_stage, layer, state)[1:]

    def _layer(
        self,
        part: jax.Array,
        local: jax.Array,
        row: jax.Array,
        is_live: _Live,
        carry: Any,
        lasts: Any,
        ys: Any,
    ) -> Any:
        loop, schedule, rows = self.loop, self.schedule, self.schedule.rows
        inputs, num_before = schedule.divided.inputs, loop.num_before_xs
        constants = [
            _row(array, part) if isinstance(state, int) else array
            for array, state in zip(
                self.arrays[: loop.num_constants], inputs[: loop.num_constants], strict=True
            )
        ]
        xs = [
            _row(_row(array, local), part) if isinstance(state, int) else _row(array, local)
            for array, state in zip(self.xs, inputs[num_before:], strict=True)
        ]
        numbers = _row(self.floats, row), _row(self.integers, row)
        # Which part of the batch this is: draws have the numbers of its rows.
        of_all = self.groups.group(schedule.data).shard.astype(jnp.int32) * schedule.parts + part
        with held(topology.program, shard=of_all):
            roots = lowering.lower_region(
                schedule.divided.region,
                0,
                [*constants, *carry, *xs],
                numbers,
                [None] * len(inputs),
            )
        single = loop.num_carried + loop.num_last
        states = schedule.divided.roots
        is_last = row == rows.first + (0 if loop.reverse else loop.iterations - 1)
        is_last = is_last if is_live is None else is_last & is_live
        lasts = [
            _written(last, root, state, (part,), is_last)
            for last, root, state in zip(
                lasts,
                roots[loop.num_carried : single],
                states[loop.num_carried : single],
                strict=True,
            )
        ]
        ys = [
            _written(y, root, schedule.state_of_y(index), (local, part), is_live)
            for index, (y, root) in enumerate(zip(ys, roots[single:], strict=True))
        ]
        new = [
            array.astype(old.dtype)
            for array, old in zip(roots[: loop.num_carried], carry, strict=True)
        ]
        return new, lasts, ys

    # --- behind the ticks -------------------------------------------------------------------------

    def _buffer(self, root: Value, state: State, *rows: int) -> jax.Array:
        """Returns the zeros that a root is written into: for each micro-batch, or summed over
        them."""
        if isinstance(state, int):
            return _zeros(root.meta, *rows, self.schedule.parts)
        return jnp.zeros((*rows, *root.meta.shape), _wide(root.meta, state))

    def _left(self, out: jax.Array, state: State) -> jax.Array:
        """Returns the carry behind the last layer, which the last stage has: on all stages, or a
        part of the rows on each."""
        is_last = self.place == self.stages.size - 1
        array = self._joined(jnp.where(is_last, out, jnp.zeros_like(out)), state)
        if self.schedule.scatters:
            assert isinstance(state, int), "a carry holds the batch"
            return reduce_scatter(array, state, self.stages)
        return all_reduce(array, "sum", self.stages)

    def _of_last(self, last: jax.Array, state: State, root: Value) -> jax.Array:
        """Returns the value of the last iteration, which one stage has."""
        rows = self.schedule.rows
        row = rows.first + (0 if self.loop.reverse else self.loop.iterations - 1)
        has_last = self.stage == row // rows.a_stage
        array = all_reduce(jnp.where(has_last, last, jnp.zeros_like(last)), "sum", self.stages)
        if state == SUM and self.schedule.data:
            array = all_reduce(array, "sum", self.groups.group(self.schedule.data))
        return self._joined(array, state).astype(root.meta.struct.dtype)

    def _summed(self, y: jax.Array, index: int, root: Value) -> jax.Array:
        """Returns the rows of a y; sums over the batch are summed over the data axes."""
        state, data = self.schedule.state_of_y(index), self.schedule.data
        if state != SUM:
            return self._joined(y, state, behind=1)
        dim, axes = self.schedule.scatter_of(index)
        if data:
            y = y.astype(self.schedule.exchanged(index)[1])
        if axes:
            y = reduce_scatter(y, dim + 1, self.groups.group(axes))
        left = tuple(axis for axis in data if axis not in axes)
        if left:
            y = all_reduce(y, "sum", self.groups.group(left))
        return y.astype(root.meta.struct.dtype)


def _divisor(number: int, most: int) -> int:
    """Returns the largest divisor of a number that is at most `most`."""
    return next(count for count in range(min(number, most), 0, -1) if number % count == 0)


def _zeros(meta: Any, *rows: int) -> jax.Array:
    return jnp.zeros((*rows, *meta.shape), meta.struct.dtype)


def _wide(meta: Any, state: State) -> Any:
    """Returns the dtype in which a root is summed over micro-batches: at least float32."""
    dtype = meta.struct.dtype
    is_float = jnp.issubdtype(dtype, jnp.floating)
    return jnp.promote_types(dtype, jnp.float32) if state == SUM and is_float else dtype


def _row(array: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(array, index, 0, False, allow_negative_indices=False)


def _written(
    buffer: jax.Array,
    root: jax.Array,
    state: State,
    place: tuple[jax.Array, ...],
    is_live: _Live,
) -> jax.Array:
    """Returns a buffer with a root at its place (micro-batch last); a sum over the rows is added
    there. is_live: False for a root that is of no micro-batch, or of no layer."""
    if not isinstance(state, int):
        place = place[:-1]
    start = (*place, *[jnp.zeros((), np.int32)] * root.ndim)
    update = root.reshape((1,) * len(place) + root.shape).astype(buffer.dtype)
    if state == SUM or is_live is not None:
        before = jax.lax.dynamic_slice(buffer, start, update.shape)
        update = update + before if state == SUM else update
        update = update if is_live is None else jnp.where(is_live, update, before)
    return jax.lax.dynamic_update_slice(buffer, update, start)

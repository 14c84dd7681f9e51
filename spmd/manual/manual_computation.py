"""A function of one shard's arguments, recorded once as the body of an op over all shards, and its
gradient.

Not here: what users call (`spmd.shard_map`, `spmd.manual`); the axes along which values vary
(`varying`).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..core import Meta, Sharding, XlaTensor, dense_meta, held, storage_of, tensor_meta
from ..core.extend import Node, OpSpec, Region, Value, reads, regions, store, user_lines, walks
from ..loops.body_calls import body_calls
from ..loops.capture import Capture
from ..loops.gradient import Backward, Tensors, as_one_op, record, saved, tensors, with_gradient
from ..loops.manual_lowering import Axes, Boundary, Cut, Manual, Varying
from ..loops.vma import Tracker, Watching, summed, thread, tracker


class ShardResult(NamedTuple):
    """A result of a body: a tensor, how the full value is cut into its shards, its name in
    messages."""

    tensor: XlaTensor
    cut: Cut
    name: str


# A function of one shard of each argument.
Body = Callable[[Tensors], list[ShardResult]]


def manual_op(
    rules: Tracker,
    roots: Sequence[Value],
    outs: Sequence[Boundary],
    inputs: Sequence[Value],
    ins: Sequence[Boundary],
) -> Manual:
    """The op whose body has the ops from the values `inputs` to the roots; outs, ins: their
    boundary shardings."""
    body = Region.of(roots, inputs)
    folds = [rules.drawn_over(node) for node in walks.between(roots, inputs) if node.op.draws]
    return Manual(
        body, rules.mesh, rules.axes, tuple(ins), tuple(outs), tuple(map(rules.in_order, folds))
    )


def record_manual(name: str, lowering: Manual, operands: Sequence[Value]) -> Tensors:
    """Records a manual computation, and returns its unsharded results."""
    sizes = lowering.mesh.mesh_axes()
    metas = []
    for root, boundary in zip(lowering.body.roots, lowering.outs, strict=True):
        shard = (1, *root.meta.shape) if boundary.is_stack else root.meta.shape
        shape = [
            length * count for length, count in zip(shard, boundary.counts(sizes), strict=True)
        ]
        metas.append(dense_meta(shape, root.meta.dtype))
    op = OpSpec.of(
        name,
        lowering,
        tuple(metas),
        tuple(value.meta for value in operands),
        numbers=regions.kinds_of(lowering.body.nodes),
        sharding=lowering.mesh,
        statics=", ".join(f"{axis}={sizes[axis]}" for axis in lowering.axes),
    )
    return tensors(record(op, operands, regions.body_numbers(lowering.body)))


def run_manual(
    name: str,
    body: Body,
    arguments: Tensors,
    cuts: Sequence[Cut],
    mesh: Sharding,
    axes: Axes,
    *,
    checks: bool = True,
) -> Tensors:
    """Records a manual computation over axes of a mesh and returns its unsharded results.

    cuts: how each argument is cut into shards. checks: whether a result that may differ between
    shards along an axis that its cut does not name is an error.
    """
    if tracker() is not None:
        raise NotImplementedError(
            f"{name}: a manual computation inside another one; name all axes that are to be "
            "manual in the outer one"
        )
    with as_one_op():
        with Capture(name) as capture:
            region = _Region(
                capture, Tracker(mesh, axes, capture.start), body, arguments, cuts, checks
            )
        return with_gradient(name, region.inputs, region.forward, region.gradient)


class _Region:
    """One call: the forward op with its operands, and its gradient. inputs: the tensors that may
    have a gradient, and the rest of the arguments."""

    def __init__(
        self,
        capture: Capture,
        rules: Tracker,
        body: Body,
        arguments: Tensors,
        cuts: Sequence[Cut],
        checks: bool,
    ):
        self.name, self.tracker, self.arguments = capture.name, rules, arguments
        # by the name of a value that crosses the boundary sharded
        self.boundary_of: dict[Any, Boundary] = {}
        stand_ins = []
        for tensor, boundary in zip(arguments, map(Boundary, cuts), strict=True):
            shape = [
                n // count
                for n, count in zip(tensor.shape, boundary.counts(rules.sizes), strict=True)
            ]
            stand_in = self._stand_in(capture, dense_meta(shape, tensor.dtype), boundary)
            stand_ins.append(
                stand_in.requires_grad_(tensor.requires_grad and torch.is_grad_enabled())
            )
        self.argument_values = list(capture.arguments)
        calls = body_calls()
        checks = checks and (calls is None or calls.checks)
        with held(thread, tracker=self.tracker):
            results = self._run(capture, body, stand_ins)
            outputs = [self._as_promised(result, checks) for result in results]
            self.boundaries = [Boundary(result.cut) for result in results]
            self._note_writes(capture)
            self.differentiable, reached = capture.reached_by(outputs)
            stand_in_index = {tensor: i for i, tensor in enumerate(stand_ins)}
            self.wanted = sorted(
                stand_in_index[tensor] for tensor in reached if tensor in stand_in_index
            )
            self.closed_over = [tensor for tensor in reached if tensor not in stand_in_index]
            capture.refuse_written(self.closed_over, self.written, "return the new value instead")
            middle = store.next_serial()
            sources = [*(stand_ins[i] for i in self.wanted), *self.closed_over]
            gradients = self._differentiate(capture, outputs, sources)
        self._make_forward(capture, outputs, gradients, middle)
        self.constants: Tensors = []
        self.read: list[int] = []
        self.inputs = [*arguments, *self.closed_over] if self.differentiable else []
        self.gradient = self._gradient(capture, gradients) if self.differentiable else None

    def _stand_in(self, capture: Capture, meta: Meta, boundary: Boundary) -> Any:
        tensor = capture.stand_in(meta)
        name = walks.value_name(storage_of(tensor).value)
        self.tracker.known[name], self.boundary_of[name] = (
            Varying(boundary.over, boundary.over),
            boundary,
        )
        return tensor

    def _run(self, capture: Capture, body: Body, stand_ins: Tensors) -> list[ShardResult]:
        refusal = (
            f"{self.name}: the body writes in place into an argument; clone it first (x = "
            "x.clone())"
        )
        with Watching(self.tracker):
            return capture.run(body, stand_ins, unwritten=stand_ins, refusal=refusal)

    def _as_promised(self, result: ShardResult, checks: bool) -> XlaTensor:
        """The result as varying along the axes that its cut names, and along no others."""
        over = Boundary(result.cut).over
        varies = self.tracker.of_tensor(result.tensor)
        may_diverge = self.tracker.in_order(varies.may_diverge - over)
        if may_diverge and checks:
            raise ValueError(self._differs(result, may_diverge))
        reduced: Any = self.tracker.reduced(result.tensor, varies.varying - over)
        return self.tracker.varied(reduced, over)

    def _differs(self, result: ShardResult, axes: Axes) -> str:
        value: Value = storage_of(result.tensor).value
        node = walks.origin(value)
        while node is not None:
            diverging = [
                v for v in node.operands if self.tracker.of(v).may_diverge & frozenset(axes)
            ]
            if node.op.name not in ("spmd.vary", "mark_sharding") or not diverging:
                break
            node = walks.origin(diverging[0])
        is_op = node is not None and node.op.name != "spmd.stand_in"
        location = (
            f" ({node.op.name}, {user_lines.node_line(node)})" if node is not None and is_op else ""
        )
        named = ", ".join(map(repr, axes))
        return (
            f"{self.name}: out_specs says that {result.name} is the same on all shards along "
            f"{named}, but it may differ{location}. Name {named} in its spec to join the shards "
            "along a dim, or make it the same first: spmd.manual.all_reduce(x, 'sum', "
            f"{axes[0]!r}), spmd.manual.all_gather(x, 0, {axes[0]!r}). Where you know better, "
            "pass check_vma=False"
        )

    def _note_writes(self, capture: Capture) -> None:
        self.written = capture.written()
        capture.arguments += [old_value for old_value, _ in self.written.values()]
        for storage, (_, after) in self.written.items():
            may_diverge = self.tracker.in_order(self.tracker.of(after).may_diverge)
            if may_diverge:
                raise ValueError(
                    f"{self.name}: the body writes in place into a tensor from outside "
                    f"({storage.meta!r}) a value that may differ between the shards along "
                    f"{', '.join(map(repr, may_diverge))}; return it, or reduce it first with "
                    "spmd.manual.all_reduce"
                )

    def _differentiate(self, capture: Capture, outputs: Tensors, sources: Tensors) -> list[Value]:
        """The gradients on one shard: of the arguments that have one, then of the closed-over
        tensors."""
        differentiable_outputs = [outputs[i] for i in self.differentiable]
        arriving = [
            self._stand_in(capture, dense_meta(tensor.shape, tensor.dtype), self.boundaries[i])
            for i, tensor in zip(self.differentiable, differentiable_outputs, strict=True)
        ]
        self.arriving = [storage_of(tensor).value for tensor in arriving]

        def value_of(source: XlaTensor, gradient: Any) -> Value:
            if gradient is None:
                gradient = torch.zeros_like(source)
            # An op that `Watching` does not see, as C++ may call it, leaves a gradient varying.
            over = self.tracker.of_tensor(gradient).varying - self.tracker.of_tensor(source).varying
            return reads.operand(summed(gradient, self.tracker.in_order(over)))

        return capture.grad(differentiable_outputs, sources, arriving, value_of)

    # --- the two ops ------------------------------------------------------------------------------

    def _make_forward(
        self, capture: Capture, outputs: Tensors, gradients: list[Value], middle: int
    ) -> None:
        befores = [old_value for old_value, _ in self.written.values()]
        self.saved_values = saved(
            capture, gradients, [*self.argument_values, *self.arriving], middle
        )
        # a stack of one per shard, or one value where all are equal
        for value in self.saved_values:
            if may_diverge := self.tracker.in_order(self.tracker.of(value).may_diverge):
                dims = (may_diverge, *[()] * len(value.meta.shape))
                self.boundary_of[walks.value_name(value)] = Boundary(dims, is_stack=True)
        after = [value for _, value in self.written.values()]
        roots = [*map(reads.operand, outputs), *after, *self.saved_values]
        outs = [*self.boundaries, *map(replicated, after), *map(self._boundary, self.saved_values)]
        self.forward_op, self.forward_constants = self._op(
            capture, roots, outs, [*befores, *self.argument_values]
        )

    def _gradient(self, capture: Capture, gradients: list[Value]) -> Backward:
        """Returns the function that records the backward op; it holds no more of the recording than
        it reads."""
        read = capture.read(gradients, [*self.arriving, *self.saved_values, *self.argument_values])
        self.read = [
            i for i, value in enumerate(self.argument_values) if walks.value_name(value) in read
        ]
        inputs = [*self.saved_values, *(self.argument_values[i] for i in self.read), *self.arriving]
        outs = [
            *(self._boundary(self.argument_values[i]) for i in self.wanted),
            *map(replicated, self.closed_over),
        ]
        op, constants = self._op(capture, gradients, outs, inputs)
        self.constants = capture.tensors(constants)
        name, output_indices, argument_indices, count = (
            self.name,
            self.differentiable,
            self.wanted,
            len(self.arguments),
        )

        def gradient(saved_tensors: Sequence[Any], arriving: Sequence[Any]) -> list[Any]:
            operands = [
                reads.operand(tensor)
                for tensor in (*saved_tensors, *(arriving[i] for i in output_indices))
            ]
            result = record_manual(f"{name}.backward", op, operands)
            of_arguments = dict(zip(argument_indices, result, strict=False))
            return [*map(of_arguments.get, range(count)), *result[len(argument_indices) :]]

        return gradient

    def _constants(
        self, capture: Capture, roots: Sequence[Value], arguments: Sequence[Value]
    ) -> list[Value]:
        """The values from outside that roots need, as the body reads them: gathers of them are done
        outside."""
        outer: dict[Any, Value] = {}
        for node in walks.between(roots, arguments, since=capture.start):
            if regions.is_annotation(node) and all(
                capture.is_outside(v) or walks.value_name(v) in outer for v in node.operands
            ):
                outer |= {walks.value_name(value): value for value in walks.results(node)}
        need = capture.outside(roots, [*arguments, *outer.values()])
        names = {walks.value_name(value) for value in arguments}
        read = capture.read(roots, [*arguments, *outer.values()])
        return need + [value for name, value in outer.items() if name in read and name not in names]

    def _boundary(self, value: Value) -> Boundary:
        return self.boundary_of.get(walks.value_name(value)) or replicated(value)

    def _op(
        self,
        capture: Capture,
        roots: Sequence[Value],
        outs: Sequence[Boundary],
        arguments: Sequence[Value],
    ) -> tuple[Manual, list[Value]]:
        """Returns one of the ops, and the values from outside that are its first operands."""
        constants = self._constants(capture, roots, arguments)
        inputs = [*constants, *arguments]
        self._refuse_shardings(walks.between(roots, inputs))
        return manual_op(
            self.tracker, roots, outs, inputs, [*map(self._boundary, inputs)]
        ), constants

    def _refuse_shardings(self, nodes: Sequence[Node]) -> None:
        rules, mesh = self.tracker, self.tracker.mesh
        manual = [axis for axis in rules.axes if rules.sizes[axis] > 1]
        for node in nodes:
            sharding = node.op.sharding
            if sharding is None or node.op.lowering.regions:
                continue
            named = {axis for dim in sharding.spec.dims for axis in dim.axes}
            met = [axis for axis in manual if axis in named]
            same = sharding.replicated() is mesh
            if met or not same or len(manual) == len([n for n in mesh.mesh_shape if n > 1]):
                why = "all axes of its mesh are manual there" if same else "it is of another mesh"
                why = f"axis {met[0]!r} is manual there" if met else why
                # An argument of the body has no line.
                line = user_lines.line_of(node, nodes)
                at = "" if line.code is None else f" ({line})"
                raise ValueError(
                    f"{self.name}: {node.op.name} to {sharding!r} inside the body{at}, but "
                    f"{why}: a value of one shard can be sharded only over the axes that "
                    "axis_names leaves to the partitioner; leave the call out, or the axis out of "
                    "axis_names"
                )

    def forward(self) -> tuple[Tensors, Tensors, list[bool]]:
        """Records the computation: its results, what the gradient reads, and for each result
        whether it has one."""
        befores = [old_value for old_value, _ in self.written.values()]
        operands = [*self.forward_constants, *befores, *map(reads.operand, self.arguments)]
        result = record_manual(self.name, self.forward_op, operands)
        start, end = len(self.boundaries), len(self.boundaries) + len(self.written)
        for storage, tensor in zip(self.written, result[start:end], strict=True):
            storage.write(storage_of(tensor).value)
        saved_tensors = [*self.constants, *result[end:], *(self.arguments[i] for i in self.read)]
        return result[:start], saved_tensors, [i in self.differentiable for i in range(start)]


def replicated(value: Any) -> Boundary:
    """The boundary sharding of a value that is the same on all shards."""
    return Boundary(
        ((),) * len((tensor_meta(value) if isinstance(value, XlaTensor) else value.meta).shape)
    )

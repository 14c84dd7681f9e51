"""A function of one shard's arguments, recorded once as the body of an op over all shards, and its gradient.

Not here: what users call (`spmd.shard_map`, `spmd.collectives`); the axes along which values vary (`varying`).
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..control.capture import Capture
from ..control.saved import saved
from ..control.varying import Tracker, Watching, collective, tracker, tracking
from ..debug.check import recorded
from ..ir.graph import Node, Region, Value, between, next_serial, origin, results, value_name
from ..ir.meta import Meta, dense_meta
from ..ir.op import OpSpec
from ..ir.source import node_line
from ..lazy.reads import next_generation, operand
from ..lazy.record import graph_task, record_here
from ..lazy.storage import LOCK, SYNC_LOCK, Storage
from ..lazy.tensor import XlaTensor, wrap
from ..lower.manual_lowering import NONE, Axes, Boundary, Manual, Over, Varying
from ..lower.region import body_numbers, is_annotation
from ..sharding.value import Sharding

Tensors = list[XlaTensor]
Cut = tuple[Axes, ...]  # for each dim of a value the manual axes that shard it


class Result(NamedTuple):
    """A result of a body: a tensor, how the full value is cut into its shards, its name in messages."""

    tensor: XlaTensor
    cut: Cut
    name: str


# A function of one shard of each argument.
Body = Callable[[Tensors], list[Result]]


def run_manual(
    name: str, body: Body, given: Tensors, cuts: Sequence[Cut], mesh: Sharding, axes: Axes, *, checks: bool = True
) -> Tensors:
    """Records a manual computation over axes of a mesh and returns its unsharded results.

    cuts: how each argument is cut into shards. checks: whether a result that may differ between shards along an axis
    that its cut does not name is an error.
    """
    if tracker() is not None:
        raise NotImplementedError(
            f"{name}: a manual computation inside another one; name all axes that are to be manual in the outer one"
        )
    with SYNC_LOCK, LOCK:
        with Capture(name) as capture:
            region = _Region(capture, body, given, cuts, mesh, axes, checks)
        made = list(_Apply.apply(region, *region.inputs)) if region.has_gradient else region.forward()
    recorded()
    return made


class _Region:
    """One call: the forward op and the backward op with their operands."""

    def __init__(
        self,
        capture: Capture,
        body: Body,
        given: Tensors,
        cuts: Sequence[Cut],
        mesh: Sharding,
        axes: Axes,
        checks: bool,
    ):
        self.name, self.mesh, self.axes, self.given = capture.name, mesh.replicated(), axes, given
        self.tracker = Tracker(mesh, axes, capture.start)
        self.num_given = len(given)
        is_on = torch.is_grad_enabled()
        stand_ins = [
            capture.stand_in(self._shard(tensor, cut), requires_grad=tensor.requires_grad and is_on)
            for tensor, cut in zip(given, cuts, strict=True)
        ]
        self.given_values = list(capture.given)
        self.given_boundaries = [Boundary(cut) for cut in cuts]
        for value, boundary in zip(self.given_values, self.given_boundaries, strict=True):
            self._declare(value, boundary)
        with tracking(self.tracker):
            made = self._run(capture, body, stand_ins)
            self.made = [self._as_promised(result, checks) for result in made]
            self.boundaries = [Boundary(result.cut) for result in made]
            self._note_writes(capture)
            reached = [capture.reached(tensor) for tensor in self.made]
            self.chosen = [i for i, found in enumerate(reached) if found]
            self.has_gradient = bool(self.chosen)
            met = {tensor: None for found in reached for tensor in found}
            self.wanted = [i for i, tensor in enumerate(stand_ins) if tensor in met]
            known = set(stand_ins)
            self.closed_over = [tensor for tensor in met if tensor not in known]
            self._refuse_written()
            middle = next_serial()
            gradients = self._differentiate(capture, stand_ins) if self.has_gradient else []
        self._make_forward(capture, gradients, middle)
        if self.has_gradient:
            self._make_backward(capture, gradients)
        del self.made, self.tracker

    def _shard(self, tensor: XlaTensor, cut: Cut) -> Meta:
        shape = [size // self.tracker.size(axes) for size, axes in zip(tensor.shape, cut, strict=True)]
        return dense_meta(shape, tensor.dtype)

    def _declare(self, value: Value, boundary: Boundary) -> None:
        over = frozenset(axis for axes in boundary.dims for axis in axes)
        self.tracker.known[value_name(value)] = Varying(over, over)

    def _run(self, capture: Capture, body: Body, stand_ins: Tensors) -> list[Result]:
        in_place = f"{self.name}: the body writes in place into an argument; clone it first (x = x.clone())"
        try:
            with Watching(self.tracker):
                made = body(stand_ins)
        except RuntimeError as error:
            if str(error).startswith("a leaf Variable that requires grad is being used in an in-place"):
                raise NotImplementedError(in_place) from error
            raise
        if not all(map(capture.is_unwritten, stand_ins)):
            raise NotImplementedError(in_place)
        return made

    def _as_promised(self, result: Result, checks: bool) -> XlaTensor:
        """The result as varying along the axes that its cut names, and along no others."""
        over = frozenset(axis for axes in result.cut for axis in axes)
        varies = self.tracker.of(result.tensor)
        may_diverge = self.tracker.in_order(varies.may_diverge - over)
        if may_diverge and checks:
            raise ValueError(self._differs(result, may_diverge))
        reduced: Any = self.tracker.reduced(result.tensor, varies.varying - over)
        return self.tracker.varied(reduced, over)

    def _differs(self, result: Result, axes: Axes) -> str:
        value: Value = result.tensor._storage.value
        node = origin(value)
        while node is not None:
            behind = [v for v in node.operands if self.tracker.rules.of(v).may_diverge & frozenset(axes)]
            if node.op.name not in ("spmd.vary", "mark_sharding") or not behind:
                break
            node = origin(behind[0])
        at = "" if node is None or node.op.name == "spmd.stand_in" else f" ({node.op.name}, {node_line(node)})"
        named = ", ".join(map(repr, axes))
        return (
            f"{self.name}: out_specs says that {result.name} is the same on all shards along {named}, but it may "
            f"differ{at}. Name {named} in its spec to join the shards along a dim, or make it the same first: "
            f"spmd.all_reduce(x, 'sum', {axes[0]!r}), spmd.all_gather(x, 0, {axes[0]!r}). Where you know better, pass "
            "check_vma=False"
        )

    def _note_writes(self, capture: Capture) -> None:
        self.written = capture.written()
        capture.given += [before for before, _ in self.written.values()]
        for storage, (_, after) in self.written.items():
            may_diverge = self.tracker.in_order(self.tracker.rules.of(after).may_diverge)
            if may_diverge:
                raise ValueError(
                    f"{self.name}: the body writes in place into a tensor from outside ({storage.meta!r}) a value that "
                    f"may differ between the shards along {', '.join(map(repr, may_diverge))}; return it, or reduce it "
                    "first with spmd.all_reduce"
                )

    def _refuse_written(self) -> None:
        for tensor in self.closed_over:
            if tensor._storage in self.written:
                raise NotImplementedError(
                    f"{self.name}: the body writes in place into a tensor from outside that requires a gradient "
                    f"({tensor._meta!r}); return the new value instead"
                )

    def _differentiate(self, capture: Capture, stand_ins: Tensors) -> list[Value]:
        """The gradients on one shard: of the arguments that have one, then of the closed-over tensors."""
        next_generation()
        arriving = []
        for i in self.chosen:
            tensor = capture.stand_in(dense_meta(self.made[i].shape, self.made[i].dtype))
            self._declare(tensor._storage.value, self.boundaries[i])
            arriving.append(tensor)
        self.arriving = [tensor._storage.value for tensor in arriving]
        sources = [*(stand_ins[i] for i in self.wanted), *self.closed_over]
        found: Any = torch.autograd.grad([self.made[i] for i in self.chosen], sources, arriving, allow_unused=True)
        allowed = [self.tracker.of(stand_ins[i]).varying for i in self.wanted] + [NONE] * len(self.closed_over)
        gradients = []
        with torch.no_grad():
            for source, gradient, over in zip(sources, found, allowed, strict=True):
                one: Any = torch.zeros_like(source) if gradient is None else gradient
                more = self.tracker.in_order(self.tracker.of(one).varying - over)
                if more:  # an op that `Watching` does not see, as C++ may call it
                    one = collective("all_reduce", one, more, one.shape, "sum")
                gradients.append(operand(one))
        return gradients

    # --- the two ops --------------------------------------------------------------------------------------------------

    def _make_forward(self, capture: Capture, gradients: list[Value], middle: int) -> None:
        befores = [before for before, _ in self.written.values()]
        self.saved_values: list[Value] = []
        if gradients:
            self.saved_values = saved(capture, gradients, [*self.given_values, *self.arriving], middle)
        self.saved_boundaries = [self._saved_boundary(value) for value in self.saved_values]
        after = [value for _, value in self.written.values()]
        roots = [*(operand(tensor) for tensor in self.made), *after, *self.saved_values]
        boundaries = [*self.boundaries, *map(_replicated, after), *self.saved_boundaries]
        given = [*befores, *self.given_values]
        self.forward_constants = self._constants(capture, roots, given)
        ins = [*map(_replicated, self.forward_constants), *map(_replicated, befores), *self.given_boundaries]
        self.forward_op = self._op(roots, boundaries, [*self.forward_constants, *given], ins)
        self.num_made, self.num_written = len(self.made), len(after)

    def _make_backward(self, capture: Capture, gradients: list[Value]) -> None:
        saved_names = {value_name(value) for value in self.saved_values}
        every = [*self.arriving, *self.saved_values, *self.given_values]
        constants = self._constants(capture, gradients, every)
        read = {value_name(v) for node in between(gradients, every) for v in node.operands}
        read |= {value_name(value) for value in gradients}
        self.read = [
            i
            for i, value in enumerate(self.given_values)
            if value_name(value) in read and value_name(value) not in saved_names
        ]
        given = [*constants, *self.saved_values, *(self.given_values[i] for i in self.read), *self.arriving]
        ins = [
            *map(_replicated, constants),
            *self.saved_boundaries,
            *(self.given_boundaries[i] for i in self.read),
            *(self.boundaries[i] for i in self.chosen),
        ]
        boundaries = [*(self.given_boundaries[i] for i in self.wanted), *map(_replicated, self.closed_over)]
        self.constants = capture.tensors(constants)
        self.backward_op = self._op(gradients, boundaries, given, ins)

    def _constants(self, capture: Capture, roots: Sequence[Value], given: Sequence[Value]) -> list[Value]:
        """The values from outside that roots need, as the body reads them: gathers of them are done outside."""
        outer: dict[Any, Value] = {}
        for node in between(roots, given, since=capture.start):
            if is_annotation(node) and all(capture.is_outside(v) or value_name(v) in outer for v in node.operands):
                outer |= {value_name(value): value for value in results(node)}
        need = capture.outside(roots, [*given, *outer.values()])
        known = {value_name(value) for value in given}
        nodes = between(roots, [*given, *outer.values()], since=capture.start)
        read = {value_name(v) for node in nodes for v in node.operands} | set(map(value_name, roots))
        return need + [value for name, value in outer.items() if name in read and name not in known]

    def _saved_boundary(self, value: Value) -> Boundary:
        """The boundary sharding of a saved value: a stack of one per shard, or one value where all are equal."""
        axes = self.tracker.in_order(self.tracker.rules.of(value).may_diverge)
        dims = ((),) * len(value.meta.shape)
        return Boundary((axes, *dims), is_stack=True) if axes else Boundary(dims)

    def _op(
        self, roots: Sequence[Value], outs: Sequence[Boundary], given: Sequence[Value], ins: Sequence[Boundary]
    ) -> tuple[str, Manual, tuple[Meta, ...]]:
        nodes = between(roots, given)
        self._refuse_shardings(nodes)
        folds = [self.tracker.rules.drawn_over(n) for n in nodes if n.op.lowering.draws(n.op)]
        body = Region.of(roots, given)
        lowering = Manual(
            body, self.mesh, self.axes, tuple(ins), tuple(outs), tuple(map(self.tracker.in_order, folds))
        )  # fmt: skip
        metas = []
        for root, boundary in zip(roots, outs, strict=True):
            own = (1, *root.meta.shape) if boundary.is_stack else root.meta.shape
            shape = [n * self.tracker.size(axes) for n, axes in zip(own, boundary.dims, strict=True)]
            metas.append(dense_meta(shape, root.meta.dtype))
        return "".join(node.op.numbers for node in nodes), lowering, tuple(metas)

    def _refuse_shardings(self, nodes: Sequence[Node]) -> None:
        manual: Over = frozenset(axis for axis in self.axes if self.mesh.mesh_axes()[axis] > 1)
        for node in nodes:
            sharding = node.op.sharding
            if sharding is None or node.op.lowering.regions:
                continue
            named = frozenset(axis for dim in sharding.spec.dims for axis in dim.axes)
            met = [axis for axis in self.axes if axis in named & manual]
            same = sharding.replicated() is self.mesh
            if met or not same or len(manual) == len([n for n in self.mesh.mesh_shape if n > 1]):
                why = (
                    f"axis {met[0]!r} is manual there"
                    if met
                    else "all axes of its mesh are manual there"
                    if same
                    else "it is of another mesh"
                )
                raise ValueError(
                    f"{self.name}: {node.op.name} to {sharding!r} inside the body ({node_line(node)}), but {why}: a "
                    "value of one shard can be sharded only over the axes that axis_names leaves to the partitioner"
                )

    def _record(self, name: str, op: tuple[str, Manual, tuple[Meta, ...]], operands: list[Value]) -> list[Value]:
        kinds, lowering, metas = op
        op_spec = OpSpec.of(
            name, lowering, metas, tuple(value.meta for value in operands), numbers=kinds,
            statics=", ".join(f"{axis}={self.mesh.mesh_axes()[axis]}" for axis in self.axes), sharding=self.mesh,
        )  # fmt: skip
        numbers = body_numbers(lowering.body)
        return list(results(record_here(op_spec, operands, numbers, sys._getframe(1), graph_task())))

    # --- running ------------------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> Tensors:
        """The tensors that may have a gradient, and the rest of the arguments."""
        return [*self.given, *self.closed_over]

    def forward(self) -> Tensors:
        """Records the computation: its results, then the saved values."""
        befores = [before for before, _ in self.written.values()]
        operands = [*self.forward_constants, *befores, *map(operand, self.given)]
        made = self._record(self.name, self.forward_op, operands)
        start, end = self.num_made, self.num_made + self.num_written
        for storage, value in zip(self.written, made[start:end], strict=True):
            storage.write(value)
        for name in _FORWARD_ONLY:
            vars(self).pop(name, None)  # until backward only the part of the recording that it reads is held
        return _wrapped([*made[:start], *made[end:]])

    def backward(self, kept: Sequence[Any], arriving: Sequence[Any]) -> list[Any]:
        """Records the backward computation; returns a gradient for each of `inputs`."""
        with LOCK:
            operands = [operand(tensor) for tensor in (*kept, *(arriving[i] for i in self.chosen))]
            made = iter(_wrapped(self._record(f"{self.name}.backward", self.backward_op, operands)))
        gradients: list[Any] = [None] * self.num_given
        for i in self.wanted:
            gradients[i] = next(made)
        recorded()
        return [*gradients, *made]


_FORWARD_ONLY = ("forward_constants", "forward_op", "written", "given", "given_values", "saved_values", "arriving")


def _replicated(value: Any) -> Boundary:
    """The boundary sharding of a value that is the same on all shards."""
    return Boundary(((),) * len((value._meta if type(value) is XlaTensor else value.meta).shape))


def _wrapped(values: Sequence[Value]) -> Tensors:
    return [wrap(value.meta, Storage(value, value.meta)) for value in values]


class _Apply(torch.autograd.Function):
    """A manual computation and its gradient."""

    @staticmethod
    def forward(ctx: Any, region: _Region, *inputs: Any) -> tuple[Any, ...]:
        read = [region.given[i] for i in region.read]
        made = region.forward()
        ctx.region = region
        outputs, kept = made[: region.num_made], made[region.num_made :]
        ctx.save_for_backward(*region.constants, *kept, *read)
        chosen = set(region.chosen)
        ctx.mark_non_differentiable(*(tensor for i, tensor in enumerate(outputs) if i not in chosen))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *arriving: Any) -> Any:
        if torch.is_grad_enabled():
            raise NotImplementedError(f"{ctx.region.name}: its gradient has no gradient (create_graph=True)")
        return None, *ctx.region.backward(ctx.saved_tensors, arriving)

"""The varying axes of a manual computation's values, while it is recorded: where a value that is
equal along an axis meets values that vary along it, its gradient is summed over the axis.

So an invariant value has one gradient along an axis, and a varying value has its share of it per
shard (as `jax.lax.pvary` has it; torch's functions are watched on their way in, above autograd).
"""

import dataclasses
import functools
import math
import operator
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..core import LOCK, Meta, Sharding, XlaTensor, dense_meta, storage_of, threads, user_line
from ..core.extend import (
    Interned,
    Loop,
    Lowering,
    Node,
    OpSpec,
    Region,
    Value,
    reads,
    regions,
    store,
    walks,
)
from .closed_over import WHEN_APPLIED, map_nested, note, stands_for
from .gradient import record, tensors
from .manual_lowering import Axes, CollectiveLowering, IndexLowering, Over, Varying, VaryLowering

# --- recording ------------------------------------------------------------------------------------

_OP_SPECS: Interned[Any, OpSpec] = Interned(1024)


def record_op(name: str, lowering: Lowering, tensor: XlaTensor | None, meta: Meta) -> XlaTensor:
    """Records an op of one operand, or of none, without a gradient."""
    threads.enter_thread()
    if tensor is not None:
        note(tensor)
    with LOCK:
        operands = [] if tensor is None else [reads.operand(tensor)]
        metas = tuple(value.meta for value in operands)
        key = (name, lowering, meta, metas)
        op = _OP_SPECS.of(
            key, lambda: OpSpec.of(name, lowering, (meta,), metas, statics=_text(lowering))
        )
        (result,) = tensors(record(op, operands, ()))
        return result


def collective(
    kind: str, tensor: XlaTensor, axes: Axes, *statics: Any, shape: Sequence[int] | None = None
) -> XlaTensor:
    """Records a collective, without its gradient. shape: that of the result, where it is
    another."""
    meta = dense_meta(tensor.shape if shape is None else shape, tensor.dtype)
    return record_op(f"spmd.{kind}", CollectiveLowering(kind, axes, statics), tensor, meta)


def summed(tensor: XlaTensor, axes: Axes) -> XlaTensor:
    """Records the sum over axes, without its gradient; of none, the tensor itself."""
    return collective("all_reduce", tensor, axes, "sum") if axes else tensor


def index(axes: Axes) -> XlaTensor:
    """Records the shard's index along axes."""
    return record_op("spmd.axis_index", IndexLowering(axes), None, dense_meta((), torch.int64))


def _text(lowering: Lowering) -> str:
    fields = dataclasses.fields(lowering)
    return ", ".join(
        f"{field.name}={getattr(lowering, field.name)!r}"
        for field in fields
        if field.name != "kind"
    )


class Vary(torch.autograd.Function):
    """The identity; its gradient is summed over `more` and divided among the `count` shards along
    `less`.

    in_place: for a value that is about to be written in place.
    """

    @staticmethod
    def forward(tensor: Any, more: Axes, less: Axes, count: int, in_place: bool) -> Any:
        lowering = VaryLowering(more, less)
        result = record_op("spmd.vary", lowering, tensor, dense_meta(tensor.shape, tensor.dtype))
        return tensor.copy_(result) if in_place else result

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        tensor, ctx.more, _, ctx.count, in_place = inputs
        if in_place:
            ctx.mark_dirty(tensor)

    @staticmethod
    def vmap(info: Any, in_dims: Any, tensor: Any, *how: Any) -> Any:
        return Vary.apply(tensor, *how), in_dims[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return (
            summed(gradient / ctx.count if ctx.count > 1 else gradient, ctx.more),
            None,
            None,
            None,
            None,
        )


# --- the computation that is recorded -------------------------------------------------------------

_NONE = Varying()


class VaryingRules:
    """The varying axes of the values of a body, among these axes.

    known: by the names of values (see `value_name`), of its stand-ins, and in time of all that were
    asked for. A value that has no entry, and is data or was recorded before `start`, is equal on
    all shards. is_loop: for the body of a loop, whose draws vary over all axes. own_draws: for a
    draw the axes over which its numbers vary, where its operands do not determine them.
    """

    def __init__(
        self, axes: Axes, varying_of: dict[Any, Varying], *, start: int = 0, is_loop: bool = False
    ):
        self.every = frozenset(axes)
        self.known = varying_of
        self.start = start
        self.is_loop = is_loop
        self.own_draws: dict[Node, Over] = {}

    def of(self, value: Value) -> Varying:
        """Returns the varying axes of one value."""
        for node in walks.up_to([value], self.known, since=self.start):
            self.known |= zip(
                map(walks.value_name, walks.results(node)), self._of_node(node), strict=True
            )
        return self.known.get(walks.value_name(value), _NONE)

    def _of_node(self, node: Node) -> tuple[Varying, ...]:
        operands = [self.known.get(walks.value_name(operand), _NONE) for operand in node.operands]
        met = _union(operands)
        lowering = node.op.lowering
        if isinstance(lowering, (CollectiveLowering, IndexLowering, VaryLowering)):
            return (lowering.varies(met),)
        if isinstance(lowering, Loop):
            return self._of_scan(lowering, operands)
        if isinstance(lowering, regions.While):
            return self._of_while(lowering, operands)
        if isinstance(lowering, regions.Branches):
            return self._of_branches(lowering, operands)
        if node.op.draws:
            over = self.drawn_over(node)
            met |= Varying(over, over)
        return (met,) * len(node.op.metas)

    def drawn_over(self, node: Node) -> Over:
        """Returns the axes over which the numbers that an op draws differ between shards: those of
        its operands; without any, and in the body of a loop, all."""
        if node in self.own_draws:
            return self.own_draws[node]
        if self.is_loop or node.op.lowering.regions or not node.operands:
            return self.every
        return frozenset().union(*(self.of(operand).may_diverge for operand in node.operands))

    def _inside(self, region: Region, inputs: Sequence[Varying]) -> list[Varying]:
        rules = VaryingRules(
            tuple(self.every), dict(zip(region.inputs, inputs, strict=True)), is_loop=True
        )
        return [rules.of(root) for root in region.roots]

    def _of_scan(self, scan: Loop, operands: list[Varying]) -> tuple[Varying, ...]:
        inputs = operands[: scan.num_before_xs]
        inputs += [_union(operands[run.start : run.stop]) for run in scan.operand_runs()]
        while True:  # until the varying axes of the carry no longer change
            result = self._inside(scan.body, inputs)
            if not _add_carry(inputs, result[: scan.num_carried], scan.num_constants):
                break
        results = result[: scan.num_carried]
        for varying, run in zip(result[scan.num_carried :], scan.result_runs(), strict=True):
            results += [varying] * len(run)
        return tuple(results)

    def _of_while(self, loop: regions.While, operands: list[Varying]) -> tuple[Varying, ...]:
        inputs = list(operands)
        while True:
            ends = _union(self._inside(loop.condition, inputs))
            result = [varying | ends for varying in self._inside(loop.body, inputs)]
            if not _add_carry(inputs, result, loop.num_constants):
                return tuple(inputs[loop.num_constants :])

    def _of_branches(
        self, choice: regions.Branches, operands: list[Varying]
    ) -> tuple[Varying, ...]:
        results = [self._inside(region, operands[1:]) for region in choice.regions]
        return tuple(_union((operands[0], *branches)) for branches in zip(*results, strict=True))


def _add_carry(inputs: list[Varying], carry: Sequence[Varying], start: int) -> bool:
    """Adds the varying axes of the new carry to those of the inputs; returns whether any were
    added."""
    old = inputs[start : start + len(carry)]
    inputs[start : start + len(carry)] = union = [a | b for a, b in zip(old, carry, strict=True)]
    return union != old


def _union(all_of: Iterable[Varying]) -> Varying:
    return functools.reduce(operator.or_, all_of, _NONE)


class Tracker(VaryingRules):
    """The rules for a manual computation while it is recorded: values from before `start` are equal
    on all shards.

    mesh: all of its axes with their sizes; axes: the manual ones, in the mesh's order.
    """

    def __init__(self, mesh: Sharding, axes: Axes, start: int = 0):
        super().__init__(axes, {}, start=start)
        self.mesh = mesh
        self.sizes: Mapping[str, int] = mesh.mesh_axes()
        self.axes = axes

    def size(self, axes: Iterable[str]) -> int:
        """The number of shards along axes."""
        return math.prod(self.sizes[axis] for axis in axes)

    def in_order(self, over: Over) -> Axes:
        return tuple(axis for axis in self.axes if axis in over)

    def _of_node(self, node: Node) -> tuple[Varying, ...]:
        if node.op.name != "spmd.stand_in":
            return super()._of_node(node)
        like = stands_for(node)  # of the body of a loop in it
        return (Varying(self.every, self.every) if like is None else self.of(like),)

    def of_tensor(self, tensor: Any) -> Varying:
        """The varying axes of a tensor, also as `torch.func` wraps it."""
        return self.of(storage_of(_inner(tensor)).value)

    def varied(self, tensor: Any, over: Over, *, in_place: bool = False) -> Any:
        """Returns the tensor as varying along these axes, as far as its gradient is concerned."""
        more = self.in_order(over - self.of_tensor(tensor).varying)
        return Vary.apply(tensor, more, (), 1, in_place) if more else tensor

    def reduced(self, tensor: Any, over: Over) -> Any:
        """Returns the tensor, equal on all shards along these axes, as invariant along them."""
        less = self.in_order(over)
        return Vary.apply(tensor, (), less, self.size(less), False) if less else tensor

    def again(self, tensor: Any, axes: Axes) -> Any:
        """Returns the result of a collective that is equal along axes, unchanged."""
        return tensor

    def unified(self, values: Sequence[Any], written: Any = None) -> Sequence[Any]:
        """Returns the arguments of one op with equal varying axes, where they have a gradient."""
        tensors = list(_tensors(values))
        if len(tensors) < 2 or not any(tensor.requires_grad for tensor in tensors):
            return values
        union: Over = frozenset().union(*(self.of_tensor(tensor).varying for tensor in tensors))

        def unify(value: Any) -> Any:
            is_differentiable = is_ours(value) and value.requires_grad
            return (
                self.varied(value, union, in_place=value is written) if is_differentiable else value
            )

        return map_nested(unify, values)


def _inner(tensor: Any) -> XlaTensor:
    """Returns the XlaTensor within the wrappers of `torch.func`."""
    while not isinstance(tensor, XlaTensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def is_ours(value: Any) -> bool:
    """True for an XlaTensor, also as `torch.func` wraps it."""
    if isinstance(value, XlaTensor):
        return True
    is_wrapped = isinstance(
        value, torch.Tensor
    ) and torch._C._functorch.is_functorch_wrapped_tensor(value)
    return is_wrapped and is_ours(torch._C._functorch.get_unwrapped(value))


def _tensors(values: Any) -> Iterator[Any]:
    """Yields the XlaTensors among the arguments of an op, also as `torch.func` wraps them."""
    for value in values:
        if is_ours(value):
            yield value
        elif type(value) in (list, tuple):
            yield from _tensors(value)


class _ThreadState(threading.local):
    tracker: Tracker | None = None
    calls: Any = None  # the `body_calls.BodyCalls` that notes the calls in bodies


thread = _ThreadState()


def tracker() -> Tracker | None:
    """The tracker of the manual computation that the calling thread records, or None."""
    return thread.tracker


def as_own(tensors: Sequence[Any]) -> list[Any]:
    """Returns the tensors that go into the body of a loop, in a manual computation as varying along
    all its axes, whatever an iteration computes of them."""
    scope = tracker()
    if scope is None or not torch.is_grad_enabled():
        return list(tensors)
    return [
        scope.varied(tensor, scope.every) if tensor.requires_grad else tensor for tensor in tensors
    ]


# --- torch's functions ----------------------------------------------------------------------------

_ATTRIBUTES = frozenset(
    {"__get__", "__set__", "size", "dim", "stride", "numel", "is_floating_point", "is_complex"}
)
_DROPS = frozenset({
    "dropout", "dropout_", "alpha_dropout", "alpha_dropout_", "feature_dropout", "feature_dropout_",
    "feature_alpha_dropout", "feature_alpha_dropout_", "dropout1d", "dropout2d", "dropout3d",
    "native_dropout",
})  # fmt: skip


class Watching(TorchFunctionMode):
    """Gives the arguments of torch functions in a manual computation equal varying axes, above
    autograd."""

    def __init__(self, tracker: Tracker):
        super().__init__()
        self.tracker = tracker

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        kwargs = kwargs or {}
        if name in _ATTRIBUTES:
            return func(*args, **kwargs)
        if name == "backward":
            raise NotImplementedError(
                f".backward() at {user_line()}, inside the body of spmd.shard_map: the body is "
                "recorded and has no .grad to keep; return the loss and call .backward() outside, "
                "or use torch.autograd.grad here"
            )
        if func is torch.autograd.grad and kwargs.get("create_graph"):
            raise NotImplementedError(
                f"torch.autograd.grad(create_graph=True) at {user_line()}, (as torch.func.grad "
                "has it), inside the body of spmd.shard_map: a gradient of the gradient is not "
                "summed over the shards; torch.autograd.grad without create_graph gives the "
                "gradient"
            )
        if torch.is_grad_enabled() and func is not torch.autograd.grad:
            written = args[0] if args and _writes(name) else kwargs.get("out")
            if kwargs:
                unified_arguments = self.tracker.unified([*args, *kwargs.values()], written)
                args, kwargs = (
                    unified_arguments[: len(args)],
                    dict(zip(kwargs, unified_arguments[len(args) :], strict=True)),
                )
            else:
                args = self.tracker.unified(args, written)
        result = self._dropped(func, args, kwargs) if name in _DROPS else func(*args, **kwargs)
        return (
            result
            if thread.calls is None
            else thread.calls.function(name, result, in_place=_writes(name))
        )

    def _dropped(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs a dropout function; the mask of a value that is the same on all shards is the same
        on all of them."""
        tensor = next(_tensors([*args, *kwargs.values()]), None)
        over: Over = frozenset() if tensor is None else self.tracker.of_tensor(tensor).may_diverge
        start = store.next_serial()
        result = func(*args, **kwargs)
        values = (
            []
            if tensor is None
            else [storage_of(_inner(output)).value for output in _tensors((result,))]
        )
        for node in walks.between(values, (), since=start):
            if node.op.draws:
                self.tracker.own_draws.setdefault(node, over)
        return result


def _writes(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name.startswith(
        ("__i", "__setitem__")
    )


def _unify(cls: Any, args: Sequence[Any]) -> Sequence[Any]:
    """Gives a user's `torch.autograd.Function` arguments of equal varying axes, too."""
    scope = tracker()
    return args if scope is None or cls.__module__.startswith("spmd.") else scope.unified(args)


WHEN_APPLIED.append(_unify)

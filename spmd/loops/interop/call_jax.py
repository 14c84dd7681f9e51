"""JAX functions in a user's program: as differentiable ops (`call_jax`), and as lowering rules of
the user's ops."""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch._ops import OpOverload

from ...core import (
    LOCK,
    Meta,
    XlaTensor,
    compiler_context,
    dense_meta,
    dtypes,
    ends_at_user_line,
    jax_facts,
    resolve,
    tensor_meta,
)
from ...core.extend import (
    Arrays,
    Interned,
    Layouts,
    Lowering,
    OpSpec,
    op_specs,
    op_watch,
    reads,
    registry,
    rules,
    storages,
)
from ...tensors.annotate import on_device
from ..recorded_ops import of_tensors


def _refused(_: XlaTensor) -> Any:
    raise TypeError(
        "a function of jax got a tensor on xla, which records torch's ops; call it by "
        "spmd.call_jax(function, tensor), and inside of spmd.shard_map a collective of spmd.manual "
        "(jax.lax.psum: spmd.manual.all_reduce)"
    )


jax_facts.pytype_aval_mappings[XlaTensor] = _refused


@ends_at_user_line
def call_jax(fn: Callable[..., Any], *tensors: Any, **static: Any) -> Any:
    """Calls a JAX function on tensors as one recorded, differentiable op; the arrays in its result
    become tensors.

    Shapes and dtypes of the results are those of `jax.eval_shape`. Gradients come from `jax.vjp`,
    of any order; integer inputs and results have none. The backward pass traces the function again,
    and XLA computes once the values that it shares with the forward pass in the same program. The
    function must be pure. It is traced once for each combination of function, shapes, dtypes and
    static values: pass the same function object, not a new lambda each step.

    Args:
        fn: takes arrays in place of the tensors. It runs with JAX's 32-bit defaults unless an input
            has 64 bits.
        tensors: pytrees of tensors on xla. Anything else in them (a number, a string) is static.
        static: keyword arguments for `fn`; they must be hashable, and another value is another
            program.

    Raises TypeError for a tensor that is not on xla, a tensor in `static`, a static value that
    cannot be hashed, or a result without arrays; errors of `fn` while it is traced come out
    unchanged. Source: `torchax.interop.call_jax`.

    >>> import jax, torch, spmd
    >>> x = torch.ones(3, device="xla", requires_grad=True)
    >>> spmd.call_jax(jax.nn.softplus, x).sum().backward()
    >>> x.grad.shape
    torch.Size([3])
    """
    values, tree = jax.tree.flatten(tensors)
    operands = [on_device(value, "call_jax") for value in values if isinstance(value, torch.Tensor)]
    keys = tuple(
        "" if isinstance(value, torch.Tensor) else static_key("call_jax", "an argument", value)
        for value in values
    )
    for name, value in static.items():
        if any(isinstance(part, torch.Tensor) for part in jax.tree.flatten(value)[0]):
            raise TypeError(
                f"call_jax: {name} holds a tensor; pass tensors by position, only static values "
                "by name"
            )
    named = tuple(
        (name, static_key("call_jax", name, value)) for name, value in sorted(static.items())
    )
    metas = tuple(dense_meta(tensor.shape, tensor.dtype) for tensor in operands)
    key = (fn, tree, keys, named, metas)

    def called(values: list[Any]) -> Any:
        return fn(*jax.tree.unflatten(tree, values), **static)

    function = of_tensors(called, values)
    call = _CALLS.of(key, lambda: JaxCall(fn, function, metas, f"{fn!r}, {static}"))
    result = ApplyJax.apply(call, *operands)
    return jax.tree.unflatten(call.tree, result)


def static_key(caller: str, name: str, value: Any) -> tuple[Any, ...]:
    """Returns a static value as part of a key: equal only to those of the same type and text (1 is
    not 1.0)."""
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"{caller}: {name} is a {type(value).__name__}, which cannot be hashed; pass arrays "
            "as tensors on xla, and static values as numbers, strings, tuples or frozen "
            "dataclasses"
        ) from None
    # 0.0 equals -0.0
    return type(value), repr(value) if isinstance(value, (float, complex)) else value


_serials = itertools.count()


@dataclass(frozen=True, slots=True)
class _Foreign(Lowering):
    """A user's function of arrays; no text describes it, so its number in this process represents
    it."""

    serial: int
    function: Callable[[Arrays], Any] = field(compare=False)

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        return tuple(jax.tree.flatten(self.function(operands))[0])


@op_specs.contains_function.register
def _contains_function(lowering: _Foreign) -> bool:
    return True


class JaxCall:
    """One JAX function over operands of known shapes: the OpSpec that records it, and the calls of
    its gradients."""

    def __init__(
        self, fn: Any, function: Callable[..., Any], metas: tuple[Meta, ...], statics: str
    ):
        self.fn, self.function, self.metas, self.statics = fn, function, metas, statics
        self.is_wide = any(meta.struct.dtype in _WIDE for meta in metas)
        with compiler_context():
            result = jax.eval_shape(
                lambda *arrays: self._traced(arrays), *(meta.struct for meta in metas)
            )
        shapes, self.tree = jax.tree.flatten(result)
        if not shapes:
            raise TypeError(
                f"call_jax: {fn!r} returns no array; expected a pytree with at least one"
            )
        self.results = tuple(
            dense_meta(shape.shape, dtypes.to_torch_dtype(shape.dtype)) for shape in shapes
        )
        name = re.sub(r"\W+", "_", getattr(fn, "__name__", type(fn).__name__)).strip("_")
        foreign = _Foreign(next(_serials), self._traced)
        self.op = OpSpec.of(f"spmd.call_jax.{name}", foreign, self.results, metas, statics=statics)
        self.gradients: dict[tuple[bool, ...], JaxCall] = {}

    def placed(self, arrays: Arrays) -> Callable[..., Any]:
        """The function, for operands that the compiler's walk knows; what differentiates it passes
        others to it."""
        return self.function

    def _traced(self, arrays: Arrays, function: Callable[..., Any] | None = None) -> Any:
        with jax.enable_x64(self.is_wide):
            return jax.tree.map(jnp.asarray, (function or self.placed(arrays))(*arrays))

    def gradient(self, needed: tuple[bool, ...]) -> "JaxCall":
        """Returns the call (operands, cotangents of floating-point results) -> gradients of
        operands that need one."""
        if needed not in self.gradients:
            indices = [i for i, need in enumerate(needed) if need]
            metas = (*self.metas, *(meta for meta in self.results if is_float(meta)))
            statics = f"vjp of {self.statics}"
            self.gradients[needed] = JaxCall(
                self.fn, lambda *a: self._pulled_back(a, indices), metas, statics
            )
        return self.gradients[needed]

    def _pulled_back(self, arrays: Arrays, indices: list[int]) -> Any:
        count = len(self.metas)
        operands, cotangents = arrays[:count], arrays[count:]
        function = self.placed(operands)

        def differentiable(*replacements: jax.Array) -> tuple[jax.Array, ...]:
            arrays = list(operands)
            for index, array in zip(indices, replacements, strict=True):
                arrays[index] = array
            result = jax.tree.flatten(self._traced(arrays, function))[0]
            return tuple(
                array for array, meta in zip(result, self.results, strict=True) if is_float(meta)
            )

        return jax.vjp(differentiable, *(operands[index] for index in indices))[1](
            tuple(cotangents)
        )


_WIDE = {np.dtype(name) for name in ("int64", "uint64", "float64", "complex128")}
# Few: each holds its function with its closure. A call that a compiled program holds is found all
# the same.
_CALLS: Interned[Any, JaxCall] = Interned(32)


def is_float(meta: Meta) -> bool:
    return meta.dtype.is_floating_point or meta.dtype.is_complex


class ApplyJax(torch.autograd.Function):
    """Records a call; its backward is a call as well, and so differentiable again."""

    @staticmethod
    def forward(call: JaxCall, *tensors: XlaTensor) -> tuple[XlaTensor, ...]:
        result = reads.record_op(call.op, tensors)
        op_watch.note_own_op()
        return tuple(result)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[XlaTensor, ...]) -> None:
        ctx.call = inputs[0]
        ctx.save_for_backward(*inputs[1:])
        ctx.mark_non_differentiable(
            *(tensor for tensor in output if not is_float(tensor_meta(tensor)))
        )

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        call: JaxCall = ctx.call
        needed = tuple(
            n and is_float(m) for n, m in zip(ctx.needs_input_grad[1:], call.metas, strict=True)
        )
        if not any(needed):
            return (None,) * (len(needed) + 1)
        arriving = [c for c, meta in zip(cotangents, call.results, strict=True) if is_float(meta)]
        gradients = iter(ApplyJax.apply(call.gradient(needed), *ctx.saved_tensors, *arriving))
        return (None, *(next(gradients) if need else None for need in needed))


@ends_at_user_line
def register_lowering(
    op: OpOverload, rule: Callable[..., Any] | None = None, *, promote: rules.Promote | None = None
) -> Callable[..., Any]:
    """Registers a JAX function as the lowering rule of an op, such as one made by
    `torch.library.custom_op`.

    The rule's parameters are those of the op's schema, in its order; it receives jax arrays for
    tensors, Python values for the rest, and returns an array, or a tuple of them. Shapes and dtypes
    of the results come from the op's `torch.library.register_fake`, gradients from its
    `register_autograd`. Returns the rule; without one, a decorator.

    Args:
        op: an overload that writes into no argument: `torch.ops.mylib.scale.default`, not
            `torch.ops.mylib.scale`.
        rule: a pure function of arrays. promote: torch's type promotion, done before the rule is
            called.

    Raises TypeError for an op that is not an overload, ValueError for one that writes into its
    arguments, for one that has a rule already, and for parameters that differ from the schema's.

    >>> import torch, spmd
    >>> @torch.library.custom_op("doc::twice", mutates_args=())
    ... def twice(x: torch.Tensor) -> torch.Tensor:
    ...     return x.numpy() * 2
    >>> _ = twice.register_fake(torch.empty_like)
    >>> _ = spmd.register_lowering(torch.ops.doc.twice.default, lambda x: x * 2)
    >>> twice(torch.ones(2, device="xla")).tolist()
    [2.0, 2.0]
    """
    if rule is None:
        return lambda function: register_lowering(op, function, promote=promote)
    if not isinstance(op, OpOverload):
        raise TypeError(
            "register_lowering: expected an overload such as torch.ops.mylib.scale.default, got "
            f"{op!r}"
        )
    if op._schema.is_mutable:
        raise ValueError(
            f"register_lowering: {op} writes into its arguments; register its form without "
            "mutation, whose result the caller then copies"
        )
    with LOCK:
        registry.lower(op, promote=promote, opaque=True)(rule)
        resolve.PLANS.pop(op, None)  # made before the rule existed
        storages.requeue(
            lambda nodes, _: any(
                node.op.name.startswith(str(op).removesuffix(".default")) for node in nodes
            )
        )
    return rule


__all__ = ["call_jax", "register_lowering"]

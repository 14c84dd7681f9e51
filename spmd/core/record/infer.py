"""The slow path of dispatch: the OpSpec of one new combination of operands.

An OpSpec is built once per (operand metas, static arguments): torch runs the op on meta tensors for
the result's shape, dtype and strides (and raises its own errors for bad shapes), and the rule's
arguments are bound.
"""

# Why torch's meta device and not shapes of our own: its kernels decide strides, promotion and
# errors, and change with its versions. They run once for each op spec, so that what they cost does
# not matter.

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from torch._ops import OpOverload
from torch._prims_common import elementwise_dtypes
from torch.utils._pytree import tree_iter, tree_map_only

from ...ops import Rule, check
from ...ops.meta_rules import META_FUNCTIONS
from ..base.dtypes import check_fits, is_exact, to_numpy_dtype
from ..graph.graph import LARGEST, is_one_number
from ..graph.meta import Meta, dense_meta, meta_of
from ..graph.op import Lowering, OpSpec, Slot
from .lowerings import CALLS, Call, Fill
from .overlap import check_targets
from .overloads import (
    MUTATION,
    VIEW,
    Args,
    Kwargs,
    Large,
    Number,
    Operand,
    Plan,
    TorchValue,
    fill,
    is_foreach,
    makes_tensors,
    written,
)
from .refusals import refusal
from .tensor import XlaTensor
from .views import ViewRule, view_rule

# Under a default dtype of bfloat16, an integer times a complex number is complex64 on the CPU; the
# meta kernel of torch 2.15, written in Python, returns bcomplex32, which neither earlier versions
# nor XLA have.
_BCOMPLEX32: torch.dtype | None = getattr(torch, "bcomplex32", None)


# --- binding arguments ----------------------------------------------------------------------------


@dataclass(slots=True)
class Binding:
    """An overload's arguments with tensors and scalar arguments replaced by their indices, in
    dispatch's order."""

    arguments: dict[str, TorchValue]
    metas: list[Meta]
    numbers: list[float | int]

    @property
    def kinds(self) -> str:
        """The kinds of the scalar arguments (see `OpSpec.numbers`)."""
        return "".join("f" if type(number) is float else "i" for number in self.numbers)


def bind(plan: Plan, args: Args, kwargs: Kwargs) -> Binding:
    """Binds the arguments of a call to their names in the schema."""
    binding = Binding({}, [], [])
    for argument, value in zip(plan.overload._schema.arguments, args, strict=False):
        # Dispatch passes the key of its draw as two numbers.
        if type(value) is torch._C.Generator:
            continue
        binding.arguments[argument.name] = _bind_argument(
            value, argument.name in plan.scalar_argument_names, binding
        )
    for name, value in kwargs.items():
        if name not in plan.ignored:
            binding.arguments[name] = _bind_argument(
                value, name in plan.scalar_argument_names, binding
            )
    return binding


def _bind_argument(value: TorchValue, is_scalar_argument: bool, binding: Binding) -> TorchValue:
    """Returns an argument with tensors and scalar arguments replaced by their indices, and adds
    them to the binding."""
    if isinstance(value, torch.Tensor):
        binding.metas.append(
            value._meta if isinstance(value, XlaTensor) else dense_meta(value.shape, value.dtype)
        )
        return Operand(len(binding.metas) - 1)
    if isinstance(value, (list, tuple)):
        if is_scalar_argument and is_one_number(value):
            return [_bind_argument(value[0], True, binding)] * len(value)  # one scalar argument
        return [_bind_argument(item, is_scalar_argument, binding) for item in value]
    if is_scalar_argument and type(value) is int and value > LARGEST:
        return Large(value)
    if is_scalar_argument and type(value) in (int, float):
        binding.numbers.append(value)
        return Number(len(binding.numbers) - 1)
    return value


@contextlib.contextmanager
def _without_determinism_errors() -> Iterator[None]:
    """Context without torch's errors about determinism: on meta tensors torch also raises for ops
    that only CUDA leaves unordered."""
    if not torch.are_deterministic_algorithms_enabled():
        yield
        return
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=warn_only)


def run_on_meta(plan: Plan, args: Args, kwargs: Kwargs) -> TorchValue:
    """The op's results on meta tensors. Raises torch's own errors."""
    # Meta kernels take no generator.
    positional = [value for value in args if type(value) is not torch._C.Generator]
    keywords = {
        name: value for name, value in kwargs.items() if name not in ("generator", "pin_memory")
    }
    arguments, keywords = tree_map_only(
        torch.Tensor, lambda tensor: meta_of(tensor).make(), (positional, keywords)
    )
    is_factory = makes_tensors(plan.overload) and not any(
        isinstance(value, torch.Tensor) for value in args
    )
    # The meta kernel must not make a tensor of the device.
    if "device" in keywords or is_factory:
        keywords["device"] = torch.device("meta")
    run = META_FUNCTIONS.get(plan.overload, plan.overload)
    try:
        check(plan.overload, *arguments, **keywords)
        with _without_determinism_errors():
            result = run(*arguments, **keywords)
        if _BCOMPLEX32 is not None and torch.get_default_dtype() is torch.bfloat16:
            as_on_cpu = {_BCOMPLEX32: torch.complex64}
            result = tree_map_only(
                torch.Tensor, lambda x: x.to(as_on_cpu.get(x.dtype, x.dtype)), result
            )
    except AssertionError as error:
        # some of torch's meta kernels in Python assert; its other kernels raise
        raise refusal(plan.overload, RuntimeError(str(error)), args, kwargs, plan.twin) from error
    except (RuntimeError, IndexError, ValueError) as error:
        # Subclasses are the library's own errors, with words of their own.
        if type(error) not in (RuntimeError, IndexError, ValueError):
            raise
        raise refusal(plan.overload, error, args, kwargs, plan.twin) from None
    # Some ops write more tensors than they return.
    if plan.kind is MUTATION:
        return written(plan.overload, arguments, keywords)
    return result


# --- entries --------------------------------------------------------------------------------------


def new_op(plan: Plan, args: Args, kwargs: Kwargs) -> Any:
    """The OpSpec (for a view op: the ViewRule) of one new combination of operands and static
    arguments."""
    # For the first call; dispatch checks the numbers of later ones.
    if plan.fills and isinstance(args[0], torch.Tensor):
        for value, is_scalar_argument in zip(args, plan.scalar_args, strict=False):
            if is_scalar_argument and isinstance(value, (int, float, complex)):
                check_fits(plan.name, value, kwargs.get("dtype") or args[0].dtype)
    result = run_on_meta(plan, args, kwargs)
    binding = bind(plan, args, kwargs)
    if plan.kind is VIEW:
        return _view_rule(plan, args[0], binding, meta_of(result))
    flat = list(result) if isinstance(result, (tuple, list)) else [result]
    metas = tuple(meta_of(item).layout for item in flat if isinstance(item, torch.Tensor))
    if plan.kind is MUTATION:
        targets = written(plan.overload, args, kwargs)
        check_targets(plan.name, plan.base, targets)
        _check_target_metas(plan, targets, metas)
        check_complex(plan, args)
    has_only_tensors = all(isinstance(item, torch.Tensor) for item in flat)
    layout = (
        None
        if has_only_tensors
        else tuple(Slot if isinstance(item, torch.Tensor) else item for item in flat)
    )
    kinds = binding.kinds + ("ii" if plan.draws else "")
    lowering, constant = lowering_of(plan, binding)
    # The text has the metas of the first call; the key has layouts alone.
    printed = {
        name: fill(value, binding.metas.__getitem__, lambda i: "lifted")
        for name, value in binding.arguments.items()
    }
    statics = ", ".join(f"{name}={value}" for name, value in printed.items())
    operands = tuple(meta.layout for meta in binding.metas)
    op = OpSpec.of(
        plan.name,
        lowering,
        metas,
        operands,
        numbers=kinds,
        statics=statics,
        constant=constant,
        layout=layout,
    )
    if operands and constant is None and not any(meta.dtype.is_floating_point for meta in operands):
        _check_operand_dtypes(plan, op)
    return op


def reads_default_dtype(plan: Plan, args: Args, kwargs: Kwargs, metas: tuple[Meta, ...]) -> bool:
    """True if torch's default dtype may decide a dtype of the op: its operands are integers, and a
    float is among the numbers or the results."""
    values = [
        *tree_iter(args),
        *(value for name, value in kwargs.items() if name not in plan.ignored),
    ]
    # A dtype argument decides.
    if any(isinstance(value, torch.dtype) for value in values):
        return False
    # One floating-point operand decides, but for a list op: each of its elements is promoted alone.
    are_exact = [is_exact(value.dtype) for value in values if isinstance(value, torch.Tensor)]
    may_decide = any(are_exact) if is_foreach(plan.overload) else all(are_exact)
    return may_decide and (
        any(isinstance(value, (float, complex)) for value in values)
        or not all(is_exact(meta.dtype) for meta in metas)
    )


# torch's meta kernels take every dtype. The rule is tried here, once per OpSpec, so that the user's
# line raises and not the sync. Every rule takes floats: these are not tried.
def _check_operand_dtypes(plan: Plan, op: OpSpec) -> None:
    """Raises NotImplementedError for integer, boolean or complex operands outside the rule's
    domain."""
    numbers = [
        jax.ShapeDtypeStruct((), np.float64 if kind == "f" else np.int64) for kind in op.numbers
    ]
    try:
        with jax.enable_x64(True):
            lower = functools.partial(op.lowering.lower, op, layouts=[None] * len(op.operands))
            jax.eval_shape(lower, [meta.struct for meta in op.operands], numbers)
    except (TypeError, ValueError) as error:
        kinds = ", ".join(dict.fromkeys(str(meta.dtype) for meta in op.operands))
        raise NotImplementedError(
            f"{plan.name} is not implemented for {kinds} on xla: {error}"
        ) from error


_ARITHMETIC = {"add", "sub", "mul", "div", "pow", "rsub", "addcmul", "addcdiv", "lerp"}


def check_complex(plan: Plan, args: Args) -> None:
    """Raises where arithmetic writes a complex result into a real tensor, as every device of torch
    but meta does."""
    target = args[0]
    if plan.base not in _ARITHMETIC or not isinstance(target, torch.Tensor) or target.is_complex():
        return
    for value in args[1:]:
        if isinstance(value, complex) or (isinstance(value, torch.Tensor) and value.is_complex()):
            result_type = "ComplexDouble" if target.dtype == torch.float64 else "ComplexFloat"
            raise RuntimeError(
                f"{plan.name}: result type {result_type} can't be cast to the desired output type "
                f"{target.dtype}"
            )


def _check_target_metas(
    plan: Plan, targets: Sequence[torch.Tensor], metas: tuple[Meta, ...]
) -> None:
    """Raises NotImplementedError for a write that would change a target's shape or dtype."""
    for target, meta in zip(targets, metas, strict=True):
        if isinstance(target, XlaTensor) and (target._meta.shape, target._meta.dtype) != (
            meta.shape,
            meta.dtype,
        ):
            raise NotImplementedError(
                f"{plan.name} would change {target._meta!r} into {meta!r}; on xla a tensor keeps "
                "its shape: use the out-of-place form and rebind the name"
            )


def _view_rule(plan: Plan, base: XlaTensor, binding: Binding, meta: Meta) -> ViewRule:
    """The rule of a view. Bases that differ only in their offset in memory share its read and
    write."""
    parent = base._meta.layout
    arguments = dict(list(binding.arguments.items())[1:])  # without the base
    statics = ", ".join(f"{name}={value}" for name, value in arguments.items())

    def new_rule() -> ViewRule:
        op = OpSpec.of(plan.name, _call(plan, binding), (meta.layout,), (parent,), statics=statics)
        return view_rule(plan.overload, op, parent, arguments)

    rule: ViewRule = plan.table.of(("layout", parent, statics), new_rule)
    return ViewRule(rule.read, rule.write, meta, rule.shown)


def lowering_of(plan: Plan, binding: Binding) -> tuple[Lowering, Any]:
    """The lowering of an op with these arguments, and the constant that it fills its result with,
    or None."""
    constant = plan.constant
    if constant == "lifted" and not binding.numbers:  # a bool or complex number is static
        constant = next(
            binding.arguments[name]
            for name in binding.arguments
            if name in plan.scalar_argument_names
        )
    return Fill() if constant is not None else _call(plan, binding), constant


def _call(plan: Plan, binding: Binding) -> Call:
    """The lowering by the op's rule, with these arguments."""
    assert plan.rule is not None and plan.twin is not None
    return CALLS.get(plan.twin, Call)(
        plan.twin,
        tuple(binding.arguments.items()),
        compute=_compute_dtype(plan.twin, plan.rule, binding),
        precision=plan.precision,
        writes=plan.kind is MUTATION,
        shape_only=plan.ignores_operands,
        foreign=plan.rule if plan.rule.opaque else None,
    )


def _compute_dtype(twin: OpOverload, rule: Rule, binding: Binding) -> np.dtype | None:
    """The dtype in which a rule computes, by torch's promotion of its positional operands; None
    without promotion."""
    if rule.promote is None:
        return None
    promoted = []
    for argument in twin._schema.arguments:
        if argument.kwarg_only or argument.name not in binding.arguments:
            continue
        value = fill(
            binding.arguments[argument.name],
            lambda i: binding.metas[i].make(),
            lambda i: binding.numbers[i],
        )
        if isinstance(value, torch.Tensor) or (
            type(value) in (int, float, bool, complex) and _is_promoted(argument)
        ):
            promoted.append(value)
    compute, _ = elementwise_dtypes(*promoted, type_promotion_kind=rule.promote)
    if compute.is_floating_point and compute.itemsize == 1:
        # torch computes float8 so, too; its table of dtypes does not have it
        compute = torch.float32
    return to_numpy_dtype(compute)


def _is_promoted(argument: torch.Argument) -> bool:
    """True if torch promotes a number passed as this argument with the tensors: it is no dim or
    size."""
    return str(argument.type) in ("number", "Optional[number]", "Tensor", "Optional[Tensor]")

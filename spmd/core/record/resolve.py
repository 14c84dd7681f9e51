"""The plan of each overload: a handler of its own, its rule, a form of another op, or a
decomposition."""

# Why plans are made at an overload's first call and kept: torch has thousands of overloads, a model
# uses a hundred, and which of rule, form and decomposition an op takes does not change while a
# process runs.

import functools
from collections.abc import Callable

import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload

from ...ops import CHECKS, ON_CPU, base_name
from .calls.bounds import check_of
from .calls.fallback import on_cpu, runs_on_cpu
from .calls.lists import by_mesh
from .calls.out import out_form
from .calls.specials import BY_NAME, COMPOSITE, SPECIALS, by_torchs_kernel
from .memory_formats import refuse_op
from .overloads import (
    MUTATION,
    VIEW,
    Args,
    Handler,
    Kwargs,
    Plan,
    TorchValue,
    as_list,
    kind_of,
    written,
)
from .tensor import XlaTensor

PLANS: dict[OpOverload, Plan] = {}


def no_rule(func: OpOverload, args: Args, kwargs: Kwargs) -> TorchValue:
    """The handler of an op without a rule or a decomposition."""
    refuse_op(base_name(func))
    if runs_on_cpu(func):
        return on_cpu(func, args, kwargs)
    advice = (
        "its result is a view, which no run on the CPU gives"
        if kind_of(func) is VIEW
        else 'set spmd.config.fallback = "cpu" to run such ops on the CPU'
    )
    raise NotImplementedError(
        f"{func} has no lowering rule on xla, and torch has no decomposition of it. Give it one "
        f"with spmd.register_lowering, or move its inputs with .cpu(); {advice}."
    )


def plan_of(op: OpOverload) -> Plan:
    """An op's plan, complete before it enters the table.

    Ops that may get a kernel later stay out of it.
    """
    plan = PLANS.get(op) or new_plan(op)
    return plan if plan.handler is no_rule else PLANS.setdefault(op, plan)


def new_plan(op: OpOverload) -> Plan:
    """A new plan, in no table."""
    plan = Plan(op)
    plan.check_data = check_of(plan)
    plan.is_plain &= plan.check_data is None
    plan.handler = _handler(plan)
    if plan.handler is None and plan.is_product:
        plan.handler = _product
    elif plan.handler is not None and plan.check_data is not None:
        plan.handler = _with_check(plan.check_data, plan.handler)
    return plan


def _handler(plan: Plan) -> Handler | None:
    """The handler in place of an op's rule.

    Ops without a rule are decomposed, or raise an error.
    """
    overload = plan.overload
    # In order: a handler of ours, an out= form, the rule (None), a package's kernel, torch's
    # decomposition.
    special = SPECIALS.get(overload) or BY_NAME.get(overload._schema.name)
    if special is not None or plan.is_list:
        return special or by_mesh
    if plan.outs and (form := out_form(plan)) is not None:
        return form
    if plan.rule is not None:
        return None
    kernel = _kernel(overload)
    if kernel is not None:
        return kernel
    check, handler = CHECKS.get(overload), _decomposition(plan)
    return handler if check is None else _with_check(check, handler)


# --- the precision of float32 products ------------------------------------------------------------

# A program's products and convolutions are full float32 (`lower` sets that) unless the user's
# setting at the call allows less. A product under such a setting is another op,
# `aten.mm:precision_high`, with an op table of its own: a graph may mix settings, its key differs
# between them, and the compile log names the change. Ops that are no products pay nothing.

# torch's word -> jax's. On GPU both are TF32; on TPU they are three passes of bfloat16 and one; a
# CPU computes in float32 under any setting.
_JAX_PRECISION = {"high": "high", "medium": "default"}
_FLOAT32 = (torch.float32, torch.complex64)

_precision_setting = torch._C._get_fp32_precision_getter


def matmul_precision() -> str:
    """The least precision that any of torch's settings for matmuls allows: "highest", "high" or
    "medium".

    `torch.set_float32_matmul_precision`, `torch.backends.fp32_precision` and the settings of
    `torch.backends.cuda.matmul` and `torch.backends.mkldnn.matmul` are read. Convolutions follow
    it, too: torch's own setting for them is cuDNN's, which allows TF32 by default.
    """
    allowed = (_precision_setting("cuda", "matmul"), _precision_setting("mkldnn", "matmul"))
    return "medium" if "bf16" in allowed else "high" if "tf32" in allowed else "highest"


def _product(func: OpOverload, args: Args, kwargs: Kwargs) -> TorchValue:
    """The plan of a product at less than full float32, where the user allows it at this call."""
    setting = matmul_precision()
    if setting == "highest" or not any(
        isinstance(x, XlaTensor) and x._meta.dtype in _FLOAT32 for x in args
    ):
        return NotImplemented
    return _less_precise(func, setting)


@functools.cache
def _less_precise(overload: OpOverload, setting: str) -> Plan:
    """The plan of a product under "high" or "medium"."""
    plan = Plan(overload)
    assert plan.rule is not None, "only products have a precision"
    plan.name = f"{plan.name}:precision_{setting}"
    plan.precision = _JAX_PRECISION[setting]
    return plan


def _with_check(check: Callable[..., None], handler: Handler) -> Handler:
    """A handler that checks its arguments first."""

    def checked(func: OpOverload, args: Args, kwargs: Kwargs) -> TorchValue:
        check(*args, **kwargs)
        return handler(func, args, kwargs)

    return checked


# --- decomposition --------------------------------------------------------------------------------


# The keys of kernels that a package registers for this device: torch maps "xla" to the first, the
# device has the second, and the last is of kernels that are written in other ops.
_KERNELS = (
    torch._C.DispatchKey.XLA,
    torch._C.DispatchKey.PrivateUse1,
    torch._C.DispatchKey.CompositeExplicitAutograd,
)
_AUTOGRAD, _ALL_AUTOGRAD = (
    torch._C.DispatchKey.AutogradXLA,
    torch._C.DispatchKey.AutogradFunctionality,
)


def _kernel(overload: OpOverload) -> Handler | None:
    """The kernel that a package has registered for this device; torch's own are in other tables.

    Autograd records the kernel's ops, as those of any device. A kernel for AutogradXLA comes first,
    unless a kernel above has excluded autograd: torch does not look it up for this device.
    """
    if overload.namespace in ("aten", "c10d", "prims"):
        return None
    own_key = next((key for key in _KERNELS if overload.has_kernel_for_dispatch_key(key)), None)
    has_autograd = overload.has_kernel_for_dispatch_key(_AUTOGRAD)
    if own_key is None and not has_autograd:
        return None
    key = _AUTOGRAD if own_key is None else own_key

    def call(func: OpOverload, args: Args, kwargs: Kwargs) -> TorchValue:
        with torch.overrides.enable_reentrant_dispatch():
            is_hidden = torch._C._dispatch_tls_is_dispatch_key_excluded(_ALL_AUTOGRAD)
            return func._op_dk(
                _AUTOGRAD if has_autograd and not is_hidden else key, *args, **kwargs
            )

    return call


def _decomposition(plan: Plan) -> Handler:
    """The handler of an op without a rule: its decomposition, its functional twin's, or an
    error."""
    overload = plan.overload
    # torch decomposes some ops of this table into themselves.
    decompose = None if overload._schema.name in ON_CPU else decomposition_table.get(overload)
    if decompose is not None:
        return lambda func, args, kwargs: decompose(*args, **kwargs)
    if overload._can_decompose():
        return lambda func, args, kwargs: func.decompose(*args, **kwargs)
    # Some of torch's decompositions are written in prims.
    if overload.namespace == "prims":
        return lambda func, args, kwargs: func._overloadpacket.impl_aten(*args, **kwargs)
    if overload._schema.name.endswith("_copy") and overload.has_kernel_for_dispatch_key(
        COMPOSITE[-1]
    ):
        return by_torchs_kernel  # copies the view that the op without `_copy` returns
    twin = plan.twin
    if (
        plan.kind is MUTATION
        and twin is not None
        and (twin in decomposition_table or twin._can_decompose() or twin in SPECIALS)
    ):
        return lambda func, args, kwargs: _through_twin(plan, twin, args, kwargs)
    return no_rule


def _through_twin(plan: Plan, twin: OpOverload, args: Args, kwargs: Kwargs) -> TorchValue:
    """Runs the functional twin, and copies its results into the targets."""
    result = twin(*args, **{name: value for name, value in kwargs.items() if name not in plan.outs})
    targets = written(plan.overload, args, kwargs)
    for target, value in zip(targets, as_list(result), strict=True):
        target.copy_(value)
    return plan.returned(targets)

"""`out=`: dtypes and shapes of `out` as torch's CPU kernels take them, and the write of the
result."""

import warnings

import torch
from torch._ops import OpOverload

from ....ops import base_name
from ....ops.registry import PLACEMENT_ARGUMENTS
from ..overlap import check_operands, check_targets
from ..overloads import (
    Args,
    Handler,
    Kwargs,
    Plan,
    as_list,
    aten,
    makes_tensors,
    overloads_of,
    parameters_of,
)
from ..tensor import XlaTensor

# A schema of torch does not say whether `out` may be of a wider dtype. With these ops it must be of
# the result's own, by the op's name or, where its overloads differ, by the overload's.
_EXACT = frozenset({
    "_linalg_det", "_linalg_eigh", "_linalg_slogdet", "_linalg_solve_ex", "_linalg_svd",
    "_native_batch_norm_legit", "_scaled_mm_v2", "abs", "addbmm", "addmm", "addmv", "alias_copy",
    "amax", "amin", "aminmax", "argmax", "argmin", "as_strided_copy", "avg_pool2d", "avg_pool3d",
    "baddbmm", "bitwise_not", "bmm", "bucketize", "ceil", "complex", "conj_physical", "cummax",
    "cummin", "diag_embed", "diagonal_copy", "dot", "expand_copy", "floor", "frac", "frexp",
    "gather", "gelu", "hardshrink", "hash_tensor", "heaviside", "histc", "histogram", "index_add",
    "index_copy", "index_reduce", "index_select", "isin", "isneginf", "isposinf", "kthvalue",
    "linalg_cholesky_ex", "linalg_cross", "linalg_inv_ex", "linalg_ldl_factor_ex",
    "linalg_ldl_solve", "linalg_lu", "linalg_lu_factor_ex", "linalg_lu_solve", "linalg_qr",
    "linalg_solve_triangular", "linalg_vector_norm", "linear", "log_sigmoid_forward", "log_softmax",
    "logcumsumexp", "lu_unpack", "masked_select", "max.dim_max", "min.dim_min", "mm", "mode",
    "multinomial", "mv", "nan_to_num", "narrow_copy", "native_batch_norm", "neg", "nonzero",
    "ormqr", "permute_copy", "polar", "renorm", "round", "scatter", "scatter_add", "scatter_reduce",
    "searchsorted", "sgn", "sign", "signbit", "slice_scatter", "softmax", "softplus", "softshrink",
    "sort", "split_with_sizes_copy", "squeeze_copy", "t_copy", "take", "topk", "transpose_copy",
    "triangular_solve", "tril", "triu", "trunc", "unbind_copy", "unfold_copy", "unsqueeze_copy",
    "vdot", "view_copy", "where",
})  # fmt: skip

# Ops of booleans, or bytes in place of them.
_BOOLEAN = frozenset({"all", "any"})
# A draw is made in `out` itself, whatever its dtype.
_ANY = frozenset({"bernoulli"})
# The error of torch for a dtype that does not fit, where it is no RuntimeError.
_DTYPE_ERRORS = {
    "cat": TypeError,
    "stack": TypeError,
    "_chunk_cat": TypeError,
    "_scaled_mm_v2": ValueError,
}
# Without dtype= these compute in the dtype of `out`.
COMPUTES_IN_OUT = frozenset({"cumprod", "cumsum"})
# torch resizes `out` without a warning.
_QUIET = frozenset(
    {
        "addbmm",
        "full",
        "linspace",
        "log_sigmoid_forward",
        "logspace",
        "narrow_copy",
        "ones",
        "zeros",
    }
)
# Only the number of elements of `out` counts.
_BY_COUNT = frozenset({"arange", "linspace", "logspace", "range"})


def _fill_out(overload: OpOverload, name: str, target: XlaTensor, value: torch.Tensor) -> None:
    """Writes the result into `out`, resized to fit."""
    base = base_name(overload)
    _check_dtype(overload, base, name, target, value)
    if base in _BY_COUNT and target.numel() == value.numel():
        value = value.view(target.shape)
    if target.shape != value.shape:
        if target.numel() and base not in _QUIET:
            warnings.warn(
                f"{name}: out has shape {list(target.shape)} and is resized to "
                f"{list(value.shape)}; give it that shape, or none with resize_(0)",
                stacklevel=2,
            )
        aten.resize_.default(target, value.shape)
    target.copy_(value)


def _check_dtype(
    overload: OpOverload, base: str, name: str, target: XlaTensor, value: torch.Tensor
) -> None:
    """Raises torch's error if the dtype of `out` cannot take the result."""
    if target.dtype == value.dtype or base in _ANY:
        return
    error_type = _DTYPE_ERRORS.get(base, RuntimeError)
    if base in _EXACT or f"{base}.{overload._overloadname}" in _EXACT:
        raise error_type(
            f"{name}: expected out tensor to have dtype {value.dtype}, but got {target.dtype} "
            "instead"
        )
    if base in _BOOLEAN and target.dtype not in (torch.bool, torch.uint8):
        raise RuntimeError(
            f"{name}: expected out tensor to have dtype torch.bool, but got {target.dtype} instead"
        )
    if not torch.can_cast(value.dtype, target.dtype):
        raise error_type(
            f"{name}: result type {value.dtype} can't be cast to the desired output type "
            f"{target.dtype} of out"
        )


# The op of an out= form without a functional twin: it writes running statistics in place.
_OUT_TWINS = {aten._native_batch_norm_legit.out: aten._native_batch_norm_legit.default}


def out_form(plan: Plan) -> Handler | None:
    """The handler of an `out=` overload: it runs the op without `out=`, and writes the results into
    the passed tensors, resized to fit. None for an overload without such an op."""
    # A factory has no functional twin: it makes its tensor from sizes.
    twin = plan.twin or _OUT_TWINS.get(plan.overload)
    factory = None if twin is not None else _factory_of(plan.overload)
    if twin is None and factory is None:
        return None

    def handler(func: OpOverload, args: Args, kwargs: Kwargs) -> object:
        targets = [target for name in plan.outs for target in as_list(kwargs[name])]
        keywords = {name: value for name, value in kwargs.items() if name not in plan.outs}
        for target in targets:
            _check_out(plan, target, (*args, *keywords.values()))
        if plan.base in COMPUTES_IN_OUT and keywords.get("dtype") is None:
            keywords["dtype"] = targets[0].dtype
        if twin is not None:
            result = twin(*args, **keywords)
        else:
            assert factory is not None
            result = factory(
                *args, **{"dtype": targets[0].dtype, **keywords, "device": targets[0].device}
            )
        for target, value in zip(targets, as_list(result), strict=True):
            _fill_out(plan.overload, plan.name, target, value)
        return plan.returned(targets)

    return handler


def _factory_of(overload: OpOverload) -> OpOverload | None:
    """The factory of an out= form without tensor operands: `eye.m_out` -> `eye.m`."""
    parameters, packet = parameters_of(overload), getattr(aten, base_name(overload), None)
    placement = PLACEMENT_ARGUMENTS | {"dtype"}
    factories = filter(makes_tensors, overloads_of(packet))
    return next(
        (factory for factory in factories if parameters_of(factory, placement) == parameters), None
    )


def _check_out(plan: Plan, target: torch.Tensor, operands: Args) -> None:
    """Raises torch's error for an `out` on the CPU, or one that overlaps itself or an operand."""
    if not isinstance(target, XlaTensor):
        raise RuntimeError(
            f"{plan.name}: expected out to be on xla:0, got a tensor on {target.device}; make it "
            "there"
        )
    check_targets(plan.name, plan.base, [target])
    check_operands(plan.name, target, operands, base=plan.base)

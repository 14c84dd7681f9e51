"""Checks of an op's arguments, as meta tensors: for arguments that torch's kernels refuse and its meta kernels take.

A check is named after its op, has its parameters (those it needs, by the schema's names) and raises torch's error.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import canonicalize_dim

from .pointwise import UNARY_DEFAULT, UNARY_FLOAT

aten = torch.ops.aten

CHECKS: dict[Any, Callable[..., None]] = {}


def checks(*overloads: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a check of the arguments of these overloads."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        for overload in overloads:
            assert overload not in CHECKS, overload
            CHECKS[overload] = function
        return function

    return register


@checks(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(self, boundaries, **_):
    if boundaries.dim() != 1:
        raise RuntimeError(f"bucketize: boundaries tensor must be 1 dimension, but got dim({boundaries.dim()})")


@checks(aten.cat.default)
def cat(tensors, dim=0):
    for position, tensor in enumerate(tensors):
        if tensor.dim() == 0:
            raise RuntimeError(f"zero-dimensional tensor (at position {position}) cannot be concatenated")


@checks(aten.empty_strided.default)
def empty_strided(size, stride, **_):
    if any(step < 0 for step in stride):
        raise RuntimeError(f"empty_strided: expected strides of 0 and more, got {list(stride)}")


@checks(aten.new_empty_strided.default)
def new_empty_strided(self, size, stride, **_):
    empty_strided(size, stride)


@checks(aten._histogramdd_bin_edges.default)
def histogramdd(self, bins, **_):
    if self.dim() < 2 or len(bins) != self.shape[-1]:
        raise RuntimeError(
            "histogramdd: The size of bins must be equal to the innermost dimension of the input, got "
            f"{len(bins)} and an input of shape {list(self.shape)}"
        )


@checks(aten.index_add.default, aten.index_add_.default)
def index_add(self, dim, index, source, **_):
    one, other = list(self.shape), list(source.shape)
    if one and other and len(one) == len(other):
        del one[dim], other[dim]
    elif not one and not other:
        return
    if one != other or self.dim() != source.dim():
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. Got self.shape = "
            f"{list(self.shape)} source.shape = {list(source.shape)}"
        )


@checks(aten.linalg_lstsq.default)
def linalg_lstsq(self, b, *_, **__):
    if self.dim() < 2:
        raise RuntimeError("torch.linalg.lstsq: input must have at least 2 dimensions.")
    if b.dim() < 1:
        raise RuntimeError("torch.linalg.lstsq: other must have at least 1 dimension.")


@checks(aten.logcumsumexp.default)
def logcumsumexp(self, dim):
    canonicalize_dim(self.dim(), dim)  # torch 2.11's meta kernel checks it with an assertion


@checks(aten.masked_scatter.default, aten.masked_scatter_.default)
def masked_scatter(self, mask, source):
    if mask.dtype != torch.bool:
        raise RuntimeError(f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}")


# --- gradients that the result of an in-place activation does not give ------------------------------------------------


@checks(aten.elu_backward.default)
def elu_backward(grad_output, alpha, scale, input_scale, is_result, self_or_result):
    if is_result and alpha < 0:
        _refuse_slope("elu")


@checks(aten.leaky_relu_backward.default)
def leaky_relu_backward(grad_output, self, negative_slope, self_is_result):
    if self_is_result and negative_slope < 0:
        _refuse_slope("leakyReLu")


def _refuse_slope(name: str) -> None:
    raise RuntimeError(
        f"In-place {name} backward calculation is triggered with a negative slope which is not supported: the sign of "
        "the result does not say which side of 0 the input was. Call the activation without inplace=True."
    )


# --- numbers and dtypes of arithmetic ---------------------------------------------------------------------------------


def _is_bool(value: Any) -> bool:
    return value is True or value is False or (isinstance(value, torch.Tensor) and value.dtype == torch.bool)


def _is_complex(value: Any) -> bool:
    return isinstance(value, complex) or (isinstance(value, torch.Tensor) and value.is_complex())


def refused_by_cpu(op: Callable[..., torch.Tensor], *operands: Any) -> None:
    """Calls torch's CPU kernel on such operands, which raises an error of the class of this torch version."""
    op(*(torch.empty(0, dtype=x.dtype, device="cpu") if isinstance(x, torch.Tensor) else x for x in operands))
    raise AssertionError(f"torch's CPU takes {op.__name__} of {operands}")


def _check_alpha(self: Any, other: Any, alpha: Any) -> None:
    kind = torch.result_type(self, other)
    if isinstance(alpha, bool) and kind != torch.bool:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")
    if isinstance(alpha, float) and not (kind.is_floating_point or kind.is_complex):
        raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")
    if isinstance(alpha, complex) and not kind.is_complex:
        raise RuntimeError("For non-complex input tensors, argument alpha must not be a complex number.")


@checks(aten.add.Tensor, aten.add_.Tensor, aten.add.Scalar, aten.add_.Scalar)
def add(self, other, alpha=1):
    _check_alpha(self, other, alpha)


@checks(aten.sub.Tensor, aten.sub_.Tensor, aten.sub.Scalar, aten.sub_.Scalar)
def sub(self, other, alpha=1):
    _check_alpha(self, other, alpha)
    if _is_bool(self) or _is_bool(other):
        refused_by_cpu(torch.sub, self, other)


@checks(aten.div.Tensor_mode, aten.div_.Tensor_mode, aten.div.Scalar_mode, aten.div_.Scalar_mode)
def div_mode(self, other, *, rounding_mode):
    if rounding_mode not in (None, "trunc", "floor"):
        raise RuntimeError(
            f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{rounding_mode}'"
        )


@checks(aten.pow.Tensor_Scalar, aten.pow_.Scalar)
def pow(self, exponent):
    is_exact = not (self.is_floating_point() or self.is_complex() or self.dtype == torch.bool)
    if is_exact and type(exponent) is int and exponent < 0:
        raise RuntimeError("Integers to negative integer powers are not allowed.")


@checks(aten.clamp.default, aten.clamp_.default)
def clamp(self, min=None, max=None):
    if any(isinstance(bound, complex) for bound in (min, max)):
        raise RuntimeError("value cannot be converted to type double without overflow")


def _fits() -> Callable[..., None]:
    """The check that no complex number is passed for real tensors."""

    def check(*args: Any, **kwargs: Any) -> None:
        given = [*args, *kwargs.values()]
        tensors, value = given[:-1], given[-1]
        if isinstance(value, complex) and not any(_is_complex(tensor) for tensor in tensors):
            raise RuntimeError("value cannot be converted to a real type without overflow")

    return check


def _real(name: str) -> Callable[..., None]:
    """The check that operands are real: complex numbers have no order."""

    def check(*args, **kwargs):
        if any(_is_complex(value) for value in [*args, *kwargs.values()]):
            raise NotImplementedError(f"{name} is not supported for complex types")

    return check


CHECKS |= {op: _fits() for op in (aten.addcmul.default, aten.addcmul_.default)}


@checks(aten.addcdiv.default, aten.addcdiv_.default)
def addcdiv(self, tensor1, tensor2, **named):
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in (tensor1, tensor2)):
        refused_by_cpu(torch.addcdiv, self, tensor1, tensor2)
    _fits()(self, tensor1, tensor2, *named.values())


@checks(aten.lerp.Scalar, aten.lerp_.Scalar, aten.lerp.Tensor, aten.lerp_.Tensor)
def lerp(self, end, weight):
    if not (self.is_floating_point() or self.is_complex()):
        raise NotImplementedError(f"lerp is not implemented for {self.dtype}")
    _fits()(self, end, weight)


CHECKS |= {
    getattr(getattr(aten, form), overload): _real("clamp")
    for name in ("clamp_min", "clamp_max") for form in (name, f"{name}_") for overload in ("default", "Tensor")
}  # fmt: skip


def _of_complex(op: Callable[..., torch.Tensor]) -> Callable[..., None]:
    """The check of complex operands by CPU's kernel: a meta kernel takes them even for functions of reals."""

    def check(self, *rest, **named):
        if self.is_complex():
            op(torch.empty(0, dtype=self.dtype, device="cpu"), *rest, **named)

    return check


CHECKS |= {op: _of_complex(op) for op in (*UNARY_FLOAT, *UNARY_DEFAULT) if op not in CHECKS}


def _ordered(op: Callable[..., torch.Tensor]) -> Callable[..., None]:
    """The check that operands are real: torch 2.13 raises a RuntimeError, torch 2.15 a TypeError."""

    def check(self, other):
        if _is_complex(self) or _is_complex(other):
            refused_by_cpu(op, self, other)

    return check


CHECKS |= {aten.maximum.default: _ordered(torch.maximum), aten.minimum.default: _ordered(torch.minimum)}


# --- values and dtypes that do not meet -------------------------------------------------------------------------------


@checks(aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
def index_put(self, indices, values, *_, **__):
    if len(indices) > self.dim():
        raise IndexError(f"too many indices for tensor of dimension {self.dim()} (got {len(indices)})")
    masked = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
    if self.dtype != values.dtype and not (masked and values.dim() == 0):  # the latter is masked_fill, which casts
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{self.dtype} for the destination and {values.dtype} for the source."
        )
    if masked:
        return
    given = [index.shape for index in indices if index is not None]
    try:
        torch.broadcast_shapes(*given)
    except RuntimeError:
        shapes = ", ".join(str(list(shape)) for shape in given)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
        ) from None
    selected = aten.index.Tensor(self, indices).shape
    missing = len(selected) - values.dim()
    # Further leading dims may be of size 1, as in torch.
    fits = all(size in (1, wanted) for size, wanted in zip(values.shape[::-1], selected[::-1], strict=False))
    if not fits or any(size != 1 for size in values.shape[: max(-missing, 0)]):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of "
            f"shape {list(selected)}"
        )


def _same_dtype(name: str) -> Callable[..., None]:
    """The check of a product that its operands have one dtype."""

    def check(*args, **kwargs):
        given = {arg.dtype for arg in args if isinstance(arg, torch.Tensor)}
        if len(given) > 1:
            raise RuntimeError(
                f"{name}: expected operands of one dtype, got {', '.join(sorted(map(str, given)))}; cast one with "
                ".to(dtype), or use torch.autocast"
            )

    return check


CHECKS |= {
    getattr(aten, name).default: _same_dtype(name)
    for name in (
        "mm", "bmm", "mv", "dot", "vdot", "addmm", "addmv", "addbmm", "baddbmm", "linear",
    )
    if getattr(aten, name).default not in CHECKS
}  # fmt: skip

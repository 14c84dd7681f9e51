"""Kernels that torch calls on the device key itself: factories, which have no tensor among their
arguments."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from ..graph.source import ends_at_user_line
from ..record.call import dispatch
from ..record.calls import fused, recurrent
from ..record.calls.determinism import fill_of
from ..record.calls.naming import only_device
from ..record.calls.specials import attention
from ..record.op_watch import note_own_op
from ..record.overloads import aten, overload_named
from ..record.tensor import XlaTensor

Device = torch.device | None
Dtype = torch.dtype | None


def _record_factory(
    overload: OpOverload, *args: object, device: Device, **kwargs: object
) -> XlaTensor:
    """Records a factory: an op without operands."""
    only_device(device)
    result = dispatch(overload, (), args, kwargs)
    note_own_op()
    return result


def _dtype(dtype: Dtype) -> torch.dtype:
    return dtype or torch.get_default_dtype()


# `placement` takes the arguments that other devices need: a layout and pinned memory.


def _zeros(
    size: Sequence[int], *, dtype: Dtype = None, device: Device = None, **placement: object
) -> XlaTensor:
    return _record_factory(aten.empty.memory_format, list(size), dtype=_dtype(dtype), device=device)


def _empty(
    size: Sequence[int],
    *,
    dtype: Dtype = None,
    device: Device = None,
    memory_format: torch.memory_format | None = None,
    **placement: object,
) -> XlaTensor:
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        strides = torch.empty(
            size, dtype=dtype, device="meta", memory_format=memory_format
        ).stride()
        return _empty_strided(size, strides, dtype=dtype, device=device)
    return _uninitialized(_zeros(size, dtype=dtype, device=device))


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: Dtype = None,
    device: Device = None,
    **placement: object,
) -> XlaTensor:
    return _uninitialized(
        _record_factory(
            aten.empty_strided.default, list(size), list(stride), dtype=_dtype(dtype), device=device
        )
    )


def _uninitialized(zeros: XlaTensor) -> XlaTensor:
    """Returns an uninitialized tensor: zeros, or the fill of
    `torch.use_deterministic_algorithms`."""
    value = fill_of(zeros._meta.dtype)
    return zeros if value is None else dispatch(aten.fill_.Scalar, (), (zeros, value))


def _empty_permuted(
    size: Sequence[int], physical_layout: Sequence[int], **keywords: Any
) -> XlaTensor:
    strides = torch.empty_permuted(size, tuple(physical_layout), device="meta").stride()
    return _empty_strided(size, strides, **keywords)


def _arange(
    *numbers: float, dtype: Dtype = None, device: Device = None, **placement: object
) -> XlaTensor:
    if dtype is None:
        dtype = (
            torch.get_default_dtype()
            if any(isinstance(number, float) for number in numbers)
            else torch.int64
        )
    start, end, step = (0, *numbers, 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    return _record_factory(aten.arange.start_step, start, end, step, dtype=dtype, device=device)


def _randperm(
    n: int,
    *,
    generator: torch.Generator | None = None,
    dtype: Dtype = None,
    device: Device = None,
    **placement: object,
) -> XlaTensor:
    return _record_factory(
        aten.randperm.default, n, dtype=dtype or torch.int64, generator=generator, device=device
    )


def _with_meta_dtype(
    overload: OpOverload,
    *args: object,
    dtype: Dtype = None,
    device: Device = None,
    **placement: object,
) -> XlaTensor:
    """A factory; without a dtype argument, torch's meta kernel determines the dtype."""
    dtype = dtype or overload(*args, device="meta").dtype
    return _record_factory(overload, *args, dtype=dtype, device=device)


def _host_kernel(overload: OpOverload) -> Callable[..., torch.Tensor]:
    """The kernel of a factory with few numbers: torch computes them on the CPU, as it needs kernels
    or views that the device lacks."""

    def make(
        *args: object, dtype: Dtype = None, device: Device = None, **placement: object
    ) -> torch.Tensor:
        keywords = {} if dtype is None else {"dtype": dtype}
        return overload(*args, **keywords, device="cpu").to(device or "xla")

    return make


def _copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    """Copies `source` to `target`: the kernel that torch calls with Python dispatch off, as in
    `torch.tensor(data, device="xla")`."""
    return dispatch(aten.copy_.default, (), (target, source), {})


def _dispatched(overload: OpOverload, *args: object) -> object:
    """Dispatches a call that torch makes with Python dispatch off."""
    return dispatch(overload, (), args)


# Ops whose gradient torch composes of other ops unless the device has kernels of both; with them
# torch calls ours. The kernels themselves are never called: a tensor of the device takes every call
# to `dispatch` first.
_WITH_GRADIENT = (
    "silu",
    "silu_backward",
    "mish",
    "mish_backward",
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
)

# Composite `out=` forms that write to a reshaped or compared alias of `out`, which is no alias
# here.
_COMPOSITE_OUT = (
    "kron.out",
    "linalg_matrix_rank.out",
    "linalg_matrix_rank.out_tol_tensor",
    "linalg_matrix_rank.atol_rtol_tensor_out",
    "linalg_matrix_rank.atol_rtol_float_out",
)


def _composite_out(
    overload: OpOverload, *args: object, out: torch.Tensor, **kwargs: object
) -> object:
    """A composite `out=` form as one call: the functional op, whose result is written to `out`."""
    tensors = [value for value in (*args, out) if isinstance(value, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise RuntimeError(
            f"{overload.name()}: functions with out=... arguments don't support automatic "
            "differentiation, but one of the arguments requires grad."
        )
    with torch.no_grad():
        return dispatch(overload, (), args, {**kwargs, "out": out})


_HOST_FACTORIES = (
    aten.fft_fftfreq.default,
    aten.fft_rfftfreq.default,
    aten.range.default,
    aten.range.step,
    aten.kaiser_window.default,
    aten.kaiser_window.periodic,
    aten.kaiser_window.beta,
    aten.logspace.default,
    aten.tril_indices.default,
    aten.triu_indices.default,
)

_library = torch.library.Library("aten", "IMPL")


def register_factories() -> None:
    """Registers the kernels of factories, and of ops with a gradient of their own, for the
    device."""
    kernels: dict[Callable[..., object], tuple[str, ...]] = {
        _empty: ("empty.memory_format",),
        _empty_strided: ("empty_strided",),
        _empty_permuted: ("empty_permuted",),  # called by empty_like of a meta tensor
        _arange: ("arange", "arange.start", "arange.start_step"),
        _randperm: ("randperm", "randperm.generator"),
        _zeros: ("_efficientzerotensor",),
        _copy_from: ("_copy_from",),
        partial(_with_meta_dtype, aten.eye.default): ("eye",),
        partial(_with_meta_dtype, aten.eye.m): ("eye.m",),
        partial(_with_meta_dtype, aten.linspace.default): ("linspace",),
        # `torch.tensor([x, y])`
        partial(_dispatched, aten._local_scalar_dense.default): ("_local_scalar_dense",),
    }
    for function, names in kernels.items():
        for name in names:
            _library.impl(name, ends_at_user_line(function), "PrivateUse1")
    for factory in _HOST_FACTORIES:
        _library.impl(factory.name().removeprefix("aten::"), _host_kernel(factory), "PrivateUse1")
    _library.impl("scaled_dot_product_attention", attention, "AutogradPrivateUse1")
    for name, function in (recurrent.KERNELS | fused.KERNELS).items():
        _library.impl(name, function, "AutogradPrivateUse1")
    for name in _WITH_GRADIENT:
        _library.impl(name, partial(_dispatched, getattr(aten, name).default), "PrivateUse1")
    for name in _COMPOSITE_OUT:
        for key in ("PrivateUse1", "AutogradPrivateUse1"):
            _library.impl(name, partial(_composite_out, overload_named(name)), key)

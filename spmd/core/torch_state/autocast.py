"""Autocast on the device: the ops that cast down to the autocast dtype, and those that cast up to
float32."""

import functools
import warnings
from collections.abc import Callable, Sequence

import torch

from ..base.state import PerThread
from ..graph.source import THREADS
from ..record.threads import IN_EACH_THREAD

aten = torch.ops.aten

NAME = "xla"

# Ops that torch casts on an accelerator: the matmul family down to the autocast dtype, these
# reductions up to float32.
_LOWER_PRECISION = (
    "addmm", "addbmm", "addmv", "addr", "baddbmm", "bmm", "mm", "mv", "matmul", "linear", "conv1d",
    "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input",
    "convolution", "scaled_dot_product_attention", "prelu",
)  # fmt: skip
_FLOAT32 = (
    "softmax.int", "log_softmax.int", "layer_norm", "group_norm", "nll_loss", "cross_entropy_loss",
    "mse_loss", "l1_loss", "exp", "log", "log1p", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "rsqrt",
    "sum", "sum.dim_IntList", "prod", "cumsum", "cumprod", "norm.Scalar", "norm.ScalarOpt_dim",
    "cosine_similarity", "binary_cross_entropy_with_logits", "softplus", "pow.Scalar", "acos",
    "asin", "cosh", "sinh", "tan", "erfinv", "expm1", "log10", "log2", "logsumexp", "reciprocal",
    "renorm", "linalg_vector_norm", "dist", "smooth_l1_loss", "huber_loss", "kl_div",
    "cosine_embedding_loss", "cdist", "hinge_embedding_loss", "pdist", "poisson_nll_loss",
    "margin_ranking_loss", "triplet_margin_loss", "soft_margin_loss", "multilabel_margin_loss",
    "multi_margin_loss", "nll_loss2d", "nll_loss_nd",
)  # fmt: skip

# Ops that need one dtype for all operands and get the widest of their operands' dtypes.
_WIDEST = ("dot", "vdot", "linalg_cross", "index_put", "scatter_add")

_library, _fallback = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")

# The dtype of `torch.autocast("xla")` without a dtype: on TPUs, and for every user of XLA, that is
# bfloat16.
_DEFAULT = torch.bfloat16
_has_dtype = PerThread(False)  # this thread's autocast dtype is not torch's own default any more


def _begin_thread() -> None:
    """Makes bfloat16 the default of a thread; torch keeps autocast dtypes per thread, and begins
    with float16."""
    if not _has_dtype.value:
        torch.set_autocast_dtype(NAME, _DEFAULT)


def set_autocast_dtype(
    original: Callable[[str, torch.dtype], None], device_type: str, dtype: torch.dtype
) -> None:
    """`torch.set_autocast_dtype`, which also notes that this thread has set a dtype."""
    if device_type == NAME:
        _has_dtype.value = True
    original(device_type, dtype)


def register_autocast() -> None:
    """Registers the casts; the default dtype is set where a thread first uses the device or
    `torch.autocast("xla")`, unless it has set a dtype."""

    # `__new__` leaves no frame of ours between the user's and `__init__`, which points its warnings
    # there.
    @functools.wraps(torch.autocast.__init__)
    def make(cls: type[torch.autocast], *args: object, **kwargs: object) -> torch.autocast:
        """`torch.autocast.__new__`: sets the thread's default dtype, or warns of autocast for
        cuda."""
        kind = args[0] if args else kwargs.get("device_type")
        if kind == NAME:
            _begin_thread()
        elif kind == "cuda" and hasattr(THREADS, "ring"):  # the thread has used the device
            text = "torch.autocast('cuda') casts nothing on xla: write torch.autocast('xla')"
            warnings.warn(text, UserWarning, stacklevel=2)
        return object.__new__(cls)

    torch.autocast.__new__ = make  # type: ignore[method-assign,assignment]
    _begin_thread()
    IN_EACH_THREAD.append(_begin_thread)
    _fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for names, dtype_of in (
        (_LOWER_PRECISION, lambda _: torch.get_autocast_dtype(NAME)),
        (_FLOAT32, lambda _: torch.float32),
        (_WIDEST, _widest),
    ):
        for name in names:
            _library.impl(name, _autocast_kernel(name, dtype_of), "AutocastPrivateUse1")


def _widest(values: Sequence[object]) -> torch.dtype:
    """float32 where one of the operands has it, else the autocast dtype."""
    has_float32 = any(
        isinstance(value, torch.Tensor) and value.dtype == torch.float32 for value in values
    )
    return torch.float32 if has_float32 else torch.get_autocast_dtype(NAME)


def _convert(value: object, target: torch.dtype) -> object:
    """Casts floating-point tensors of the device, also in lists, to the target dtype."""
    if isinstance(value, torch.Tensor):
        is_castable = (
            value.is_floating_point() and value.dtype != torch.float64 and value.device.type == NAME
        )
        return value.to(target) if is_castable and value.dtype != target else value
    return [_convert(item, target) for item in value] if isinstance(value, (list, tuple)) else value


def _autocast_kernel(
    name: str, dtype_of: Callable[[Sequence[object]], torch.dtype]
) -> Callable[..., object]:
    """An op's kernel under autocast: casts its floating-point operands on the device, then runs the
    op."""
    packet, _, overload_name = name.partition(".")
    overload = getattr(getattr(aten, packet), overload_name or "default")

    autocast_key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]

    def kernel(*args: object, **kwargs: object) -> object:
        target = dtype_of(args)
        with torch._C._ExcludeDispatchKeyGuard(autocast_key):
            converted = {key: _convert(value, target) for key, value in kwargs.items()}
            return overload(*(_convert(value, target) for value in args), **converted)

    return kernel

"""Arguments that torch's meta kernels take and its other kernels refuse, in the words of its CPU kernels.

A check is named after its op, has its parameters (those it needs, by the schema's names) and returns True for arguments
that may be wrong. For these alone the CPU kernel runs, on zeros of the same dtypes and shapes, before the op is
recorded: the error is torch's own, in the class and the words of the installed version, and arguments that it takes
after all are recorded like any. A check of shapes is exact: the kernel raises before it computes or allocates. A check
of dtypes may be wider: the kernel computes a single element. A check raises by itself where torch's words mislead.
"""

import functools
from collections.abc import Callable
from itertools import cycle, zip_longest
from typing import Any

import torch

from .pointwise import UNARY_DEFAULT, UNARY_FLOAT
from .registry import Function

aten = torch.ops.aten

Check = Function

# By overload: raises torch's error, or returns None.
CHECKS: dict[torch._ops.OpOverload, Callable[..., None]] = {}


def checks(*overloads: Any, by_dtype: bool = False) -> Callable[[Check], Check]:
    """Registers a check of the arguments of these overloads. by_dtype: whether sizes of tensors are no part of it."""

    def register(check: Check) -> Check:
        for overload in overloads:
            assert overload not in CHECKS, overload
            CHECKS[overload] = functools.partial(_check, check, overload, by_dtype)
        return check

    return register


def _check(check: Check, op: Any, by_dtype: bool, /, *args: Any, **kwargs: Any) -> None:
    if check(*args, **kwargs):
        run_on_cpu(op, *args, by_dtype=by_dtype, **kwargs)


def run_on_cpu(op: Any, /, *args: Any, by_dtype: bool = False, **kwargs: Any) -> None:
    """Runs torch's CPU kernel on zeros, for its errors. by_dtype: on tensors of one element."""

    def to_cpu(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            zero = torch.zeros((), dtype=value.dtype, device="cpu")
            return zero.expand([1] * value.dim() if by_dtype else value.shape)  # one element of memory for any shape
        if isinstance(value, (list, tuple)):
            return [to_cpu(item) for item in value]
        return torch.device("cpu") if isinstance(value, torch.device) else value

    if any(argument.name == "generator" for argument in op._schema.arguments):
        kwargs["generator"] = torch.Generator("cpu")  # the draws of torch's default one are the caller's
    op(*map(to_cpu, args), **{name: to_cpu(value) for name, value in kwargs.items()})


# --- dtypes, and numbers that do not fit them -------------------------------------------------------------------------


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, torch.Tensor) and value.dtype == torch.bool)


def _is_complex(value: Any) -> bool:
    return isinstance(value, complex) or (isinstance(value, torch.Tensor) and value.is_complex())


@checks(
    *UNARY_FLOAT,
    *UNARY_DEFAULT,
    *(aten.maximum.default, aten.minimum.default, aten.clamp.default, aten.clamp_.default),
    *(getattr(aten, name).default for name in ("clamp_min", "clamp_min_", "clamp_max", "clamp_max_")),
    *(getattr(aten, name).Tensor for name in ("clamp_min", "clamp_min_", "clamp_max", "clamp_max_")),
    *(aten.random.default, aten.random_.default, aten.bernoulli.p, aten.bernoulli_.float),
    by_dtype=True,
)
def of_complex(*args, **kwargs):
    """Complex numbers have no order, and functions of reals do not take them."""
    return any(map(_is_complex, (*args, *kwargs.values())))


@checks(
    *(aten.bernoulli.default, aten.binomial.default, aten.poisson.default, aten._standard_gamma.default),
    *(aten.normal.Tensor_Tensor, aten.normal.float_Tensor, aten.normal.Tensor_float),
    by_dtype=True,
)
def of_other_than_floats(*args, **kwargs):
    """Parameters of a distribution are floats; torch's kernels differ in which others they take."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    return not all(tensor.is_floating_point() for tensor in tensors)


@checks(aten.add.Tensor, aten.add_.Tensor, aten.add.Scalar, aten.add_.Scalar, by_dtype=True)
def add(self, other, alpha=1):
    if isinstance(alpha, float):
        kind = torch.result_type(self, other)
        return not (kind.is_floating_point or kind.is_complex)
    return isinstance(alpha, (bool, complex))


@checks(aten.sub.Tensor, aten.sub_.Tensor, aten.sub.Scalar, aten.sub_.Scalar, by_dtype=True)
def sub(self, other, alpha=1):
    return _is_bool(self) or _is_bool(other) or add(self, other, alpha)


@checks(aten.div.Tensor_mode, aten.div_.Tensor_mode, aten.div.Scalar_mode, aten.div_.Scalar_mode, by_dtype=True)
def div_mode(self, other, *, rounding_mode):
    return rounding_mode not in (None, "trunc", "floor")


@checks(aten.pow.Tensor_Scalar, aten.pow_.Scalar, by_dtype=True)
def pow(self, exponent):
    return type(exponent) is int and exponent < 0 and not self.is_floating_point()


@checks(aten.addcmul.default, aten.addcmul_.default, by_dtype=True)
def addcmul(self, tensor1, tensor2, *, value=1):
    return isinstance(value, complex)


@checks(aten.addcdiv.default, aten.addcdiv_.default, by_dtype=True)
def addcdiv(self, tensor1, tensor2, *, value=1):
    is_exact = not any(tensor.is_floating_point() or tensor.is_complex() for tensor in (tensor1, tensor2))
    return is_exact or isinstance(value, complex)


@checks(aten.lerp.Scalar, aten.lerp_.Scalar, aten.lerp.Tensor, aten.lerp_.Tensor, by_dtype=True)
def lerp(self, end, weight):
    return not self.is_floating_point() or isinstance(weight, complex)


@checks(aten.elu_backward.default, by_dtype=True)
def elu_backward(grad_output, alpha, scale, input_scale, is_result, self_or_result):
    """Below a slope of 0 the sign of the result of an in-place activation is not that of its input."""
    return is_result and alpha < 0


@checks(aten.leaky_relu_backward.default, by_dtype=True)
def leaky_relu_backward(grad_output, self, negative_slope, self_is_result):
    return self_is_result and negative_slope < 0


def _same_dtype(name: str) -> Check:
    """The check of a product that its operands have one dtype; torch has other words for it in each kernel."""

    def check(*args, **kwargs):
        given = {arg.dtype for arg in args if isinstance(arg, torch.Tensor)}
        if len(given) > 1:
            raise RuntimeError(
                f"{name}: expected operands of one dtype, got {', '.join(sorted(map(str, given)))}; cast one with "
                ".to(dtype), or use torch.autocast"
            )

    return check


for _name in ("mm", "bmm", "mv", "dot", "vdot", "addmm", "addmv", "addbmm", "baddbmm", "linear"):
    checks(getattr(aten, _name).default)(_same_dtype(_name))


# --- draws ------------------------------------------------------------------------------------------------------------


@checks(aten.uniform.default, aten.uniform_.default, by_dtype=True)
def uniform(self, from_=0.0, to=1.0, **_):
    return not self.is_floating_point() or from_ > to


@checks(aten.normal_.default, aten.normal_functional.default, by_dtype=True)
def normal(self, mean=0.0, std=1.0, **_):
    return not self.is_floating_point() or std < 0


@checks(aten.geometric.default, aten.geometric_.default, by_dtype=True)
def geometric(self, p, **_):
    return self.is_complex() or self.dtype == torch.bool


@checks(getattr(aten.random, "from"), getattr(aten.random_, "from"), by_dtype=True)
def random_from(self, from_, to, **_):
    if self.is_complex() or self.dtype == torch.bool:
        return True
    dtype = torch.finfo(self.dtype) if self.is_floating_point() else torch.iinfo(self.dtype)
    last = from_ if to is None else to - 1
    return from_ > last or from_ < dtype.min or last > dtype.max


@checks(aten.random.to, aten.random_.to, by_dtype=True)
def random_to(self, to, **_):
    return random_from(self, 0, to)


@checks(aten.randperm.default)
def randperm(n, *, dtype=torch.int64, **_):
    if dtype == torch.bool or dtype.is_complex:
        return True
    return n > (torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)).max


@checks(aten.native_dropout.default, by_dtype=True)
def native_dropout(input, p, train):
    return train is not False and not 0 <= p <= 1


@checks(aten.multinomial.default)
def multinomial(self, num_samples, replacement=False, **_):
    *lead, categories = self.shape if self.dim() else (1,)
    return (
        not self.is_floating_point()
        or num_samples <= 0
        or categories > 2**24
        or (categories == 0 and 0 not in lead)
        or (num_samples > categories and not replacement)
    )


# --- reductions, search and order -------------------------------------------------------------------------------------


@checks(
    *(getattr(aten, name).default for name in ("amax", "amin", "aminmax", "argmax", "argmin", "max", "min")),
    *(getattr(aten, name).dim for name in ("max", "min", "median", "nanmedian")),
    *(aten.mode.default, aten.kthvalue.default),
)
def of_no_elements(self, *_, **__):
    """Along a dim of size 0 these have no result; along another one the result is empty, and torch takes that."""
    return not self.numel()


@checks(aten.sort.default, aten.sort.stable, aten.logcumsumexp.default)
def along(self, dim=-1, *_, **__):
    return not -max(self.dim(), 1) <= dim < max(self.dim(), 1)


@checks(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(sorted_sequence, self, *, side=None, sorter=None, **_):
    rank = sorted_sequence.dim()
    fits = rank == 1 or (
        rank > 1
        and isinstance(self, torch.Tensor)
        and self.dim() == rank
        and self.shape[:-1] == sorted_sequence.shape[:-1]
    )
    return not fits or side not in (None, "left", "right") or (sorter is not None and sorter.dtype != torch.int64)


@checks(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(self, boundaries, **_):
    return boundaries.dim() != 1


@checks(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats, *, output_size=None):
    if output_size and not repeats.numel():  # torch ignores the size
        raise RuntimeError(f"repeat_interleave: expected output_size 0, as there are no repeats, got {output_size}")


# --- shapes and indices -----------------------------------------------------------------------------------------------


@checks(aten.empty_strided.default)
def empty_strided(size, stride, **_):
    if any(step < 0 for step in stride):  # torch speaks of an overflow
        raise RuntimeError(f"empty_strided: expected strides of 0 and more, got {list(stride)}")


@checks(aten.new_empty_strided.default)
def new_empty_strided(self, size, stride, **_):
    empty_strided(size, stride)


@checks(aten.geqrf.default)
def geqrf(self):
    return self.dim() < 2


@checks(aten.linalg_lstsq.default)
def linalg_lstsq(self, b, *_, **__):
    return self.dim() < 2 or b.dim() < 1


@checks(aten.masked_scatter.default, aten.masked_scatter_.default)
def masked_scatter(self, mask, source):
    if mask.dtype != torch.bool:  # torch warns first that such a mask is deprecated
        raise RuntimeError(f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}")


@checks(aten.index_add.default, aten.index_add_.default)
def index_add(self, dim, index, source, **_):
    sizes, others = list(self.shape), list(source.shape)
    if len(sizes) == len(others):
        del sizes[dim : dim + 1 or None], others[dim : dim + 1 or None]
    return sizes != others


@checks(aten.index_put.default, aten.index_put_.default, aten._index_put_impl.default, aten._index_put_impl_.default)
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
    try:
        selected = aten.index.Tensor(self, indices).shape
    except (IndexError, RuntimeError):
        run_on_cpu(aten.index.Tensor, self, indices)
        raise
    # Further leading dims may be of size 1, as in torch.
    sizes = zip_longest(values.shape[::-1], selected[::-1], fillvalue=1)
    if any(size not in (1, wanted) for size, wanted in sizes):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of "
            f"shape {list(selected)}"
        )


# --- layers and losses ------------------------------------------------------------------------------------------------


@checks(aten.convolution.default)
def convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    if groups <= 0 or any(pad < 0 for pad in padding) or any(step <= 0 for step in (*stride, *dilation)):
        return True
    if input.dim() != weight.dim() or 0 in input.shape[2:] or 0 in weight.shape[:1] or weight.shape[0] % groups:
        return True
    channels, features = weight.shape[1] * groups, weight.shape[0]
    if transposed:
        channels, features = features, channels
    if input.shape[1] != channels or (bias is not None and bias.shape != (features,)):
        return True
    settings = (cycle(values) for values in (stride, padding, dilation, output_padding))  # one number is for all dims
    return transposed and any(
        (size - 1) * step + span * (width - 1) + more < 2 * pad
        for size, width, step, pad, span, more in zip(input.shape[2:], weight.shape[2:], *settings, strict=False)
    )


@checks(
    *(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default, aten.upsample_linear1d.default),
    *(aten.upsample_bilinear2d.default, aten.upsample_bicubic2d.default, aten.upsample_trilinear3d.default),
)
def of_empty_images(self, *_, **__):
    return 0 in self.shape[1:]


@checks(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(input, grid, *_):
    return input.dim() != grid.dim() or input.dim() not in (4, 5) or 0 in input.shape[2:]


@checks(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(weight, indices, offsets, scale_grad_by_freq=False, mode=0, *_, **__):
    if indices.dim() != 1:  # torch fails in an assertion
        raise RuntimeError(
            f"embedding_bag: expected indices as one run of all bags, got shape {list(indices.shape)}; flatten them, "
            "or use torch.nn.functional.embedding_bag, which takes one bag a row"
        )
    return weight.dim() != 2 or offsets.dim() != 1 or mode not in (0, 1, 2)


@checks(aten._ctc_loss.default, aten._ctc_loss.Tensor)
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    if log_probs.dim() != 3 or not log_probs.numel():
        return True
    if log_probs.dtype not in (torch.float32, torch.float64):  # torch would speak of the lengths first, which are zeros
        raise NotImplementedError(f"ctc_loss: expected log_probs of float32 or float64, got {log_probs.dtype}")
    time, batch, labels = log_probs.shape
    lengths = input_lengths, target_lengths
    if not 0 <= blank < labels or (targets.dim() == 2 and targets.shape[0] != batch):
        return True
    if isinstance(input_lengths, torch.Tensor):  # `core.aten.values` checks their values
        return any(given.numel() != batch or given.is_floating_point() or given.is_complex() for given in lengths)
    return (
        any(len(given) != batch or min(given) < 0 for given in lengths)
        or max(input_lengths) > time
        or (targets.dim() == 1 and targets.shape[0] != sum(target_lengths))
        or (targets.dim() == 2 and targets.shape[1] < max(target_lengths))
    )

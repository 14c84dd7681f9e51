"""Arguments that torch's meta kernels take and its other kernels refuse, in the words of its CPU
kernels.

A check is named after its op, has its parameters (those it needs, by the schema's names) and
returns True for arguments that may be wrong. For these alone the CPU kernel runs, on zeros of the
same dtypes and shapes, before the op is recorded: the error is torch's own, in the class and the
words of the installed version, and arguments that it takes after all are recorded like any. A check
of shapes is exact: the kernel raises before it computes or allocates. A check of dtypes may be
wider: the kernel computes a single element. A check raises by itself where torch's words mislead.
"""

import functools
from collections.abc import Callable, Iterator
from itertools import cycle, zip_longest

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_iter, tree_map_only

from .registry import Function

aten = torch.ops.aten

Check = Function

# By overload: raises torch's error, or returns None.
CHECKS: dict[OpOverload, Callable[..., None]] = {}


def checks(*overloads: OpOverload, by_dtype: bool = False) -> Callable[[Check], Check]:
    """Registers a check of the arguments of these overloads. by_dtype: whether sizes of tensors are
    no part of it."""

    def register(check: Check) -> Check:
        for overload in overloads:
            assert overload not in CHECKS, overload
            CHECKS[overload] = functools.partial(_check, check, overload, by_dtype)
        return check

    return register


def _check(
    check: Check, op: OpOverload, by_dtype: bool, /, *args: object, **kwargs: object
) -> None:
    if check(*args, **kwargs):
        run_on_cpu(op, *args, by_dtype=by_dtype, **kwargs)


def check(op: OpOverload, /, *args: object, **kwargs: object) -> None:
    """Raises torch's error for arguments that its meta kernels take and its CPU kernels refuse."""
    if op in CHECKS:
        CHECKS[op](*args, **kwargs)
    has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    if (
        not op.is_view
        and any(map(_is_complex, tree_iter((args, kwargs))))
        and has_kernel(op.name(), "CPU")
    ):
        try:
            run_on_cpu(op, *args, by_dtype=True, **kwargs)
        except RuntimeError as error:
            # Complex numbers have no order, and functions of reals do not take them. Other errors
            # are of the shapes.
            if "omplex" in str(error):
                raise


def run_on_cpu(op: OpOverload, /, *args: object, by_dtype: bool = False, **kwargs: object) -> None:
    """Runs torch's CPU kernel on zeros, for its errors. by_dtype: on tensors of one element."""

    def zeros(tensor: torch.Tensor) -> torch.Tensor:
        zero = torch.zeros((), dtype=tensor.dtype, device="cpu")
        # one element of memory for any shape
        return zero.expand([1] * tensor.dim() if by_dtype else tensor.shape)

    if any(argument.name == "generator" for argument in op._schema.arguments):
        # the draws of torch's default one are the caller's
        kwargs["generator"] = torch.Generator("cpu")
    arguments = tree_map_only(torch.Tensor, zeros, (args, kwargs))
    args, kwargs = tree_map_only(torch.device, lambda _: torch.device("cpu"), arguments)
    op(*args, **kwargs)


# --- dtypes, and numbers that do not fit them -----------------------------------------------------


_ROUNDINGS = (None, "trunc", "floor")


def _is_bool(value: object) -> bool:
    return isinstance(value, bool) or (
        isinstance(value, torch.Tensor) and value.dtype == torch.bool
    )


def _is_complex(value: object) -> bool:
    return isinstance(value, complex) or (isinstance(value, torch.Tensor) and value.is_complex())


@checks(
    *(
        aten.bernoulli.default,
        aten.binomial.default,
        aten.poisson.default,
        aten._standard_gamma.default,
    ),
    *(aten.normal.Tensor_Tensor, aten.normal.float_Tensor, aten.normal.Tensor_float),
    by_dtype=True,
)
def of_other_than_floats(*args, **kwargs):
    """Parameters of a distribution are floats; torch's kernels differ in which others they take."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    return not all(tensor.is_floating_point() for tensor in tensors)


def _add(self, other, alpha=1):
    if isinstance(alpha, float):
        kind = torch.result_type(self, other)
        return not (kind.is_floating_point or kind.is_complex)
    return isinstance(alpha, (bool, complex))


def _addcdiv(self, tensor1, tensor2, *, value=1):
    is_exact = not any(
        tensor.is_floating_point() or tensor.is_complex() for tensor in (tensor1, tensor2)
    )
    return is_exact or isinstance(value, complex)


def _same_dtype(name, /, *args, **kwargs):
    """The check of a product that its operands have one dtype; torch has other words for it in each
    kernel."""
    dtypes = {arg.dtype for arg in args if isinstance(arg, torch.Tensor)}
    if len(dtypes) > 1:
        raise RuntimeError(
            f"{name}: expected operands of one dtype, got {', '.join(sorted(map(str, dtypes)))}; "
            "cast one with .to(dtype), or use torch.autocast"
        )


for _name in ("mm", "bmm", "mv", "dot", "vdot", "addmm", "addmv", "addbmm", "baddbmm", "linear"):
    checks(getattr(aten, _name).default)(functools.partial(_same_dtype, _name))


# --- draws ----------------------------------------------------------------------------------------


def _random_from(self, from_, to, **_):
    if self.is_complex() or self.dtype == torch.bool:
        return True
    dtype = torch.finfo(self.dtype) if self.is_floating_point() else torch.iinfo(self.dtype)
    last = from_ if to is None else to - 1
    return from_ > last or from_ < dtype.min or last > dtype.max


@checks(aten.randperm.default)
def randperm(n, *, dtype=torch.int64, **_):
    if dtype == torch.bool or dtype.is_complex:
        return True
    return n > (torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)).max


@checks(aten.multinomial.default)
def multinomial(self, num_samples, replacement=False, **_):
    *lead, categories = self.shape if self.dim() else (1,)
    if not self.is_floating_point() or num_samples <= 0 or categories > 2**24:
        return True
    return (categories == 0 and 0 not in lead) or (num_samples > categories and not replacement)


# --- reductions, search and order -----------------------------------------------------------------


@checks(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(sorted_sequence, self, *, side=None, sorter=None, **_):
    rank = sorted_sequence.dim()
    lead = self.shape[:-1] if isinstance(self, torch.Tensor) and self.dim() == rank else None
    fits = rank == 1 or (rank > 1 and lead == sorted_sequence.shape[:-1])
    return (
        not fits
        or side not in (None, "left", "right")
        or (sorter is not None and sorter.dtype != torch.int64)
    )


@checks(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats, *, output_size=None):
    if output_size and not repeats.numel():  # torch ignores the size
        raise RuntimeError(
            f"repeat_interleave: expected output_size 0, as there are no repeats, got {output_size}"
        )


# --- shapes and indices ---------------------------------------------------------------------------


@checks(aten.empty_strided.default, aten.new_empty_strided.default)
def empty_strided(*arguments, **_):
    *_, stride = arguments
    if any(step < 0 for step in stride):  # torch speaks of an overflow
        raise RuntimeError(f"empty_strided: expected strides of 0 and more, got {list(stride)}")


@checks(aten.masked_scatter.default, aten.masked_scatter_.default)
def masked_scatter(self, mask, source):
    if mask.dtype != torch.bool:  # torch warns first that such a mask is deprecated
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )


@checks(aten.index_add.default, aten.index_add_.default)
def index_add(self, dim, index, source, **_):
    sizes, source_sizes = list(self.shape), list(source.shape)
    if len(sizes) == len(source_sizes):
        del sizes[dim : dim + 1 or None], source_sizes[dim : dim + 1 or None]
    return (
        sizes != source_sizes
        or self.dtype != source.dtype
        or index.dtype not in (torch.int32, torch.int64)
    )


@checks(
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl.default,
    aten._index_put_impl_.default,
)
def index_put(self, indices, values, *_, **__):
    if len(indices) > self.dim():
        raise IndexError(
            f"too many indices for tensor of dimension {self.dim()} (got {len(indices)})"
        )
    masked = any(
        index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices
    )
    # the latter is masked_fill, which casts
    if self.dtype != values.dtype and not (masked and values.dim() == 0):
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
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to "
            f"indexing result of shape {list(selected)}"
        )


# --- layers and losses ----------------------------------------------------------------------------


@checks(aten.convolution.default)
def convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    if (
        groups <= 0
        or any(pad < 0 for pad in padding)
        or any(step <= 0 for step in (*stride, *dilation))
    ):
        return True
    if (
        input.dim() != weight.dim()
        or 0 in input.shape[2:]
        or 0 in weight.shape[:1]
        or weight.shape[0] % groups
    ):
        return True
    channels, features = weight.shape[1] * groups, weight.shape[0]
    if transposed:
        channels, features = features, channels
    if input.shape[1] != channels == input.shape[-1]:
        raise RuntimeError(
            f"convolution: expected {channels} channels in dim 1 of the input, but "
            f"{[*input.shape]} has them last; write input.movedim(-1, {1 - input.dim()})"
        )
    if input.shape[1] != channels or (bias is not None and bias.shape != (features,)):
        return True
    # one number is for all dims
    settings = (cycle(values) for values in (stride, padding, dilation, output_padding))
    return transposed and any(
        (size - 1) * step + span * (width - 1) + more < 2 * pad
        for size, width, step, pad, span, more in zip(
            input.shape[2:], weight.shape[2:], *settings, strict=False
        )
    )


@checks(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False, *arguments, **_
):
    if indices.dim() != 1:  # torch fails in an assertion
        raise RuntimeError(
            "embedding_bag: expected indices as one run of all bags, got shape "
            f"{list(indices.shape)}; flatten them, or use torch.nn.functional.embedding_bag, "
            "which takes one bag a row"
        )
    kinds = {tensor.dtype for tensor in (weight, *arguments) if isinstance(tensor, torch.Tensor)}
    return weight.dim() != 2 or offsets.dim() != 1 or mode not in (0, 1, 2) or len(kinds) > 1


@checks(aten._ctc_loss.default, aten._ctc_loss.Tensor)
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    if log_probs.dim() != 3 or not log_probs.numel():
        return True
    # torch would speak of the lengths first, which are zeros
    if log_probs.dtype not in (torch.float32, torch.float64):
        raise NotImplementedError(
            f"ctc_loss: expected log_probs of float32 or float64, got {log_probs.dtype}"
        )
    time, batch, labels = log_probs.shape
    lengths = input_lengths, target_lengths
    if not 0 <= blank < labels or (targets.dim() == 2 and targets.shape[0] != batch):
        return True
    if isinstance(input_lengths, torch.Tensor):  # `core.record.calls.bounds` checks their values
        return any(x.numel() != batch or x.is_floating_point() or x.is_complex() for x in lengths)
    return (
        any(len(x) != batch or min(x) < 0 for x in lengths)
        or max(input_lengths) > time
        or (targets.dim() == 1 and targets.shape[0] != sum(target_lengths))
        or (targets.dim() == 2 and targets.shape[1] < max(target_lengths))
    )


# --- checks of one expression ---------------------------------------------------------------------

# By the names of their overloads, each with its in-place form.
_OF_DTYPES: dict[str, Check] = {
    "add.Tensor add.Scalar": _add,
    "sub.Tensor sub.Scalar": lambda self, other, alpha=1: (
        _is_bool(self) or _is_bool(other) or _add(self, other, alpha)
    ),
    "div.Tensor_mode div.Scalar_mode": lambda self, other, *, rounding_mode: (
        rounding_mode not in _ROUNDINGS
    ),
    "pow.Tensor_Scalar pow_.Scalar": lambda self, exponent: (
        type(exponent) is int and exponent < 0 and not self.is_floating_point()
    ),
    "clamp.default clamp_min.default clamp_max.default": lambda *args, **kwargs: any(
        map(_is_complex, (*args, *kwargs.values()))
    ),
    "rsub.Tensor rsub.Scalar": lambda self, other, alpha=1: _is_bool(self) or _is_bool(other),
    # Kernels that refuse operands of several dtypes, or indices of another dtype than theirs.
    "index_copy.default index_reduce.default put.default index_fill.int_Scalar "
    "index_fill.int_Tensor take.default index_select.default heaviside.default "
    "binary_cross_entropy.default nll_loss_forward.default nll_loss2d_forward.default "
    "huber_loss.default soft_margin_loss.default addcmul.default": lambda *_, **__: True,
    "isin.Tensor_Tensor isin.Tensor_Scalar isin.Scalar_Tensor": lambda *args, **_: any(
        _is_bool(value) or _is_complex(value) for value in args
    ),
    "addcdiv.default": _addcdiv,
    "lerp.Scalar lerp.Tensor": lambda self, end, weight: (
        not self.is_floating_point() or isinstance(weight, complex)
    ),
    # Below a slope of 0 the sign of the result of an in-place activation is not that of its input.
    "elu_backward.default": lambda grad_output, alpha, scale, input_scale, is_result, *_, **__: (
        is_result and alpha < 0
    ),
    "leaky_relu_backward.default": lambda grad_output, self, negative_slope, self_is_result: (
        self_is_result and negative_slope < 0
    ),
    "uniform.default": lambda self, from_=0.0, to=1.0, **_: (
        not self.is_floating_point() or from_ > to
    ),
    "normal_.default normal_functional.default": lambda self, mean=0.0, std=1.0, **_: (
        not self.is_floating_point() or std < 0
    ),
    "geometric.default": lambda self, p, **_: self.is_complex() or self.dtype == torch.bool,
    "random.from": _random_from,
    "random.to": lambda self, to, **_: _random_from(self, 0, to),
    "native_dropout.default": lambda input, p, train: train is not False and not 0 <= p <= 1,
}
_OF_SHAPES: dict[str, Check] = {
    # Along a dim of size 0 these have no result; along another one the result is empty, and torch
    # takes that.
    "amax.default amin.default aminmax.default argmax.default argmin.default max.default "
    "min.default max.dim min.dim median.dim nanmedian.dim mode.default kthvalue.default": (
        lambda self, *_, **__: not self.numel()
    ),
    "sort.default sort.stable logcumsumexp.default": lambda self, dim=-1, *_, **__: (
        not -max(self.dim(), 1) <= dim < max(self.dim(), 1)
    ),
    "bucketize.Tensor bucketize.Scalar": lambda self, boundaries, **_: boundaries.dim() != 1,
    (
        "topk.default max_pool2d_with_indices.default max_pool3d_with_indices.default"
    ): lambda self, *_, **__: self.is_complex(),
    "geqrf.default": lambda self: self.dim() < 2,
    "linalg_lstsq.default": lambda self, b, *_, **__: self.dim() < 2 or b.dim() < 1,
    "_adaptive_avg_pool2d.default _adaptive_avg_pool3d.default upsample_linear1d.default "
    "upsample_bilinear2d.default upsample_bicubic2d.default upsample_trilinear3d.default": (
        lambda self, *_, **__: 0 in self.shape[1:]
    ),
    "grid_sampler_2d.default grid_sampler_3d.default": lambda input, grid, *_: (
        input.dim() != grid.dim()
        or input.dim() not in (4, 5)
        or 0 in input.shape[2:]
        or input.dtype != grid.dtype
        or not input.is_floating_point()
    ),
    "linalg_cross.default _cdist_forward.default": lambda self, other, *_, **__: (
        self.dtype != other.dtype
    ),
}


def _overloads(names: str) -> Iterator[OpOverload]:
    for packet, _, overload in (name.partition(".") for name in names.split()):
        for form in (packet, f"{packet}_"):
            if overload in getattr(getattr(aten, form, None), "overloads", list)():
                yield getattr(getattr(aten, form), overload)


for _table, _by_dtype in ((_OF_DTYPES, True), (_OF_SHAPES, False)):
    for _names, _of in _table.items():
        checks(*_overloads(_names), by_dtype=_by_dtype)(_of)

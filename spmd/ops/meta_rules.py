"""Shapes of ops that torch cannot run on its meta device, or runs there without its checks."""

from collections.abc import Sequence
from functools import partial

import torch
from torch._ops import OpOverload
from torch._prims_common import canonicalize_dim, suggest_memory_format

from . import linear_cross_entropy, loss, rnn
from .registry import Function

aten = torch.ops.aten


def _attention(
    query,
    key,
    value,
    attn_bias=None,
    dropout_p=0.0,
    is_causal=False,
    return_debug_mask=False,
    *,
    scale=None,
):
    """(output, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, philox_seed, philox_offset,
    debug_attn_mask)."""
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise RuntimeError(
            "scaled_dot_product_attention: expected queries and keys of one width and as many "
            f"keys as values, got query {list(query.shape)}, key {list(key.shape)} and value "
            f"{list(value.shape)}"
        )
    *batch, length, _ = query.shape
    if attn_bias is not None:
        scores = [*batch, length, key.shape[-2]]
        sizes = [1] * (len(scores) - attn_bias.dim()) + list(attn_bias.shape)
        if any(size not in (1, wanted) for size, wanted in zip(sizes, scores, strict=True)):
            raise RuntimeError(
                f"scaled_dot_product_attention: attn_mask of shape {list(attn_bias.shape)} does "
                f"not broadcast to the scores, {scores}"
            )
    output = query.new_empty((*batch, length, value.shape[-1]))
    logsumexp = query.new_empty(
        (*batch, length), dtype=torch.float32 if query.dtype != torch.float64 else query.dtype
    )
    seed = query.new_empty((2,), dtype=torch.int64)
    return output, logsumexp, None, None, length, key.shape[-2], seed, None, None


def _attention_backward(
    grad_out,
    query,
    key,
    value,
    attn_bias,
    grad_input_mask,
    out,
    logsumexp,
    cum_seq_q,
    cum_seq_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    philox_seed,
    philox_offset,
    *,
    scale=None,
):
    operands = (query, key, value, attn_bias)
    result = [
        x if x is None else torch.empty_like(x, memory_format=torch.contiguous_format)
        for x in operands
    ]
    return _wanted(result, grad_input_mask)


def _wanted(
    results: Sequence[torch.Tensor | None], output_mask: Sequence[bool]
) -> tuple[torch.Tensor | None, ...]:
    return tuple(
        result if wanted else None for result, wanted in zip(results, output_mask, strict=True)
    )


def _in_place(*args: object, **kwargs: object) -> None:
    """An op that only writes, as a fused optimizer's: its targets keep shape and dtype."""


def _like(index: int, *arguments: torch.Tensor, **options: object) -> torch.Tensor:
    """The meta kernel of an op whose result is like one of its operands."""
    return torch.empty_like(arguments[index])


def _softmax(
    overload: OpOverload, self: torch.Tensor, dim: int, half_to_float: bool
) -> torch.Tensor:
    """torch's meta kernel of softmax with a check of dim; torch's own takes any."""
    canonicalize_dim(self.dim(), dim)
    return overload(self, dim, half_to_float)


def _ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    """The loss and the alphas, as wide as the longest target, which is known where the lengths are
    numbers."""
    time, batch = log_probs.shape[:2]
    width = (
        max(target_lengths, default=0) if isinstance(target_lengths, list) else targets.shape[-1]
    )
    return log_probs.new_empty(batch), log_probs.new_empty(batch, time, 2 * width + 1)


def _linear_backward(self, grad_output, weight, output_mask):
    return _wanted(
        (torch.empty_like(self), torch.empty_like(weight), weight.new_empty(weight.shape[:1])),
        output_mask,
    )


def _cross_entropy(self, target, weight, *settings):
    """(loss, logsumexp, total_weight): torch's composite op checks its operands, except for the
    checks here."""
    if not self.is_floating_point():
        raise NotImplementedError(
            f"cross_entropy: expected floating-point logits, got {self.dtype}"
        )
    if target.dtype not in (torch.int64, torch.int32, torch.uint8):
        raise RuntimeError(
            f"cross_entropy: expected target dtype to be Long or Byte, but got {target.dtype}"
        )
    if weight is not None and weight.dtype != self.dtype:
        raise RuntimeError(
            f"cross_entropy: expected weight of dtype {self.dtype}, as the logits, got "
            f"{weight.dtype}"
        )
    loss = aten.cross_entropy_loss(self, target.long(), weight, *settings)
    if target.shape != self.shape[:1] + self.shape[2:] and self.dim() > 1:
        raise RuntimeError(
            f"cross_entropy: size mismatch (got input: {self.shape}, target: {target.shape})"
        )
    dtype = torch.promote_types(self.dtype, torch.float32)
    return loss, torch.empty_like(target, dtype=dtype), self.new_empty((), dtype=dtype)


def _linear_cross_entropy(
    input,
    linear_weight,
    target,
    linear_bias,
    weight,
    reduction,
    ignore_index,
    label_smoothing,
    logits_dtype,
    max_bytes,
):
    """(loss, logsumexp, total_weight), as of the linear layer's outputs, one row a target."""
    logits = aten.linear(input, linear_weight, linear_bias).to(logits_dtype)
    if target.shape != logits.shape[:-1]:
        raise RuntimeError(
            f"linear_cross_entropy: size mismatch (got input: {input.shape}, target: "
            f"{target.shape})"
        )
    settings = weight, reduction, ignore_index, label_smoothing
    loss, logsumexp, total_weight = _cross_entropy(
        logits.flatten(0, -2), target.flatten(), *settings
    )
    return (
        loss if reduction else loss.reshape(target.shape),
        logsumexp.reshape(target.shape),
        total_weight,
    )


def _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    """torch's meta kernel, but without saved statistics in evaluation."""
    result, *saved = aten.native_batch_norm.default(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )
    return result, *(part if training else input.new_empty(0, dtype=part.dtype) for part in saved)


def _lstsq(self, b, rcond=None, *, driver=None):
    """(solution, residuals, rank, singular values), empty where the driver (gelsy by default) does
    not give them."""
    rows, columns = self.shape[-2:]
    driver = driver or "gelsy"
    is_vector = b.dim() == self.dim() - 1
    lead = torch.broadcast_shapes(self.shape[:-2], b.shape[:-1] if is_vector else b.shape[:-2])
    width = () if is_vector else b.shape[-1:]
    real = self.real.dtype if self.is_complex() else self.dtype
    residuals = (*lead, *(width or (1,))) if rows > columns else (0,)
    singular = (*self.shape[:-2], min(rows, columns)) if driver in ("gelsd", "gelss") else (0,)
    return (
        self.new_empty((*lead, columns, *width)),
        self.new_empty(residuals if driver != "gelsy" else (0,), dtype=real),
        self.new_empty(self.shape[:-2] if driver != "gels" else (0,), dtype=torch.int64),
        self.new_empty(singular, dtype=real),
    )


def _recurrence(mode, gates, state, weight, bias, projection, mask, reverse):
    """(output, final state, the values saved for the gradient): the LSTM saves its c and gates, the
    GRU its gates."""
    h = state[0]
    result = [
        h.new_empty(*gates.shape[:2], h.shape[-1]),
        *(torch.empty_like(part) for part in state),
    ]
    if mode == "lstm":
        result += [gates.new_empty(*gates.shape[:2], state[1].shape[-1]), torch.empty_like(gates)]
    if mode == "gru":
        result.append(gates.new_empty(*gates.shape[:2], 4 * h.shape[-1]))
    return [part.contiguous() for part in result]


def _recurrence_backward(
    mode, grads, state, weight, bias, projection, mask, output, saved, reverse
):
    gates = output.new_empty(*output.shape[:2], weight.shape[0])
    operands = [*state, weight, bias, projection]
    return [gates, *(torch.empty_like(tensor) for tensor in operands if tensor is not None)]


def _grouped_mm(self, mat2, offs=None, bias=None, out_dtype=None):
    """The meta kernel by the CPU kernel's rules: torch's requires bfloat16 and aligned strides, as
    its GPU kernel."""
    if (
        not {self.dim(), mat2.dim()} <= {2, 3}
        or self.dtype != mat2.dtype
        or not self.is_floating_point()
    ):
        raise RuntimeError(
            "grouped_mm: expected two floating-point matrices or stacks of them, of one dtype, got "
            f"{tuple(self.shape)} {self.dtype} and {tuple(mat2.shape)} {mat2.dtype}"
        )
    if (offs is None) != (self.dim() == mat2.dim() == 3):
        raise RuntimeError(
            "grouped_mm: expected offs where an argument is a matrix, and only there"
        )
    if self.shape[-1] != mat2.shape[-2]:
        raise RuntimeError(f"grouped_mm: inner sizes differ: {self.shape[-1]} and {mat2.shape[-2]}")
    groups = {matrix.shape[0] for matrix in (self, mat2) if matrix.dim() == 3}
    groups |= {offs.numel()} if offs is not None else set()
    if len(groups) != 1:
        raise RuntimeError(f"grouped_mm: expected one number of groups, got {sorted(groups)}")
    lead = () if self.dim() != mat2.dim() else tuple(groups)
    return self.new_empty((*lead, self.shape[-2], mat2.shape[-1]), dtype=out_dtype or self.dtype)


def _scaled_mm(
    self, mat2, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False
):
    """The meta kernel by the CPU kernel's rules: torch's takes only its GPU kernel's sizes,
    multiples of 16."""
    widths = {matrix.dtype.itemsize for matrix in (self, mat2)}
    if widths != {1} or not (self.is_floating_point() and mat2.is_floating_point()):
        raise RuntimeError(
            f"_scaled_mm: expected two matrices of eight-bit floats, got {self.dtype} and "
            f"{mat2.dtype}"
        )
    result = self.new_empty(self.shape, dtype=torch.float32) @ mat2.new_empty(
        mat2.shape, dtype=torch.float32
    )
    is_by_matrix = scale_a.numel() == scale_b.numel() == 1
    is_by_row = (scale_a.shape, scale_b.shape) == ((self.shape[0], 1), (1, mat2.shape[1]))
    if (
        result.dim() != 2
        or not (is_by_matrix or is_by_row)
        or {scale_a.dtype, scale_b.dtype} != {torch.float32}
    ):
        raise RuntimeError(
            "_scaled_mm: expected float32 scales, one number each or one a row of the first "
            f"matrix and one a column of the second, got {tuple(scale_a.shape)} {scale_a.dtype} "
            f"and {tuple(scale_b.shape)} {scale_b.dtype} for matrices of {tuple(self.shape)} and "
            f"{tuple(mat2.shape)}"
        )
    return result.to(out_dtype or self.dtype)


def _scaled_mm_v2(
    self,
    mat2,
    scale_a,
    recipe_a,
    swizzle_a,
    scale_b,
    recipe_b,
    swizzle_b,
    bias,
    out_dtype,
    contraction_dim=(),
    use_fast_accum=False,
):
    """The meta kernel by the CPU kernel's rules: one scale a matrix (recipe 0) or a row and column
    (1), no swizzle."""
    if (
        recipe_a != recipe_b
        or tuple(recipe_a) not in ((0,), (1,))
        or any((*swizzle_a, *swizzle_b, *contraction_dim))
    ):
        raise NotImplementedError(
            "scaled_mm: on xla scales are one a matrix (TensorWise) or one a row and column "
            f"(RowWise) for both matrices, without a swizzle; got recipes {recipe_a} and "
            f"{recipe_b}, swizzles {swizzle_a} and {swizzle_b}"
        )
    return _scaled_mm(self, mat2, *scale_a, *scale_b, bias, None, out_dtype)


def _convolution(input, weight, *arguments):
    """torch's meta kernel with the result's memory format decided by the input or the weight, as on
    CPU and CUDA."""
    result = aten.convolution.default(input, weight, *arguments)
    formats = {suggest_memory_format(tensor): None for tensor in (input, weight)}
    formats.pop(torch.contiguous_format, None)
    return result.contiguous(memory_format=next(iter(formats))) if formats else result


def _padded(overload: OpOverload, like: int, *arguments: torch.Tensor) -> torch.Tensor:
    """torch's meta kernel of padding or its gradient, in the memory format of the argument at
    `like`, as on CPU."""
    return overload(*arguments).contiguous(memory_format=suggest_memory_format(arguments[like]))


# --- empty tensors, by whose size torch's meta kernels in Python divide, or which they refuse -----


def _unless_empty(
    overload: OpOverload, otherwise: Function, index: int, *arguments: torch.Tensor
) -> object:
    """torch's meta kernel, with `otherwise` where the tensor at `index` has no elements."""
    return (overload if arguments[index].numel() else otherwise)(*arguments)


def _resampled(
    self: torch.Tensor, output_size: Sequence[int], *scales: float | None
) -> torch.Tensor:
    if 0 in (*self.shape[1:], *output_size):
        raise RuntimeError(
            "upsample_nearest: expected a tensor without elements to have no batch, got shape "
            f"{list(self.shape)} and output size {list(output_size)}"
        )
    return self.new_empty((*self.shape[:2], *output_size))


def _resampled_gradient(
    grad_output: torch.Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    *scales: float | None,
) -> torch.Tensor:
    return grad_output.new_empty(input_size)


def _group_norm_gradient(grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask):
    return _wanted((torch.empty_like(input), input.new_empty(C), input.new_empty(C)), output_mask)


def _batch_norm_functional(input, *arguments):
    """torch's meta kernel, which divides by the number of elements less one; a single element is
    passed to it twice."""
    overload = aten._native_batch_norm_legit_functional.default
    if input.dim() < 2 or input.numel() > input.shape[1]:
        return overload(input, *arguments)
    return (torch.empty_like(input), *overload(torch.cat([input, input]), *arguments)[1:])


def _named(names: str, ranks: Sequence[int | str] = ("",)) -> list[OpOverload]:
    """The default overloads of ops, where a `*` stands for each of the numbers of dims."""
    return [
        getattr(aten, name.replace("*", str(rank))).default
        for name in names.split()
        for rank in ranks
    ]


_NEAREST = _named("upsample_nearest*d _upsample_nearest_exact*d", (1, 2, 3))
_NEAREST_BACKWARD = _named(
    "upsample_nearest*d_backward _upsample_nearest_exact*d_backward", (1, 2, 3)
)
_PADS = _named("reflection_pad*d replication_pad*d", (2, 3))
_PADS_BACKWARD = _named("reflection_pad*d_backward replication_pad*d_backward", (2, 3))
_FUSED = [getattr(aten, f"_fused_{name}_") for name in ("adagrad", "adam", "adamw", "sgd")]

META_FUNCTIONS: dict[OpOverload, Function] = {
    **dict.fromkeys(_named("_standard_gamma_grad binomial _standard_gamma"), partial(_like, 0)),
    **dict.fromkeys(_named("_ctc_loss_backward multi_margin_loss_backward"), partial(_like, 1)),
    aten._ctc_loss_backward.Tensor: partial(_like, 1),
    loss.CROSS_ENTROPY_BACKWARD: partial(_like, 1),
    **{op: partial(_unless_empty, op, partial(_like, 1), 1) for op in _named("mse_loss_backward")},
    **{op: partial(_unless_empty, op, _resampled, 0) for op in _NEAREST},
    **{op: partial(_unless_empty, op, _resampled_gradient, 0) for op in _NEAREST_BACKWARD},
    **{
        op: partial(_unless_empty, op, _group_norm_gradient, 1)
        for op in _named("native_group_norm_backward")
    },
    aten._native_batch_norm_legit_functional.default: _batch_norm_functional,
    # torch's ignores the default dtype
    aten.ldexp.Tensor: lambda self, other: self * torch.pow(2.0, other),
    **dict.fromkeys(
        [op for packet in _FUSED for op in (packet.default, packet.tensor_lr)], _in_place
    ),
    aten.convolution.default: _convolution,
    **{op: partial(_padded, op, 0) for op in _PADS},
    **{op: partial(_padded, op, 1) for op in _PADS_BACKWARD},
    aten._scaled_dot_product_fused_attention_overrideable.default: _attention,
    aten._scaled_dot_product_fused_attention_overrideable_backward.default: _attention_backward,
    **{op: partial(_softmax, op) for op in _named("_softmax _log_softmax")},
    aten.linear_backward.default: _linear_backward,
    **dict.fromkeys(
        _named(
            "fake_quantize_per_tensor_affine_cachemask "
            "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams "
            "fake_quantize_per_channel_affine_cachemask"
        ),
        lambda self, *_: (torch.empty_like(self), torch.empty_like(self, dtype=torch.bool)),
    ),
    **dict.fromkeys(
        _named(
            "_fake_quantize_learnable_per_tensor_affine _fake_quantize_learnable_per_channel_affine"
        ),
        lambda self, *_: torch.empty_like(self),
    ),
    **dict.fromkeys(
        _named(
            "_fake_quantize_learnable_per_tensor_affine_backward "
            "_fake_quantize_learnable_per_channel_affine_backward"
        ),
        lambda grad, *inputs: tuple(map(torch.empty_like, inputs[:3])),
    ),
    aten._grouped_mm.default: _grouped_mm,
    aten._scaled_mm.default: _scaled_mm,
    aten._scaled_mm_v2.default: _scaled_mm_v2,
    aten._ctc_loss.default: _ctc_loss,
    aten._ctc_loss.Tensor: _ctc_loss,
    aten.native_batch_norm.default: _batch_norm,
    aten.geqrf.default: lambda self: (
        torch.empty_like(self),
        self.new_empty((*self.shape[:-2], min(self.shape[-2:]))),
    ),
    aten.linalg_lstsq.default: _lstsq,
    loss.CROSS_ENTROPY: _cross_entropy,
    linear_cross_entropy.LINEAR_CROSS_ENTROPY: _linear_cross_entropy,
    linear_cross_entropy.LINEAR_CROSS_ENTROPY_BACKWARD: (
        lambda grad_output, input, linear_weight, *arguments: _linear_backward(
            input, grad_output, linear_weight, arguments[-1]
        )
    ),
    rnn.RECURRENCE: _recurrence,
    rnn.RECURRENCE_BACKWARD: _recurrence_backward,
}

"""Ops written with other torch ops: they need a tensor's layout or the host, or are a block of a
model."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import functional as F

from ....ops.registry import present
from ..overloads import aten, by_arguments

# --- linear algebra -------------------------------------------------------------------------------


def _factor(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(diagonal of U, sign of the permutation, packed factors, pivots) for torch's gradient formula
    of a determinant, which expects the factors of the transpose for a contiguous real matrix."""
    transposed = matrix.is_contiguous() and not matrix.is_complex()
    packed, pivots, _ = aten.linalg_lu_factor_ex(matrix.mT if transposed else matrix)
    steps = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    sign = 1 - 2 * ((pivots != steps).sum(-1) % 2).to(packed.dtype)
    return packed.diagonal(dim1=-2, dim2=-1), sign, packed, pivots


def _solve_ex(
    matrix: Tensor, right: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, ...]:
    """`linalg.solve` by an LU factorization: (solution, packed factors, pivots, info)."""
    is_vector = right.dim() == 1 or (
        matrix.dim() - 1 == right.dim() and right.shape == matrix.shape[:-1]
    )
    packed, pivots, info = aten.linalg_lu_factor_ex(matrix)
    right = right.unsqueeze(-1) if is_vector else right
    result = aten.linalg_lu_solve(packed, pivots, right, left=left)
    return result.squeeze(-1) if is_vector else result, packed, pivots, info


def _det(matrix: Tensor) -> tuple[Tensor, ...]:
    diagonal, sign, *factors = _factor(matrix)
    return diagonal.prod(-1) * sign, *factors


def _slogdet(matrix: Tensor) -> tuple[Tensor, ...]:
    diagonal, sign, *factors = _factor(matrix)
    return diagonal.sgn().prod(-1) * sign, diagonal.abs().log().sum(-1), *factors


def _check_errors(info: Tensor, api_name: str, *, is_matrix: bool) -> None:
    """Reads `info`, a sync, and raises torch's own errors; `torch.linalg.*_ex` does not check."""
    aten._linalg_check_errors(info.cpu(), api_name, is_matrix=is_matrix)


def _cholesky(matrix: Tensor, upper: bool = False) -> Tensor:
    factor, info = aten.linalg_cholesky_ex(matrix, upper=upper)
    aten._linalg_check_errors(info, "cholesky", is_matrix=matrix.dim() == 2)
    return factor


# --- checks, draws, and zeros for tangents --------------------------------------------------------


def _assert_async(
    condition: Tensor,
    message: str = "_assert_async: expected a tensor that is true, got one that is not",
) -> None:
    """Reads the condition at once, a sync: a device of XLA cannot raise by itself."""
    if not condition.item():
        raise RuntimeError(message)


def _sample_dirichlet(self: Tensor, generator: torch.Generator | None = None) -> Tensor:
    drawn = aten._standard_gamma(self, generator)
    return drawn / drawn.sum(-1, keepdim=True)


def _check_draw(name: str, tensor: Tensor, refusal: type[Exception]) -> None:
    if not tensor.is_floating_point():
        raise refusal(f"{name}: expected a floating-point tensor, got {tensor.dtype}")


# torch's own decompositions of these two draws take no generator.
def _log_normal_(
    self: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: torch.Generator | None = None
) -> Tensor:
    _check_draw("log_normal_", self, NotImplementedError)
    return self.normal_(mean, std, generator=generator).exp_()


def _cauchy_(
    self: Tensor,
    median: float = 0.0,
    sigma: float = 1.0,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    _check_draw("cauchy_", self, RuntimeError)
    return (
        self.uniform_(generator=generator).sub_(0.5).mul_(math.pi).tan_().mul_(sigma).add_(median)
    )


def _new_zeros_with_same_feature(
    tangent: Tensor, primal: Tensor, *, self_num_batch_dims: int = 0
) -> Tensor:
    """Zeros in the shape of the primal, behind the batch dims of the tangent."""
    return tangent.new_zeros((*tangent.shape[:self_num_batch_dims], *primal.shape))


def _embedding_renorm_(
    weight: Tensor, indices: Tensor, max_norm: float, norm_type: float
) -> Tensor:
    """`max_norm` of an embedding: scales down looked-up rows with too large a norm."""
    norm = weight.norm(norm_type, dim=1, keepdim=True)
    looked_up = weight.new_zeros(weight.shape[0], 1, dtype=torch.bool).index_fill_(
        0, indices.reshape(-1), True
    )
    return weight.copy_(
        torch.where(looked_up & (norm > max_norm), weight * (max_norm / (norm + 1e-7)), weight)
    )


# --- transformer blocks without gradients ---------------------------------------------------------


def _attention_block(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """torch's attention layer in eager mode. mask_type: 0 is a mask [query, key], 1 is [batch,
    key], 2 has the scores' shape."""
    # One object for a tensor that is passed twice: torch's function joins its products.
    sequence_first = {id(x): x.transpose(0, 1) for x in (query, key, value)}
    query, key, value = (sequence_first[id(x)] for x in (query, key, value))
    if mask is not None:
        mask = mask.bool().flatten(0, 1) if mask.dim() == 4 else mask.bool()
    # With weights also where none are wanted: without them a fully masked row is zeros, and torch's
    # kernel returns NaN.
    output, weights = F.multi_head_attention_forward(
        query,
        key,
        value,
        embed_dim,
        num_head,
        qkv_weight,
        qkv_bias,
        None,
        None,
        False,
        0.0,
        proj_weight,
        proj_bias,
        False,
        key_padding_mask=mask if mask_type == 1 else None,
        attn_mask=None if mask_type == 1 else mask,
        average_attn_weights=average_attn_weights,
    )
    return output.transpose(0, 1), weights if need_weights else None


def _encoder_block(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """One block of torch's transformer encoder: attention and a feed-forward layer, each with
    residual and norm."""

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    x = norm(src, norm_weight_1, norm_bias_1) if norm_first else src
    attended, _ = _attention_block(
        x,
        x,
        x,
        embed_dim,
        num_heads,
        qkv_weight,
        qkv_bias,
        proj_weight,
        proj_bias,
        mask,
        False,
        True,
        mask_type,
    )
    x = src + attended
    x = x if norm_first else norm(x, norm_weight_1, norm_bias_1)
    inner = F.linear(
        norm(x, norm_weight_2, norm_bias_2) if norm_first else x, ffn_weight_1, ffn_bias_1
    )
    x = x + F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)
    return x if norm_first else norm(x, norm_weight_2, norm_bias_2)


_FUNCTIONS: dict[OpOverload, Callable[..., object]] = {
    aten._linalg_solve_ex.default: _solve_ex,
    aten._linalg_det.default: _det,
    aten._linalg_slogdet.default: _slogdet,
    aten._linalg_check_errors.default: _check_errors,
    aten._assert_async.default: _assert_async,
    aten._assert_async.msg: _assert_async,
    aten._sample_dirichlet.default: _sample_dirichlet,
    aten.log_normal_.default: _log_normal_,
    aten.log_normal.default: lambda like, *args, **kwargs: _log_normal_(
        torch.empty_like(like), *args, **kwargs
    ),
    aten.cauchy_.default: _cauchy_,
    aten.cauchy.default: lambda like, *args, **kwargs: _cauchy_(
        torch.empty_like(like), *args, **kwargs
    ),
    aten._new_zeros_with_same_feature_meta.default: _new_zeros_with_same_feature,
    aten.embedding_renorm_.default: _embedding_renorm_,
    aten._native_multi_head_attention.default: _attention_block,
    aten._transformer_encoder_layer_fwd.default: _encoder_block,
    # An encoder never packs its batch into a nested tensor on this device.
    aten._nested_tensor_from_mask_left_aligned.default: lambda *args: False,
}
# torch 2.15 has no such op: there `torch.cholesky` raises an error that names
# `torch.linalg.cholesky`.
_FUNCTIONS |= dict.fromkeys(present("aten.cholesky.default"), _cholesky)
HANDLERS = {overload: by_arguments(function) for overload, function in _FUNCTIONS.items()}

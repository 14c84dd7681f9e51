"""`torch_xla.experimental.custom_kernel`: attention by its name there; the kernel is chosen as for
torch's own."""

import json
from dataclasses import asdict, dataclass, make_dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm, scaled_dot_product_attention

from ...mesh.mesh import Mesh
from ...tensors.annotate import mark_sharding


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    q_segment_ids: Tensor | None = None,
    kv_segment_ids: Tensor | None = None,
    sm_scale: float = 1.0,
    ab: Tensor | None = None,
    partition_spec: Any = None,
    mesh: Any = None,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` with PyTorch/XLA's arguments.

    Args:
        q, k, v: (batch, heads, length, head_dim). causal: a row attends to rows up to its own.
        q_segment_ids, kv_segment_ids: (batch, length): a row attends to rows of its segment only.
        sm_scale: the factor of the scores, 1 where none is given. ab: added to the scores.
        partition_spec, mesh: the sharding of the result, as in `mark_sharding`.

    >>> import torch, spmd
    >>> q = torch.ones(1, 2, 4, 8, device="xla")
    >>> spmd.torch_xla.custom_kernel.flash_attention(q, q, q, causal=True).shape
    torch.Size([1, 2, 4, 8])
    """
    segments = (
        None if q_segment_ids is None or kv_segment_ids is None else (q_segment_ids, kv_segment_ids)
    )
    bias = ab
    if segments is not None or (causal and ab is not None):
        bias = torch.zeros((), dtype=q.dtype, device=q.device) if ab is None else ab
        bias = bias.masked_fill(~_seen(q, k, causal, segments), float("-inf"))
    result = scaled_dot_product_attention(
        q, k, v, bias, is_causal=causal and bias is None, scale=sm_scale
    )
    return result if partition_spec is None else mark_sharding(result, mesh, partition_spec)


def _seen(
    q: Tensor,
    k: Tensor,
    causal: bool,
    segments: tuple[Tensor, Tensor] | None,
    window: int | None = None,
) -> Tensor:
    """The keys that each query attends to: up to its own, of its segment, at most `window` away."""
    rows, columns = (
        torch.arange(q.shape[-2], device=q.device)[:, None],
        torch.arange(k.shape[-2], device=q.device),
    )
    is_seen = rows >= columns if causal else torch.ones_like(rows >= columns)
    if window is not None:
        is_seen = is_seen & ((rows - columns).abs() <= window)
    if segments is not None:
        is_seen = is_seen & (segments[0][:, None, :, None] == segments[1][:, None, None, :])
    return is_seen


class FlashAttention:
    """`apply` is `flash_attention`; its block sizes are not read: the kernel chooses its own.

    >>> import torch, spmd
    >>> q = torch.ones(1, 2, 4, 8, device="xla")
    >>> spmd.torch_xla.custom_kernel.FlashAttention.apply(q, q, q, True).shape
    torch.Size([1, 2, 4, 8])
    """

    DEFAULT_BLOCK_SIZES: ClassVar[dict[str, int]] = {}  # scripts set it

    apply = staticmethod(flash_attention)


def gmm(
    lhs: Tensor,
    rhs: Tensor,
    group_sizes: Tensor,
    group_offset: Tensor | None = None,
    transpose_rhs: bool = False,
) -> Tensor:
    """`torch.nn.functional.grouped_mm` of rows in groups.

    Args:
        lhs: (rows, k), in as many groups of rows, one after the other, as rhs has matrices.
            group_sizes: their rows.
        rhs: (groups, k, n), or (groups, n, k) with transpose_rhs.

    Raises NotImplementedError for a group_offset. Source:
    `torch_xla.experimental.custom_kernel.gmm`.

    >>> import torch, spmd
    >>> lhs, rhs, sizes = torch.ones(4, 8), torch.ones(2, 8, 8), torch.tensor([1, 3])
    >>> spmd.torch_xla.custom_kernel.gmm(lhs.to("xla"), rhs.to("xla"), sizes.to("xla")).shape
    torch.Size([4, 8])
    """
    return _grouped("gmm", lhs, rhs.mT if transpose_rhs else rhs, group_sizes, group_offset)


def repeat_with_fixed_output_size(
    input: torch.Tensor, repeats: torch.Tensor, total_repeat_length: int
) -> torch.Tensor:
    """`torch.repeat_interleave` of a tensor of one dim, cut to a length, or filled up to it with
    the last element; no value decides a shape.

    Source: `torch_xla.experimental.custom_kernel.repeat_with_fixed_output_size`.

    >>> import torch, spmd
    >>> x = torch.tensor([1, 2, 3], device="xla")
    >>> repeat = spmd.torch_xla.custom_kernel.repeat_with_fixed_output_size
    >>> repeat(x, torch.tensor([2, 0, 1], device="xla"), 5).tolist()
    [1, 1, 3, 3, 3]
    """
    places = torch.arange(total_repeat_length, device=input.device)
    index = torch.searchsorted(repeats.cumsum(0), places, right=True)
    return input[index.clamp(max=len(input) - 1)]


def tgmm(
    lhs: Tensor,
    rhs: Tensor,
    group_sizes: Tensor,
    group_offset: Tensor | None = None,
    num_actual_groups: int | None = None,
) -> Tensor:
    """`gmm`'s gradient by rhs: of lhs (k, rows) and rhs (rows, n), in groups of rows, a matrix (k,
    n) for each group.

    Raises NotImplementedError for a group_offset, and for fewer num_actual_groups than group_sizes
    has. Source: `torch_xla.experimental.custom_kernel.tgmm`.

    >>> import torch, spmd
    >>> lhs, rhs, sizes = torch.ones(8, 4), torch.ones(4, 8), torch.tensor([1, 3])
    >>> spmd.torch_xla.custom_kernel.tgmm(lhs.to("xla"), rhs.to("xla"), sizes.to("xla")).shape
    torch.Size([2, 8, 8])
    """
    part = group_offset if num_actual_groups in (None, len(group_sizes)) else num_actual_groups
    return _grouped("tgmm", lhs, rhs, group_sizes, part)


def _grouped(name: str, lhs: Tensor, rhs: Tensor, group_sizes: Tensor, part: Any) -> Tensor:
    if part is not None:
        raise NotImplementedError(
            f"{name}: expected all groups, got a part of them ({part}); index rhs or the result"
        )
    return grouped_mm(lhs, rhs, offs=group_sizes.cumsum(0).int())


# Settings that change nothing here, with their defaults.
_UNREAD: dict[str, Any] = {
    "sa_block_q": 2048,
    "sa_block_kv": 2048,
    "sa_block_kv_compute": 2048,
    "sa_block_q_dkv": 2048,
    "sa_block_kv_dkv": 2048,
    "sa_block_kv_dkv_compute": 2048,
    "sa_block_q_dq": 2048,
    "sa_block_kv_dq": 2048,
    "sa_use_fused_bwd_kernel": True,
    "sa_q_layout": "HEAD_DIM_MINOR",
    "sa_k_layout": "HEAD_DIM_MINOR",
    "sa_v_layout": "HEAD_DIM_MINOR",
}
_Unread: Any = make_dataclass(
    "_Unread", [(name, type(value), value) for name, value in _UNREAD.items()], frozen=True
)


@dataclass(frozen=True)
class SplashAttentionConfig(_Unread):
    """The settings of `splash_attention`: mesh (its text), specs and window act; blocks and layouts
    have no meaning here, as the kernel chooses its own. Source:
    `torch_xla.experimental.splash_attention.SplashAttentionConfig`.

    >>> import spmd
    >>> config = spmd.torch_xla.custom_kernel.SplashAttentionConfig(sa_block_q=512)
    >>> config.from_json(config.to_json()) == config
    True
    """

    mesh: str | None = None
    qkv_partition_spec: Any = (("data", "fsdp"), None, None, None)
    segment_ids_partition_spec: Any = (("data", "fsdp"), None)
    attentiontype_local_sliding: bool = False
    slide_window_size: int | None = None

    def to_json(self) -> str:
        """The settings as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, data: str) -> "SplashAttentionConfig":
        """The settings of a text."""
        return cls(**{name: _as_tuples(value) for name, value in json.loads(data).items()})


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def splash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    config: str,
    decoder_segment_ids: Tensor | None = None,
    causal: bool = True,
    attn_logits_soft_cap: float | None = None,
) -> Tensor:
    """Attention by PyTorch/XLA's arguments: scores are not scaled, heads of k and v are shared by
    heads of q.

    Args:
        q, k, v: (batch, heads, length, head_dim). config: `SplashAttentionConfig.to_json()`.
        decoder_segment_ids: (batch, length): a row attends to rows of its segment only. causal: up
            to its own.
        attn_logits_soft_cap: scores s become cap * tanh(s / cap).

    >>> import torch, spmd
    >>> q, config = (
    ...     torch.ones(1, 2, 4, 8, device="xla"),
    ...     spmd.torch_xla.custom_kernel.SplashAttentionConfig(),
    ... )
    >>> spmd.torch_xla.custom_kernel.splash_attention(q, q, q, config.to_json()).shape
    torch.Size([1, 2, 4, 8])
    """
    settings = SplashAttentionConfig.from_json(config)
    mesh = None if settings.mesh is None else Mesh.from_str(settings.mesh)
    if mesh is not None:
        q, k, v = (mark_sharding(tensor, mesh, settings.qkv_partition_spec) for tensor in (q, k, v))
    window = settings.slide_window_size if settings.attentiontype_local_sliding else None
    if settings.attentiontype_local_sliding and window is None:
        raise ValueError(
            "splash_attention: expected slide_window_size with attentiontype_local_sliding, got "
            "None"
        )
    segments = None if decoder_segment_ids is None else (decoder_segment_ids, decoder_segment_ids)
    if attn_logits_soft_cap is not None:
        k, v = (tensor.repeat_interleave(q.shape[1] // tensor.shape[1], 1) for tensor in (k, v))
        scores = attn_logits_soft_cap * torch.tanh(
            (q @ k.transpose(-1, -2)).float() / attn_logits_soft_cap
        )
        scores = scores.masked_fill(~_seen(q, k, causal, segments, window), float("-inf"))
        heads = torch.softmax(scores, -1).to(v.dtype) @ v
    else:
        is_seen = (
            None if segments is None and window is None else _seen(q, k, causal, segments, window)
        )
        is_causal = causal and is_seen is None
        heads = scaled_dot_product_attention(
            q, k, v, is_seen, is_causal=is_causal, scale=1.0, enable_gqa=True
        )
    return heads if mesh is None else mark_sharding(heads, mesh, settings.qkv_partition_spec)

"""`torch_xla.experimental.custom_kernel`: attention by its name there; the kernel is chosen as for torch's own."""

import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch.nn.functional import grouped_mm, scaled_dot_product_attention

from ...mesh.mesh import Mesh
from ...tensors.annotate import mark_sharding


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    q_segment_ids: torch.Tensor | None = None,
    kv_segment_ids: torch.Tensor | None = None,
    sm_scale: float = 1.0,
    ab: torch.Tensor | None = None,
    partition_spec: Any = None,
    mesh: Any = None,
) -> torch.Tensor:
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
    bias = ab
    if q_segment_ids is not None and kv_segment_ids is not None:
        other = q_segment_ids[:, None, :, None] != kv_segment_ids[:, None, None, :]
        bias = torch.zeros(other.shape, dtype=q.dtype, device=q.device) if bias is None else bias
        bias = bias.masked_fill(other, float("-inf"))
    if causal and bias is not None:
        later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        bias = bias.masked_fill(later, float("-inf"))
    result = scaled_dot_product_attention(q, k, v, bias, is_causal=causal and bias is None, scale=sm_scale)
    return result if partition_spec is None else mark_sharding(result, mesh, partition_spec)


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
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: Any = None,
    group_offset: torch.Tensor | None = None,
    transpose_rhs: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.grouped_mm` of rows in groups. tiling: has no meaning here, as the kernel chooses its own.

    Args:
        lhs: (rows, k), in as many groups of rows, one after the other, as rhs has matrices. group_sizes: their rows.
        rhs: (groups, k, n), or (groups, n, k) with transpose_rhs.

    Raises NotImplementedError for a group_offset. Source: `torch_xla.experimental.custom_kernel.gmm`.

    >>> import torch, spmd
    >>> lhs, rhs, sizes = torch.ones(4, 8), torch.ones(2, 8, 8), torch.tensor([1, 3])
    >>> spmd.torch_xla.custom_kernel.gmm(lhs.to("xla"), rhs.to("xla"), sizes.to("xla")).shape
    torch.Size([4, 8])
    """
    return _grouped("gmm", lhs, rhs.mT if transpose_rhs else rhs, group_sizes, group_offset)


def tgmm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: Any = (512, 512, 512),
    group_offset: torch.Tensor | None = None,
    num_actual_groups: int | None = None,
) -> torch.Tensor:
    """`gmm`'s gradient by rhs: of lhs (k, rows) and rhs (rows, n), in groups of rows, a matrix (k, n) for each group.

    Raises NotImplementedError for a group_offset, and for fewer num_actual_groups than group_sizes has. Source:
    `torch_xla.experimental.custom_kernel.tgmm`.

    >>> import torch, spmd
    >>> lhs, rhs, sizes = torch.ones(8, 4), torch.ones(4, 8), torch.tensor([1, 3])
    >>> spmd.torch_xla.custom_kernel.tgmm(lhs.to("xla"), rhs.to("xla"), sizes.to("xla")).shape
    torch.Size([2, 8, 8])
    """
    part = group_offset if num_actual_groups in (None, len(group_sizes)) else num_actual_groups
    return _grouped("tgmm", lhs, rhs, group_sizes, part)


def _grouped(name: str, lhs: torch.Tensor, rhs: torch.Tensor, group_sizes: torch.Tensor, part: Any) -> torch.Tensor:
    if part is not None:
        raise NotImplementedError(f"{name}: expected all groups, got a part of them ({part}); index rhs or the result")
    return grouped_mm(lhs, rhs, offs=group_sizes.cumsum(0).int())


@dataclass(frozen=True)
class SplashAttentionConfig:
    """The settings of `splash_attention`: mesh (its text), specs and window act; blocks and layouts have no meaning
    here, as the kernel chooses its own. Source: `torch_xla.experimental.splash_attention.SplashAttentionConfig`.

    >>> import spmd
    >>> config = spmd.torch_xla.custom_kernel.SplashAttentionConfig(sa_block_q=512)
    >>> config.from_json(config.to_json()) == config
    True
    """

    sa_block_q: int = 2048
    sa_block_kv: int = 2048
    sa_block_kv_compute: int = 2048
    sa_block_q_dkv: int = 2048
    sa_block_kv_dkv: int = 2048
    sa_block_kv_dkv_compute: int = 2048
    sa_block_q_dq: int = 2048
    sa_block_kv_dq: int = 2048
    sa_use_fused_bwd_kernel: bool = True
    sa_q_layout: str = "HEAD_DIM_MINOR"
    sa_k_layout: str = "HEAD_DIM_MINOR"
    sa_v_layout: str = "HEAD_DIM_MINOR"
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
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    config: str,
    decoder_segment_ids: torch.Tensor | None = None,
    causal: bool = True,
    attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:
    """Attention by PyTorch/XLA's arguments: scores are not scaled, heads of k and v are shared by heads of q.

    Args:
        q, k, v: (batch, heads, length, head_dim). config: `SplashAttentionConfig.to_json()`.
        decoder_segment_ids: (batch, length): a row attends to rows of its segment only. causal: up to its own.
        attn_logits_soft_cap: scores s become cap * tanh(s / cap).

    >>> import torch, spmd
    >>> q, config = torch.ones(1, 2, 4, 8, device="xla"), spmd.torch_xla.custom_kernel.SplashAttentionConfig()
    >>> spmd.torch_xla.custom_kernel.splash_attention(q, q, q, config.to_json()).shape
    torch.Size([1, 2, 4, 8])
    """
    settings = SplashAttentionConfig.from_json(config)
    mesh = None if settings.mesh is None else Mesh.from_str(settings.mesh)
    if mesh is not None:
        q, k, v = (mark_sharding(one, mesh, settings.qkv_partition_spec) for one in (q, k, v))
    if decoder_segment_ids is None and attn_logits_soft_cap is None and not settings.attentiontype_local_sliding:
        heads = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=1.0, enable_gqa=True)
    else:
        heads = _masked(q, k, v, settings, decoder_segment_ids, causal, attn_logits_soft_cap)
    return heads if mesh is None else mark_sharding(heads, mesh, settings.qkv_partition_spec)


def _masked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    settings: SplashAttentionConfig,
    segment_ids: torch.Tensor | None,
    causal: bool,
    cap: float | None,
) -> torch.Tensor:
    rows, columns = torch.arange(q.shape[-2], device=q.device)[:, None], torch.arange(k.shape[-2], device=q.device)
    is_seen = rows >= columns if causal else torch.ones_like(rows >= columns)
    if settings.attentiontype_local_sliding:
        if settings.slide_window_size is None:
            raise ValueError("splash_attention: expected slide_window_size with attentiontype_local_sliding, got None")
        is_seen = is_seen & ((rows - columns).abs() <= settings.slide_window_size)
    if segment_ids is not None:
        is_seen = is_seen & (segment_ids[:, None, :, None] == segment_ids[:, None, None, :])
    if cap is None:
        return scaled_dot_product_attention(q, k, v, is_seen, scale=1.0, enable_gqa=True)
    k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], 1) for one in (k, v))
    scores = (q @ k.transpose(-1, -2)).float()
    scores = (cap * torch.tanh(scores / cap)).masked_fill(~is_seen, float("-inf"))
    return torch.softmax(scores, -1).to(v.dtype) @ v

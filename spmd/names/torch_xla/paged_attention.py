"""Attention over keys and values in pages, by PyTorch/XLA's names: of tensors on xla, and of jax
arrays.

Pages are gathered, so that it runs on any hardware and has gradients; it is no TPU kernel.
"""

from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import Array, lax
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ...loops.interop.call_jax import call_jax

MASK_VALUE = -0.7 * float(jnp.finfo(jnp.float32).max)
_TOKENS = 16  # of `ragged_pages` at once: their keys and values are in memory


def _attended(
    q: Array,
    k: Array,
    v: Array,
    places: Array,
    length: Array,
    *,
    scale: float = 1.0,
    cap: float | None = None,
    window: int | None = None,
    mask_value: float = MASK_VALUE,
) -> Array:
    """Causal attention of q (queries, heads, head_dim) at `places` of a sequence, of whose k and v
    (length, kv_heads, head_dim) the first `length` count."""
    grouped = q.reshape(len(q), k.shape[1], -1, q.shape[-1])
    scores = scale * jnp.einsum("qkgd,lkd->kgql", grouped, k, preferred_element_type=jnp.float32)
    if cap is not None:
        scores = cap * jnp.tanh(scores / cap)
    columns = jnp.arange(len(k))[None]
    is_seen = (columns <= places[:, None]) & (columns < length)
    if window is not None:
        is_seen &= columns > places[:, None] - window
    weights = jax.nn.softmax(jnp.where(is_seen[None, None], scores, mask_value), axis=-1).astype(
        v.dtype
    )
    v = jnp.where(columns[0, :, None, None] < length, v, 0)  # a page's unwritten rows may be NaN
    return jnp.einsum("kgql,lkd->qkgd", weights, v).reshape(q.shape).astype(q.dtype)


def query_pages(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    lengths: Array,
    page_indices: Array,
    effective_q_lens: Array,
    *,
    mask_value: float = MASK_VALUE,
    attn_logits_soft_cap: float | None = None,
) -> Array:
    """Causal attention of the last queries of each sequence to its pages; scores are not scaled.

    Args:
        q: (batch, queries, heads, head_dim). k_pages, v_pages: (kv_heads, pages, page_size,
            head_dim).
        lengths, effective_q_lens: (batch,), of the keys of a sequence, and of its queries without
            padding. page_indices: (batch, pages of a sequence).

    Source: `multi_queries_paged_attention_kernel.paged_attention` of PyTorch/XLA.

    >>> import jax.numpy as jnp
    >>> from spmd.torch_xla.paged_attention import query_pages
    >>> q, pages, lengths = jnp.ones((2, 3, 4, 8)), jnp.ones((2, 4, 16, 8)), jnp.array([5, 20])
    >>> query_pages(q, pages, pages, lengths, jnp.arange(4).reshape(2, 2), jnp.array([3, 1])).shape
    (2, 3, 4, 8)
    """

    def attend(sequence: Any) -> Array:
        queries, length, indices, num_queries = sequence
        k, v = (  # (kv_heads, pages, page_size, head_dim) to (length, kv_heads, head_dim)
            pages[:, indices].transpose(1, 2, 0, 3).reshape(-1, len(pages), pages.shape[-1])
            for pages in (k_pages, v_pages)
        )
        places = length - num_queries + jnp.arange(len(queries))
        return _attended(
            queries, k, v, places, length, cap=attn_logits_soft_cap, mask_value=mask_value
        )

    return lax.map(attend, (q, lengths, page_indices, effective_q_lens))


def ragged_pages(
    q: Array,
    kv_pages: Array,
    kv_lens: Array,
    page_indices: Array,
    cu_q_lens: Array,
    num_seqs: Array,
    *,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = MASK_VALUE,
    k_scale: float | None = None,
    v_scale: float | None = None,
) -> Array:
    """Causal attention of tokens of many sequences, one after the other, each to the pages of its
    own; rows behind the last sequence are 0.

    Args:
        q: (tokens, heads, head_dim). kv_pages: (pages, page_size, 2 * kv_heads, head_dim), a head
            of k before the one of v.
        kv_lens: (sequences,). page_indices: (sequences, pages of one). cu_q_lens: (sequences + 1,),
            the first token of each. num_seqs: (1,), how many there are.
        sm_scale: of scores. sliding_window: keys that a token attends to. soft_cap: scores s become
            cap * tanh(s / cap). k_scale, v_scale: of quantized pages.

    Source: `ragged_paged_attention_v2.ragged_paged_attention` of PyTorch/XLA.

    >>> import jax.numpy as jnp
    >>> from spmd.torch_xla.paged_attention import ragged_pages
    >>> q, pages = jnp.ones((6, 4, 8)), jnp.ones((4, 16, 2 * 2, 8))
    >>> lengths, indices, starts = jnp.array([5, 20]), jnp.arange(4).reshape(2, 2), [0, 3, 4]
    >>> out = ragged_pages(q, pages, lengths, indices, jnp.array(starts), jnp.array([2]))
    >>> out[:, 0, 0].round(3).tolist()
    [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    """
    tokens, sequences = jnp.arange(len(q)), jnp.arange(len(kv_lens))
    ends = jnp.where(sequences < num_seqs[0], cu_q_lens[1:], len(q))  # of no sequence: anything
    of_token = jnp.searchsorted(ends, tokens, side="right")
    is_used = of_token < num_seqs[0]
    of_token = jnp.where(is_used, of_token, 0)
    places = kv_lens[of_token] - cu_q_lens[of_token + 1] + tokens

    def attend(token: Any) -> Array:
        query, sequence, place = token
        rows = kv_pages[page_indices[sequence]].reshape(-1, *kv_pages.shape[2:])
        k, v = (
            part if scale is None else (part.astype(jnp.float32) * scale).astype(q.dtype)
            for part, scale in ((rows[:, ::2], k_scale), (rows[:, 1::2], v_scale))
        )
        result = _attended(
            query[None],
            k,
            v,
            place[None],
            kv_lens[sequence],
            scale=sm_scale,
            cap=soft_cap,
            window=sliding_window,
            mask_value=MASK_VALUE if mask_value is None else mask_value,
        )
        return result[0]

    heads = lax.map(attend, (q, of_token, places), batch_size=_TOKENS)
    return jnp.where(is_used[:, None, None], heads, 0).astype(q.dtype)


def _call(function: Any, q: Tensor, *operands: Tensor, **static: Any) -> Tensor:
    if isinstance(q, FakeTensor):  # under torch.compile: the call is an op of its graph
        return torch.empty_like(q)
    result: Tensor = call_jax(function, q, *operands, **static)
    return result


def multi_queries_paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    lengths: Tensor,
    page_indices: Tensor,
    effective_q_lens: Tensor,
    attn_logits_soft_cap: float | None = None,
) -> Tensor:
    """`query_pages` of tensors on xla.

    >>> import torch
    >>> from spmd.torch_xla.paged_attention import multi_queries_paged_attention
    >>> q, pages = torch.ones(2, 3, 4, 8, device="xla"), torch.ones(2, 4, 16, 8, device="xla")
    >>> lengths, indices = torch.tensor([5, 20]).to("xla"), torch.arange(4).view(2, 2).to("xla")
    >>> multi_queries_paged_attention(q, pages, pages, lengths, indices, lengths // 5).shape
    torch.Size([2, 3, 4, 8])
    """
    tensors = k_pages, v_pages, lengths, page_indices, effective_q_lens
    return _call(query_pages, q, *tensors, attn_logits_soft_cap=attn_logits_soft_cap)


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    lengths: Tensor,
    page_indices: Tensor,
    attn_logits_soft_cap: float | None = None,
) -> Tensor:
    """`query_pages` of one query (batch, heads, head_dim) a sequence.

    >>> import torch
    >>> from spmd.torch_xla.paged_attention import paged_attention
    >>> q, pages = torch.ones(2, 4, 8, device="xla"), torch.ones(2, 4, 16, 8, device="xla")
    >>> lengths, indices = torch.tensor([5, 20]).to("xla"), torch.arange(4).view(2, 2).to("xla")
    >>> paged_attention(q, pages, pages, lengths, indices).shape
    torch.Size([2, 4, 8])
    """
    tensors = k_pages, v_pages, lengths, page_indices, torch.ones_like(lengths)
    heads = multi_queries_paged_attention(q.unsqueeze(1), *tensors, attn_logits_soft_cap)
    return heads.squeeze(1)


def ragged_paged_attention(
    q: Tensor,
    kv_pages: Tensor,
    kv_lens: Tensor,
    page_indices: Tensor,
    cu_q_lens: Tensor,
    num_seqs: Tensor,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
) -> Tensor:
    """`ragged_pages` of tensors on xla.

    >>> import torch
    >>> from spmd.torch_xla.paged_attention import ragged_paged_attention
    >>> q, pages = torch.ones(3, 4, 8, device="xla"), torch.ones(2, 16, 4, 8, device="xla")
    >>> lengths, indices, starts, one = (
    ...     torch.tensor(x).to("xla") for x in ([20], [[0, 1]], [0, 3], [1])
    ... )
    >>> ragged_paged_attention(q, pages, lengths, indices, starts, one).shape
    torch.Size([3, 4, 8])
    """
    return _call(
        ragged_pages,
        q,
        *(kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs),
        sm_scale=sm_scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        mask_value=mask_value,
        k_scale=k_scale,
        v_scale=v_scale,
    )

"""torch's `flex_attention` and its gradient in recorded ops: softmax attention with functions of
scores and positions.

From `LONG` on queries are taken a block at a time, in a loop whose backward computes the scores
again. So neither direction has an array of query length x key length.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from ..core.extend import NAME, known_mask
from .scan import scan
from .score_attention import recorded, score_attention

Function = Callable[..., Any]

# The number of scores per head from which queries are taken in blocks, and the queries of a block.
LONG, ROWS = 512 * 512, 128


def flex_attention(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Function,
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: dict[str, Any],
    score_mod_other_buffers: Sequence[Any] = (),
    mask_mod_other_buffers: Sequence[Any] = (),
) -> tuple[Any, ...]:
    """The op `flex_attention`: (output, logsumexp, largest score), the latter two to the base 2 as
    torch's kernels.

    The mask is that of the block mask's function; its lists of blocks, and the options of kernels,
    say how fast a kernel may be, and change nothing here.
    """
    if (batch := query.shape[0]) != (of_keys := key.shape[0]) and of_keys != 1:
        raise ValueError(
            f"flex_attention: expected keys of query's batch size {batch}, or of 1, got {of_keys}"
        )
    if torch.is_autocast_enabled(NAME):
        dtype = torch.get_autocast_dtype(NAME)
        query, key, value = (
            x if x.dtype is torch.float64 else x.to(dtype) for x in (query, key, value)
        )
    is_plain, is_long = _returns_scores(score_mod), query.shape[2] * key.shape[2] >= LONG
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    function, read = None, list[Any]()
    if is_long and not is_plain:
        with _IndexByTensors():
            found = recorded(lambda *of: score_mod(*of, *score_mod_other_buffers), wide)
        function, read = found or (None, read)
    score_mod = _of_positions(score_mod, 1, score_mod_other_buffers)
    mask_mod = _of_positions(block_mask[-1], 0, mask_mod_other_buffers)

    with torch.autocast(NAME, enabled=False):
        # Unread values of these are not computed.
        attend = _by_blocks if is_long else _at_once
        result = attend(query, key, value, score_mod, mask_mod, scale)
        if is_plain or function is not None:
            mask = _mask(mask_mod, query, key.shape[2])
            key, value = (x.expand(batch, -1, -1, -1) for x in (key, value))
            if is_long:
                mask = known_mask(mask, query, key)
                output, total = score_attention(query, key, value, mask, function, scale, read)
                return output, total / math.log(2), result[2]
            attended = scaled_dot_product_attention(
                query, key, value, mask, scale=scale, enable_gqa=True
            )
            return attended, *result[1:]
        return result


def _mask(mask_mod: Function, query: Any, columns: int) -> Any:
    """The mask of all positions; where batch or heads do not change it, that of one."""
    sizes = [*query.shape[:3], columns]
    mask = mask_mod(*(_positions(query, size) for size in sizes))
    shared = [1 if mask.stride(dim) == 0 else sizes[dim] for dim in (0, 1)]
    if shared == sizes[:2]:
        return mask
    return mask_mod(*(_positions(query, size) for size in (*shared, *sizes[2:])))


def _returns_scores(score_mod: Function) -> bool:
    """True for the function of no score_mod, also as Dynamo traces it."""
    nodes = list(score_mod.graph.nodes) if isinstance(score_mod, torch.fx.GraphModule) else ()
    where = getattr(score_mod, "__module__", ""), getattr(score_mod, "__name__", "")
    return (
        nodes[-1].args[0] in nodes[:1]
        if nodes
        else where == ("torch.nn.attention.flex_attention", "_identity")
    )


def flex_attention_backward(
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    grad_out: Any,
    grad_logsumexp: Any,
    fw_graph: Function,
    joint_graph: Any,
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: dict[str, Any],
    score_mod_other_buffers: Sequence[Any] = (),
    mask_mod_other_buffers: Sequence[Any] = (),
) -> tuple[Any, Any, Any, tuple[Any, ...]]:
    """The op `flex_attention_backward`, by autograd: (gradients of query, key, value, those of
    floating-point buffers).

    It computes the scores again in any case, so the values that forward has made are not used.
    """
    buffers = [_detached(buffer) for buffer in score_mod_other_buffers]
    inputs = query, key, value = _detached(query), _detached(key), _detached(value)
    with torch.enable_grad():
        result = flex_attention(
            query,
            key,
            value,
            fw_graph,
            block_mask,
            scale,
            kernel_options,
            buffers,
            mask_mod_other_buffers,
        )
    sources = [*inputs, *(buffer for buffer in buffers if _has_gradient(buffer))]
    arriving = [
        (x, grad)
        for x, grad in zip(result, (grad_out, grad_logsumexp), strict=False)
        if grad is not None
    ]
    of_query, of_key, of_value, *of_buffers = torch.autograd.grad(
        [x for x, _ in arriving], sources, [grad for _, grad in arriving], materialize_grads=True
    )
    queue = iter(of_buffers)
    return (
        of_query,
        of_key,
        of_value,
        tuple(next(queue) if _has_gradient(buffer) else None for buffer in buffers),
    )


def _copied(x: Any) -> Any:
    """Returns a copy whose gradient is copied: as a view of a product it is held as the product is,
    batch and heads in one dim, which no sharding over both can express (`ops/folds.py`)."""
    copy = x.clone()
    if copy.requires_grad:
        copy.register_hook(torch.clone)
    return copy


def _detached(x: Any) -> Any:
    return (
        x.detach().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
    )


def _has_gradient(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def _at_once(query: Any, key: Any, value: Any, *how: Any) -> tuple[Any, ...]:
    query, key, value = map(_copied, (query, key, value))
    return _attend(query, _positions(query, query.shape[2]), key, value, *how)


def _by_blocks(
    query: Any, key: Any, value: Any, score_mod: Any, mask_mod: Any, scale: float
) -> tuple[Any, ...]:
    """Attention of all queries, a block after the other."""
    length = query.shape[2]
    count = -(-length // ROWS)
    missing = count * ROWS - length
    # The last block's missing queries are zeros at the last position: positions may be indices of
    # the user's tensors.
    queries = pad(query, (0, 0, 0, missing)).unflatten(2, (count, ROWS)).movedim(2, 0)
    rows = _positions(query, count * ROWS).clamp(max=length - 1).view(count, ROWS)

    def attend(carry: Any, block: Any) -> Any:
        queries, rows = block
        return carry, _attend(queries, rows, key, value, score_mod, mask_mod, scale)

    _, result = scan(attend, (), (queries, rows), policy="nothing")
    output, logsumexp, largest = (x.movedim(0, 2).flatten(2, 3)[:, :, :length] for x in result)
    return output, logsumexp, largest


def _attend(
    query: Any, rows: Any, key: Any, value: Any, score_mod: Any, mask_mod: Any, scale: Any
) -> tuple[Any, ...]:
    """Attention of queries [batch, heads, length, width] at the positions `rows`; a fully masked
    row gets zeros."""
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    (batch, heads, length, _), (_, kv_heads, kv_length, _) = query.shape, key.shape
    # The queries of a group share a key: they are rows of one product.
    grouped = batch, kv_heads, heads // kv_heads * length
    scores = (query.to(wide) * scale).reshape(*grouped, -1) @ key.to(wide).mT
    positions = (
        _positions(query, batch),
        _positions(query, heads),
        rows,
        _positions(query, kv_length),
    )
    scores = score_mod(scores.reshape(batch, heads, length, kv_length), *positions).to(wide)
    scores = torch.where(mask_mod(*positions), scores, -math.inf)
    largest = scores.detach().amax(-1, keepdim=True)
    base = largest.masked_fill(largest == -math.inf, 0)
    weights = torch.exp(scores - base)
    total = weights.sum(-1, keepdim=True)
    is_masked = total == 0
    total = total.masked_fill(is_masked, 1)
    logsumexp = (base + total.log()).masked_fill(is_masked, -math.inf)
    # The product is divided, not the weights, which are far more: half the time in a CPU's loop,
    # and 0.6 of the memory.
    output = (weights.reshape(*grouped, kv_length) @ value.to(wide)).reshape(
        batch, heads, length, -1
    ) / total
    return (
        output.to(query.dtype),
        logsumexp.squeeze(-1) / math.log(2),
        largest.squeeze(-1) / math.log(2),
    )


def _positions(like: Any, size: int) -> Any:
    return torch.arange(size, dtype=torch.int32, device=like.device)


def _of_positions(function: Function, num_scores: int, buffers: Sequence[Any]) -> Function:
    """A function of single (batch, head, query, key) positions, and perhaps of a score, as one of
    all of them."""
    scores, fixed = (0,) * num_scores, (None,) * len(buffers)
    mapped = function
    for position in (3, 2, 1, 0):
        dims = [0 if dim == position else None for dim in range(4)]
        mapped = torch.vmap(mapped, in_dims=(*scores, *dims, *fixed))

    def of_all(*inputs: Any) -> Any:
        with _IndexByTensors():
            return mapped(*inputs, *buffers)

    return of_all


class _IndexByTensors(TorchFunctionMode):
    """Has `bias[q_idx, kv_idx]` look positions up in the tensor: torch would read a tensor of one
    number as a Python number."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            x, index = args
            places = list(index) if isinstance(index, (tuple, list)) else [index]
            if all(isinstance(p, (torch.Tensor, int)) and not isinstance(p, bool) for p in places):
                tensors = [
                    p if isinstance(p, torch.Tensor) else torch.tensor(p, device=x.device)
                    for p in places
                ]
                return torch.ops.aten.index.Tensor(x, tensors)
        return func(*args, **(kwargs or {}))

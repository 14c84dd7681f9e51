"""Calls that are more than an op, as rows of one table: `record.resolve.SPECIALS`.

Copies and reads are in `copies`, changes of shape in `reshaping`, ops made of other ops in files of their own.
"""

from typing import Any

import torch

from ..record import deterministic
from ..record.overloads import Args, Handler, Kwargs, by_arguments
from ..record.resolve import SPECIALS
from . import composites, copies, fused, masks, recurrent, reshaping

aten = torch.ops.aten


def _by_torchs_kernel(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """An op as torch's own kernel for every backend composes it of others."""
    return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """`scaled_dot_product_attention` as torch's fused op for other backends, which has a derivative formula."""
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise RuntimeError(
            "scaled_dot_product_attention: expected query, key and value of at least 2 dims, got shapes "
            f"{list(query.shape)}, {list(key.shape)} and {list(value.shape)}"
        )
    # Grouped heads stay as they are; without groups heads are a batch dim like any other, which broadcasts.
    kept = 3 if enable_gqa else 2
    try:
        outer = torch.broadcast_shapes(*(tensor.shape[:-kept] for tensor in (query, key, value)))
    except RuntimeError:
        raise RuntimeError(
            f"scaled_dot_product_attention: {query.shape[-3]} query heads and {key.shape[-3]} key heads need "
            f"enable_gqa=True (shapes {list(query.shape)}, {list(key.shape)} and {list(value.shape)})"
        ) from None
    query, key, value = (tensor.expand(*outer, *tensor.shape[-kept:]) for tensor in (query, key, value))
    full_query = query
    batch = query.shape[:-3]
    if query.dim() != 4:
        query, key, value = (_to_4d(tensor) for tensor in (query, key, value))
        attn_mask = attn_mask if attn_mask is None or attn_mask.dim() <= 2 else _to_4d(attn_mask)
    output = aten._scaled_dot_product_fused_attention_overrideable(
        query, key, value, attn_mask, dropout_p, is_causal, False, scale=scale
    )[0]
    return output if output.dim() == len(batch) + 3 and len(batch) == 1 else _from_4d(output, full_query)


def _to_4d(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() == 2:
        return tensor[None, None]
    return tensor[None] if tensor.dim() == 3 else tensor.flatten(0, -4)


def _from_4d(output: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    return output.reshape(*query.shape[:-1], output.shape[-1])


def _batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """`native_batch_norm` writes its running statistics, which its schema does not declare."""
    if running_mean is None or not training:
        return NotImplemented
    *result, new_mean, new_var = aten._native_batch_norm_legit_functional(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )
    running_mean.copy_(new_mean)
    running_var.copy_(new_var)
    return tuple(result)


def _rrelu(
    self: torch.Tensor, noise: torch.Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False,
    generator: torch.Generator | None = None,
) -> torch.Tensor:  # fmt: skip
    """`rrelu_with_noise` leaves the slopes it drew in its second argument, for the backward pass."""
    if not training:
        return torch.nn.functional.leaky_relu(self, (lower + upper) / 2)
    slopes = torch.where(self <= 0, torch.empty_like(self).uniform_(lower, upper, generator=generator), 1)
    noise.copy_(slopes)
    return self * slopes


def _rrelu_(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return self.copy_(_rrelu(self, *args, **kwargs))


def _check_chance(self: torch.Tensor, p: float = 0.5, generator: torch.Generator | None = None) -> Any:
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    return NotImplemented


def _extremes(self: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """`_aminmax`, the older name of `aminmax`, whose dim is positional."""
    return tuple(torch.aminmax(self, dim=dim, keepdim=keepdim))


_BY_TORCHS_KERNEL = (
    # Those with a generator are newer than the oldest torch that is taken.
    *(getattr(packet, name) for packet in (aten.rand_like, aten.randn_like, aten.randint_like)
      for name in packet.overloads() if "out" not in name),
    aten._reshape_copy.default, aten.polygamma_.default, aten._is_all_true.default, aten._is_any_true.default,
)  # fmt: skip

_SPECIALS: dict[torch._ops.OpOverload, Handler] = {
    **dict.fromkeys(_BY_TORCHS_KERNEL, _by_torchs_kernel),
    aten.scaled_dot_product_attention.default: by_arguments(attention),
    aten._pin_memory.default: lambda func, args, kwargs: args[0],
    aten.is_pinned.default: lambda func, args, kwargs: False,
    aten.record_stream.default: lambda func, args, kwargs: None,  # all work is on one stream
    aten._lazy_clone.default: lambda func, args, kwargs: aten.clone.default(args[0]),
    aten._aminmax.default: by_arguments(_extremes),
    aten._aminmax.dim: by_arguments(_extremes),
    aten.native_batch_norm.default: by_arguments(_batch_norm),
    aten._native_batch_norm_legit.default: lambda func, args, kwargs: aten.native_batch_norm.default(*args, **kwargs),
    aten.rrelu_with_noise.default: by_arguments(_rrelu),
    aten.rrelu_with_noise_.default: by_arguments(_rrelu_),
    aten.bernoulli_.float: by_arguments(_check_chance),
    aten.bernoulli.p: by_arguments(_check_chance),
    aten._weight_norm_interface_backward.default: lambda func, args, kwargs: (
        aten._weight_norm_differentiable_backward.default.decompose(*args, **kwargs)
    ),
}

for _table in (
    copies.HANDLERS, reshaping.HANDLERS, _SPECIALS, composites.HANDLERS, deterministic.HANDLERS, masks.HANDLERS,
    recurrent.HANDLERS, fused.HANDLERS,
):  # fmt: skip  # a later table may refine an earlier one
    SPECIALS.update(_table)

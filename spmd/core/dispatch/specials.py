"""Calls that are more than an op, and the one table of them: `SPECIALS`.

Copies and reads are in `copies`, changes of shape in `reshaping`, ops made of other ops in files of their own.
"""

from typing import Any

import torch

from . import composites, copies, deterministic, fused, masks, recurrent, reshaping
from .overloads import Handler

aten = torch.ops.aten


def _rand_like(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    rest = {name: value for name, value in kwargs.items() if name != "generator"}
    return torch.empty_like(args[0], **rest).uniform_(generator=kwargs.get("generator"))


def _randn_like(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    rest = {name: value for name, value in kwargs.items() if name != "generator"}
    return torch.empty_like(args[0], **rest).normal_(generator=kwargs.get("generator"))


def _randint_like(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, *bounds = args
    low, high = (0, bounds[0]) if len(bounds) == 1 else bounds
    return torch.empty_like(tensor, **kwargs).random_(low, high)


def _attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """`scaled_dot_product_attention` as torch's fused op for other backends, which has a derivative formula."""
    query, key, value, *rest = args
    bound = dict(zip(("attn_mask", "dropout_p", "is_causal"), rest, strict=False)) | kwargs
    mask, is_causal = bound.get("attn_mask"), bound.get("is_causal", False)
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise RuntimeError(
            "scaled_dot_product_attention: expected query, key and value of at least 2 dims, got shapes "
            f"{list(query.shape)}, {list(key.shape)} and {list(value.shape)}"
        )
    # Grouped heads stay as they are; without groups heads are a batch dim like any other, which broadcasts.
    kept = 3 if bound.get("enable_gqa", False) else 2
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
        mask = mask if mask is None or mask.dim() <= 2 else _to_4d(mask)
    output = aten._scaled_dot_product_fused_attention_overrideable(
        query, key, value, mask, bound.get("dropout_p", 0.0), is_causal, False, scale=bound.get("scale")
    )[0]
    return output if output.dim() == len(batch) + 3 and len(batch) == 1 else _from_4d(output, full_query)


def _to_4d(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() == 2:
        return tensor[None, None]
    return tensor[None] if tensor.dim() == 3 else tensor.flatten(0, -4)


def _from_4d(output: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    return output.reshape(*query.shape[:-1], output.shape[-1])


def _batch_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`native_batch_norm` writes its running statistics, which its schema does not declare."""
    names = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
    bound = dict(zip(names, args, strict=False)) | kwargs
    mean, var = bound["running_mean"], bound["running_var"]
    if mean is None or not bound["training"]:
        return NotImplemented
    *made, new_mean, new_var = aten._native_batch_norm_legit_functional(*(bound[name] for name in names))
    mean.copy_(new_mean)
    var.copy_(new_var)
    return tuple(made)


def _batch_norm_legit(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return aten.native_batch_norm.default(*args, **kwargs)


def _rrelu(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """`rrelu_with_noise` leaves the slopes it drew in its second argument, for the backward pass."""
    names = ("self", "noise", "lower", "upper", "training", "generator")
    bound = (
        {"lower": 0.125, "upper": 1 / 3, "training": False, "generator": None}
        | dict(zip(names, args, strict=False))
        | kwargs
    )
    tensor, lower, upper = bound["self"], bound["lower"], bound["upper"]
    if not bound["training"]:
        return torch.nn.functional.leaky_relu(tensor, (lower + upper) / 2)
    drawn = torch.empty_like(tensor).uniform_(lower, upper, generator=bound["generator"])
    slopes = torch.where(tensor <= 0, drawn, 1)
    bound["noise"].copy_(slopes)
    return tensor * slopes


def _rrelu_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    return args[0].copy_(_rrelu(func, args, kwargs))


def _bernoulli_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    chance = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    if not 0 <= chance <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={chance}")
    return NotImplemented


def _polygamma_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """`polygamma_`; the functional form has the two arguments in the other order."""
    tensor, order = args
    return tensor.copy_(torch.polygamma(order, tensor))


def _clone(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    return aten.clone.default(args[0])


def _reshape_copy(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    return aten.reshape.default(*args, **kwargs).clone(memory_format=torch.contiguous_format)


def _extremes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`_aminmax`, the older name of `aminmax`, whose dim is positional."""
    bound = dict(zip(("self", "dim", "keepdim"), args, strict=False)) | kwargs
    return tuple(torch.aminmax(bound.pop("self"), **bound))


def _weight_norm_backward(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return aten._weight_norm_differentiable_backward.default.decompose(*args, **kwargs)


def _is_pinned(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return False


def _pin_memory(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0]


_SPECIALS: dict[Any, Handler] = {
    aten.rand_like.default: _rand_like,
    aten.randn_like.default: _randn_like,
    aten.randint_like.default: _randint_like,
    aten.randint_like.low_dtype: _randint_like,
    aten.scaled_dot_product_attention.default: _attention,
    aten._pin_memory.default: _pin_memory,
    aten.is_pinned.default: _is_pinned,
    aten.record_stream.default: lambda func, args, kwargs: None,  # all work is on one stream
    aten._lazy_clone.default: _clone,
    aten._reshape_copy.default: _reshape_copy,
    aten._aminmax.default: _extremes,
    aten._aminmax.dim: _extremes,
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit.default: _batch_norm_legit,
    aten.rrelu_with_noise.default: _rrelu,
    aten.rrelu_with_noise_.default: _rrelu_,
    aten.bernoulli_.float: _bernoulli_,
    aten.bernoulli.p: _bernoulli_,
    aten.polygamma_.default: _polygamma_,
    aten._weight_norm_interface_backward.default: _weight_norm_backward,
}

# Every overload with a handler of its own; a later table may refine an earlier one.
SPECIALS: dict[Any, Handler] = {
    **copies.HANDLERS,
    **reshaping.HANDLERS,
    **_SPECIALS,
    **composites.COMPOSED,
    **deterministic.HANDLERS,
    **masks.HANDLERS,
    **recurrent.HANDLERS,
    **fused.HANDLERS,
}

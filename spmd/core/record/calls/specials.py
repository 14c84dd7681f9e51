"""Calls that are more than an op, as rows of one table.

Copies and reads are in `copies`, changes of shape in `reshaping`, ops made of other ops in files of
their own.
"""

from collections.abc import Sequence

import torch
from torch._ops import OpOverload

from ....ops import RULES
from ...base import counters
from ...run.pjrt.host import leaving
from ..overloads import Args, Handler, Kwargs, aten, by_arguments, overload_named
from . import composites, copies, determinism, fused, lists, observers, recurrent, reshaping
from .known_masks import known_mask

COMPOSITE = (
    torch._C.DispatchKey.CompositeExplicitAutograd,
    torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional,
)


def by_torchs_kernel(func: OpOverload, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """Runs torch's own kernel for any backend, which composes the op of other ops."""
    key = next(filter(func.has_kernel_for_dispatch_key, COMPOSITE))
    return func._op_dk(key, *args, **kwargs)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`scaled_dot_product_attention` as torch's fused op for other backends, for its derivative
    formula."""
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise RuntimeError(
            "scaled_dot_product_attention: expected query, key and value of at least 2 dims, got "
            f"shapes {list(query.shape)}, {list(key.shape)} and {list(value.shape)}"
        )
    # Grouped heads stay as they are; without groups heads are a batch dim like any other, which
    # broadcasts.
    num_inner = 3 if enable_gqa else 2
    try:
        outer = torch.broadcast_shapes(
            *(tensor.shape[:-num_inner] for tensor in (query, key, value))
        )
    except RuntimeError:
        raise RuntimeError(
            f"scaled_dot_product_attention: {query.shape[-3]} query heads and {key.shape[-3]} key "
            f"heads need enable_gqa=True (shapes {list(query.shape)}, {list(key.shape)} and "
            f"{list(value.shape)})"
        ) from None
    query, key, value = (
        tensor.expand(*outer, *tensor.shape[-num_inner:]) for tensor in (query, key, value)
    )
    shape = query.shape
    if query.dim() != 4:
        query, key, value = map(_to_4d, (query, key, value))
        attn_mask = attn_mask if attn_mask is None or attn_mask.dim() <= 2 else _to_4d(attn_mask)
    attn_mask = known_mask(attn_mask, query, key)
    output = aten._scaled_dot_product_fused_attention_overrideable(
        query, key, value, attn_mask, dropout_p, is_causal, False, scale=scale
    )[0]
    return output if len(shape) == 4 else output.reshape(*shape[:-1], output.shape[-1])


def _to_4d(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[(None,) * (4 - tensor.dim())] if tensor.dim() < 4 else tensor.flatten(0, -4)


def _batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> object:
    """`native_batch_norm` writes its running statistics, undeclared in its schema."""
    if running_mean is None or running_var is None or not training:
        return NotImplemented
    *result, new_mean, new_var = aten._native_batch_norm_legit_functional(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )
    running_mean.copy_(new_mean)
    running_var.copy_(new_var)
    return tuple(result)


def _rrelu(
    self: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """`rrelu_with_noise` leaves the slopes it drew in its second argument, for the backward
    pass."""
    if not training:
        return torch.nn.functional.leaky_relu(self, (lower + upper) / 2)
    slopes = torch.where(
        self <= 0, torch.empty_like(self).uniform_(lower, upper, generator=generator), 1
    )
    noise.copy_(slopes)
    return self * slopes


def _aminmax(
    self: torch.Tensor, dim: int | None = None, keepdim: bool = False
) -> tuple[torch.Tensor, ...]:
    """`_aminmax`, the older `aminmax` with a positional dim."""
    return tuple(torch.aminmax(self, dim=dim, keepdim=keepdim))


# --- indexing by tensors: torch's refusals, and masks, whose hits the host counts -----------------

Indices = Sequence[torch.Tensor | None]
_MASKS = (torch.bool, torch.uint8)
_KINDS = (*_MASKS, torch.int64, torch.int32)


def _checked_masks(tensor: torch.Tensor, indices: Indices) -> list[torch.Tensor]:
    """Returns the masks among the indices; raises torch's IndexError for a mask of another shape
    and for an index of another dtype."""
    # dim: the tensor's dim of the next index. A mask takes as many dims as it has.
    masks, dim = [], 0
    for index in indices:
        if index is None:
            dim += 1
            continue
        if index.dtype not in _KINDS:
            raise IndexError(
                "tensors used as indices must be long, int, byte or bool tensors, got "
                f"{index.dtype}"
            )
        if index.dtype not in _MASKS:
            dim += 1
            continue
        if index.shape != tensor.shape[dim : dim + index.dim()]:
            raise IndexError(
                f"The shape of the mask {list(index.shape)} at index {dim} does not match the "
                f"shape of the indexed tensor {list(tensor.shape)} at index {dim}"
            )
        dim += index.dim()
        masks.append(index)
    return masks


def _index(func: OpOverload, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """Indexes by masks: the host finds their True elements.

    A write of one value through one mask stays on the device, as other indices do.
    """
    tensor, indices, *values = args
    masks = _checked_masks(tensor, indices)
    is_single = len([index for index in indices if index is not None]) == 1
    if not masks or (
        values and is_single and masks[0].dtype == torch.bool and values[0].dim() == 0
    ):
        return NotImplemented
    return func(tensor, _with_positions(indices), *values, **kwargs)


def _with_positions(indices: Indices) -> list[torch.Tensor | None]:
    """The indices, each mask replaced by the positions of its True elements, found on the host."""
    expanded: list[torch.Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype in _MASKS:
            leaving("a boolean index", f"a mask of shape {list(index.shape)}")
            counters.add("host_ops")
            expanded.extend(map(copies.counted, copies.counting_copy(index).nonzero().unbind(1)))
        else:
            expanded.append(index)
    return expanded


# --- custom ops of other libraries whose own kernel reads a value: the same computation without a
# read


def _grouped(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Rows in groups that end at `offs`, each times its group's weight."""
    return aten._grouped_mm(input, weight, offs.int())


def _grouped_backward(
    input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor, grad_output: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of `_grouped` by its input and weight."""
    ends = offs.int()
    return aten._grouped_mm(grad_output, weight.mT, ends), aten._grouped_mm(
        input.mT, grad_output, ends
    )


# Handlers by name, of ops whose overloads may be made later.
# transformers multiplies experts' rows by these in a graph of Dynamo, where their dtype is not
# bfloat16.
BY_NAME: dict[str, Handler] = {
    "transformers::grouped_mm_fallback": by_arguments(_grouped),
    "transformers::grouped_mm_fallback_backward": by_arguments(_grouped_backward),
}


# --- the tables -----------------------------------------------------------------------------------

_BY_TORCHS_KERNEL = (
    # Overloads with a generator are newer than the oldest supported torch.
    *(
        getattr(packet, name)
        for packet in (aten.rand_like, aten.randn_like, aten.randint_like)
        for name in packet.overloads()
        if "out" not in name
    ),
    aten._reshape_copy.default,
    aten.polygamma_.default,
    aten._is_all_true.default,
    aten._is_any_true.default,
    aten.conv_tbc.default,
)

_INDEX_PUTS = (
    "index_put",
    "index_put_",
    "_unsafe_index_put",
    "_index_put_impl",
    "_index_put_impl_",
)
_SPECIALS: dict[OpOverload, Handler] = {
    **dict.fromkeys(_BY_TORCHS_KERNEL, by_torchs_kernel),
    # A program of `torch.export` names the device on which it was traced.
    aten._assert_tensor_metadata.default: lambda func, args, kwargs: by_torchs_kernel(
        func, args, {**kwargs, "device": None}
    ),
    aten.scaled_dot_product_attention.default: by_arguments(attention),
    aten._pin_memory.default: lambda func, args, kwargs: args[0],
    aten.is_pinned.default: lambda func, args, kwargs: False,
    aten.record_stream.default: lambda func, args, kwargs: None,  # all work is on one stream
    aten._lazy_clone.default: lambda func, args, kwargs: aten.clone.default(args[0]),
    aten._aminmax.default: by_arguments(_aminmax),
    aten._aminmax.dim: by_arguments(_aminmax),
    aten.native_batch_norm.default: by_arguments(_batch_norm),
    aten._native_batch_norm_legit.default: lambda func, args, kwargs: (
        aten.native_batch_norm.default(*args, **kwargs)
    ),
    aten.rrelu_with_noise.default: by_arguments(_rrelu),
    aten.rrelu_with_noise_.default: lambda func, args, kwargs: args[0].copy_(
        _rrelu(*args, **kwargs)
    ),
    aten._weight_norm_interface_backward.default: lambda func, args, kwargs: (
        aten._weight_norm_differentiable_backward.default.decompose(*args, **kwargs)
    ),
    aten.index.Tensor: _index,
    aten._pack_padded_sequence.default: by_arguments(recurrent.pack),
    **{getattr(aten, name).default: _index for name in _INDEX_PUTS},
}

# The handlers of overloads that replace their rules.
SPECIALS: dict[OpOverload, Handler] = {
    **copies.HANDLERS,
    **reshaping.HANDLERS,
    **_SPECIALS,
    **lists.HANDLERS,
    **composites.HANDLERS,
    **determinism.HANDLERS,
    # Composites arrive undecomposed in inference mode; elsewhere torch calls the same kernels, with
    # autograd inside.
    **{
        overload: by_arguments(kernel)
        for name, kernel in (fused.KERNELS | recurrent.KERNELS).items()
        if (overload := overload_named(name)) not in RULES
    },
    **observers.HANDLERS,
}

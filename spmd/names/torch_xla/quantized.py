"""PyTorch/XLA's products with int8 weights: `torch.ops.xla.quantized_matmul` and its layer."""

from collections.abc import Sequence
from typing import Any

import jax
import torch
import torch.ao.quantization.fx._decomposed  # registers the ops by which scripts quantize weights
from torch import nn

from ...core import ends_at_user_line
from ...loops.interop.call_jax import call_jax
from ...tensors.annotate import on_device
from .xla_ops import XLA_LIB

_SCHEMA = (
    "quantized_matmul(Tensor x, Tensor w, Tensor scale, Tensor? zero_point=None, int? "
    "block_size=-1, bool? int4_weight=False, bool? quantize_activation=False) -> Tensor"
)


@ends_at_user_line
def quantized_matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    block_size: int = -1,
    quantize_activation: bool = False,
) -> torch.Tensor:
    """The product of x, (..., in), and a weight of int8 that is dequantized.

    Args:
        w: (out, in); with blocks (in / block_size, block_size, out). scale, zero_point: (out,);
            with blocks (in / block_size, out). block_size: -1: a scale for each output. XLA fuses
            the cast of the weight with the product.
        quantize_activation: rounds each row of x to int8, and multiplies in int32.

    Raises ValueError for a weight of another dtype or shape, and for blocks with
    `quantize_activation`. Source: `torch.ops.xla.quantized_matmul`.

    >>> import torch
    >>> from spmd.torch_xla import quantized
    >>> w, scale = torch.tensor([[1, 2], [3, 4]], dtype=torch.int8), torch.tensor([1.0, 0.5])
    >>> quantized.quantized_matmul(torch.ones(1, 2), w, scale)
    tensor([[3.0000, 3.5000]])
    """
    _check(w, scale, zero_point, x.shape[-1], scale.shape[-1], block_size)
    if block_size != -1:
        if quantize_activation:
            raise ValueError(
                "quantized_matmul: quantize_activation is for a scale for each output, got "
                f"block_size={block_size}"
            )
        blocks = x.unflatten(-1, (-1, block_size))
        products = torch.einsum("scn,...sc->...sn", w.to(x.dtype), blocks)
        result = torch.einsum("sn,...sn->...n", scale, products)
        return result if zero_point is None else result - blocks.sum(-1) @ zero_point
    factor: Any = 1
    if quantize_activation:
        factor = x.abs().amax(-1, keepdim=True) / 127
        x = torch.round(x / factor).to(torch.int8)
    result = (
        _integers(x, w) if quantize_activation else nn.functional.linear(x, w.to(x.dtype))
    ) * scale
    if zero_point is not None:
        result = result - x.sum(-1, keepdim=True) * zero_point
    return result * factor


def _integers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The product of int8 values, in int32."""
    if x.device.type == "xla":
        return dot_general(x, w, (([-1], [-1]), ()), torch.int32)
    return nn.functional.linear(x.int(), w.int())


def _check(
    w: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    num_in: int,
    num_out: int,
    block_size: int,
) -> None:
    has_blocks = block_size != -1
    of_scale = [num_in // block_size, num_out] if has_blocks else [num_out]
    of_weight = [num_in // block_size, block_size, num_out] if has_blocks else [num_out, num_in]
    if has_blocks and num_in % block_size:
        raise ValueError(
            f"quantized_matmul: expected inputs in blocks of {block_size}, got {num_in} of them"
        )
    if w.dtype != torch.int8:
        raise ValueError(f"quantized_matmul: expected a weight of torch.int8, got {w.dtype}")
    for name, value, shape in (
        ("weight", w, of_weight),
        ("scale", scale, of_scale),
        ("zero_point", zero_point, of_scale),
    ):
        if value is not None and [*value.shape] != shape:
            raise ValueError(
                f"quantized_matmul: expected a {name} of shape {shape}, got {[*value.shape]}"
            )


# A weight of 4 bits lies in int8 here, so that int4_weight changes nothing.
XLA_LIB.define(_SCHEMA)
XLA_LIB.impl(
    "quantized_matmul",
    lambda x, w, scale, zero_point=None, block_size=-1, int4_weight=False, rounds=False: (
        quantized_matmul(x, w, scale, zero_point, block_size, rounds)
    ),
    "CompositeImplicitAutograd",
)


class XlaQuantizedLinear(nn.Module):
    """A linear layer without bias, whose weight is int8: `quantized_matmul` by its arguments.

    Args:
        input_dim, output_dim: sizes. is_symmetric: without a zero point. block_size,
            quantize_activation: of `quantized_matmul`. int4_weight: weights of 4 bits, which lie
            in int8 here, so that it changes nothing.

    Source: `torch_xla.experimental.xla_quantized_matmul.XlaQuantizedLinear`.

    >>> import torch
    >>> from spmd.torch_xla import quantized
    >>> layer = quantized.XlaQuantizedLinear(2, 3, is_symmetric=True)
    >>> layer.load_quantized_weight(torch.ones(3, 2, dtype=torch.int8), torch.full((3,), 0.5))
    >>> layer(torch.ones(1, 2))
    tensor([[1., 1., 1.]])
    """

    weight: torch.Tensor
    weight_scaler: torch.Tensor
    zero_point: torch.Tensor | None

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        is_symmetric: bool = False,
        block_size: int = -1,
        int4_weight: bool = False,
        quantize_activation: bool = False,
    ):
        super().__init__()
        self.input_dim, self.output_dim = input_dim, output_dim
        self.block_size, self.quantize_activation = block_size, quantize_activation
        self.register_buffer("weight", torch.zeros(output_dim, input_dim, dtype=torch.int8))
        self.register_buffer("weight_scaler", torch.zeros(output_dim))
        self.register_buffer("zero_point", None if is_symmetric else torch.zeros(output_dim))

    def load_quantized_weight(
        self,
        weight: torch.Tensor,
        weight_scaler: torch.Tensor,
        zero_point: torch.Tensor | None = None,
    ) -> None:
        """Takes a weight, its scale and its zero point, of the shapes of `quantized_matmul`."""
        _check(weight, weight_scaler, zero_point, self.input_dim, self.output_dim, self.block_size)
        self.weight, self.weight_scaler, self.zero_point = weight, weight_scaler, zero_point

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output."""
        result: torch.Tensor = torch.ops.xla.quantized_matmul(
            x,
            self.weight,
            self.weight_scaler,
            self.zero_point,
            block_size=self.block_size,
            quantize_activation=self.quantize_activation,
        )
        return result


def dot_general(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    dimension_numbers: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]],
    preferred_element_type: torch.dtype | None = None,
) -> torch.Tensor:
    """`jax.lax.dot_general` of two tensors on xla.

    dimension_numbers: (contracted dims of each, batch dims of each, or () for none), which may
    count from the end. Raises TypeError for a tensor that is not on xla. Source:
    `torch_xla._XLAC._xla_dot_general`.

    >>> import torch
    >>> from spmd.torch_xla import quantized
    >>> x = torch.ones(2, 3, dtype=torch.int8, device="xla")
    >>> quantized.dot_general(x, x, (([1], [-1]), ()), torch.int32).tolist()
    [[3, 3], [3, 3]]
    """
    operands = [on_device(tensor, "dot_general") for tensor in (lhs, rhs)]
    ranks = [tensor.dim() for tensor in operands]
    numbers = tuple(
        tuple(tuple(dim % rank for dim in dims) for dims, rank in zip(group, ranks, strict=True))
        for group in (part or ((), ()) for part in dimension_numbers)
    )
    name = None if preferred_element_type is None else str(preferred_element_type).split(".")[1]
    result: torch.Tensor = call_jax(
        jax.lax.dot_general, *operands, dimension_numbers=numbers, preferred_element_type=name
    )
    return result

"""Ops written out in float64: those whose CPU kernel differs from one processor to the next.

With AMX torch's CPU takes oneDNN's products of eight-bit floats: fewer dtypes, and NaN where a
result overflows.
"""

from collections.abc import Callable
from typing import Any

import torch

# Past their largest number the products of these stop there, as the instruction by which CUDA
# rounds them does.
STOPS = (torch.float8_e4m3fn, torch.float8_e5m2)


def scaled_mm(
    self: torch.Tensor,
    mat2: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`torch._scaled_mm`: rounded once, at the end; a scale of the result divides it where that has
    eight bits."""
    made = (self.double() * scale_a.double()) @ (mat2.double() * scale_b.double())
    made = made if bias is None else made + bias.double()
    dtype = out_dtype or self.dtype
    if dtype in STOPS:
        limit = torch.finfo(dtype).max
        made = (made if scale_result is None else made / scale_result.double()).clamp(-limit, limit)
    made = made.to(torch.float32).to(dtype)
    return made if out is None else torch.cat([made], out=out)


def scaled_mm_v2(
    self: torch.Tensor,
    mat2: torch.Tensor,
    scale_a: list[torch.Tensor],
    recipe_a: Any,
    swizzle_a: Any,
    scale_b: list[torch.Tensor],
    recipe_b: Any,
    swizzle_b: Any,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
    contraction_dim: tuple[int, ...] = (),
    use_fast_accum: bool = False,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`torch._scaled_mm_v2` with one scale a matrix, or one a row and column."""
    if out is not None and out.dtype != out_dtype:
        raise ValueError(f"expected an out tensor of {out_dtype}, got {out.dtype}")
    return scaled_mm(self, mat2, scale_a[0], scale_b[0], bias, out_dtype=out_dtype, out=out)


# By their names in torch's operator database.
REFERENCES: dict[str, Callable[..., torch.Tensor]] = {
    "torch._scaled_mm": scaled_mm,
    "torch._scaled_mm_v2": scaled_mm_v2,
}


def on_cpu(reference: Callable[..., Any], op: Callable[..., Any]) -> Callable[..., Any]:
    """The op, with its reference in place of the CPU's kernel."""

    def call(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return (reference if first.is_cpu else op)(first, *args, **kwargs)

    return call

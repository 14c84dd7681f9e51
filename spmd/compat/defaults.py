"""PyTorch/XLA's ways while the drop-in is on: ops without a rule run on the CPU, `einsum` promotes its operands."""

import functools
from typing import Any

import torch

from ..core.base.config import config, has_variable

_before: list[tuple[str, Any]] = []  # the fallback and the einsum of the time before


def begin() -> None:
    """Has ops without a rule run on the CPU, unless SPMD_FALLBACK says otherwise, and `einsum` take several dtypes."""
    _before.append((config.fallback, torch.functional.einsum))
    if not has_variable("fallback"):
        config.fallback = "cpu"
    torch.einsum = torch.functional.einsum = _promoting(torch.functional.einsum)


def end() -> None:
    """Takes back what `begin` changed."""
    config.fallback, torch.functional.einsum = _before.pop()
    torch.einsum = torch.functional.einsum


def _promoting(einsum: Any) -> Any:
    """`torch.einsum` whose operands on xla are cast to their common dtype, which torch leaves to the script."""

    @functools.wraps(einsum)
    def promoted(*args: Any) -> Any:
        operands = tuple(args[1]) if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
        tensors = [x for x in (args[0], *operands) if isinstance(x, torch.Tensor)]
        dtypes = {x.dtype for x in tensors}
        if len(dtypes) > 1 and any(x.device.type == "xla" for x in tensors):
            dtype = functools.reduce(torch.promote_types, dtypes)
            args = tuple(x.to(dtype) if isinstance(x, torch.Tensor) else x for x in (args[0], *operands))
        return einsum(*args)

    return promoted

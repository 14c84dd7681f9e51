"""PyTorch/XLA's defaults while the drop-in is on: a fallback to the CPU, type promotion in
`einsum`, and hints for missing ops of `torch.ops.xla`."""

import functools
from typing import Any

import torch

from ...core import config, variables
from .torch_xla_names import HINTS

_originals: list[tuple[str, Any]] = []  # the fallback and the einsum that `end` restores


def begin() -> None:
    """Switches on the fallback to the CPU, unless SPMD_FALLBACK is set, and the type promotion of
    `einsum`."""
    _originals.append((config.fallback, torch.functional.einsum))
    if not variables.has_variable("fallback"):
        config.fallback = "cpu"
    torch.einsum = torch.functional.einsum = _promoting(torch.functional.einsum)
    torch.ops.xla.__class__ = _Ops


def end() -> None:
    """Undoes `begin`."""
    config.fallback, torch.functional.einsum = _originals.pop()
    torch.einsum = torch.functional.einsum
    torch.ops.xla.__class__ = type(torch.ops.aten)


class _Ops(type(torch.ops.aten)):  # type: ignore[misc]
    """The namespace of PyTorch/XLA's ops."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name[:2] == "__":  # Python and tools look for it in every module
                raise
            kernels = "torch_xla.experimental.custom_kernel"
            hint = HINTS.get(f"{kernels}.{name}", HINTS[f"{kernels}.*"])
            raise AttributeError(
                f"torch.ops.xla.{name} of PyTorch/XLA is not in spmd.compat: {hint}"
            ) from None


def _promoting(einsum: Any) -> Any:
    """`torch.einsum` with its operands on xla cast to their common dtype."""

    @functools.wraps(einsum)
    def promoted(*args: Any) -> Any:
        operands = (
            tuple(args[1]) if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
        )
        tensors = [x for x in (args[0], *operands) if isinstance(x, torch.Tensor)]
        dtypes = {x.dtype for x in tensors}
        if len(dtypes) > 1 and any(x.device.type == "xla" for x in tensors):
            dtype = functools.reduce(torch.promote_types, dtypes)
            args = tuple(
                x.to(dtype) if isinstance(x, torch.Tensor) else x for x in (args[0], *operands)
            )
        return einsum(*args)

    return promoted

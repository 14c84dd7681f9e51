"""PyTorch/XLA's defaults while the drop-in is on: a fallback to the CPU, type promotion in
`einsum`, classes of floating-point type in losses, and hints for missing ops of `torch.ops.xla`."""

import functools
import pkgutil
from typing import Any

import torch

from ...core import config, variables
from .torch_xla_names import HINTS

_originals: list[tuple[Any, str, Any]] = []  # owner, name and value of what `end` restores


def begin() -> None:
    """Switches on the fallback to the CPU, unless SPMD_FALLBACK is set, the type promotion of
    `einsum`, and classes of floating-point type."""
    functional = torch.nn.functional
    fallback = config.fallback if variables.has_variable("fallback") else "cpu"
    einsum = _promoting(torch.functional.einsum)
    for owner, name, value in (
        (config, "fallback", fallback),
        (torch, "einsum", einsum),
        (torch.functional, "einsum", einsum),
        (functional, "cross_entropy", _taking_classes(functional.cross_entropy)),
        (functional, "nll_loss", _taking_classes(functional.nll_loss)),
        (torch.ops.xla, "__class__", _Ops),
    ):
        _originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)


def end() -> None:
    """Undoes `begin`."""
    while _originals:
        setattr(*_originals.pop())


# They register ops of `torch.ops.xla`.
_MODULES = (
    "spmd.torch_xla.composite_builder",
    "spmd.torch_xla.mlir_debuginfo",
    "spmd.torch_xla.quantized",
    "spmd.torch_xla.unbounded_dynamism",
)


class _Ops(type(torch.ops.aten)):  # type: ignore[misc]
    """The namespace of PyTorch/XLA's ops."""

    __module__ = type(torch.ops.aten).__module__  # torch.fx writes the names of ops by it

    def __getattr__(self, name: str) -> Any:
        try:
            if torch._C._jit_get_operation(f"xla::{name}")[0] is None:
                for module in _MODULES:
                    pkgutil.resolve_name(module)
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


def _taking_classes(loss: Any) -> Any:
    """A loss whose target on xla may have classes as floating-point numbers; one of the input's
    shape is probabilities."""

    @functools.wraps(loss)
    def call(input: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        is_classes = target.is_floating_point() and target.shape != input.shape
        if is_classes and target.device.type == "xla":
            target = target.long()
        result: torch.Tensor = loss(input, target, *args, **kwargs)
        return result

    return call

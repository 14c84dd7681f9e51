"""PyTorch/XLA's functions for linear layers and for optimization barriers in a backward pass."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from torch import nn

from ...loops.interop.call_jax import call_jax
from ...tensors.annotate import on_device


class EinsumLinear(nn.Linear):
    """`nn.Linear` under PyTorch/XLA's name for the form that does not flatten the dims of its input.

    Here `nn.Linear` itself does not: it is one product over the last dim, in which every other dim may be sharded,
    forward and backward. Source: `torch_xla.distributed.spmd.EinsumLinear`.

    >>> import torch, spmd
    >>> spmd.torch_xla.EinsumLinear(4, 2, device="xla")(torch.ones(3, 5, 4, device="xla")).shape
    torch.Size([3, 5, 2])
    """


def apply_xla_patch_to_nn_linear(
    module: nn.Module, patched_function: Callable[[nn.Linear, torch.Tensor], torch.Tensor] | None = None
) -> nn.Module:
    """Makes each `nn.Linear` below a module an `EinsumLinear`, which computes the same; returns the module.

    Modules stay the same objects, with their parameters and hooks; subclasses of `nn.Linear` stay what they are.
    patched_function: the forward of each `nn.Linear` instead, called with the layer and its input.
    Source: `torch_xla.distributed.spmd.apply_xla_patch_to_nn_linear`.

    >>> import torch, spmd
    >>> type(spmd.torch_xla.apply_xla_patch_to_nn_linear(torch.nn.Sequential(torch.nn.Linear(2, 2)))[0]).__name__
    'EinsumLinear'
    """
    for child in module.modules():
        if type(child) is nn.Linear and patched_function is None:
            child.__class__ = EinsumLinear
        elif isinstance(child, nn.Linear) and patched_function is not None:
            child.forward = functools.partial(patched_function, child)  # type: ignore[method-assign]
    return module


class XLAPatchedLinear:
    """`apply` is `nn.functional.linear`, which keeps the dims of its input here. Source: `xs.XLAPatchedLinear`.

    >>> import torch, spmd
    >>> spmd.torch_xla.linear.XLAPatchedLinear.apply(torch.ones(3, 5, 4), torch.ones(2, 4)).shape
    torch.Size([3, 5, 2])
    """

    apply = staticmethod(nn.functional.linear)


def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """Puts an optimization barrier around these values, in place: later reads of one wait until all are computed.

    XLA moves no op across it. Raises TypeError for a tensor that is not on xla. Source:
    `torch_xla.core.xla_model.optimization_barrier_`, StableHLO's `optimization_barrier`.

    >>> import torch, spmd
    >>> x, y = torch.ones(2, device="xla"), torch.zeros(2, device="xla")
    >>> spmd.torch_xla.optimization_barrier_([x, y])
    >>> "optimization_barrier" in spmd.get_stablehlo([x])
    True
    """
    with torch.no_grad():
        for tensor, value in zip(tensors, _behind(tensors), strict=True):
            tensor.copy_(value)


def _behind(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The values after an optimization barrier over all of them."""
    values = [on_device(tensor, "optimization_barrier_") for tensor in tensors]
    return call_jax(_barrier, *values) if values else ()


def _barrier(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(jax.lax.optimization_barrier(arrays))


def apply_backward_optimization_barrier(module: nn.Module) -> None:
    """Makes the backward of the layers before a module wait until the module's gradients are computed.

    The module's input needs a gradient, or torch warns.

    XLA then does not delay the gradients of many modules, to hold and reduce them together. FSDP's units wait so
    already. Source: `torch_xla.distributed.spmd.apply_backward_optimization_barrier`.

    >>> import torch, spmd
    >>> layer = torch.nn.Linear(2, 2, device="xla")
    >>> spmd.torch_xla.apply_backward_optimization_barrier(layer)
    >>> layer(torch.ones(2, 2, device="xla", requires_grad=True)).sum().backward()
    >>> "optimization_barrier" in spmd.get_stablehlo([layer.weight.grad])
    True
    """
    module.register_full_backward_hook(_wait)


def _wait(module: nn.Module, arriving: Any, _: Any) -> Any:
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    places = [i for i, gradient in enumerate(arriving) if gradient is not None]
    values = _behind([*(arriving[i] for i in places), *gradients])
    with torch.no_grad():
        for gradient, value in zip(gradients, values[len(places) :], strict=True):
            gradient.copy_(value)
    result = dict(zip(places, values, strict=False))
    return tuple(result.get(i) for i in range(len(arriving)))

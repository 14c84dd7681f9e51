"""Ops that keep the value and change how it is kept: its name for a checkpoint's policy, its memory kind.

The gradient of a value that was taken to the host is on the device again, and the other way round.
"""

from typing import Any

import jax
import torch

from .registry import Function, lower

_library = torch.library.Library("spmd", "FRAGMENT")


def _define(schema: str, backward: Function) -> Any:
    """A differentiable op that returns a new tensor of the same value."""
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, lambda x, *static: x.clone(), "CompositeExplicitAutograd")
    torch.library.register_autograd(f"spmd::{name}", backward, lib=_library)
    return getattr(torch.ops.spmd, name).default


CHECKPOINT_NAME = _define("checkpoint_name(Tensor x, str name) -> Tensor", lambda context, gradient: (gradient, None))
TO_HOST: Any = _define("place_to_host(Tensor x) -> Tensor", lambda context, gradient: TO_DEVICE(gradient))
TO_DEVICE: Any = _define("place_to_device(Tensor x) -> Tensor", lambda context, gradient: TO_HOST(gradient))


@lower(CHECKPOINT_NAME)
def spmd_checkpoint_name(x, name):
    return x


@lower(TO_HOST)
def spmd_place_to_host(x):
    return jax.device_put(x, jax.memory.Space.Host)


@lower(TO_DEVICE)
def spmd_place_to_device(x):
    return x  # every op reads its operands on the device: see `lower.lower`

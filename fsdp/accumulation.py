"""Gradient accumulation: the gradients of a batch's micro-batches, added up in one loop of one program."""

from collections.abc import Callable
from typing import Any

import torch
from einops import rearrange
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import spmd

from .units import unit_of, units_in


def accumulate_gradients(
    model: nn.Module, loss_fn: Callable[[Any], torch.Tensor], batch: Any, num_micro_batches: int
) -> torch.Tensor:
    """Adds the gradients of a batch's mean loss to the parameters' gradients, by micro-batches; returns that loss.

    It does the same as

        for part in parts_of(batch, num_micro_batches):
            (loss_fn(part) / num_micro_batches).backward()

    but forward and backward are recorded and compiled once, whatever the number of micro-batches, and the memory of
    their activations is that of one micro-batch. Gradients are added up sharded. For a loss that is a mean over dim 0
    both loss and gradients are those of the whole batch.

    Args:
        model: the module whose parameters get gradients; wrapped or not.
        loss_fn: called with a micro-batch, of the same structure as the batch; returns a scalar.
        batch: a tensor, or a structure of tensors with equal dim 0. A micro-batch has every `num_micro_batches`-th row,
            so that each device's rows stay on it.
        num_micro_batches: must divide dim 0; for a micro-batch to be sharded, the devices must divide its rows.

    Raises ValueError for a batch that `num_micro_batches` does not divide, for a batch without a tensor on xla, and for
    a loss that is no scalar.
    Source: `torch_xla.experimental.gradient_accumulation`.

    >>> import torch, spmd, fsdp
    >>> model = fsdp.fully_shard(torch.nn.Linear(4, 2), mesh=spmd.Mesh([0], (1,), ("fsdp",)))
    >>> batch = torch.ones(8, 4, device="xla")
    >>> loss = fsdp.accumulate_gradients(model, lambda part: model(part).square().mean(), batch, 4)
    >>> loss.shape, model.weight.grad.shape
    (torch.Size([]), torch.Size([2, 4]))
    """
    _check(batch, num_micro_batches)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    without = [parameter for parameter in trained if parameter.grad is None]
    arrived: set[int] = set()
    hooks = [parameter.register_post_accumulate_grad_hook(lambda one: arrived.add(id(one))) for parameter in without]

    def iteration(total: torch.Tensor, part: Any) -> tuple[torch.Tensor, None]:
        with torch.enable_grad():
            loss = loss_fn(part)
            if not isinstance(loss, torch.Tensor) or loss.dim():
                what = f"one of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
                raise ValueError(f"accumulate_gradients: expected loss_fn to return a scalar tensor, got {what}")
            share = loss / num_micro_batches
            share.backward()
        return total + share.detach().float(), None

    try:
        for parameter in without:
            parameter.grad = torch.zeros_like(parameter)  # the loop adds to it
        with torch.no_grad():
            start = torch.zeros((), device="xla")
            total, _ = spmd.scan(iteration, start, _parts(model, batch, num_micro_batches))
    finally:
        for hook in hooks:
            hook.remove()
        for parameter in without:
            if id(parameter) not in arrived:
                parameter.grad = None
    loss: torch.Tensor = total
    return loss


def _check(batch: Any, num_micro_batches: int) -> None:
    tensors = [value for value in tree_leaves(batch) if isinstance(value, torch.Tensor)]
    if not tensors or any(tensor.device.type != "xla" for tensor in tensors):
        raise ValueError("accumulate_gradients: expected a batch of tensors on xla")
    sizes = sorted({tensor.shape[0] if tensor.dim() else 0 for tensor in tensors})
    if len(sizes) > 1 or num_micro_batches < 1 or sizes[0] % num_micro_batches or not sizes[0]:
        raise ValueError(
            "accumulate_gradients: expected num_micro_batches to divide dim 0 of every tensor of the batch, got "
            f"{num_micro_batches} for {', '.join(map(str, sizes))} row(s)"
        )


def _parts(model: nn.Module, batch: Any, count: int) -> Any:
    """The batch as a stack of micro-batches, each sharded over the batch axes as a unit shards its input."""
    root = unit_of(model) or next(iter(units_in(model)), None)

    def parts(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if root is not None and spmd.get_sharding(value) is None:
            root.split(value)
        made = rearrange(value, "(b n) ... -> n b ...", n=count)
        if root is not None:
            root.split(made, dim=1)
        return made

    return tree_map(parts, batch)

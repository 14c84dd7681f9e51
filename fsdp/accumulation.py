"""Gradient accumulation: the gradients of a batch's micro-batches, added up in one loop of one program."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from einops import rearrange
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

import spmd

from .deferred import Deferred, Each, Once, once_over
from .units import unit_of, units_in
from .unsynced_gradients import loop_of_passes


def accumulate_gradients(
    model: nn.Module,
    loss_fn: Callable[..., Any],
    batch: Any,
    num_micro_batches: int,
    *,
    carried: Sequence[Any] = (),
    reduce: str | Mapping[str, str] = "each",
) -> Any:
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
        carried: tensors that a micro-batch hands on to the next, such as a running count: `loss_fn(part, *carried)`
            then returns (loss, *carried), and so does this function. Shapes and dtypes stay; no gradient goes through
            them.
        reduce: "each": the gradients of a micro-batch are reduced over the devices, and added up. "once": each device
            adds up its own summands of them, which are reduced after the last micro-batch. Or one of the two by mesh
            axis, `{"dcn": "once"}`; over the other axes of the batch each time. Forward and backward are those of the
            whole micro-batch, whatever its loss does with the batch: gradients are the same but for the order of sums.
            A device holds for each parameter a summand of the size that the parameter has over the other axes alone
            (in float32, where the parameter is narrower).

    Raises ValueError for a batch that `num_micro_batches` does not divide, for a batch without a tensor on xla, for a
    loss that is no scalar, and for a `reduce` that does not fit the batch; NotImplementedError, with the op and its
    line, for a gradient that `reduce="once"` does not know as a sum over the batch.
    Source: `torch_xla.experimental.gradient_accumulation`.

    >>> import torch, spmd, fsdp
    >>> model = fsdp.fully_shard(torch.nn.Linear(4, 2), mesh=spmd.Mesh([0], (1,), ("fsdp",)))
    >>> batch = torch.ones(8, 4, device="xla")
    >>> loss = fsdp.accumulate_gradients(model, lambda part: model(part).square().mean(), batch, 4)
    >>> loss.shape, model.weight.grad.shape
    (torch.Size([]), torch.Size([2, 4]))
    """
    _check(batch, num_micro_batches)
    once = once_over("accumulate_gradients", model, batch, reduce)
    if once is not None:
        _check_rows(batch, num_micro_batches, once)
    parts = _parts(model, batch, num_micro_batches)
    sums = Each(model) if once is None else Deferred("accumulate_gradients", model, once)
    return _accumulated("accumulate_gradients", loss_fn, parts, num_micro_batches, carried, sums)


def gradient_accumulation(
    train_step: Callable[..., Any], iterable_tensors: Sequence[torch.Tensor], model: nn.Module, *carried: Any
) -> Any:
    """`accumulate_gradients` by PyTorch/XLA's arguments: micro-batches that are stacked already.

    Args:
        train_step: called with a row of each tensor and the carried values; returns the loss, or (loss, *carried).
        iterable_tensors: tensors whose dim 0 is the number of micro-batches.
        model: the module whose parameters get gradients. carried: as of `accumulate_gradients`.

    Returns the mean of the losses, or (loss, *carried). Raises ValueError without tensors, or for dims 0 that differ.
    Source: `torch_xla.experimental.gradient_accumulation.gradient_accumulation`.

    >>> import torch, fsdp
    >>> model, stack = torch.nn.Linear(4, 2, device="xla"), torch.ones(3, 8, 4, device="xla")
    >>> loss = fsdp.gradient_accumulation(lambda part: model(part).square().mean(), [stack], model)
    >>> loss.shape, model.weight.grad.shape
    (torch.Size([]), torch.Size([2, 4]))
    """
    stacks = tuple(iterable_tensors)
    sizes = sorted({stack.shape[0] if stack.dim() else 0 for stack in stacks})
    if len(sizes) != 1 or not sizes[0]:
        raise ValueError(
            f"gradient_accumulation: expected tensors of one dim 0, the number of micro-batches, got {sizes or 'none'}"
        )

    def of_rows(rows: tuple[torch.Tensor, ...], *state: Any) -> Any:
        return train_step(*rows, *state)

    return _accumulated("gradient_accumulation", of_rows, stacks, sizes[0], carried, Each(model))


def _accumulated(
    caller: str, loss_fn: Callable[..., Any], parts: Any, count: int, carried: Sequence[Any], sums: "Each | Deferred"
) -> Any:
    def iteration(carry: tuple[torch.Tensor, tuple[Any, ...]], part: Any) -> tuple[Any, None]:
        total, state = carry
        with torch.enable_grad():
            result = loss_fn(part, *state)
            loss, *new = result if state else (result,)
            if not isinstance(loss, torch.Tensor) or loss.dim():
                what = f"one of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
                raise ValueError(f"{caller}: expected loss_fn to return a scalar tensor, got {what}")
            if len(new) != len(state):
                raise ValueError(f"{caller}: expected (loss, *carried) of {len(state)} carried, got {len(new)}")
            share = loss / count
            share.backward()
        passed_on = tree_map_only(torch.Tensor, torch.Tensor.detach, tuple(new))
        return (total + sums.take(share.detach()).float(), passed_on), None

    with torch.no_grad(), loop_of_passes(), sums:
        start = torch.zeros((), device="xla")
        (total, last), _ = spmd.scan(iteration, (start, tuple(carried)), parts)
        total = sums.reduced(total)
    return (total, *last) if carried else total


def _check(batch: object, num_micro_batches: int) -> None:
    tensors = [value for value in tree_leaves(batch) if isinstance(value, torch.Tensor)]
    if not tensors or any(tensor.device.type != "xla" for tensor in tensors):
        raise ValueError("accumulate_gradients: expected a batch of tensors on xla")
    sizes = sorted({tensor.shape[0] if tensor.dim() else 0 for tensor in tensors})
    if len(sizes) > 1 or num_micro_batches < 1 or sizes[0] % num_micro_batches or not sizes[0]:
        raise ValueError(
            "accumulate_gradients: expected num_micro_batches to divide dim 0 of every tensor of the batch, got "
            f"{num_micro_batches} for {', '.join(map(str, sizes))} row(s)"
        )


def _check_rows(batch: object, count: int, once: Once) -> None:
    rows = next(value.shape[0] for value in tree_leaves(batch) if isinstance(value, torch.Tensor)) // count
    if rows % once.ways:
        raise ValueError(
            f"accumulate_gradients: with reduce='once' a micro-batch needs equal rows on each of the {once.ways} "
            f"devices along {', '.join(map(repr, once.batch_axes))}, got {rows} rows; change the batch or "
            "num_micro_batches"
        )


def _parts(model: nn.Module, batch: Any, count: int) -> Any:
    """The batch as a stack of micro-batches, each sharded over the batch axes as a unit shards its input."""
    root = unit_of(model) or next(iter(units_in(model)), None)

    def parts(value: torch.Tensor) -> torch.Tensor:
        if root is not None and spmd.get_sharding(value) is None:
            root.split(value)
        result: torch.Tensor = rearrange(value, "(b n) ... -> n b ...", n=count)
        if root is not None:
            root.split(result, dim=1)
        return result

    return tree_map_only(torch.Tensor, parts, batch)

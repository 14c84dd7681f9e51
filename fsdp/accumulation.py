"""Gradient accumulation: the gradients of a batch's micro-batches, added up in one loop of one
program."""

# Why one loop, and not a Python loop of backward passes: the loop is lowered and compiled once
# whatever the number of micro-batches, and the activations of one micro-batch are freed before the
# next one's are made.

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from einops import rearrange
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.hooks import RemovableHandle

import spmd
from spmd.mesh.notes import ends_at_user_line

from .gradients import loop_of_passes
from .outputs import BatchSplit
from .units import root_of, spec_without


@ends_at_user_line
def accumulate_gradients(
    model: nn.Module,
    loss_fn: Callable[..., Any],
    batch: object,
    num_micro_batches: int,
    *,
    carried: Sequence[object] = (),
    reduce: str | Mapping[str, str] = "each",
) -> Any:
    """Adds the gradients of a batch's mean loss to the parameters' gradients, by micro-batches;
    returns that loss.

    It does the same as

        for part in parts_of(batch, num_micro_batches):
            (loss_fn(part) / num_micro_batches).backward()

    but forward and backward are recorded and compiled once, whatever the number of micro-batches,
    and the memory of their activations is that of one micro-batch. Gradients are added up sharded.
    For a loss that is a mean over dim 0 both loss and gradients are those of the whole batch.

    Args:
        model: the module whose parameters get gradients; wrapped or not.
        loss_fn: called with a micro-batch, of the same structure as the batch; returns a scalar.
        batch: a tensor, or a structure of tensors with equal dim 0. A micro-batch has every
            `num_micro_batches`-th row, so that each device's rows stay on it.
        num_micro_batches: must divide dim 0; for a micro-batch to be sharded, the devices must
            divide its rows.
        carried: tensors that a micro-batch hands on to the next, such as a running count:
            `loss_fn(part, *carried)` then returns (loss, *carried), and so does this function.
            Shapes and dtypes stay; no gradient goes through them.
        reduce: "each": the gradients of a micro-batch are reduced over the devices, and added up.
            "once": each device adds up unreduced gradients, which are reduced after the last
            micro-batch. A dict chooses by mesh axis, `{"dcn": "once"}`; other axes of the batch
            reduce each time. Gradients differ in the order of sums alone, whatever the loss does
            with the batch. A device holds, for each parameter, an unreduced gradient sharded over
            the other axes alone (in float32, where the parameter is narrower).

    Raises ValueError for a batch that `num_micro_batches` does not divide, for a batch without a
    tensor on xla, for a loss that is no scalar, and for a `reduce` that does not fit the batch;
    NotImplementedError, with the op and its line, for a gradient that `reduce="once"` does not know
    as a sum over the batch.
    Source: `torch_xla.experimental.gradient_accumulation`.

    >>> import torch, spmd, fsdp
    >>> model = fsdp.fully_shard(torch.nn.Linear(4, 2), mesh=spmd.Mesh([0], (1,), ("fsdp",)))
    >>> batch = torch.ones(8, 4, device="xla")
    >>> loss = fsdp.accumulate_gradients(model, lambda part: model(part).square().mean(), batch, 4)
    >>> loss.shape, model.weight.grad.shape
    (torch.Size([]), torch.Size([2, 4]))
    """
    rows = _checked_rows(batch, num_micro_batches)
    split, over = _reduced_once(model, batch, reduce)
    if split is not None and over and rows % split.ways:
        raise ValueError(
            "accumulate_gradients: with reduce='once' a micro-batch needs equal rows on each of "
            f"the {split.ways} devices along {', '.join(map(repr, split.axes))}, got {rows} rows; "
            "change the batch or num_micro_batches"
        )
    parts = _parts(model, batch, num_micro_batches)
    sums = UnreducedSums(model, split, over) if split is not None and over else ReducedSums(model)
    return _accumulated("accumulate_gradients", loss_fn, parts, num_micro_batches, carried, sums)


@ends_at_user_line
def gradient_accumulation(
    train_step: Callable[..., Any],
    iterable_tensors: Sequence[torch.Tensor],
    model: nn.Module,
    *carried: object,
) -> Any:
    """`accumulate_gradients` by PyTorch/XLA's arguments: micro-batches that are stacked already.

    Args:
        train_step: called with a row of each tensor and the carried values; returns the loss, or
            (loss, *carried).
        iterable_tensors: tensors whose dim 0 is the number of micro-batches.
        model: the module whose parameters get gradients. carried: as of `accumulate_gradients`.

    Returns the mean of the losses, or (loss, *carried). Raises ValueError without tensors, or for
    dims 0 that differ. Source:
    `torch_xla.experimental.gradient_accumulation.gradient_accumulation`.

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
            "gradient_accumulation: expected tensors of one dim 0, the number of micro-batches, "
            f"got {sizes or 'none'}"
        )
    return _accumulated(
        "gradient_accumulation",
        lambda rows, *state: train_step(*rows, *state),
        stacks,
        sizes[0],
        carried,
        ReducedSums(model),
    )


def _accumulated(
    caller: str,
    loss_fn: Callable[..., Any],
    parts: object,
    count: int,
    carried: Sequence[object],
    sums: "ReducedSums | UnreducedSums",
) -> Any:
    """Adds up the gradients of micro-batches; returns the mean loss, or (loss, *carried)."""

    def iteration(
        carry: tuple[torch.Tensor, tuple[object, ...]], part: object
    ) -> tuple[object, None]:
        """Forward and backward of one micro-batch; checks what `loss_fn` returns."""
        total, state = carry
        with torch.enable_grad():
            result = loss_fn(part, *state)
            loss, *new_state = result if state else (result,)
            if not isinstance(loss, torch.Tensor) or loss.dim():
                kind = (
                    f"one of shape {tuple(loss.shape)}"
                    if isinstance(loss, torch.Tensor)
                    else type(loss).__name__
                )
                raise ValueError(
                    f"{caller}: expected loss_fn to return a scalar tensor, got {kind}"
                )
            if len(new_state) != len(state):
                raise ValueError(
                    f"{caller}: expected (loss, *carried) of {len(state)} carried, got "
                    f"{len(new_state)}"
                )
            share = loss / count  # micro-batches are equal: the mean of their means is the batch's
            share.backward()
        passed_on = tree_map_only(torch.Tensor, torch.Tensor.detach, tuple(new_state))
        # In float32: many losses of a narrow dtype would round the later ones away.
        return (total + sums.take(share.detach()).float(), passed_on), None

    with torch.no_grad(), loop_of_passes(), sums:
        start = torch.zeros((), device="xla")
        (total, last), _ = spmd.scan(iteration, (start, tuple(carried)), parts)
        total = sums.reduced(total)
    return (total, *last) if carried else total


def _checked_rows(batch: object, num_micro_batches: int) -> int:
    """The rows of a micro-batch; raises ValueError if the batch does not divide into equal ones."""
    tensors = [value for value in tree_leaves(batch) if isinstance(value, torch.Tensor)]
    elsewhere = {str(tensor.device) for tensor in tensors if tensor.device.type != "xla"}
    if not tensors or elsewhere:
        came = (
            f'tensors on {", ".join(sorted(elsewhere))}; move them with .to("xla")'
            if elsewhere
            else f"{type(batch).__name__}; write accumulate_gradients(model, loss_fn, batch, n)"
        )
        raise ValueError(f"accumulate_gradients: expected a batch of tensors on xla, got {came}")
    sizes = sorted({tensor.shape[0] if tensor.dim() else 0 for tensor in tensors})
    if len(sizes) > 1 or num_micro_batches < 1 or sizes[0] % num_micro_batches or not sizes[0]:
        raise ValueError(
            "accumulate_gradients: expected num_micro_batches to divide dim 0 of every tensor of "
            f"the batch, got {num_micro_batches} for {', '.join(map(str, sizes))} row(s)"
        )
    return sizes[0] // num_micro_batches


def _parts(model: nn.Module, batch: object, count: int) -> object:
    """The batch as a stack of micro-batches, each sharded over the batch axes as a unit shards its
    input."""
    root = root_of(model)

    def stack(value: torch.Tensor) -> torch.Tensor:
        if root is not None and spmd.get_sharding(value) is None:
            root.split(value)
        # Every n-th row, not the next b: a device's rows of the batch stay on it.
        result: torch.Tensor = rearrange(value, "(b n) ... -> n b ...", n=count)
        if root is not None:
            root.split(result, dim=1)
        return result

    return tree_map_only(torch.Tensor, stack, batch)


# Why zeros stand in `.grad` before the loop: a loop's body adds to tensors that are there before
# its first iteration. A parameter that no loss reads must have none afterwards, as after a Python
# loop of backward passes.


class ReducedSums:
    """Sums of the gradients of all backward passes inside `with`, in `.grad`; None for a parameter
    without any."""

    def __init__(self, model: nn.Module):
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._without = [parameter for parameter in trained if parameter.grad is None]
        self._arrived: set[int] = set()
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> "ReducedSums":
        for parameter in self._without:
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._arrive))
            parameter.grad = torch.zeros_like(parameter)  # the loop adds to it
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()
        for parameter in self._without:
            if id(parameter) not in self._arrived:
                parameter.grad = None

    def _arrive(self, parameter: torch.Tensor) -> None:
        """Notes a parameter that has got a gradient."""
        self._arrived.add(id(parameter))

    def take(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the term that a backward pass adds to the loop's loss: its whole loss."""
        return loss

    def reduced(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the sum of the losses."""
        return loss


class UnreducedSums:
    """Sums of gradients, unreduced: after each backward pass inside `with`, `.grad` is added to a
    stack of summands per parameter. A device has one summand, of the parameter's size over the
    other axes."""

    # The stacks are added up without a collective: each device adds its own summand to its own row.

    def __init__(self, model: nn.Module, split: BatchSplit, over: tuple[str, ...]):
        self.split, self.over = split, over
        self.parameters = {
            name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad
        }

    def __enter__(self) -> "UnreducedSums":
        self._former = {name: parameter.grad for name, parameter in self.parameters.items()}
        self._stacks = {name: self._zeros(parameter) for name, parameter in self.parameters.items()}
        self._losses = self._zeros(torch.zeros((), device="xla"))
        self._has_losses = False
        self._arrived: set[str] = set()
        for parameter in self.parameters.values():
            parameter.grad = None
        return self

    def __exit__(self, *error: object) -> None:
        for name, parameter in self.parameters.items():
            result, former = parameter.grad, self._former[name]
            parameter.grad = former
            if error[0] is None and result is not None:
                parameter.grad = result if former is None else former.add_(result)

    def _zeros(self, like: torch.Tensor) -> torch.Tensor:
        """A stack of zeros: a row for each device along the axes that reduce once, sharded over
        them."""
        # many summands would round a narrow sum
        dtype = like.dtype if like.dtype.itemsize >= 4 else torch.float32
        mesh = self.split.mesh
        stack = torch.zeros(
            BatchSplit(mesh, self.over).ways, *like.shape, dtype=dtype, device="xla"
        )
        return spmd.mark_sharding(
            stack, mesh, spmd.PartitionSpec(self.over, *spec_without(like, mesh, *self.over))
        )

    def take(self, loss: torch.Tensor) -> torch.Tensor:
        """Adds the gradients of a backward pass to the stacks; returns the loss, or zero if the
        loss is added up unreduced, too."""
        # One walk over the graph finds the summands of all gradients and of the loss.
        gradients = {
            name: tensor.grad for name, tensor in self.parameters.items() if tensor.grad is not None
        }
        *stacks, loss_stack = spmd.unreduced(
            [*gradients.values(), loss], self.split.mesh, self.split.axes, self.over
        )
        for name, stack in zip(gradients, stacks, strict=True):
            if isinstance(stack, NotImplementedError):
                raise NotImplementedError(
                    f"accumulate_gradients: the gradient of {name} cannot be reduced once over "
                    f"{', '.join(map(repr, self.over))}; {stack}. Pass reduce='each'"
                )
            self._stacks[name].add_(stack)
            self.parameters[name].grad = None
        self._arrived.update(gradients)
        if isinstance(loss_stack, NotImplementedError):
            return loss
        self._has_losses = True
        self._losses.add_(loss_stack)
        return torch.zeros_like(loss)

    def reduced(self, loss: torch.Tensor) -> torch.Tensor:
        """Reduces the stacks: gradients into `.grad`; returns the sum of the losses."""
        for name in self._arrived:
            parameter, sharding = self.parameters[name], spmd.get_sharding(self.parameters[name])
            total = self._stacks[name].sum(0).to(parameter.dtype)
            parameter.grad = total if sharding is None else spmd.mark_sharding(total, sharding)
        return loss + self._losses.sum() if self._has_losses else loss


def _reduced_once(
    model: nn.Module, batch: object, reduce: str | Mapping[str, str]
) -> tuple[BatchSplit | None, tuple[str, ...]]:
    """Returns (the batch's split, its axes that `reduce` reduces once); (None, ()) for "each"."""
    choices = reduce.values() if isinstance(reduce, Mapping) else (reduce,)
    if any(choice not in ("once", "each") for choice in choices):
        raise ValueError(
            "accumulate_gradients: expected reduce to be 'each', 'once', or one of these by mesh "
            f"axis, as {{'dcn': 'once'}}; got {reduce!r}"
        )
    if "once" not in choices:
        return None, ()
    split = _split_of(model, batch)
    if split is None:
        raise ValueError(
            f"accumulate_gradients: reduce={reduce!r} needs a batch whose dim 0 is sharded over "
            "mesh axes; wrap the model with fsdp, or call spmd.mark_sharding on the batch"
        )
    reductions = dict(reduce) if isinstance(reduce, Mapping) else dict.fromkeys(split.axes, reduce)
    for axis in reductions:
        if axis not in split.axes:
            raise ValueError(
                f"accumulate_gradients: reduce={reduce!r} names {axis!r}, but dim 0 of the batch "
                f"is sharded over {', '.join(map(repr, split.axes))}"
            )
    return split, tuple(
        axis
        for axis in split.axes
        if reductions.get(axis) == "once" and split.mesh.shape()[axis] > 1
    )


def _split_of(model: nn.Module, batch: object) -> BatchSplit | None:
    """The split of dim 0 of the batch: that of the model's units, else by its own annotation."""
    root = root_of(model)
    if root is not None:
        return root.split
    for value in tree_leaves(batch):
        sharding = (
            spmd.get_sharding(value) if isinstance(value, torch.Tensor) and value.dim() else None
        )
        axes = None if sharding is None else sharding.partition_spec(value.dim())[0]
        if sharding is not None and axes is not None:
            mesh = spmd.Mesh(
                sharding.device_ids,
                sharding.mesh_shape,
                sharding.axis_names,
                target=sharding.target,
            )
            return BatchSplit(mesh, axes if isinstance(axes, tuple) else (axes,))
    return None

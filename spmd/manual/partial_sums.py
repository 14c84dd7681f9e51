"""`spmd.unreduced`: gradients as stacks of summands that devices have not exchanged yet."""

from collections.abc import Sequence

import torch

from ..core.extend import record_calls
from ..mesh.mesh import Mesh
from ..tensors.annotate import on_device
from .unreduced import Rows
from .unreduced import unreduced as stacks_of


def unreduced(
    gradients: Sequence[torch.Tensor], mesh: Mesh, batch_axes: Sequence[str], over: Sequence[str]
) -> list[torch.Tensor | NotImplementedError]:
    """Returns gradients before their reduction over mesh axes: for each the stack of its summands.

    A gradient is a sum over the rows of the batch. Of these each device has some, so it has a summand of the gradient,
    and the partitioner reduces the summands where the sum is made. Here the sum is recorded again with a dim in front,
    sharded over the axes: `stack.sum(0)` is the gradient, and its devices exchange nothing over these axes before.
    Stacks may be added up, over several backward passes, and then reduced once. Forward and backward stay those of the
    whole batch: so a mean over tokens, batch statistics and random numbers are what they are on one device.

    Args:
        gradients: recorded tensors that have not run, such as `.grad` after `backward`, or a loss.
        mesh: the mesh over which the batch is sharded.
        batch_axes: the axes that shard dim 0 of the batch, the outermost first.
        over: those among them over which the result is not reduced.

    Returns for each gradient a tensor of shape [devices along `over`, *shape], in the gradient's dtype or in a wider
    one in which it was summed before a cast; or, where an op on the way from the sum over the batch to the gradient is
    not known to be linear, the error that names the op and its line.
    Raises ValueError for axes that are not in the mesh or not of the batch, TypeError for tensors that are not on xla.
    Source: JAX's `PartitionSpec(unreduced=...)`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> weight = torch.ones(4, 2, device="xla", requires_grad=True)
    >>> (torch.ones(8, 4, device="xla") @ weight).sum().backward()
    >>> (stack,) = spmd.unreduced([weight.grad], mesh, ("data",), ("data",))
    >>> stack.shape, stack.sum(0).equal(weight.grad)
    (torch.Size([1, 4, 2]), True)
    """
    for axis in (*batch_axes, *over):
        if axis not in mesh.axis_names:
            raise ValueError(f"unreduced: the mesh has no axis {axis!r} (axes: {', '.join(mesh.axis_names)})")
    if not over or not set(over) <= set(batch_axes):
        raise ValueError(
            f"unreduced: expected over to name some of the batch's axes ({', '.join(batch_axes)}), got {tuple(over)!r}"
        )
    record_calls.enter_thread()
    tensors = [on_device(gradient, "unreduced") for gradient in gradients]
    return [*stacks_of(tensors, Rows(mesh.sharding((), 0), tuple(batch_axes), tuple(over)))]

"""How ops read what is stored in another layout (`use_sharding`), and the dtype in which a gradient is summed."""

import copy
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch

from .annotate import on_device
from .core.dispatch.reduction import reduce_in
from .core.lazy import gradients
from .core.lazy.reads import Read, join, keep, latest_turn, next_turn, read_in, renew
from .core.lazy.tensor import XlaTensor
from .core.pjrt import runs
from .mesh import Mesh
from .partition_spec import PartitionSpec


def reduce_gradient_in(leaf: torch.Tensor, dtype: torch.dtype) -> Any:
    """Has the gradient of a leaf be summed over devices in a dtype, which need not be the one it is computed in.

    The products and sums that make the gradient are asked for in that dtype, before a partitioner reduces them; the
    gradient arrives in the leaf's own. Of a scatter (an embedding's gradient) and of a convolution's kernel it is
    at least the one that they add up in, float32. A gradient that another op makes is reduced as it is, with a warning
    that names the op.

    Returns torch's handle that removes it. Raises TypeError for a tensor that is not on xla or no floating dtype,
    ValueError for one that is no leaf with a gradient. Source: `torch.distributed.fsdp.MixedPrecisionPolicy`.

    >>> import torch, spmd
    >>> weight = torch.ones(4, 4, device="xla", dtype=torch.bfloat16, requires_grad=True)
    >>> handle = spmd.reduce_gradient_in(weight, torch.float32)
    >>> (torch.ones(2, 4, device="xla", dtype=torch.bfloat16) @ weight).sum().backward()
    >>> weight.grad.dtype
    torch.bfloat16
    """
    target = on_device(leaf, "reduce_gradient_in")
    if not (target.is_leaf and target.requires_grad):
        raise ValueError("reduce_gradient_in: expected a leaf that has a gradient, such as a parameter in training")
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"reduce_gradient_in: expected a floating-point torch.dtype, got {dtype!r}")
    return target.register_hook(partial(_reduce_arriving, dtype))


def _reduce_arriving(dtype: torch.dtype, grad: torch.Tensor) -> None:
    if isinstance(grad, XlaTensor):
        reduce_in(grad, dtype)


class use_sharding:
    """A context in which ops read tensors laid out by another spec than the one they are stored by.

    FSDP stores a parameter split and computes with it whole: entering gathers once, however often the value is read,
    and the gradient arrives in the same layout before it is split like the parameter (an all-reduce and a slice, which
    XLA joins into a reduce-scatter where the hardware has one). Backward ops read as their forward ops did. Reusable;
    entering records nothing by itself. Contexts nest, also of the same tensor: the innermost counts. `.data =` keeps
    the layout.

    Args:
        tensors: tensors on xla, not views. mesh: as in `mark_sharding`.
        partition_spec: what to read them as; None: whole on every device.
        over: gathers over this mesh axis alone: what is split over others too (tensor parallel) stays split over them.

    Raises TypeError for a tensor that is not on xla, ValueError for a view or a spec that does not fit.

    >>> import torch, spmd
    >>> weight = torch.ones(4, 2, device="xla")
    >>> with spmd.use_sharding([weight], spmd.Mesh([0], (1,), ("fsdp",))):
    ...     y = weight * 2
    >>> y.sum().item()
    16.0
    """

    def __init__(
        self,
        tensors: Iterable[torch.Tensor],
        mesh: Mesh,
        partition_spec: Sequence[Any] | None = None,
        *,
        over: str | None = None,
    ):
        if over is not None and (partition_spec is not None or over not in mesh.axis_names):
            raise ValueError(
                f"use_sharding: over={over!r} takes an axis of the mesh ({', '.join(mesh.axis_names)}) and no "
                "partition_spec beside it"
            )
        self._tensors = tuple(on_device(tensor, "use_sharding") for tensor in tensors)
        self._mesh, self._spec, self._over = mesh, partition_spec, over
        self._runs, self._turn, self._first = runs.stamp(), -1, 0
        self._reads = self._bound()

    def __deepcopy__(self, memo: dict[int, Any]) -> "use_sharding":
        return use_sharding(
            [copy.deepcopy(tensor, memo) for tensor in self._tensors], self._mesh, self._spec, over=self._over
        )

    def __enter__(self) -> "use_sharding":
        self._bind()
        self._forget_what_ran()
        for tensor, read in zip(self._tensors, self._reads, strict=True):
            tensor._cell.reads.enter(read)
            gradients.follow(tensor)  # one that was frozen when it was marked may have been thawed since
        self._take_turn()
        self._first = torch._C._autograd._get_sequence_nr()
        return self

    def __exit__(self, *_: object) -> None:
        span = (self._first, torch._C._autograd._get_sequence_nr())
        for tensor, read in zip(self._tensors, self._reads, strict=True):
            if tensor._cell.reads is not None:
                tensor._cell.reads.leave(read.layout, span)
        if self._reads and self._turn != latest_turn():
            next_turn()  # what was gathered within may be freed: backward begins out here

    def keep(self, mesh: Mesh, before: torch.Tensor) -> list[Any]:
        """What the tensors are read as now, split over another mesh by the specs they are stored by: for `renew`.

        Its axes have the same names; one that is shorter keeps more, which is nearer to what is gathered. It is there
        before `before` is, so that what was gathered is freed. Raises TypeError for a tensor that is not on xla.
        """
        before = on_device(before, "use_sharding.keep")
        layouts = []
        for tensor in self._tensors:
            stored = tensor._cell.sharding
            spec = (None,) * tensor.dim() if stored is None else stored.partition_spec(tensor.dim())
            layouts.append(mesh.sharding(spec, tensor.dim(), "use_sharding.keep"))
        return keep(self._reads, layouts, before)

    def renew(self, after: torch.Tensor, kept: Sequence[Any] = ()) -> None:
        """Has the tensors gathered anew when next read, once `after` is computed, so that what was gathered is freed.

        Nothing happens where no other `use_sharding` was entered or renewed since, nor one around it left: what was
        gathered is still at hand. FSDP does so with the gradient that arrives at a unit. `kept`, what `keep` returned,
        is gathered from instead of what is stored. Raises TypeError for a tensor that is not on xla.

        >>> import torch, spmd
        >>> weight = torch.ones(4, 4, device="xla")
        >>> whole = spmd.use_sharding([weight], spmd.Mesh([0], (1,), ("fsdp",)))
        >>> with whole:
        ...     y = weight * 2
        ...     whole.renew(y)
        ...     z = weight * y
        >>> z.sum().item()
        32.0
        """
        after = on_device(after, "use_sharding.renew")
        if self._turn != latest_turn():
            self._bind()
            self._forget_what_ran()
            renew(self._reads, after, kept)
            self._take_turn()

    def _forget_what_ran(self) -> None:
        """What an evaluation has gathered is read anew, or else the step after it would be another program."""
        is_stale, self._runs = self._runs != runs.stamp(), runs.stamp()
        for read in self._reads if is_stale else ():
            read.stamp = -1

    def _take_turn(self) -> None:
        if self._reads:
            self._turn = next_turn()

    def _bind(self) -> None:
        """Finds the reads anew where a tensor has another cell by now."""
        if not all(map(_is_bound, self._tensors, self._reads)):
            self._reads = self._bound()

    def _bound(self) -> list[Read]:
        """How each tensor is read, of the cell that it has now."""
        reads = []
        for tensor in self._tensors:
            if tensor._view is not None:
                raise ValueError("use_sharding: expected whole tensors, got a view; pass its base")
            spec = self._spec_of(tensor)
            reads.append(read_in(tensor._cell, self._mesh.sharding(spec, tensor.dim(), "use_sharding")))
        join(reads)
        return reads

    def _spec_of(self, tensor: XlaTensor) -> Sequence[Any]:
        stored = tensor._cell.sharding
        if self._spec is not None:
            return self._spec
        if self._over is None or stored is None:
            return (None,) * tensor.dim()
        return PartitionSpec(*stored.partition_spec(tensor.dim())).without(self._over)


def _is_bound(tensor: XlaTensor, read: Read) -> bool:
    reads = tensor._cell.reads
    return reads is not None and reads.known.get(read.layout) is read

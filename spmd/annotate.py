"""mark_sharding and what reads an annotation back: the sharding of a tensor, its GSPMD text, its shards."""

import copy
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import torch

from .core.dispatch.reduction import reduce_in
from .core.engine import reads
from .core.lazy import annotate
from .core.lazy.cell import Cell
from .core.lazy.reads import Read, join, keep, latest_turn, lay_gradient, next_turn, read_in, renew
from .core.lazy.tensor import XlaTensor
from .core.pjrt import runs
from .core.pjrt.host import leaving
from .core.pjrt.transfer import host_tensor
from .core.sharding.topology import ordinal
from .core.sharding.value import DEVICE, HOST, Sharding
from .mesh import Mesh
from .partition_spec import PartitionSpec


def mark_sharding(
    tensor: torch.Tensor, mesh: Mesh, partition_spec: Sequence[Any], *, memory_kind: str = DEVICE
) -> torch.Tensor:
    """Says how a tensor lies on a mesh, in place, and returns the same tensor (still attached to autograd).

    Works on parameters, inputs and intermediate values. Host data is uploaded shard by shard; a recorded value gets a
    GSPMD sharding attribute in the graph; data already on devices is laid out anew. The annotation stays through
    in-place writes, `copy_`, `load_state_dict`, `.data =` and optimizer steps; the gradient of a marked leaf lies like
    it.

    Args:
        tensor: any tensor on xla. mesh: the devices; they may be a part of the machine's.
        partition_spec: a `PartitionSpec` or tuple, one entry per dim. A dim that is `P.UNCONSTRAINED` is left to the
            partitioner, and the annotation becomes what that chose when the value has run; data is whole in it.
        memory_kind: "device", or "pinned_host" for the memory of each device's host. Ops read what lies there on the
            device; what is written in place goes back.

    Raises TypeError for a tensor that is not on xla, ValueError for a spec that does not fit the mesh or the tensor, or
    another memory. Source: `torch_xla.distributed.spmd.mark_sharding`; XLA's GSPMD (arXiv:2105.04663).

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> x = spmd.mark_sharding(torch.ones(8, 4, device="xla"), mesh, ("data", None))
    >>> spmd.get_sharding(x).text(x.dim())
    '{replicated}'
    """
    target = on_device(tensor, "mark_sharding")
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mark_sharding: expected a spmd.Mesh, got {type(mesh).__name__}")
    if memory_kind not in (DEVICE, HOST):
        raise ValueError(f"mark_sharding: expected memory_kind to be {DEVICE!r} or {HOST!r}, got {memory_kind!r}")
    layout = mesh.sharding(partition_spec, tensor.dim(), "mark_sharding")
    annotate.annotate(target, layout if memory_kind == DEVICE else layout.with_spec(layout.spec, memory_kind))
    _watch_gradient(target)
    return tensor


_PIN = -1  # a place among the hooks on a gradient that no handle of torch has


def _watch_gradient(leaf: torch.Tensor) -> None:
    """From now on the gradient of a marked leaf lies like it; that of a computed value, where it arrives."""
    if not leaf.is_leaf and leaf.requires_grad and not leaf.__dict__.get("_pins_grad"):
        assert isinstance(leaf, XlaTensor)
        if leaf._view is not None:
            return  # how a view lies is not how its cell does, and XLA lays its gradient
        pin = leaf.__dict__["_pins_grad"] = partial(_pin_arriving, leaf._cell.ref)
        if leaf._backward_hooks is None:  # what register_hook does, without a handle, which costs more than the mark
            leaf._backward_hooks = OrderedDict({_PIN: pin})
            leaf.grad_fn._register_hook_dict(leaf)  # type: ignore[union-attr]  # else autograd calls none of them
        else:
            leaf._backward_hooks[_PIN] = pin
        return
    if leaf.__dict__.get("_pins_grad") or not leaf.requires_grad or not leaf.is_leaf:
        return
    leaf.__dict__["_pins_grad"] = _pin_gradient
    hooks = leaf._post_accumulate_grad_hooks
    # Module.to() swaps what autograd knows of a parameter, but leaves it this dict: set again, autograd sees it again.
    leaf._post_accumulate_grad_hooks = hooks
    if hooks is None or _pin_gradient not in hooks.values():
        leaf.register_post_accumulate_grad_hook(_pin_gradient)


def _pin_gradient(parameter: torch.Tensor) -> None:
    assert isinstance(parameter, XlaTensor)
    if isinstance(parameter.grad, XlaTensor):
        lay_gradient(parameter._cell, parameter.grad)


def _pin_arriving(ref: "weakref.ref[Cell]", grad: torch.Tensor) -> None:
    cell = ref()
    if cell is not None and isinstance(grad, XlaTensor):
        lay_gradient(cell, grad)


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
            _watch_gradient(tensor)  # one that was frozen when it was marked may have been thawed since
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


def clear_sharding(tensor: torch.Tensor) -> torch.Tensor:
    """Forgets a tensor's annotation and returns the tensor; data that was split becomes whole on each of its devices.

    Raises TypeError for a tensor that is not on xla. Source: `torch_xla.distributed.spmd.clear_sharding`.

    >>> import torch, spmd
    >>> x = spmd.mark_sharding(torch.ones(8, device="xla"), spmd.Mesh([0], (1,), ("data",)), ("data",))
    >>> spmd.get_sharding(spmd.clear_sharding(x)) is None
    True
    """
    annotate.clear_annotation(on_device(tensor, "clear_sharding"))
    return tensor


def get_sharding(tensor: torch.Tensor) -> Sharding | None:
    """How a tensor lies: its annotation, else where the last run left it; None for what is not yet on a device.

    The result has `.memory`, `.mesh_axes()`, `.partition_spec(rank)`, `.shard_shape(shape)` and `.text(rank)`
    (GSPMD text). Raises TypeError for a tensor that is not on xla.

    >>> import torch, spmd
    >>> spmd.get_sharding(torch.ones(2, device="xla")) is None
    True
    """
    return annotate.current_sharding(on_device(tensor, "get_sharding"))


@dataclass(frozen=True, slots=True)
class Shard:
    """One device's piece of a tensor.

    Attributes:
        data: the piece as a CPU tensor, padded with zeros to the common shard shape where a dim is uneven.
        indices: where the piece lies in the whole, without padding (an empty slice for a piece of padding only).
        device: its id (`spmd.device_ids`). replica_id: 0 for the first copy of this piece.
    """

    data: torch.Tensor
    indices: tuple[slice, ...]
    device: int
    replica_id: int

    @property
    def unpadded_data(self) -> torch.Tensor:
        """The piece without padding."""
        return self.data[tuple(slice(0, max(index.stop - index.start, 0)) for index in self.indices)]


def local_shards(tensor: torch.Tensor) -> list[Shard]:
    """The pieces of a tensor that this process's devices hold, in order of device id; a barrier.

    Raises TypeError for a tensor that is not on xla, ValueError for a view (its base has the shards).

    >>> import torch, spmd
    >>> [shard.data.shape for shard in spmd.local_shards(torch.ones(4, 2, device="xla"))]
    [torch.Size([4, 2])]
    """
    target = on_device(tensor, "local_shards")
    if target._view is not None:
        raise ValueError("local_shards: a view has no shards of its own; pass its base, or .clone() it first")
    leaving("local_shards", repr(target._meta))
    with reads.leased(target._cell, "local_shards", on_device=True) as lease:
        buffer, _ = lease.placed()
        pieces = sorted(buffer.addressable_shards, key=lambda piece: ordinal(piece.device))
        return [_shard(piece, buffer.shape, target._meta.shape) for piece in pieces]


def _shard(piece: jax.Shard, padded: tuple[int, ...], shape: tuple[int, ...]) -> Shard:
    bounds = [index.indices(dim) for index, dim in zip(piece.index, padded, strict=True)]
    indices = tuple(slice(min(start, dim), min(stop, dim)) for (start, stop, _), dim in zip(bounds, shape, strict=True))
    return Shard(host_tensor(np.asarray(piece.data)), indices, ordinal(piece.device), piece.replica_id)


def on_device(tensor: torch.Tensor, caller: str) -> XlaTensor:
    """The tensor, where it is one of the device; else the error that a caller of this name raises."""
    if not isinstance(tensor, XlaTensor):
        where = f"one on {tensor.device}" if isinstance(tensor, torch.Tensor) else repr(type(tensor).__name__)
        raise TypeError(f'{caller}: expected a tensor on xla, got {where}; move it with .to("xla") first')
    return tensor

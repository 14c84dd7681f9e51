"""Saying where tensors live: annotations in place and out of place, taken back, and laid out anew on the devices."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from .core.ir.graph import Leaf
from .core.lazy import annotate, gradients
from .core.lazy.constraints import laid_alike, laid_out, lies_now
from .core.lazy.tensor import XlaTensor
from .core.pjrt.devices import devices
from .core.sharding.value import DEVICE, HOST, Sharding
from .global_mesh import get_global_mesh, needed_mesh
from .mesh import Mesh


def mark_sharding(
    tensor: torch.Tensor,
    mesh: Any = None,
    partition_spec: Sequence[Any] | None = None,
    *,
    memory_kind: str | None = None,
    gradient: bool = True,
) -> torch.Tensor:
    """Says how a tensor lies on a mesh, in place, and returns the same tensor (still attached to autograd).

    Works on parameters, inputs and intermediate values. Host data is uploaded shard by shard; a recorded value gets a
    GSPMD sharding attribute in the graph; data already on devices is laid out anew, by the devices. Marking again
    replaces. The annotation stays through in-place writes, `copy_`, `load_state_dict`, `.data =`, deep copies, files
    and optimizer steps; the gradient of a marked leaf lies like it. A view has an annotation of its own.

    Args:
        tensor: any tensor on xla. mesh: the devices; they may be a part of the machine's. None: the
            one of `with mesh:`, or of `set_global_mesh`. Or, without a partition_spec, what `get_sharding` returned, or
            an object with a `mesh` and a `partition_spec`.
        partition_spec: a `PartitionSpec` or tuple, one entry per dim, or what else `Mesh.sharding` takes. A dim that is
            `P.UNCONSTRAINED` is left to the partitioner, and the annotation becomes what that chose when the value has
            run; data is whole in it.
        memory_kind: "device", or "pinned_host" for the memory of each device's host; None: the sharding's own, else the
            device's. Ops read what lies on the host on the device; what is written in place goes back.
        gradient: False leaves the layout of the gradient to the partitioner.

    Raises TypeError for a tensor that is not on xla, or no mesh; ValueError for a spec that does not fit the mesh or
    the tensor, for devices that are not here, or another memory. Source: `torch_xla.distributed.spmd.mark_sharding`;
    XLA's GSPMD (arXiv:2105.04663).

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> x = spmd.mark_sharding(torch.ones(8, 4, device="xla"), mesh, ("data", None))
    >>> spmd.get_sharding(x).text(x.dim())
    '{replicated}'
    >>> y = spmd.mark_sharding(torch.zeros(8, 4, device="xla"), spmd.get_sharding(x))
    """
    target = on_device(tensor, "mark_sharding")
    annotate.annotate(target, layout_of(mesh, partition_spec, tensor.dim(), "mark_sharding", memory_kind))
    _lay_gradient(target, gradient)
    return tensor


def _lay_gradient(tensor: XlaTensor, follows: bool) -> None:
    if follows:
        gradients.may_follow(tensor)
        gradients.follow(tensor)
    else:
        gradients.leave(tensor)


def layout_of(
    mesh: Any, partition_spec: Sequence[Any] | None, rank: int, caller: str, memory_kind: str | None = None
) -> Sharding:
    """The layout that a function of this name was asked for: a mesh and a spec, a Sharding, or an object with both."""
    if memory_kind not in (None, DEVICE, HOST):
        raise ValueError(f"{caller}: expected memory_kind to be {DEVICE!r} or {HOST!r}, got {memory_kind!r}")
    if mesh is None and partition_spec is not None:
        mesh = needed_mesh(caller)
    if partition_spec is None and not isinstance(mesh, (Mesh, Sharding)) and hasattr(mesh, "partition_spec"):
        mesh, partition_spec = mesh.mesh, mesh.partition_spec
    elif partition_spec is None and isinstance(mesh, (tuple, list, str)):
        mesh, partition_spec = needed_mesh(caller), mesh
    if isinstance(mesh, Sharding):
        if partition_spec is not None:
            raise TypeError(
                f"{caller}: a Sharding says both the mesh and the spec; got {mesh!r} and {partition_spec!r} beside it"
            )
        layout = _checked(mesh, rank, caller)
    elif not isinstance(mesh, Mesh):
        raise TypeError(
            f"{caller}: expected a spmd.Mesh, got {type(mesh).__name__}; what spmd.get_sharding returned will do, too, "
            "without a partition_spec"
        )
    elif partition_spec is None:
        raise TypeError(f"{caller}: {mesh!r} takes a partition_spec beside it, one entry per dim: P({_nones(rank)})")
    else:
        layout = mesh.sharding(partition_spec, rank, caller)
    return layout if memory_kind in (None, layout.memory) else layout.with_spec(layout.spec, str(memory_kind))


def _nones(rank: int) -> str:
    return ", ".join(["None"] * rank)


def _checked(layout: Sharding, rank: int, caller: str) -> Sharding:
    """A Sharding that a user has brought, perhaps from a file or another tensor."""
    count = len(layout.spec.dims)
    if count > rank:
        raise ValueError(f"{caller}: {layout!r} lays out {count} dims, but the tensor has {rank}")
    if layout.target is None and max(layout.device_ids) >= len(devices()):
        raise ValueError(
            f"{caller}: {layout!r} is over devices up to {max(layout.device_ids)}, and this process sees "
            f"{len(devices())}: ids 0 to {len(devices()) - 1}"
        )
    return layout


def annotate_custom_sharding(
    tensor: torch.Tensor, mesh: Any, partition_spec: Sequence[Any] | None = None
) -> torch.Tensor:
    """`mark_sharding` by the next program: data on devices lies as it does until that has run. Returns the tensor.

    Raises as `mark_sharding` does. Source: `torch_xla.distributed.spmd.annotate_custom_sharding`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh(range(8), (8,), ("data",))
    >>> x = spmd.mark_sharding(torch.ones(8, 8, device="xla"), mesh, ("data", None))
    >>> spmd.get_sharding(spmd.annotate_custom_sharding(x, mesh, (None, "data"))).partition_spec(2)
    (None, 'data')
    """
    target = on_device(tensor, "annotate_custom_sharding")
    layout = layout_of(mesh, partition_spec, tensor.dim(), "annotate_custom_sharding")
    annotate.annotate_in_program(target, layout)
    gradients.follow(target)
    return tensor


class MarkShardingFunction(torch.autograd.Function):
    """`mark_sharding_with_gradients` under the name and in the form of PyTorch/XLA: `.apply(tensor, mesh, spec)`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> spmd.MarkShardingFunction.apply(torch.ones(2, device="xla"), mesh, ("data",)).tolist()
    [1.0, 1.0]
    """

    @staticmethod
    def forward(tensor: torch.Tensor, mesh: Any, partition_spec: Sequence[Any] | None = None) -> torch.Tensor:
        target = on_device(tensor, "mark_sharding_with_gradients")
        return laid_out(target, layout_of(mesh, partition_spec, tensor.dim(), "mark_sharding_with_gradients"))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.how = inputs[1:]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return (MarkShardingFunction.apply(grad, *ctx.how), *[None] * len(ctx.how))


def mark_sharding_with_gradients(
    tensor: torch.Tensor, mesh: Any, partition_spec: Sequence[Any] | None = None
) -> torch.Tensor:
    """A new tensor of the same value that lies so, and whose gradient lies so where it arrives.

    The tensor itself stays as it is, annotated or not. Differentiable, any number of times.

    Args: as of `mark_sharding`, whose errors it raises. Source:
    `torch_xla.distributed.spmd.mark_sharding_with_gradients`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh(range(8), (8,), ("data",))
    >>> x = torch.ones(8, 4, device="xla", requires_grad=True)
    >>> y = spmd.mark_sharding_with_gradients(x, mesh, ("data", None))
    >>> spmd.get_sharding(x) is None, spmd.get_sharding(y).partition_spec(2)
    (True, ('data', None))
    """
    return MarkShardingFunction.apply(tensor, mesh, partition_spec)


class _Reshard(torch.autograd.Function):
    """A value in one layout, its gradient in another (None: as the partitioner likes)."""

    @staticmethod
    def forward(tensor: XlaTensor, layout: Sharding, back: Sharding | None) -> torch.Tensor:
        return laid_out(tensor, layout)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.layout, ctx.back = inputs

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return (grad if ctx.back is None else _Reshard.apply(grad, ctx.back, ctx.layout)), None, None


def reshard(
    tensor: torch.Tensor,
    partition_spec: Any,
    mesh: Mesh | None = None,
    *,
    memory_kind: str | None = None,
    gradient: bool = True,
) -> torch.Tensor:
    """A new tensor of the same value in another layout; the tensor itself stays as it is. Differentiable.

    The devices exchange what is needed, in the next program: nothing passes through the host, also not between meshes
    over different devices (between m and n devices of which neither number divides the other, each holds the whole for
    a moment). The gradient comes back laid out as the tensor is, where that is said; of a recorded value that
    nobody has annotated, as the partitioner likes.

    Args:
        tensor: on xla; a view, too. partition_spec: as in `mark_sharding`, or a Sharding that `get_sharding` returned.
        mesh: where to; None: the mesh on which the tensor lies, or what it is made of, else that of `with mesh:` or
            `set_global_mesh`. memory_kind: see
            `mark_sharding`.
        gradient: False leaves the layout of the gradient to the partitioner; it comes back to the tensor's devices all
            the same.

    Raises as `mark_sharding` does, and ValueError where there is no mesh to be found. Source: `jax.sharding.reshard`;
    `DTensor.redistribute`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh(range(8), (8,), ("data",))
    >>> rows = spmd.mark_sharding(torch.ones(8, 8, device="xla"), mesh, ("data", None))
    >>> columns = spmd.reshard(rows, (None, "data"))
    >>> [spmd.get_sharding(x).partition_spec(2) for x in (rows, columns)]
    [('data', None), (None, 'data')]
    """
    target = on_device(tensor, "reshard")
    lies = lies_now(target)
    if isinstance(partition_spec, Sharding) and mesh is None:
        layout = layout_of(partition_spec, None, tensor.dim(), "reshard", memory_kind)
    elif mesh is None:
        layout = layout_of(_mesh_of(lies), partition_spec, tensor.dim(), "reshard", memory_kind)
    else:
        layout = layout_of(mesh, partition_spec, tensor.dim(), "reshard", memory_kind)
    back = annotate.current_sharding(target) if gradient else None
    if back is None and lies is not None and lies.devices != layout.devices:
        back = lies.replicated()
    return _Reshard.apply(target, layout, back)


def laid(tensor: torch.Tensor, layout: Sharding) -> torch.Tensor:
    """A tensor in a layout, for what reads it from here on, as plans and rules say it of activations.

    Itself, where it is to lie so already or is data that nobody has annotated yet; else another. Its gradient comes
    back as the tensor lies, where that is said, else in the new layout, too.
    """
    here = on_device(tensor, "reshard")
    said = annotate.current_sharding(here)
    if said is layout:
        return tensor
    if said is not None:
        return reshard(tensor, layout)
    is_data = here._view is None and type(here._cell.value) is Leaf
    return mark_sharding(tensor, layout) if is_data else mark_sharding_with_gradients(tensor, layout)


def _mesh_of(lies: Sharding | None) -> Mesh:
    if lies is None:
        mesh = get_global_mesh()
        if mesh is not None:
            return mesh
        raise ValueError(
            "reshard: the tensor lies on no mesh yet, nor does what it is made of; say which, as in reshard(tensor, "
            "spec, mesh)"
        )
    return Mesh(lies.device_ids, lies.mesh_shape, lies.axis_names, target=lies.target)


class _ShardAs(torch.autograd.Function):
    """Each of the first half of some tensors laid out like its partner in the second; so are their gradients."""

    @staticmethod
    def forward(*tensors: XlaTensor) -> tuple[torch.Tensor, ...]:
        return tuple(laid_alike(tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        half = len(grads) // 2
        both = [i for i in range(half) if grads[i] is not None and grads[half + i] is not None]
        made = list(grads)
        places = [*both, *(half + i for i in both)]
        alike = _ShardAs.apply(*(grads[i] for i in places)) if places else ()
        for place, grad in zip(places, alike, strict=True):
            made[place] = grad
        return tuple(made)


def shard_as(a: Any, b: Any) -> tuple[Any, Any]:
    """The values of two pytrees, each tensor laid out like its partner; which layout that is, the partitioner chooses.

    Where one is annotated, the other follows it. New tensors; their gradients lie alike as well.

    Args:
        a, b: pytrees of one structure with tensors on xla, partners of the same shape (and perhaps another dtype).

    Raises TypeError for a tensor that is not on xla, ValueError for other structures or shapes. Source:
    `torch_xla.distributed.spmd.shard_as`, `jax.experimental.shard_alike`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh(range(8), (8,), ("data",))
    >>> x = spmd.mark_sharding(torch.ones(8, 4, device="xla"), mesh, ("data", None))
    >>> x, y = spmd.shard_as(x, torch.zeros(8, 4, device="xla"))
    >>> spmd.sync()
    >>> spmd.get_sharding(y).text(2)
    '{devices=[8,1]0,1,2,3,4,5,6,7}'
    """
    (ours, shape), (theirs, other) = tree_flatten(a), tree_flatten(b)
    if shape != other:
        raise ValueError(f"shard_as: expected two pytrees of one structure, got {shape} and {other}")
    both = [*zip(ours, theirs, strict=True)]
    places = [i for i, pair in enumerate(both) if any(isinstance(leaf, torch.Tensor) for leaf in pair)]
    for i in places:
        pair = on_device(ours[i], "shard_as"), on_device(theirs[i], "shard_as")
        if pair[0].shape != pair[1].shape:
            raise ValueError(
                f"shard_as: expected partners of the same shape, got {list(pair[0].shape)} and {list(pair[1].shape)}"
            )
    if places:
        made = _ShardAs.apply(*(ours[i] for i in places), *(theirs[i] for i in places))
        for place, one, two in zip(places, made[: len(places)], made[len(places) :], strict=True):
            ours[place], theirs[place] = one, two
    return tree_unflatten(ours, shape), tree_unflatten(theirs, other)


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


def on_device(tensor: torch.Tensor, caller: str) -> XlaTensor:
    """The tensor, where it is one of the device; else the error that a caller of this name raises."""
    if not isinstance(tensor, XlaTensor):
        where = f"one on {tensor.device}" if isinstance(tensor, torch.Tensor) else repr(type(tensor).__name__)
        raise TypeError(f'{caller}: expected a tensor on xla, got {where}; move it with .to("xla") first')
    return tensor

"""Sharding annotations: in place and out of place, their removal, and resharding on the devices."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..core import (
    DEVICE,
    HOST,
    Sharding,
    XlaTensor,
    annotations,
    constraints,
    ends_at_user_line,
    grad_shardings,
    hardware,
    shard_state,
)
from ..mesh.device_mesh import as_mesh
from ..mesh.global_mesh import get_global_mesh, needed_mesh
from ..mesh.mesh import Mesh
from ..mesh.notes import note_idle


@ends_at_user_line
def mark_sharding(
    tensor: torch.Tensor,
    mesh: Any = None,
    partition_spec: Any = None,
    *,
    memory_kind: str | None = None,
    gradient: bool = True,
) -> torch.Tensor:
    """Sets the sharding of a tensor on a mesh, in place, and returns the same tensor (still
    attached to autograd).

    Works on parameters, inputs and intermediate values. Host data is uploaded shard by shard; a
    recorded value gets a GSPMD sharding attribute in the graph; data already on devices is
    resharded by the devices. A second call replaces the annotation. The annotation stays through
    in-place writes, `copy_`, `load_state_dict`, `.data =`, deep copies, files and optimizer steps;
    the gradient of an annotated parameter has its sharding, and so has its optimizer's state, also
    of earlier steps, unless a device would hold more of it. A view has an annotation of its own.

    Args:
        tensor: any tensor on xla.
        mesh: the devices, which may be some of the machine's; mesh and spec come in either order.
            None: the mesh of `with mesh:`, or of `set_global_mesh`. Or, without a partition_spec, a
            result of `get_sharding`, or an object with a `mesh` and a `partition_spec`.
        partition_spec: a `PartitionSpec` or tuple, one entry per dim, or any other form that
            `Mesh.sharding` takes. A dim that is `P.UNCONSTRAINED` is left to the partitioner, and
            the annotation becomes the partitioner's choice when the value has run; data is not
            split in it.
        memory_kind: "device", or "pinned_host" for the memory of each device's host; None: the
            sharding's own, else the device's. Ops read a value in host memory on the device; an
            in-place write goes back to the host.
        gradient: False leaves the sharding of the gradient to the partitioner.

    Raises TypeError for a tensor that is not on xla, or for no mesh; ValueError for a spec that
    does not fit the mesh or the tensor, for devices that this process does not see, or for another
    memory. Source: `torch_xla.distributed.spmd.mark_sharding`; XLA's GSPMD (arXiv:2105.04663).

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> x = spmd.mark_sharding(torch.ones(8, 4, device="xla"), mesh, ("data", None))
    >>> spmd.get_sharding(x).text(x.dim())
    '{replicated}'
    >>> y = spmd.mark_sharding(torch.zeros(8, 4, device="xla"), spmd.get_sharding(x))
    """
    target = on_device(tensor, "mark_sharding")
    layout = layout_of(mesh, partition_spec, tensor.dim(), "mark_sharding", memory_kind)
    shape = tuple(tensor.shape)
    # FSDP and rules split small parameters, too, for their state's sake.
    if layout.padded_shape(shape) != shape and not isinstance(tensor, nn.Parameter):
        note_idle("mark_sharding", shape, layout)
    present = annotations.current_sharding(target)
    if present is not None and present.spec.stack and present.mesh_axes() == layout.mesh_axes():
        # a mark says how a layer's parameter is sharded, not on which stage it lies
        layout = layout.with_spec(layout.spec._replace(stack=present.spec.stack), layout.memory)
    for check in CHECKS if present is not None and not present.is_replicated() else ():
        check(tensor, layout)
    return marked(target, layout, gradient=gradient)


# Called before a `mark_sharding` of a tensor that is sharded, with its new sharding; may warn.
# `register_units` adds.
CHECKS: list[Callable[[torch.Tensor, Sharding], None]] = []


def marked(tensor: XlaTensor, layout: Sharding, *, gradient: bool = True) -> XlaTensor:
    """Sets the sharding of a tensor, of its gradient and of its optimizer's state, in place;
    returns the tensor."""
    # a step marks the same again
    is_new = tensor.requires_grad and annotations.current_sharding(tensor) is not layout
    annotations.annotate(tensor, layout)
    if is_new:
        shard_state(tensor, layout)
    if not gradient:
        grad_shardings.leave(tensor)
    elif tensor.requires_grad or hasattr(tensor, grad_shardings.PINNED):
        grad_shardings.follow(tensor, after_leave=True)
    return tensor


def layout_of(
    mesh: Any, partition_spec: Any, rank: int, caller: str, memory_kind: str | None = None
) -> Sharding:
    """The sharding given to the function `caller`: by a mesh and a spec, a Sharding, or an object
    with both."""
    if memory_kind not in (None, DEVICE, HOST):
        raise ValueError(
            f"{caller}: expected memory_kind to be {DEVICE!r} or {HOST!r}, got {memory_kind!r}"
        )
    if isinstance(as_mesh(partition_spec), Mesh):  # in the other order
        mesh, partition_spec = partition_spec, mesh
    if mesh is None and partition_spec is not None:
        mesh = needed_mesh(caller)
    if (
        partition_spec is None
        and not isinstance(mesh, (Mesh, Sharding))
        and hasattr(mesh, "partition_spec")
        and hasattr(mesh, "mesh")
    ):
        mesh, partition_spec = mesh.mesh, mesh.partition_spec
    elif partition_spec is None and isinstance(mesh, (tuple, list, str)):
        mesh, partition_spec = needed_mesh(caller), mesh
    if isinstance(mesh, jax.sharding.NamedSharding) and partition_spec is None:
        mesh, partition_spec = mesh.mesh, (*mesh.spec, *[None] * (rank - len(mesh.spec)))
    mesh = mesh if isinstance(mesh, Mesh) else as_mesh(mesh)
    if isinstance(mesh, Sharding):
        if partition_spec is not None:
            raise TypeError(
                f"{caller}: a Sharding holds both the mesh and the spec; got {mesh!r} and also "
                f"{partition_spec!r}"
            )
        layout = _checked(mesh, rank, caller)
    elif not isinstance(mesh, Mesh):
        raise TypeError(
            f"{caller}: expected a spmd.Mesh, got {type(mesh).__name__}; a result of "
            "spmd.get_sharding is accepted, too, without a partition_spec"
        )
    elif partition_spec is None:
        nones = ", ".join(["None"] * rank)
        raise TypeError(f"{caller}: {mesh!r} needs a partition_spec, one entry per dim: P({nones})")
    else:
        layout = mesh.sharding(partition_spec, rank, caller)
    return (
        layout
        if memory_kind in (None, layout.memory)
        else layout.with_spec(layout.spec, str(memory_kind))
    )


def _checked(layout: Sharding, rank: int, caller: str) -> Sharding:
    """The given Sharding, which may be of a file or another tensor.

    Raises ValueError where it does not fit.
    """
    count = len(layout.spec.dims)
    if count > rank:
        raise ValueError(f"{caller}: {layout!r} is for {count} dims, but the tensor has {rank}")
    if layout.target is None and max(layout.device_ids) >= len(hardware.devices()):
        raise ValueError(
            f"{caller}: {layout!r} is over devices up to {max(layout.device_ids)}, and this "
            f"process sees {len(hardware.devices())}: ids 0 to {len(hardware.devices()) - 1}"
        )
    return layout


@ends_at_user_line
def annotate_custom_sharding(
    tensor: torch.Tensor, mesh: Any, partition_spec: Sequence[Any] | None = None
) -> torch.Tensor:
    """`mark_sharding` by the next program: data on devices keeps its sharding until that has run.
    Returns the tensor.

    Raises as `mark_sharding` does. Source: `torch_xla.distributed.spmd.annotate_custom_sharding`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh(range(8), (8,), ("data",))
    >>> x = spmd.mark_sharding(torch.ones(8, 8, device="xla"), mesh, ("data", None))
    >>> spmd.get_sharding(
    ...     spmd.torch_xla.annotate_custom_sharding(x, mesh, (None, "data"))
    ... ).partition_spec(2)
    (None, 'data')
    """
    target = on_device(tensor, "annotate_custom_sharding")
    layout = layout_of(mesh, partition_spec, tensor.dim(), "annotate_custom_sharding")
    annotations.annotate(target, layout, in_program=True)
    grad_shardings.follow(target)
    return tensor


@ends_at_user_line
def mark_sharding_with_gradients(
    tensor: torch.Tensor, mesh: Any, partition_spec: Sequence[Any] | None = None
) -> torch.Tensor:
    """Returns a new tensor of the same value with this sharding; the gradient that arrives at it
    gets the same one.

    The tensor itself is not changed, annotated or not. Differentiable, any number of times.

    Args: as of `mark_sharding`. Raises as `mark_sharding` does. Source:
    `torch_xla.distributed.spmd.mark_sharding_with_gradients`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh(range(8), (8,), ("data",))
    >>> x = torch.ones(8, 4, device="xla", requires_grad=True)
    >>> y = spmd.torch_xla.mark_sharding_with_gradients(x, mesh, ("data", None))
    >>> spmd.get_sharding(x) is None, spmd.get_sharding(y).partition_spec(2)
    (True, ('data', None))
    """
    target = on_device(tensor, "mark_sharding_with_gradients")
    layout = layout_of(mesh, partition_spec, tensor.dim(), "mark_sharding_with_gradients")
    return _Reshard.apply(target, layout, layout)


class MarkShardingFunction(torch.autograd.Function):
    """`mark_sharding_with_gradients` as PyTorch/XLA has it: `.apply(tensor, mesh, spec)`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> spmd.torch_xla.MarkShardingFunction.apply(
    ...     torch.ones(2, device="xla"), mesh, ("data",)
    ... ).tolist()
    [1.0, 1.0]
    """

    apply = staticmethod(mark_sharding_with_gradients)


class _Reshard(torch.autograd.Function):
    """A value with one sharding, its gradient with another (None: the partitioner chooses)."""

    @staticmethod
    def forward(tensor: XlaTensor, layout: Sharding, back: Sharding | None) -> torch.Tensor:
        return constraints.with_sharding(tensor, layout)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.layout, ctx.back = inputs

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return (
            (grad if ctx.back is None else _Reshard.apply(grad, ctx.back, ctx.layout)),
            None,
            None,
        )


@ends_at_user_line
def reshard(
    tensor: torch.Tensor,
    partition_spec: Any,
    mesh: Any = None,
    *,
    memory_kind: str | None = None,
    gradient: bool = True,
) -> torch.Tensor:
    """Returns a new tensor of the same value with another sharding; the tensor itself is not
    changed. Differentiable.

    The devices exchange the data in the next program: none passes through the host, also not
    between meshes over different devices (between m and n devices of which neither number divides
    the other, each device holds all of the tensor for a moment). The gradient comes back with the
    tensor's sharding, where it has one; for a recorded value without an annotation, the partitioner
    chooses.

    Args:
        tensor: on xla; a view, too. partition_spec: as in `mark_sharding`, or a Sharding that
            `get_sharding` returned; spec and mesh are taken in either order.
        mesh: the mesh of the result; None: the mesh of the tensor or of its operands, else that of
            `with mesh:` or `set_global_mesh`. memory_kind: see `mark_sharding`.
        gradient: False leaves the sharding of the gradient to the partitioner; it comes back to the
            tensor's devices all the same.

    Raises as `mark_sharding` does, and ValueError where no mesh is found. Source:
    `jax.sharding.reshard`; `DTensor.redistribute`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh(range(8), (8,), ("data",))
    >>> rows = spmd.mark_sharding(torch.ones(8, 8, device="xla"), mesh, ("data", None))
    >>> columns = spmd.reshard(rows, (None, "data"))
    >>> [spmd.get_sharding(x).partition_spec(2) for x in (rows, columns)]
    [('data', None), (None, 'data')]
    """
    target = on_device(tensor, "reshard")
    sharding = constraints.effective_sharding(target)
    layout = _layout(target, partition_spec, mesh, "reshard", memory_kind)
    back = annotations.current_sharding(target) if gradient else None
    if back is None and sharding is not None and sharding.devices != layout.devices:
        back = sharding.replicated()
    return _Reshard.apply(target, layout, back)


@ends_at_user_line
def with_sharding_constraint(
    tensor: torch.Tensor, partition_spec: Any, mesh: Any = None
) -> torch.Tensor:
    """Returns a new tensor of the same value with a sharding, which the gradient that arrives at it
    gets, too. Differentiable.

    Args: as of `reshard`. Raises as `reshard` does. Source: `jax.lax.with_sharding_constraint`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh(range(8), (8,), ("data",))
    >>> x = torch.ones(8, 4, device="xla")
    >>> with mesh:
    ...     y = spmd.with_sharding_constraint(x * 2, spmd.P("data", None))
    >>> spmd.get_sharding(y).partition_spec(2)
    ('data', None)
    """
    target = on_device(tensor, "with_sharding_constraint")
    layout = _layout(target, partition_spec, mesh, "with_sharding_constraint")
    return _Reshard.apply(target, layout, layout)


def resharded(tensor: torch.Tensor, layout: Sharding) -> torch.Tensor:
    """The tensor with a sharding, for the ops recorded from here on; plans and rules shard
    activations by it.

    The same tensor, where it has the sharding already or is data without an annotation; else a new
    one. The gradient comes back with the tensor's sharding, where it is annotated, else with the
    new one.
    """
    target = on_device(tensor, "reshard")
    sharding = annotations.current_sharding(target)
    if sharding is layout:
        return tensor
    if sharding is not None:
        return reshard(tensor, layout)
    mark = mark_sharding if constraints.is_data(target) else mark_sharding_with_gradients
    return mark(tensor, layout)


def _layout(
    tensor: XlaTensor, spec: Any, mesh: Any, function: str, memory_kind: str | None = None
) -> Sharding:
    """The sharding of a result: on a mesh, on that of the tensor, or on the global one."""
    if mesh is None and isinstance(spec, Sharding):
        return layout_of(spec, None, tensor.dim(), function, memory_kind)
    target_mesh = (
        _mesh_of(constraints.effective_sharding(tensor), function) if mesh is None else mesh
    )
    return layout_of(target_mesh, spec, tensor.dim(), function, memory_kind)


def _mesh_of(sharding: Sharding | None, function: str) -> Mesh:
    if sharding is None:
        mesh = get_global_mesh()
        if mesh is not None:
            return mesh
        raise ValueError(
            f"{function}: neither the tensor nor its operands are on a mesh yet; pass one, as in "
            f"{function}(tensor, spec, mesh)"
        )
    return Mesh(
        sharding.device_ids, sharding.mesh_shape, sharding.axis_names, target=sharding.target
    )


class _ShardAs(torch.autograd.Function):
    """Gives each tensor of the first half the sharding of its partner in the second half; so for
    their gradients."""

    @staticmethod
    def forward(*tensors: XlaTensor) -> tuple[torch.Tensor, ...]:
        return tuple(constraints.with_paired_shardings(tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        half = len(grads) // 2
        paired_indices = [
            i for i in range(half) if grads[i] is not None and grads[half + i] is not None
        ]
        result = list(grads)
        places = [*paired_indices, *(half + i for i in paired_indices)]
        resharded_grads = _ShardAs.apply(*(grads[i] for i in places)) if places else ()
        for index, grad in zip(places, resharded_grads, strict=True):
            result[index] = grad
        return tuple(result)


@ends_at_user_line
def shard_as(a: Any, b: Any) -> tuple[Any, Any]:
    """Returns the values of two pytrees as new tensors, each with the same sharding as its partner.

    The partitioner chooses that sharding; where one partner is annotated, the other follows it.
    Their gradients have the same sharding as well.

    Args:
        a, b: pytrees of one structure with tensors on xla, partners of the same shape (and perhaps
            another dtype).

    Raises TypeError for a tensor that is not on xla, ValueError for other structures or shapes.
    Source: `torch_xla.distributed.spmd.shard_as`, `jax.experimental.shard_alike`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh(range(8), (8,), ("data",))
    >>> x = spmd.mark_sharding(torch.ones(8, 4, device="xla"), mesh, ("data", None))
    >>> x, y = spmd.shard_as(x, torch.zeros(8, 4, device="xla"))
    >>> spmd.sync()
    >>> spmd.get_sharding(y).text(2)
    '{devices=[8,1]0,1,2,3,4,5,6,7}'
    """
    (ours, shape), (theirs, their_shape) = tree_flatten(a), tree_flatten(b)
    if shape != their_shape:
        raise ValueError(
            f"shard_as: expected two pytrees of one structure, got {shape} and {their_shape}"
        )
    pairs = [*zip(ours, theirs, strict=True)]
    places = [
        i for i, pair in enumerate(pairs) if any(isinstance(value, torch.Tensor) for value in pair)
    ]
    for i in places:
        pair = on_device(ours[i], "shard_as"), on_device(theirs[i], "shard_as")
        if pair[0].shape != pair[1].shape:
            raise ValueError(
                f"shard_as: expected partners of the same shape, got {list(pair[0].shape)} and "
                f"{list(pair[1].shape)}"
            )
    if places:
        result = _ShardAs.apply(*(ours[i] for i in places), *(theirs[i] for i in places))
        for index, ours_now, theirs_now in zip(
            places, result[: len(places)], result[len(places) :], strict=True
        ):
            ours[index], theirs[index] = ours_now, theirs_now
    return tree_unflatten(ours, shape), tree_unflatten(theirs, their_shape)


@ends_at_user_line
def clear_sharding(tensor: torch.Tensor) -> torch.Tensor:
    """Drops a tensor's annotation and returns the tensor; data that was sharded is replicated on
    its devices.

    Raises TypeError for a tensor that is not on xla. Source:
    `torch_xla.distributed.spmd.clear_sharding`.

    >>> import torch, spmd
    >>> x = spmd.mark_sharding(
    ...     torch.ones(8, device="xla"), spmd.Mesh([0], (1,), ("data",)), ("data",)
    ... )
    >>> spmd.get_sharding(spmd.clear_sharding(x)) is None
    True
    """
    annotations.clear_annotation(on_device(tensor, "clear_sharding"))
    return tensor


@ends_at_user_line
def get_sharding(tensor: torch.Tensor) -> Sharding | None:
    """The sharding of a tensor: its annotation, else the one the last run left; None for data not
    yet on a device.

    The result has `.memory`, `.mesh_axes()`, `.partition_spec(rank)`, `.shard_shape(shape)` and
    `.text(rank)` (GSPMD text). Raises TypeError for a tensor that is not on xla.

    >>> import torch, spmd
    >>> spmd.get_sharding(torch.ones(2, device="xla")) is None
    True
    """
    return annotations.current_sharding(on_device(tensor, "get_sharding"))


def on_device(tensor: torch.Tensor, caller: str) -> XlaTensor:
    """The tensor, where it is on xla; else raises TypeError in the name of `caller`."""
    if isinstance(tensor, nn.Module):
        raise TypeError(
            f"{caller}: expected a tensor, got the module {type(tensor).__name__}; pass its "
            "parameters one by one, as module.weight; spmd.ShardingRules and fsdp.fully_shard "
            "shard all of them"
        )
    if not isinstance(tensor, XlaTensor):
        is_tensor = isinstance(tensor, torch.Tensor)
        where = f"one on {tensor.device}" if is_tensor else repr(type(tensor).__name__)
        hint = (
            "torch.func, or is_grads_batched=True, wraps it: call this outside of them"
            if is_tensor and tensor.device.type == "xla"
            else 'move it with .to("xla") first'
            if is_tensor
            else 'write torch.as_tensor(array).to("xla")'
            if hasattr(tensor, "__array__")
            else "shard the parameters: an optimizer's state has their shardings"
            if isinstance(tensor, torch.optim.Optimizer)
            else "pass tensors one by one"
        )
        raise TypeError(f"{caller}: expected a tensor on xla, got {where}; {hint}")
    return tensor

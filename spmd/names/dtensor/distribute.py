"""DTensor's functions that place tensors and modules, and its attributes and methods."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed import device_mesh as theirs
from torch.distributed.tensor import Replicate

from ...core import XlaTensor, constraints, ends_at_user_line, processes
from ...mesh.device_mesh import DeviceMesh
from ...mesh.global_mesh import needed_mesh
from ...mesh.placements import placements_of as placements_of
from ...tensors.annotate import get_sharding, mark_sharding, reshard, resharded
from ...tensors.launch import from_process_local, full_tensor
from ...tensors.shards import local_shards
from ..torch_xla.sharded_tensor import XLAShardedTensor


@ends_at_user_line
def distribute_tensor(
    tensor: torch.Tensor,
    device_mesh: Any = None,
    placements: Sequence[Any] | None = None,
    *,
    src_data_rank: Any = 0,
) -> torch.Tensor:
    """Shards a tensor by placements, one per dim of the mesh: in place where it is on xla, else as
    a copy there.

    Over axes of the mesh's root that are not in `device_mesh` it keeps its sharding. With several
    processes each gives the same full tensor (`spmd.from_process_local` takes parts).

    Args:
        tensor: on the CPU or on xla. device_mesh: a `DeviceMesh`, torch's or a `spmd.Mesh`; None:
            the one of `with mesh:`. placements: `Shard(dim)` or `Replicate()` per dim of the mesh;
            None: replicated.
        src_data_rank: accepted and ignored: one program has the full tensor.

    Raises as `mark_sharding` does, and NotImplementedError for `Partial()`. Source:
    `torch.distributed.tensor.distribute_tensor`.

    >>> import torch, spmd
    >>> from spmd.dtensor import Shard, distribute_tensor, init_device_mesh
    >>> x = distribute_tensor(torch.ones(16, 4), init_device_mesh("xla", (8,)), [Shard(0)])
    >>> x.placements, x.device_mesh
    ((Shard(dim=0),), DeviceMesh(0=8))
    """
    mesh = mesh_or_default(device_mesh, "distribute_tensor")
    target = _on_xla(tensor)
    placements = [Replicate()] * mesh.ndim if placements is None else placements
    return mark_sharding(
        target, mesh.sharding(placements, tensor.dim(), get_sharding(target), "distribute_tensor")
    )


def mesh_or_default(mesh: Any, caller: str) -> DeviceMesh:
    """The DeviceMesh of an argument; of None, that of `with mesh:`."""
    if mesh is None:
        mesh = needed_mesh(caller)
        views = [
            view for view in theirs._mesh_resources.mesh_stack[-1:] if isinstance(view, DeviceMesh)
        ]
        # of `with mesh["tp"]:`, its dims alone
        mesh = next((view for view in views if view.root == mesh), mesh)
    return DeviceMesh.of(mesh, caller)


def _on_xla(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_meta:
        raise ValueError(
            "distribute_tensor: the tensor is on meta and has no values; build it under "
            'torch.device("xla"), where '
            "nothing is allocated before it runs"
        )
    if tensor.device.type == "xla":
        return tensor
    moved = tensor.detach().to("xla")
    is_parameter = isinstance(tensor, nn.Parameter)
    return (
        nn.Parameter(moved, tensor.requires_grad)
        if is_parameter
        else moved.requires_grad_(tensor.requires_grad)
    )


PartitionFn = Callable[[str, nn.Module, Any], Any]
InputFn = Callable[[nn.Module, Any, Any], Any] | Callable[[Any, Any], Any]


@ends_at_user_line
def distribute_module(
    module: nn.Module,
    device_mesh: Any = None,
    partition_fn: PartitionFn | None = None,
    input_fn: InputFn | None = None,
    output_fn: InputFn | None = None,
) -> nn.Module:
    """Places the parameters and buffers of a module on a mesh, in place, moves them to xla, and
    returns the module.

    Args:
        device_mesh: as in `distribute_tensor`. partition_fn: called with (name, submodule, mesh)
            for each submodule, to place tensors with `distribute_tensor`; all others are replicated
            over the mesh.
        input_fn, output_fn: called with (module, inputs, mesh) before, with (module, outputs, mesh)
            after the forward; their results replace inputs and outputs. Functions of two parameters
            get no module.

    Raises as `distribute_tensor` does. Source: `torch.distributed.tensor.distribute_module`.

    >>> import torch, spmd
    >>> from spmd.dtensor import Replicate, distribute_module, init_device_mesh
    >>> layer = distribute_module(torch.nn.Linear(8, 8), init_device_mesh("xla", (8,)))
    >>> layer.weight.device, layer.weight.placements
    (device(type='xla', index=0), (Replicate(),))
    """
    mesh = mesh_or_default(device_mesh, "distribute_module")
    module.to("xla")
    if partition_fn is not None:
        for name, submodule in module.named_modules():
            partition_fn(name, submodule, mesh)
    for tensor in (*module.parameters(), *module.buffers()):
        if not isinstance(tensor, XLAShardedTensor):
            distribute_tensor(tensor, mesh)
    if input_fn is not None:
        module.register_forward_pre_hook(
            lambda owner, inputs, change=_of_three(input_fn): change(owner, inputs, mesh)
        )
    if output_fn is not None:
        module.register_forward_hook(
            lambda owner, inputs, outputs, change=_of_three(output_fn): change(owner, outputs, mesh)
        )
    return module


def _of_three(function: Callable[..., Any]) -> InputFn:
    """The function with a module first, which torch's older form lacks."""
    takes_module = len(inspect.signature(function).parameters) > 2
    return function if takes_module else lambda module, values, mesh: function(values, mesh)


@ends_at_user_line
class DTensor(XLAShardedTensor):
    """A tensor on xla that is placed on a mesh: a class for `isinstance`, as
    `spmd.torch_xla.XLAShardedTensor` is.

    Any tensor on xla has `placements` and `device_mesh` (None where it has no sharding),
    `redistribute(device_mesh, placements)` (see `spmd.reshard`) and `full_tensor()` (on the CPU, in
    the graph of the tensor; its gradient is sharded by `grad_placements=`, where these are passed).
    """

    @staticmethod
    def from_local(
        local_tensor: torch.Tensor,
        device_mesh: Any = None,
        placements: Sequence[Any] | None = None,
        *,
        run_check: bool = False,
        shape: Any = None,
        stride: Any = None,
        grad_placements: Sequence[Any] | None = None,
    ) -> torch.Tensor:
        """Returns a tensor on xla from each process's own part; a single process gives the full
        tensor.

        See `spmd.from_process_local`.

        Args: device_mesh, placements: as in `distribute_tensor`. run_check, shape, stride,
        grad_placements: accepted and ignored: processes are compared always, parts are of equal
        size, and a gradient has its tensor's sharding.

        >>> import torch
        >>> from spmd.dtensor import DTensor, Shard, init_device_mesh
        >>> DTensor.from_local(torch.ones(16, 2), init_device_mesh("xla", (8,)), [Shard(0)]).shape
        torch.Size([16, 2])
        """
        mesh = mesh_or_default(device_mesh, "DTensor.from_local")
        placements = [Replicate()] * mesh.ndim if placements is None else placements
        layout = mesh.sharding(placements, local_tensor.dim(), None, "DTensor.from_local")
        if not processes.several():
            # in the graph of the part, as in torch
            return resharded(local_tensor.to("xla"), layout)
        return from_process_local(
            local_tensor, mesh.root, layout.partition_spec(local_tensor.dim())
        )


def _to_local(tensor: XlaTensor, *, grad_placements: Any = None) -> torch.Tensor:
    shards = local_shards(tensor)
    if len(shards) > 1:
        raise NotImplementedError(
            f"to_local: this process has {len(shards)} devices, each with its own shard: "
            "t.local_shards lists them, t.full_tensor() has all of the value, and in "
            "spmd.shard_map each device computes with its own"
        )
    return shards[0].unpadded_data


def _full_tensor(
    tensor: XlaTensor, *, grad_placements: Sequence[Any] | None = None
) -> torch.Tensor:
    if grad_placements is not None:
        tensor = reshard(tensor, grad_placements)  # type: ignore[assignment]
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return full_tensor(tensor)
    sharding = constraints.effective_sharding(tensor)
    return (tensor if sharding is None else reshard(tensor, sharding.replicated())).cpu()


# Attributes of the class of all tensors on xla, as those of PyTorch/XLA's sharded tensors.
XlaTensor.full_tensor = _full_tensor  # type: ignore[attr-defined]
XlaTensor.to_local = _to_local  # type: ignore[attr-defined]


# --- factories ------------------------------------------------------------------------------------


def _factory(name: str) -> Callable[..., torch.Tensor]:
    make: Callable[..., torch.Tensor] = getattr(torch, name)

    @ends_at_user_line
    def create(
        *size: Any,
        device_mesh: Any = None,
        placements: Sequence[Any] | None = None,
        requires_grad: bool = False,
        **how: Any,
    ) -> torch.Tensor:
        tensor = distribute_tensor(make(*size, device="xla", **how), device_mesh, placements)
        return tensor.requires_grad_(requires_grad)

    create.__name__ = create.__qualname__ = name
    create.__doc__ = (
        f"`torch.{name}`, created with its sharding: no device holds all of it first. "
        f"Source: `torch.distributed.tensor.{name}`."
    )
    return create


empty, full, ones, rand, randn, zeros = map(
    _factory, ("empty", "full", "ones", "rand", "randn", "zeros")
)

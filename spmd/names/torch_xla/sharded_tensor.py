"""PyTorch/XLA's sharded tensor without a wrapper: every tensor on xla has its attributes and
methods."""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...core import (
    Sharding,
    XlaTensor,
    annotations,
    ends_at_user_line,
    hardware,
    storage_of,
    view_of,
)
from ...mesh.device_mesh import DeviceMesh
from ...mesh.hints import did_you_mean
from ...mesh.mesh import Mesh
from ...mesh.placements import are_placements, placements_of
from ...tensors.annotate import mark_sharding, on_device, reshard
from ...tensors.shards import Shard, load_local_shards_, local_shards
from .sharding_spec import ShardingType, sharding_type


class _ShardedType(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        """True for a tensor on xla that is annotated or sharded."""
        if not isinstance(instance, XlaTensor):
            return False
        sharding = annotations.current_sharding(instance)
        annotation = (
            storage_of(instance).sharding
            if view_of(instance) is None
            else view_of(instance).sharding
        )
        return sharding is not None and (annotation is not None or not sharding.is_replicated())


@ends_at_user_line
class XLAShardedTensor(metaclass=_ShardedType):
    """A tensor on xla that is annotated or sharded: a class for `isinstance`, of which no tensor is
    an instance.

    PyTorch/XLA wraps the tensor that it marks. Here the tensor is not wrapped, and any tensor on
    xla has:

        global_tensor: the tensor. local_shards, load_local_shards_(shards): see `spmd.local_shards`
        and
        `spmd.load_local_shards_`; the indices of a shard of a replicated tensor are `...`.
        mesh_shape, partition_spec:
        of its sharding; None where it has none.
        sharding_spec: the sharding as GSPMD text; "" where there is none. sharding_type: a
        `spmd.torch_xla.ShardingType`, or None. reshard(spec, mesh=None), redistribute(mesh=None,
        placements=None): see
        `spmd.reshard`.

    A call returns its argument, of a tensor on the CPU a copy on xla. `mesh_shape` and
    `partition_spec`, given or those that the tensor has, mark it, over its mesh where that has this
    shape, else over all devices; `requires_grad` is set. Raises ValueError where one of the
    two is unknown.
    Source: `torch_xla.distributed.spmd.XLAShardedTensor`.

    >>> import torch, spmd
    >>> x = torch.ones(8, device="xla")
    >>> isinstance(x, spmd.torch_xla.XLAShardedTensor)
    False
    >>> x = spmd.mark_sharding(x, spmd.Mesh(range(8), (8,), ("data",)), ("data",))
    >>> isinstance(x, spmd.torch_xla.XLAShardedTensor), x.partition_spec, len(x.local_shards)
    (True, ('data',), 8)
    """

    @ends_at_user_line
    def __new__(
        cls,
        elem: torch.Tensor,
        mesh_shape: Any = None,
        partition_spec: Any = None,
        *,
        requires_grad: bool | None = None,
        **unknown: Any,
    ) -> Any:
        for name in unknown:
            hint = (
                did_you_mean(name, ("mesh_shape", "partition_spec"), "{}")
                or "expected mesh_shape or partition_spec"
            )
            raise TypeError(
                f"XLAShardedTensor: got an unexpected keyword argument {name!r}; {hint}"
            )
        if isinstance(elem, torch.Tensor) and elem.device.type == "cpu":
            elem = elem.to("xla")
        on_device(elem, "XLAShardedTensor")
        if mesh_shape is not None or partition_spec is not None:
            _mark(elem, mesh_shape, partition_spec)
        return elem if requires_grad is None else elem.requires_grad_(requires_grad)


def _mark(
    tensor: Any, mesh_shape: Sequence[int] | None, partition_spec: Sequence[Any] | None
) -> None:
    shape = tensor.mesh_shape if mesh_shape is None else tuple(mesh_shape)
    spec = tensor.partition_spec if partition_spec is None else partition_spec
    if shape is None or spec is None:
        raise ValueError(
            f"XLAShardedTensor: expected mesh_shape and partition_spec, got {mesh_shape} and "
            f"{partition_spec}, and the tensor has no sharding"
        )
    sharding = annotations.current_sharding(tensor)
    if sharding is not None and sharding.mesh_shape == shape:  # whose axes may have names
        mesh = _device_mesh(sharding, tensor.dim()).root
    else:
        mesh = Mesh(range(len(hardware.devices())), shape)
    mark_sharding(tensor, mesh, spec)


@ends_at_user_line
def wrap_if_sharded(x: Any) -> Any:
    """The tensor itself, for scripts written for PyTorch/XLA, where it wraps one that is sharded.

    >>> import torch, spmd
    >>> x = torch.ones(2, device="xla")
    >>> spmd.torch_xla.wrap_if_sharded(x) is x
    True
    """
    return x


@ends_at_user_line
def wrap_as_sharded_tensor(
    t: torch.Tensor, mesh_shape: Any = None, partition_spec: Any = None, **unknown: Any
) -> torch.Tensor:
    """`XLAShardedTensor(t, mesh_shape, partition_spec)`: the tensor itself, marked where these are
    given. Raises TypeError for keywords that are not PyTorch/XLA's.

    >>> import torch, spmd
    >>> x = torch.ones(2, device="xla")
    >>> spmd.torch_xla.wrap_as_sharded_tensor(x) is x
    True
    """
    result: Any = XLAShardedTensor(t, mesh_shape, partition_spec, **unknown)
    return result


@ends_at_user_line
def unwrap_sharded_tensor(t: Any) -> Any:
    """The tensor itself, as `wrap_if_sharded`.

    >>> import torch, spmd
    >>> x = torch.ones(2, device="xla")
    >>> spmd.torch_xla.unwrap_sharded_tensor(x) is x
    True
    """
    return t


class _Shard(Shard):
    """A shard with PyTorch/XLA's indices: a list of slices of step 1, `...` of one that is all of
    its tensor."""

    __slots__ = ()

    def __init__(self, shard: Shard, is_copy: bool) -> None:
        slices = [slice(index.start, index.stop, 1) for index in shard.indices]
        indices: Any = ... if is_copy else slices
        super().__init__(shard.data, indices, shard.device, shard.replica_id)

    unpadded_data: Any = vars(Shard)["unpadded_data"].getter(
        lambda shard: (
            shard.data if shard.indices is ... else vars(Shard)["unpadded_data"].fget(shard)
        )
    )


def _local_shards(tensor: XlaTensor) -> list[Shard]:
    """`spmd.local_shards`, with PyTorch/XLA's indices."""
    shards = local_shards(tensor)  # a sync: the sharding is known after it
    is_replicated = (
        sharding_type(annotations.current_sharding(tensor), tensor.dim()) is ShardingType.REPLICATED
    )
    return [_Shard(shard, is_replicated) for shard in shards]


def of_sharding(read: Callable[[Sharding, int], Any], missing: Any = None) -> property:
    """An attribute that is read of a tensor's sharding and rank; `missing` where it has no
    sharding."""

    def found(tensor: XlaTensor) -> Any:
        sharding = annotations.current_sharding(tensor)
        return missing if sharding is None else read(sharding, tensor.dim())

    return property(found)


def _redistribute(
    tensor: XlaTensor, device_mesh: Any = None, placements: Any = None, *, async_op: bool = False
) -> torch.Tensor:
    """`spmd.reshard` with DTensor's arguments; every op is asynchronous, so async_op changes
    nothing.

    Over the axes that are not in `device_mesh` the tensor keeps its sharding.
    """
    sharding = annotations.current_sharding(tensor)
    if placements is None and sharding is None:
        raise ValueError(
            "redistribute: expected placements, got none, and the tensor has no sharding to use "
            "instead"
        )
    if placements is None and sharding is not None:
        placements = sharding.partition_spec(tensor.dim())
    if device_mesh is None or not are_placements(placements):
        return reshard(tensor, placements, device_mesh)
    view = DeviceMesh.of(device_mesh, "redistribute")
    return reshard(tensor, view.sharding(placements, tensor.dim(), sharding, "redistribute"))


def _device_mesh(sharding: Sharding, rank: int) -> DeviceMesh:
    names = sharding.given_names
    return DeviceMesh(
        "xla", Mesh(sharding.device_ids, sharding.mesh_shape, names, target=sharding.target)
    )


@functools.lru_cache(maxsize=256)
def _dtensor_spec(sharding: Sharding, *of_tensor: Any) -> Any:
    # a second of imports
    types: Any = importlib.import_module("torch.distributed.tensor._dtensor_spec")
    meta = types.TensorMeta(*of_tensor)
    rank = len(meta.shape)
    placements = placements_of(sharding, rank)
    return types.DTensorSpec(_device_mesh(sharding, rank), placements, tensor_meta=meta)


def _spec(tensor: XlaTensor) -> Any:
    """DTensor's `_spec`, one object as long as sharding and layout are equal."""
    sharding = annotations.current_sharding(tensor)
    if sharding is None:
        raise ValueError(
            "_spec: the tensor has no sharding yet; spmd.mark_sharding annotates it, or "
            "spmd.sync() computes it"
        )
    return _dtensor_spec(sharding, tensor.shape, tensor.stride(), tensor.dtype)


# Attributes of the class of all tensors on xla, so that no second class is between a tensor and its
# graph.
for _name, _attribute in {
    "global_tensor": property(lambda tensor: tensor),
    "local_shards": property(_local_shards),
    "mesh_shape": of_sharding(lambda sharding, rank: sharding.mesh_shape),
    "partition_spec": of_sharding(Sharding.partition_spec),
    "sharding_spec": of_sharding(Sharding.text, ""),
    "sharding_type": of_sharding(sharding_type),
    "placements": of_sharding(placements_of),
    "_spec": property(_spec),
    "_cached_spec": property(_spec),
    "device_mesh": of_sharding(_device_mesh),
    "load_local_shards_": load_local_shards_,
    "reshard": reshard,
    "redistribute": _redistribute,
}.items():
    setattr(XlaTensor, _name, _attribute)

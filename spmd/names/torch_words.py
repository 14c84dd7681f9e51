"""torch's own words on "xla": DTensor's functions, parallel plans and both FSDPs do what this
library's do.

A call with a mesh or a module of another device stays torch's.
"""

import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.distributed import device_mesh as theirs

from ..core import Patch, XlaTensor, replaces
from ..mesh.global_mesh import get_global_mesh
from ..mesh.mesh import Mesh

_Function = Callable[..., Any]


def _is_on_xla(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True for a call with a mesh of xla, or without a mesh inside of one, or with a module on
    xla."""
    values = [*args, *kwargs.values()]
    meshes: list[Any] = [value for value in values if isinstance(value, Mesh | theirs.DeviceMesh)]
    meshes = meshes or theirs._mesh_resources.mesh_stack[-1:]
    if meshes:
        return any(isinstance(mesh, Mesh) or mesh.device_type == "xla" for mesh in meshes)
    modules = values[0] if values and isinstance(values[0], (list, tuple)) else values[:1]
    parameters = (
        p for module in modules if isinstance(module, nn.Module) for p in module.parameters()
    )
    return get_global_mesh() is not None or any(
        type(parameter) is XlaTensor for parameter in parameters
    )


def _ours(path: str) -> _Function:
    """A replacement: the function of this library at a path, where a call is on xla."""

    def call(original: _Function, *args: Any, **kwargs: Any) -> Any:
        return (pkgutil.resolve_name(path) if _is_on_xla(args, kwargs) else original)(
            *args, **kwargs
        )

    return call


def _created(original: _Function, init_op: _Function, size: Any, *args: Any, **kwargs: Any) -> Any:
    """DTensor's factories: `ones`, `full`, `randn` and their like."""
    if not _is_on_xla(args, kwargs):
        return original(init_op, size, *args, **kwargs)
    values = (kwargs.pop("fill_value"),) if init_op is torch.full else ()
    return pkgutil.resolve_name(f"spmd.dtensor:{init_op.__name__}")(size, *values, *args, **kwargs)


def _wrapped(
    original: _Function, self: nn.Module, module: nn.Module, *args: Any, **kwargs: Any
) -> None:
    """`torch.distributed.fsdp.FullyShardedDataParallel.__init__`: on xla the wrapper is this
    library's."""
    if not _is_on_xla((module, *args), kwargs):
        try:
            return original(self, module, *args, **kwargs)
        except ValueError as error:
            if not torch.distributed.is_initialized():
                error.add_note(
                    "For FSDP on xla, which needs no process group: model.to('xla') first"
                )
            raise
    if type(self) is not vars(sys.modules[_FSDP])["FullyShardedDataParallel"]:
        raise TypeError(
            f"{type(self).__name__}: its base on xla is another class; expected a subclass of "
            "fsdp.FullyShardedDataParallel, got one of torch's"
        )
    keywords = inspect.signature(original).bind(self, module, *args, **kwargs).arguments
    self.__class__ = pkgutil.resolve_name("fsdp:FullyShardedDataParallel")
    return self.__init__(**{name: value for name, value in keywords.items() if name != "self"})  # type: ignore[misc]


def _add_state() -> None:
    """Has torch's `fully_shard.state(module)` return the unit of a module of this library's."""
    fully_shard: Any = vars(sys.modules[_FSDP])["fully_shard"]

    @replaces(fully_shard, "state")
    def state(state_of_torch: _Function, module: nn.Module) -> Any:
        ours = sys.modules.get("fsdp")
        if ours is not None and isinstance(module, ours.FSDPModule):
            return ours.fully_shard.state(module)
        return state_of_torch(module)


_DTENSOR, _PARALLEL, _FSDP = (
    "torch.distributed.tensor",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
)
PATCHES = {
    _DTENSOR: Patch(
        f"`{_DTENSOR}.distribute_tensor(tensor, device_mesh, placements, ...)`, "
        f"`{_DTENSOR}.distribute_module(module, device_mesh, partition_fn, input_fn, output_fn)`, "
        f"`{_DTENSOR}.DTensor.from_local(local_tensor, device_mesh, placements, ...)`, "
        f"`{_DTENSOR}._api._dtensor_init_helper(init_op, size, device_mesh, placements, ...)`",
        "its tensors on meshes of xla",
        None,
        (
            *map(
                _ours,
                (
                    "spmd.dtensor:distribute_tensor",
                    "spmd.dtensor:distribute_module",
                    "spmd.dtensor:DTensor.from_local",
                ),
            ),
            _created,
        ),
    ),
    _PARALLEL: Patch(
        f"`{_PARALLEL}.parallelize_module(module, device_mesh, parallelize_plan, ...)`",
        "its plans on meshes of xla",
        None,
        (_ours("spmd.dtensor:parallelize_module"),),
    ),
    _FSDP: Patch(
        f"`{_FSDP}.fully_shard(module, ...)`, `{_FSDP}.register_fsdp_forward_method(module, "
        f"method_name)`, `{_FSDP}.FullyShardedDataParallel.__init__(self, module, ...)`",
        "its units on xla",
        _add_state,
        (_ours("fsdp:fully_shard"), _ours("fsdp:register_fsdp_forward_method"), _wrapped),
    ),
}


def change(module: ModuleType) -> None:
    """Patches one of the modules of `PATCHES`, once it is imported."""
    PATCHES[module.__name__].apply()

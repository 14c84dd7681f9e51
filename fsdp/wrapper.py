"""FullyShardedDataParallel: carries a plan out on a module. All it does is annotate; XLA places the collectives."""

import math
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

import spmd

from .api import MixedPrecisionPolicy
from .plan import parameter_spec, plan_units
from .policies import Policy
from .units import Enter, Exit, Unit, slots, tensors

PREFIX = "module."

ShardOutput = Callable[[Any, spmd.Mesh], None]


class FullyShardedDataParallel(nn.Module):
    """Trains a module with parameters, gradients and optimizer state split over the devices of a mesh axis.

    Parameters are split along their largest divisible dim (`fsdp.parameter_spec`), the batch along dim 0, buffers are
    whole on each device. The units that the policy finds are where activations are annotated; the module classes,
    parameter names and state-dict keys stay as they were. A module on the CPU is moved shard by shard; one built under
    `with torch.device("xla")` is initialised sharded; one on `meta` is materialised sharded and `reset_parameters` is
    called.

    Args:
        module: any module. Its parameters are annotated in place, so an optimizer built before still works.
        mesh: must have the axis `shard_axis`; default: one axis `fsdp` over all devices.
        auto_wrap_policy: which submodules are units (`fsdp.policies`); None: only the root.
        extra_data_axis: a further mesh axis that the batch is split over (data parallel beside fsdp).
        shard_output: called with (output, mesh) instead of annotating each unit's output tensors along dim 0.
        shard_axis: the axis that parameters are split over.
        ignored_modules: neither split nor units; their parameters are whole on each device.
        reshard_after_forward: free a unit's gathered parameters after its forward and gather them again for its
            backward; False keeps them, which saves half the gathers and takes the memory of the whole model. The root
            keeps its own: backward begins with them.
        mp_policy: the dtypes of computation and communication (`fsdp.MixedPrecisionPolicy`).

    A parameter that is marked over other axes of the mesh (tensor parallel) stays split over them, and is gathered over
    `shard_axis` alone.

    Raises ValueError for an axis that is not in the mesh, TypeError for a wrong argument type.
    Source: ZeRO-3 (arXiv:1910.02054), `torch.distributed.fsdp`, `SpmdFullyShardedDataParallel` of PyTorch/XLA.

    >>> import torch, spmd, fsdp
    >>> model = fsdp.FullyShardedDataParallel(torch.nn.Linear(4, 2), mesh=spmd.Mesh([0], (1,), ("fsdp",)))
    >>> model(torch.ones(3, 4, device="xla")).shape
    torch.Size([3, 2])
    >>> layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    >>> mesh, policy = spmd.Mesh([0], (1,), ("fsdp",)), fsdp.always_wrap_policy
    >>> kept = fsdp.FullyShardedDataParallel(layers, mesh=mesh, auto_wrap_policy=policy, reshard_after_forward=False)
    >>> kept(torch.ones(3, 4, device="xla")).sum().backward()
    """

    def __init__(
        self,
        module: nn.Module,
        mesh: spmd.Mesh | None = None,
        *,
        auto_wrap_policy: Policy | None = None,
        extra_data_axis: str | None = None,
        shard_output: ShardOutput | None = None,
        shard_axis: str = "fsdp",
        ignored_modules: Collection[nn.Module] = (),
        reshard_after_forward: bool = True,
        mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),
    ):
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f"FullyShardedDataParallel: expected a torch.nn.Module, got {type(module).__name__}")
        if mesh is None:
            ids = spmd.device_ids()
            mesh = spmd.Mesh(ids, (len(ids),), (shard_axis,))
        if not isinstance(mesh, spmd.Mesh):
            raise TypeError(f"FullyShardedDataParallel: expected mesh to be a spmd.Mesh, got {type(mesh).__name__}")
        if not isinstance(mp_policy, MixedPrecisionPolicy):
            raise TypeError(
                "FullyShardedDataParallel: expected mp_policy to be a fsdp.MixedPrecisionPolicy, got "
                f"{type(mp_policy).__name__}"
            )
        if extra_data_axis == shard_axis:
            raise ValueError(
                "FullyShardedDataParallel: extra_data_axis must be another axis than shard_axis, "
                f"got {shard_axis!r} twice"
            )
        for axis in (shard_axis, *([extra_data_axis] if extra_data_axis is not None else [])):
            if axis not in mesh.axis_names:
                raise ValueError(
                    f"FullyShardedDataParallel: the mesh has no axis {axis!r} (axes: {', '.join(mesh.axis_names)})"
                )
        self.module = module
        self.mesh = mesh
        self._shard_axis = shard_axis
        self._split = _BatchSplit(mesh, (shard_axis,) if extra_data_axis is None else (extra_data_axis, shard_axis))
        self._annotate_output = self._split if shard_output is None else partial(_call, shard_output, mesh)
        self._ignored_modules = tuple(ignored_modules)
        self._reshard_after_forward = reshard_after_forward
        self._mp_policy = mp_policy
        self._hooks: list[RemovableHandle] = []
        self.units = plan_units(module, auto_wrap_policy, self._ignored_modules)
        _materialise(module, has_data=mesh.target is None)
        self._annotate()
        self._register_state_dict_hook(_strip_prefix)
        self.register_state_dict_pre_hook(lambda module, *_: module._restore())
        self.register_load_state_dict_pre_hook(_add_prefix)
        self.register_load_state_dict_post_hook(_strip_reported)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module; inputs nobody annotated are split over the batch axes along dim 0 where it divides."""
        self._split([tensor for tensor in tensors((args, kwargs)) if spmd.get_sharding(tensor) is None])
        if self._root is None:
            output = self.module(*args, **kwargs)
        else:
            with self._root.forward(args, kwargs) as (args, kwargs):
                output = self.module(*args, **kwargs)
        self._annotate_output(output)
        if self._root is not None:
            self._root.watch(output)
        return output

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]  # type: ignore[index]

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[Any]:
        """As the wrapped module names them."""
        self._restore()
        return self.module.named_parameters(prefix, recurse, remove_duplicate)

    def named_buffers(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[Any]:
        """As the wrapped module names them."""
        return self.module.named_buffers(prefix, recurse, remove_duplicate)

    def _fqn_modifiers(self) -> dict[str, str]:
        """`torch.distributed.checkpoint.state_dict` asks by what a module's names go on without being told."""
        own = (*self.module._parameters, *self.module._buffers, *self.module._modules)
        return dict.fromkeys(own, PREFIX.removesuffix("."))

    def extra_repr(self) -> str:
        return f"mesh={self.mesh!r}, units={len(self.units) + 1}"

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "FullyShardedDataParallel":
        """`.to(dtype)` and its kin put other tensors into the parameters: they are annotated like the first."""
        super()._apply(fn, recurse)
        self._annotate()
        return self

    def _annotate(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._root: Unit | None = None
        self._gathered: list[Unit] = []
        if all(tensor.device.type == "xla" for tensor in (*self.module.parameters(), *self.module.buffers())):
            self._annotate_state()
            self._gather_on_use()

    def _annotate_state(self) -> None:
        ignored = {id(parameter) for module in self._ignored_modules for parameter in module.parameters()}
        size = self.mesh.shape()[self._shard_axis]
        for parameter in self.module.parameters():
            held = self._held_spec(parameter)
            if id(parameter) not in ignored:
                held = parameter_spec(parameter.shape, self._shard_axis, size, held)
            spmd.mark_sharding(parameter, self.mesh, held)
        for buffer in self.module.buffers():
            spmd.mark_sharding(buffer, self.mesh, spmd.PartitionSpec(*(None for _ in buffer.shape)))

    def _held_spec(self, parameter: nn.Parameter) -> spmd.PartitionSpec:
        """How a parameter was split over the mesh's other axes before it was wrapped."""
        sharding = spmd.get_sharding(parameter)
        if sharding is None or sharding.mesh_axes() != self.mesh.shape():
            return spmd.PartitionSpec(*(None for _ in parameter.shape))
        return spmd.PartitionSpec(*sharding.partition_spec(parameter.dim())).without(self._shard_axis)

    def _gather_on_use(self) -> None:
        """Each unit computes with its parameters whole (see `Unit`)."""
        taken: set[int] = set()
        inner = {module for _, module in self.units}
        ignored = {id(parameter) for module in self._ignored_modules for parameter in module.parameters()}

        def unit_of(module: nn.Module, reshard_after_forward: bool) -> Unit:
            own = [parameter for parameter in module.parameters() if id(parameter) not in taken]
            taken.update(map(id, own))
            places = [
                (owner, name) for owner, name in slots(module, inner) if id(owner._parameters[name]) not in ignored
            ]
            return Unit(own, places, self.mesh, self._shard_axis, self._mp_policy, reshard_after_forward)

        for _, module in self.units:
            unit = unit_of(module, self._reshard_after_forward)
            self._gathered.append(unit)
            self._hooks.append(module.register_forward_pre_hook(Enter(unit), with_kwargs=True))
            self._hooks.append(module.register_forward_hook(Exit(unit, self._annotate_output), always_call=True))
        # What the root reads last is what backward reads first; what it reads first, backward has no use for.
        self._root = unit_of(self.module, reshard_after_forward=False)
        self._gathered.append(self._root)

    def _restore(self) -> None:
        """Parameters in the place of their casts, which a backward pass that raised has left there."""
        for unit in self._gathered:
            if not unit.is_running:
                unit.restore()


class _BatchSplit:
    """Splits dim 0 of tensors over the batch axes; what they do not divide, vectors and scalars stay as XLA chooses.

    It knows nothing of the wrapper, so that hooks which hold it make no reference cycle that keeps parameters alive.
    """

    def __init__(self, mesh: spmd.Mesh, axes: tuple[str, ...]):
        self.mesh = mesh
        self.axes = axes
        self.ways = math.prod(mesh.shape()[axis] for axis in axes)
        self.specs: dict[int, spmd.PartitionSpec] = {}  # by rank of the tensor

    def __call__(self, output: Any) -> None:
        for tensor in tensors(output):
            rank = tensor.dim()
            if rank >= 2 and tensor.shape[0] % self.ways == 0 and tensor.shape[0] > 0:
                spec = self.specs.get(rank)
                if spec is None:
                    spec = self.specs[rank] = spmd.PartitionSpec(self.axes, *(None for _ in range(rank - 1)))
                spmd.mark_sharding(tensor, self.mesh, spec)


def _call(shard_output: ShardOutput, mesh: spmd.Mesh, output: Any) -> None:
    shard_output(output, mesh)


def _materialise(module: nn.Module, *, has_data: bool) -> None:
    """Brings a module onto the device: CPU data stays on the host until its shards go up; meta modules are made.

    Where it is only ever planned, over devices that are not here, what is on meta needs no initial values.
    """
    unmade = [child for child in module.modules() if any(tensor.is_meta for tensor in _own(child))]
    module._apply(lambda tensor: torch.empty_like(tensor, device="xla") if tensor.is_meta else tensor.to("xla"))
    for child in unmade if has_data else ():
        reset = getattr(child, "reset_parameters", None)
        if reset is None:
            raise ValueError(
                f"FullyShardedDataParallel: {type(child).__name__} is on the meta device and has no reset_parameters() "
                'to initialise it; give it one, or build the module under `with torch.device("xla")`'
            )
        reset()


def _own(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _strip_prefix(wrapper: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    long = prefix + PREFIX
    _rename(state, {key: prefix + key.removeprefix(long) for key in state if key.startswith(long)})


def _add_prefix(wrapper: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    wrapper.__dict__["_loading"] = prefix
    long = prefix + PREFIX
    _rename(state, {key: long + key.removeprefix(prefix) for key in state if key.startswith(prefix)})


def _rename(state: dict[str, Any], names: dict[str, str]) -> None:
    # All out before any goes in: a module may have a child that is called "module", too.
    moved = {new: state.pop(old) for old, new in names.items()}
    state.update(moved)


def _strip_reported(wrapper: nn.Module, incompatible: Any) -> None:
    prefix = wrapper.__dict__.pop("_loading")
    long = prefix + PREFIX
    for keys in (incompatible.missing_keys, incompatible.unexpected_keys):
        keys[:] = [prefix + key.removeprefix(long) if key.startswith(long) else key for key in keys]

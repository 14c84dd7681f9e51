"""`fully_shard`: makes modules units in place, children before parents, as FSDP2 does.

`FSDPModule`: their methods.
"""

# Why a module's class changes: FSDP2 puts `FSDPModule` in front of it, by which scripts find units,
# and its methods (`unshard`, `set_requires_gradient_sync`) are called on the module itself.

import sys
from collections.abc import Callable, Collection, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

import torch
from torch import nn

import spmd
from spmd.mesh.hints import kind_of
from spmd.mesh.notes import ends_at_user_line

from .api import MixedPrecisionPolicy, OffloadPolicy, Reshard, Settings, axes_of
from .attach import attach, materialise, move
from .keywords import HOOKS, ONE_VIEW, REDUCED, SCHEDULED, warn_without_meaning
from .outputs import BatchSplit
from .plan import Placement
from .units import Unit, unit_of, units_in

_M = TypeVar("_M", bound=nn.Module | Sequence[nn.Module])
# `FSDPModule` stands in front of a module's class and is none itself, as in torch.
if TYPE_CHECKING:
    _Module = nn.Module
else:
    _Module = object


@ends_at_user_line
def fully_shard(
    module: _M,
    *,
    mesh: spmd.Mesh | None = None,
    reshard_after_forward: Reshard = None,
    shard_placement_fn: Callable[[nn.Parameter], Placement] | None = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),
    offload_policy: OffloadPolicy = OffloadPolicy(),
    ignored_params: Collection[nn.Parameter] | None = None,
    dp_mesh_dims: Any = None,
    shard_axis: str | None = None,
    extra_data_axis: str | None = None,
    min_shard_numel: int = 0,
) -> _M:
    """Makes a module a unit: its parameters are sharded over the mesh, gathered for its forward and
    for its backward.

    It must be called on children before their parents: a unit has the parameters that no unit below
    it has. It works in place and returns the module, whose class becomes `FSDP<Class>`, a subclass
    with the methods of `FSDPModule`; names of parameters and state-dict keys stay. A unit with none
    above it is a root: it shards inputs over the batch axes along dim 0. A module on meta stays
    there until `to_empty(device="xla")`.

    Args:
        module: a module, or several that are gathered together.
        mesh: the devices; default: that of `with mesh:` or `spmd.torch_xla.set_global_mesh`, else
            one axis over all. Parameters are sharded over its axis `fsdp`, or over its only axis;
            of two axes of other names the first holds replicas and parameters are sharded over the
            second.
        reshard_after_forward: True frees gathered parameters after forward and gathers them again
            for backward; a number keeps them sharded over so many neighbours and gathers them among
            these. None: True, but False for the root.
        shard_placement_fn: called with each parameter; returns a `PartitionSpec`, torch's
            `Shard(dim)` or `Replicate()`, or None for the largest dim that divides
            (`fsdp.parameter_spec`).
        mp_policy: the dtypes of computation and communication (`fsdp.MixedPrecisionPolicy`).
        offload_policy: `fsdp.CPUOffloadPolicy()` keeps parameters in the host's memory.
        ignored_params: parameters that are replicated; neither this unit nor one above it shards or
            gathers them.
        dp_mesh_dims: torch's `DataParallelMeshDims`: names the axes, as the next two do.
        shard_axis, extra_data_axis: the axis that parameters are sharded over, and one more for the
            batch (default: the axis named `data`, where there is one).
        min_shard_numel: parameters of fewer elements stay replicated.

    Raises ValueError for a module that is a unit already and for an axis that is not in the mesh,
    TypeError for a wrong argument type. Source: `torch.distributed.fsdp.fully_shard`.

    >>> import torch, spmd, fsdp
    >>> mesh = spmd.Mesh([0], (1,), ("fsdp",))
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    >>> for layer in model:
    ...     layer = fsdp.fully_shard(layer, mesh=mesh)
    >>> model = fsdp.fully_shard(model, mesh=mesh)
    >>> (
    ...     type(model).__name__,
    ...     isinstance(model, torch.nn.Sequential),
    ...     isinstance(model[0], fsdp.FSDPModule),
    ... )
    ('FSDPSequential', True, True)
    >>> model(torch.ones(3, 4, device="xla")).sum().backward()
    """
    modules = _modules(module)
    if dp_mesh_dims is not None:
        shard_axis, extra_data_axis = _axes_of_dp_dims(dp_mesh_dims)
    mesh, axis, batch_axes = axes_of("fully_shard", mesh, shard_axis, extra_data_axis)
    settings = Settings(
        "fully_shard",
        mesh,
        axis,
        batch_axes,
        reshard_after_forward=reshard_after_forward,
        mp_policy=mp_policy,
        offload_policy=offload_policy,
        shard_placement_fn=shard_placement_fn,
        min_shard_numel=min_shard_numel,
    )
    # Meta tensors stay: `to_empty` and `init_weights` come after `fully_shard`, as in FSDP2's
    # recipes.
    move(modules)
    if mesh.target is not None:
        for member in modules:
            materialise("fully_shard", member, has_data=False)
    attach(modules, settings, BatchSplit(mesh, batch_axes), tuple(ignored_params or ()))
    for member in modules:
        member.__class__ = _class_of(type(member))
    return module


fully_shard.state = unit_of  # type: ignore[attr-defined]  # as torch's: the state of a module; None where it has none


def _modules(module: Any) -> list[nn.Module]:
    """A module, or a list of them, as a list; raises for an empty one and for other objects."""
    modules = list(module) if isinstance(module, (list, tuple)) else [module]
    for member in modules:
        if not isinstance(member, nn.Module):
            raise TypeError(
                f"fully_shard: expected a torch.nn.Module or a list of them, got {kind_of(member)}"
            )
        if (
            isinstance(member, (nn.ModuleList, nn.ModuleDict))
            and type(member).forward is nn.Module.forward
        ):
            raise ValueError(
                f"fully_shard: {type(member).__name__} has no forward, in front of which its "
                "parameters would be gathered; pass its modules one by one, or as a list to "
                "gather them together"
            )
    if not modules:
        raise ValueError("fully_shard: expected at least one module, got an empty list")
    return modules


def _axes_of_dp_dims(dims: Any) -> tuple[str | None, str | None]:
    """The axes that torch's `DataParallelMeshDims` names: (of shards, of replicas)."""
    if not hasattr(dims, "shard"):
        raise TypeError(
            "fully_shard: expected dp_mesh_dims as torch's DataParallelMeshDims(shard=, "
            f"replicate=), got {dims!r}"
        )
    for name in (dims.shard, dims.replicate):
        if name is not None and not isinstance(name, str):
            raise ValueError(
                f"fully_shard: expected dp_mesh_dims to name one axis each, got {name!r}; pass a "
                "mesh in which they are one axis"
            )
    return dims.shard, dims.replicate


class FSDPModule(_Module):
    """The methods that `fully_shard` adds to a module: they unshard and reshard its unit and change
    its settings.

    Methods of FSDP2 that order or delay collectives are accepted with one warning: XLA schedules
    the whole step.

    >>> import torch, spmd, fsdp
    >>> model = fsdp.fully_shard(torch.nn.Linear(8, 8), mesh=spmd.Mesh([0], (1,), ("fsdp",)))
    >>> isinstance(model, fsdp.FSDPModule)
    True
    >>> model.set_requires_gradient_sync(False)
    """

    def __new__(cls, *args: object, **kwargs: object) -> Any:
        # A slice of a container is made by its class: that new container is no unit.
        plain = _plain(cls)
        result: Any = plain.__new__(plain, *args, **kwargs)
        result.__init__(*args, **kwargs)
        return result

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        # A module has no reduction of its own: torch's default one, whose first two entries name
        # the class.
        reduced = super().__reduce_ex__(protocol)
        assert isinstance(reduced, tuple), "a module has no name of its own"
        # a pickle cannot name the class: no module has it
        return _bare, (_plain(type(self)),), *reduced[2:]

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self._unit.refresh([self])  # a file has no shardings

    def unshard(self, async_op: bool = False) -> "UnshardHandle | None":
        """Stores the unit's parameters unsharded, until its next forward pass ends or `reshard` is
        called."""
        self._unit.unshard()
        return UnshardHandle() if async_op else None

    def reshard(self) -> None:
        """Stores the unit's parameters sharded."""
        self._unit.reshard()

    def set_reshard_after_forward(
        self, reshard_after_forward: bool | int, recurse: bool = True
    ) -> None:
        """Sets `reshard_after_forward` of `fully_shard` for this unit, and with `recurse` for the
        units below."""
        for unit in self._units(recurse):
            unit.reshard_after_forward = unit.settings.checked_reshard(reshard_after_forward)

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Makes the unit's gradients the sum over the batch's shards, one per device, divided by a
        factor.

        The default factor is the number of shards: the gradient of the loss as it was computed.
        """
        self._unit.divide_gradients(factor)

    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """The old name of `set_gradient_divide_factor`."""
        self.set_gradient_divide_factor(factor)

    def set_requires_gradient_sync(
        self, requires_gradient_sync: bool, *, recurse: bool = True
    ) -> None:
        """Sets whether backward passes reduce gradients over the devices, for this unit, and with
        `recurse` for the units below; see `FullyShardedDataParallel.no_sync`."""
        for unit in self._units(recurse):
            unit.defer_gradients(() if requires_gradient_sync else unit.split.axes)

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """`set_requires_gradient_sync` for the batch axes over which parameters are replicated
        (hybrid sharding); over the axis that shards parameters, backward passes still reduce."""
        for unit in self._units(recurse):
            # A gradient's reduce-scatter within a group of shards goes on; the all-reduce between
            # the groups waits.
            replicas = [axis for axis in unit.split.axes if axis != unit.settings.shard_axis]
            unit.defer_gradients(() if requires_all_reduce else replicas)

    def set_all_reduce_hook(self, hook: object, *, stream: object = None) -> None:
        """Raises NotImplementedError: no code of the host runs amid a program's collectives."""
        raise NotImplementedError(f"FSDPModule.set_all_reduce_hook: {HOOKS}")

    def finalize_backward(self, *, async_op: bool = False) -> "UnshardHandle | None":
        """Does nothing: gradients are reduced within the program of backward."""
        return UnshardHandle() if async_op else None

    def reset_iter_state(self) -> None:
        """Puts parameters back into modules after a pass that raised; every forward pass does so by
        itself."""
        for unit in self._units(True):
            unit.restore()

    @property
    def _unit(self) -> Unit:
        unit = unit_of(self)
        assert unit is not None, "fully_shard has made it"
        return unit

    def _units(self, recurse: bool) -> list[Unit]:
        return list(units_in(self)) if recurse else [self._unit]

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> "FSDPModule":
        """Applies `fn` as torch does, and shards the new tensors of the parameters (`.to(dtype)`)
        as the old ones."""
        super()._apply(fn, recurse)
        self._unit.refresh([self])
        return self


# FSDP2's methods that change nothing here, by the mechanism that takes their place.
_WITHOUT_MEANING = {
    REDUCED: ("set_is_last_backward", "set_manual_backward_finalization"),
    SCHEDULED: (
        "set_modules_to_forward_prefetch",
        "set_modules_to_backward_prefetch",
        "set_post_optim_event",
        "set_custom_all_gather",
        "set_custom_reduce_scatter",
        "set_reduce_scatter_max_input_buffers",
    ),
    ONE_VIEW: (
        "set_separate_reduce_scatter_group",
        "set_allocate_memory_from_process_group_for_comm",
        "set_symm_mem_for_comm",
    ),
    "gathered parameters are freed after their last use in backward": (
        "set_reshard_after_backward",
    ),
    "backward gathers the parameters that it reads": ("set_unshard_in_backward",),
    "the compiler chooses how a sum is reduced": ("set_force_sum_reduction_for_comms",),
    "a parameter that no loss reads has no gradient": ("set_reduce_scatter_unused_params",),
    "the memory of gathered parameters is the runtime's, which uses it again": (
        "set_keep_unsharded_storage",
    ),
}
_warned: set[str] = set()


def _without_meaning(name: str, reason: str) -> Callable[..., None]:
    """A method of FSDP2 that changes nothing: it warns, once, with the reason."""

    def method(self: FSDPModule, *args: object, **kwargs: object) -> None:
        if name not in _warned:
            _warned.add(name)
            warn_without_meaning("FSDPModule", {name: reason})

    method.__name__, method.__doc__ = name, f"Accepted with one warning: {reason}."
    return method


for _reason, _names in _WITHOUT_MEANING.items():
    for _name in _names:
        setattr(FSDPModule, _name, _without_meaning(_name, _reason))


class UnshardHandle:
    """The result of `unshard` and `finalize_backward`; `wait` does nothing, as the runtime orders
    programs.

    >>> import torch, spmd, fsdp
    >>> layer = fsdp.fully_shard(torch.nn.Linear(4, 2), mesh=spmd.Mesh([0], (1,), ("fsdp",)))
    >>> handle = layer.unshard(async_op=True)
    >>> handle.wait()
    >>> isinstance(handle, fsdp.UnshardHandle)
    True
    """

    def wait(self) -> None:
        """Returns at once."""


@ends_at_user_line
def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Makes a method other than `forward` run with the unit's parameters gathered; does nothing for
    a plain module.

    Raises ValueError where the module has no such method. Source:
    `torch.distributed.fsdp.register_fsdp_forward_method`.

    >>> import torch, spmd, fsdp
    >>> class Encoder(torch.nn.Linear):
    ...     def encode(self, x):
    ...         return self(x).relu()
    >>> encoder = fsdp.fully_shard(Encoder(4, 2), mesh=spmd.Mesh([0], (1,), ("fsdp",)))
    >>> fsdp.register_fsdp_forward_method(encoder, "encode")
    >>> encoder.encode(torch.ones(3, 4, device="xla")).shape
    torch.Size([3, 2])
    """
    if unit_of(module) is None:
        return
    if not callable(getattr(type(module), method_name, None)):
        raise ValueError(
            f"register_fsdp_forward_method: {type(module).__name__} has no method {method_name!r}"
        )
    module.__dict__[method_name] = _ForwardMethod(module, method_name)


class _ForwardMethod:
    """A method that runs with its unit's parameters gathered; a copied module has a copy of its
    own."""

    def __init__(self, module: nn.Module, name: str):
        self.module, self.name = module, name

    @property
    def __code__(self) -> CodeType:
        # Lightning compares the code to see whether a class overrides a method of its base.
        code: CodeType = getattr(type(self.module), self.name).__code__
        return code

    def __call__(self, *args: object, **kwargs: object) -> object:
        unit = unit_of(self.module)
        assert unit is not None, "it is put on units alone"
        args, kwargs = unit.pre_forward(self.module, args, kwargs)
        output = None
        try:  # the class's method: the instance has this object under that name
            output = getattr(type(self.module), self.name)(self.module, *args, **kwargs)
        finally:
            output = unit.post_forward(self.module, args, output)
        return output


def _plain(cls: type) -> type:
    """The module's class from which `fully_shard` derived a unit's class."""
    return cls.__mro__[cls.__mro__.index(FSDPModule) + 1]


# One class per module class: compiled steps compare the classes of modules.
_CLASSES: dict[tuple[type, ...], type] = {}


def _class_of(plain: type) -> type:
    """The unit's class that is derived from a module's class; always the same object.

    torch's own `FSDPModule`, where it is imported, is its last base, for `isinstance`.
    """
    torch_fsdp = sys.modules.get("torch.distributed.fsdp")
    bases = (
        (FSDPModule, plain) if torch_fsdp is None else (FSDPModule, plain, torch_fsdp.FSDPModule)
    )
    if bases not in _CLASSES:
        _CLASSES[bases] = type(f"FSDP{plain.__name__}", bases, {"__module__": plain.__module__})
    return _CLASSES[bases]


def _bare(plain: type) -> object:
    """An empty module of a unit's class; pickles name this function."""
    return object.__new__(_class_of(plain))

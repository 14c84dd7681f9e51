"""`FullyShardedDataParallel`: applies a plan of units to a module by annotations alone; XLA places
the collectives."""

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields, replace
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.modules.module import _IncompatibleKeys

import spmd
from spmd.mesh.hints import kind_of
from spmd.mesh.notes import ends_at_user_line

from .activation_checkpoint import checkpoint_module
from .api import (
    OVERRIDABLE,
    FullPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    Settings,
    ShardOutput,
    axes_of,
)
from .attach import ParamInit, attach, materialise, summon_full_params
from .fully_shard import FSDPModule
from .keywords import LACKING, ONE_VIEW, TORCH, XLA, takes, translate, warn_without_meaning
from .outputs import BatchSplit
from .plan import Placement, plan_overrides
from .policies import AnyPolicy
from .units import WITH_CASTS, UnitState, unit_of, units_in, warn_of_dropped_axis

# Why the wrapper hides its own level: state dicts, parameter names and attributes are those of the
# bare module, so that a checkpoint loads with and without FSDP, and a script that reads
# `model.config` needs no change.
#
# Why `units` are planned before any is made: a policy counts the parameters that no child unit has
# taken, and an override of a unit below must be checked before the tensors move.

PREFIX = "module."
_OF_MODULES = "it is a method of the modules that fsdp.fully_shard makes units"

StateDict = dict[str, Any]
AutoWrapper = Callable[..., nn.Module]


@ends_at_user_line
class FullyShardedDataParallel(nn.Module):
    """Trains a module with parameters, gradients and optimizer state sharded over the devices of a
    mesh axis.

    Parameters are sharded along their largest divisible dim (`fsdp.parameter_spec`), the batch
    along dim 0; buffers are replicated. Activations are annotated at the units that the policy
    finds; the module classes, parameter names and state-dict keys stay as they were. A module on
    the CPU is moved shard by shard; a module built under `with torch.device("xla")` is initialised
    sharded; a module on `meta` is materialised sharded and `reset_parameters` is called.

    Args:
        module: any module. Its parameters are annotated in place, so an optimizer built before
            still works.
        mesh: must have the axis `shard_axis`; default: that of `with mesh:` or
            `spmd.torch_xla.set_global_mesh`, else one axis `fsdp` over all.
        auto_wrap_policy: chooses the submodules that are units: a function of `fsdp.policies`, a
            set of classes, torch's `ModuleWrapPolicy` or `CustomPolicy`; None: only the root is a
            unit.
        extra_data_axis: a further mesh axis that the batch is sharded over (data parallel in
            addition to FSDP); default: the axis named `data`, where there is one.
        shard_output: called with (output, mesh) instead of annotating each unit's output tensors
            along dim 0.
        shard_axis: the axis that parameters are sharded over.
        ignored_modules: modules that are not units and whose parameters are replicated.
        ignored_params: parameters that are replicated, neither sharded nor gathered.
        reshard_after_forward: True frees a unit's gathered parameters after its forward and gathers
            them again for its backward; False keeps them, which saves half the gathers and takes
            the memory of the whole model; a number keeps them sharded over so many neighbours,
            among which backward gathers. The root keeps its own, as backward begins with them.
        mp_policy: the dtypes of computation and communication (`fsdp.MixedPrecisionPolicy`).
        full_precision_modules: classes whose modules are units that compute in float32 whatever
            `mp_policy` is: inputs are cast to float32, outputs back.
        offload_policy: `fsdp.CPUOffloadPolicy()` keeps parameters in the host's memory.
        shard_placement_fn: called with each parameter; returns a `PartitionSpec`, a dim, or None
            for the default.
        min_shard_numel: parameters of fewer elements stay replicated.
        param_init_fn: called with each module that has tensors on meta, once these are on the
            device and empty, instead of its `reset_parameters`.
        auto_wrapper_callable: called for each unit with the module and the keywords of this class;
            its result takes the module's place. For a checkpointed unit:
            `lambda module, **how: FullyShardedDataParallel( fsdp.checkpoint_module(module),
            **how)`.

    The keywords of `torch.distributed.fsdp.FullyShardedDataParallel` are accepted, too: keywords
    with a meaning here are translated, one warning names the rest (docs/fsdp.md).

    A parameter that is marked over other axes of the mesh (tensor parallel) stays sharded over
    them, and is gathered over `shard_axis` alone.

    Raises ValueError for an axis that is not in the mesh, a module that is wrapped already and a
    policy of classes of which the model has no module, TypeError for a wrong argument type.
    Source: ZeRO-3 (arXiv:1910.02054), `torch.distributed.fsdp`, `SpmdFullyShardedDataParallel` of
    PyTorch/XLA.

    >>> import torch, spmd, fsdp
    >>> model = fsdp.FullyShardedDataParallel(
    ...     torch.nn.Linear(4, 2), mesh=spmd.Mesh([0], (1,), ("fsdp",))
    ... )
    >>> model(torch.ones(3, 4, device="xla")).shape
    torch.Size([3, 2])
    >>> layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    >>> mesh, policy = spmd.Mesh([0], (1,), ("fsdp",)), fsdp.always_wrap_policy
    >>> kept = fsdp.FullyShardedDataParallel(
    ...     layers, mesh=mesh, auto_wrap_policy=policy, reshard_after_forward=False
    ... )
    >>> kept(torch.ones(3, 4, device="xla")).sum().backward()
    """

    @takes(TORCH)
    def __init__(
        self,
        module: nn.Module,
        mesh: spmd.Mesh | None = None,
        *,
        auto_wrap_policy: AnyPolicy | None = None,
        extra_data_axis: str | None = None,
        shard_output: ShardOutput | None = None,
        shard_axis: str = "fsdp",
        ignored_modules: Collection[nn.Module] = (),
        ignored_params: Collection[nn.Parameter] = (),
        reshard_after_forward: bool | int = True,
        mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),
        full_precision_modules: Collection[type[nn.Module]] = (),
        offload_policy: OffloadPolicy = OffloadPolicy(),
        shard_placement_fn: Callable[[nn.Parameter], Placement] | None = None,
        min_shard_numel: int = 0,
        param_init_fn: ParamInit | None = None,
        auto_wrapper_callable: AutoWrapper | None = None,
    ):
        super().__init__()
        caller = type(self).__name__
        if not isinstance(module, nn.Module):
            raise TypeError(f"{caller}: expected a torch.nn.Module, got {kind_of(module)}")
        if isinstance(module, FullyShardedDataParallel):
            inner, inner_mesh = module.module, module.mesh  # type: ignore[has-type]
            raise ValueError(
                f"{caller}: the {type(inner).__name__} is wrapped already, over {inner_mesh!r}; "
                "wrap a module once (its `.module` is the module itself)"
            )
        mesh, axis, batch_axes = axes_of(caller, mesh, shard_axis, extra_data_axis)
        settings = Settings(
            caller,
            mesh,
            axis,
            batch_axes,
            reshard_after_forward=reshard_after_forward,
            mp_policy=mp_policy,
            offload_policy=offload_policy,
            shard_placement_fn=shard_placement_fn,
            min_shard_numel=min_shard_numel,
            shard_output=shard_output,
        )
        ignored_modules = tuple(ignored_modules)
        ignored = [
            *ignored_params,
            *(below for ignored_module in ignored_modules for below in ignored_module.parameters()),
        ]
        # Modules that are units already are left to those.
        wrapped = [below for members in units_in(module).values() for _, below in members]
        full_classes = tuple(full_precision_modules)
        planned = plan_overrides(
            module, auto_wrap_policy, (*ignored_modules, *wrapped), full_classes
        )
        for _, unit, overrides in planned:
            if isinstance(unit, full_classes):
                overrides["mp_policy"] = FullPrecision()
        units = [
            (name, unit, settings.overridden(overrides, name)) for name, unit, overrides in planned
        ]
        self.module = module
        self.mesh = mesh
        self.units = [(name, unit) for name, unit, _ in units]
        # After the plan, which reads shapes alone: a policy that raises moves nothing.
        materialise(caller, module, has_data=mesh.target is None, param_init_fn=param_init_fn)
        self._split = BatchSplit(mesh, batch_axes)
        for name, unit, unit_settings in units:
            if auto_wrapper_callable is None:
                attach([unit], unit_settings, self._split, ignored)
            else:
                self._wrap_unit(name, unit, unit_settings, auto_wrapper_callable, ignored)
        # The root keeps its parameters from forward to backward, which begins with them.
        root_settings = (
            replace(settings, reshard_after_forward=None) if reshard_after_forward else settings
        )
        self._attached = attach([module], root_settings, self._split, ignored)
        self._register_state_dict_hook(_strip_prefix)
        self.register_state_dict_pre_hook(FullyShardedDataParallel._restore)
        self.register_load_state_dict_pre_hook(_add_prefix)
        self.register_load_state_dict_post_hook(_strip_reported)
        if isinstance(type(self), _UnitInstances):
            _POLICY_UNITS.update(unit for _, unit in self.units)

    def _wrap_unit(
        self,
        name: str,
        unit: nn.Module,
        settings: Settings,
        callable_: AutoWrapper,
        ignored: list[nn.Parameter],
    ) -> None:
        """Replaces a module by the result of `auto_wrapper_callable` (by its inner module, if the
        result is of this class) and makes it a unit."""
        overrides = {
            field.name: getattr(settings, field.name)
            for field in fields(settings)
            if field.name in OVERRIDABLE
        }
        # The user's function makes the module a root, which would keep its parameters by None.
        reshards = settings.reshard_after_forward
        overrides["reshard_after_forward"] = True if reshards is None else reshards
        extra = (axis for axis in settings.batch_axes if axis != settings.shard_axis)
        wrapper = callable_(
            unit,
            mesh=settings.mesh,
            shard_axis=settings.shard_axis,
            extra_data_axis=next(extra, None),
            ignored_params=ignored,
            **overrides,
        )
        inner = wrapper.module if isinstance(wrapper, FullyShardedDataParallel) else wrapper
        if not isinstance(inner, nn.Module):
            raise TypeError(
                f"{settings.caller}: auto_wrapper_callable must return a module, got "
                f"{type(inner).__name__} for {name}"
            )
        if unit_of(inner) is None:
            attach([inner], settings, self._split, ignored)
        if inner is not unit:
            self.module.set_submodule(name, inner)

    def forward(self, *args: object, **kwargs: object) -> object:
        """Runs the module.

        Inputs without a sharding are split over the batch axes along dim 0, if these divide it.
        """
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # not set yet: a copy or an unpickled wrapper looks before it has attributes
            if name == "module":
                raise
            hint = LACKING.get(name) or (_OF_MODULES if hasattr(FSDPModule, name) else "")
            if hint and not hasattr(self.module, name):
                raise AttributeError(
                    f"{type(self).__name__} has no {name}: {hint}", name=name, obj=self
                ) from None
            return getattr(self.module, name)

    def __getitem__(self, key: object) -> object:
        return self.module[key]  # type: ignore[index]

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters under the names that they have in the wrapped module."""
        # An optimizer or a logger between a backward that raised and the next forward must not see
        # casts.
        self._restore()
        return self.module.named_parameters(prefix, recurse, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The buffers under the names that they have in the wrapped module."""
        return self.module.named_buffers(prefix, recurse, remove_duplicate)

    def _fqn_modifiers(self) -> dict[str, str]:
        """The prefix of each name of the module; `torch.distributed.checkpoint.state_dict` reads
        it."""
        names = (*self.module._parameters, *self.module._buffers, *self.module._modules)
        return dict.fromkeys(names, PREFIX.removesuffix("."))

    def extra_repr(self) -> str:
        return f"mesh={self.mesh!r}, units={len(self.units) + 1}"

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        groups: object = None,
        *,
        error_if_nonfinite: bool = False,
    ) -> torch.Tensor:
        """Scales the gradients of all parameters so that their norm, over all devices, is at most
        `max_norm`.

        Returns the norm before scaling, a scalar on the device. `torch.nn.utils.clip_grad_norm_`
        does the same. `groups` of PyTorch/XLA must be None.
        """
        if groups is not None:
            raise ValueError(
                "clip_grad_norm_: expected groups=None; the norm is that of the gradients on all "
                "devices"
            )
        # A norm of global tensors: XLA sums over the shards, for which torch's FSDP needs a
        # function of its own.
        return nn.utils.clip_grad_norm_(
            self.parameters(), max_norm, norm_type, error_if_nonfinite=error_if_nonfinite
        )

    @contextmanager
    def no_sync(self, over: str | Sequence[str] | None = None) -> Iterator[None]:
        """A context of backward passes that do not reduce gradients over the devices. The first
        backward pass after it reduces the sum of all.

        over: the mesh axes without reduction; None: all axes of the batch. As in torch, each device
        holds unreduced gradients meanwhile: they are sharded over the other axes alone.

        Reads and syncs reduce a gradient before: it always has the value of the whole batch. A
        gradient that is not known to be a sum over the batch is reduced each time, with a warning
        that names the op. `fsdp.accumulate_gradients(reduce="once")` does the same in a loop of the
        program.

        Raises ValueError for an axis that is not the batch's.
        """
        # Of all units, also of those that `fully_shard` made before: a loop over micro-batches has
        # one `no_sync`.
        axes = (
            self._split.axes if over is None else (over,) if isinstance(over, str) else tuple(over)
        )
        for axis in axes:
            if axis not in self._split.axes:
                raise ValueError(
                    "no_sync: expected over to name axes of the batch "
                    f"({', '.join(self._split.axes)}), got {axis!r}"
                )
        former = {unit: unit.unsynced.over for unit in units_in(self.module)}
        for unit in former:
            unit.defer_gradients(axes)
        try:
            yield
        finally:
            for unit, former_axes in former.items():
                unit.defer_gradients(former_axes)

    def set_gradient_divide_factors(self, pre: float, post: float, recursive: bool) -> None:
        """Makes gradients the sum over the batch's shards, one per device, divided by `pre * post`;
        those of the root unit, and with `recursive` of all units.

        The default divisor is the number of shards: the gradient of the loss as it was computed.
        """
        for unit in units_in(self.module) if recursive else [self._attached]:
            unit.divide_gradients(pre * post)

    def get_shard_metadata(self) -> dict[str, object]:
        """The metadata that `fsdp.consolidate_sharded_state_dicts` takes in addition to the state
        dicts of all ranks.

        State dicts here are full, as if saved by one rank of one: scripts that save both for
        PyTorch/XLA's consolidation work unchanged.
        """
        return {"shard_info": {}, "flatten_info": {}, "buffer_info": {}, "world_size": 1, "rank": 0}

    def params_with_grad(self) -> list[nn.Parameter]:
        """The parameters that have a gradient."""
        return [parameter for parameter in self.parameters() if parameter.grad is not None]

    @staticmethod
    def summon_full_params(
        module: nn.Module,
        recurse: bool = True,
        writeback: bool = True,
        rank0_only: bool = False,
        offload_to_cpu: bool = False,
        with_grads: bool = False,
    ) -> AbstractContextManager[None]:
        """See `fsdp.summon_full_params`; `rank0_only` and `offload_to_cpu` change nothing, with a
        warning."""
        requested = {"rank0_only": rank0_only, "offload_to_cpu": offload_to_cpu}
        warn_without_meaning(
            "summon_full_params", {name: ONE_VIEW for name, is_on in requested.items() if is_on}
        )
        return summon_full_params(
            module, recurse=recurse, writeback=writeback, with_grads=with_grads
        )

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> "FullyShardedDataParallel":
        """Applies `fn` as torch does, and shards the new tensors of the parameters (`.to(dtype)`)
        as the old ones."""
        super()._apply(fn, recurse)
        self._refresh()
        return self

    def __setstate__(self, state: StateDict) -> None:
        super().__setstate__(state)
        self._refresh()  # a file has no shardings

    def _refresh(self) -> None:
        """Has each unit shard the present tensors of its modules."""
        for unit, members in units_in(self.module).items():
            unit.refresh([module for _, module in members])

    def _restore(self, *_: object) -> None:
        """Puts parameters back into the slots of casts that a failed backward pass has left."""
        for unit in units_in(self.module) if WITH_CASTS else ():
            if unit.state is not UnitState.FORWARD:
                unit.restore()


def _strip_prefix(wrapper: nn.Module, state: StateDict, prefix: str, metadata: object) -> None:
    _rename(state, prefix + PREFIX, prefix)


def _add_prefix(wrapper: nn.Module, state: StateDict, prefix: str, *_: object) -> None:
    # torch passes no prefix to the hook after the load, whose lists of keys have it.
    wrapper.__dict__["_loading"] = prefix
    _rename(state, prefix, prefix + PREFIX)


def _rename(state: StateDict, old: str, new: str) -> None:
    """Replaces the prefix `old` of a state dict's keys."""
    # All keys are removed before any is added: a module may have a child that is called "module",
    # too.
    state.update(
        {new + key.removeprefix(old): state.pop(key) for key in [*state] if key.startswith(old)}
    )


def _strip_reported(wrapper: nn.Module, incompatible: _IncompatibleKeys) -> None:
    """Removes the wrapper's prefix from the keys that `load_state_dict` reports."""
    prefix = wrapper.__dict__.pop("_loading")
    full_prefix = prefix + PREFIX
    for keys in (incompatible.missing_keys, incompatible.unexpected_keys):
        keys[:] = [
            prefix + key.removeprefix(full_prefix) if key.startswith(full_prefix) else key
            for key in keys
        ]


# --- the names of PyTorch/XLA's two FSDPs, with their keywords ------------------------------------

# Two classes: PyTorch/XLA's first FSDP takes keywords, also by position, that its second lacks.

_OURS = dict.fromkeys(inspect.signature(FullyShardedDataParallel).parameters)
# PyTorch/XLA's arguments after the first two, by position: those of the table up to
# `coalesce_all_gather_ops`, and three of ours.
_ORDER = [*XLA]
_ORDER[_ORDER.index("coalesce_all_gather_ops") + 1 :] = (
    "auto_wrap_policy",
    "auto_wrapper_callable",
    "param_init_fn",
)


# The modules that an auto_wrap_policy of these classes chose; they stay themselves and are units.
_POLICY_UNITS: "WeakSet[nn.Module]" = WeakSet()


class _UnitInstances(type):
    """Metaclass of the wrappers: for `isinstance`, the modules chosen by an auto_wrap_policy are
    instances, too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return super().__instancecheck__(instance) or (
            isinstance(instance, nn.Module) and instance in _POLICY_UNITS
        )


@ends_at_user_line
class XlaFullyShardedDataParallel(FullyShardedDataParallel, metaclass=_UnitInstances):
    """`FullyShardedDataParallel` with the keywords of `torch_xla.distributed.fsdp` (FSDP v1) in
    addition to its own.

    `compute_dtype`, `buffer_dtype`, `fp32_reduce_scatter` make a precision policy,
    `shard_param_on_dim_0` a placement; keywords without a meaning here are named in one warning.
    Raises TypeError for an unknown keyword.

    >>> import torch, spmd, fsdp
    >>> mesh = spmd.Mesh([0], (1,), ("fsdp",))
    >>> model = fsdp.XlaFullyShardedDataParallel(
    ...     torch.nn.Linear(4, 2), mesh=mesh, compute_dtype=torch.bfloat16
    ... )
    >>> model(torch.ones(3, 4, device="xla")).dtype
    torch.bfloat16
    """

    def __init__(
        self,
        module: nn.Module,
        reshard_after_forward: bool | int = True,
        *more: object,
        **how: object,
    ):
        translated = translate(
            type(self).__name__, {**dict(zip(_ORDER, more, strict=False)), **how}, XLA, _OURS
        )
        super().__init__(module, reshard_after_forward=reshard_after_forward, **translated)

    @property
    def sharded_params(self) -> list[nn.Parameter]:
        """The parameters that are sharded."""
        return list(self.parameters())

    def get_original_names_and_sharded_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters, with their names in the wrapped module."""
        return list(self.named_parameters())


@ends_at_user_line
class SpmdFullyShardedDataParallel(FullyShardedDataParallel, metaclass=_UnitInstances):
    """`FullyShardedDataParallel` under the name of
    `torch_xla.experimental.spmd_fully_sharded_data_parallel` (FSDP v2).

    >>> import torch, spmd, fsdp
    >>> model = fsdp.SpmdFullyShardedDataParallel(
    ...     torch.nn.Linear(4, 2), mesh=spmd.Mesh([0], (1,), ("fsdp",))
    ... )
    >>> model(torch.ones(3, 4, device="xla")).shape
    torch.Size([3, 2])
    """

    @property
    def _orig_module(self) -> nn.Module:
        return self.module


spmd.register_units(FullyShardedDataParallel, checkpoint_module, warn_of_dropped_axis)

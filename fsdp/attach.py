"""Makes modules a unit: shards their parameters and adds the hooks that gather them. `fully_shard`
and `FullyShardedDataParallel` both call it. `summon_full_params` stores the parameters unsharded
for a block."""

# Why hooks and no wrapper module: a unit keeps its class, its name and its keys in state dicts, so
# that `isinstance(block, Block)`, checkpoints and users' own hooks go on as before FSDP.

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

import spmd
from spmd.mesh.notes import ends_at_user_line, say_once
from spmd.tensors.bare_names import bare_name

from .api import Settings
from .outputs import BatchSplit
from .units import ATTRIBUTE, OWNERS, Unit, modules_of, unit_of, units_in, wrapped_units

ParamInit = Callable[[nn.Module], None]


def attach(
    modules: Sequence[nn.Module],
    settings: Settings,
    split: BatchSplit,
    ignored: Collection[nn.Parameter] = (),
) -> Unit:
    """Makes modules one unit, owning all parameters not owned by nested units or ignored.

    Raises ValueError for a module that is a unit already.
    """
    for module in modules:
        if unit_of(module) is not None:
            raise ValueError(
                f"{settings.caller}: {type(module).__name__} is a unit of fsdp already; wrap a "
                "module once, children before their parents"
            )
    # Modules may be wrapped after the module above them: that unit then gives up the parameters
    # that it gathers.
    above = _above(modules)
    below = [unit for module in modules for unit in units_in(module)]
    owned_ids = {id(parameter) for unit in below for parameter in (*unit.parameters, *unit.ignored)}
    ignored_ids = {
        id(parameter)
        for parameter in (*ignored, *(tensor for unit in above for tensor in unit.ignored))
    }
    by_id = {id(parameter): parameter for module in modules for parameter in module.parameters()}
    inside = modules_of(modules)
    unit = Unit(
        parameters=[
            parameter
            for key, parameter in by_id.items()
            if key not in owned_ids and key not in ignored_ids
        ],
        ignored=[parameter for key, parameter in by_id.items() if key in ignored_ids],
        # Only where parameters are cast: slots refer to modules, which refer to the unit, a
        # reference cycle.
        slots=_slots(inside, ignored_ids) if settings.mp_policy.param_dtype is not None else (),
        settings=settings,
        split=split,
    )
    if not _UNIT_MODULES:
        register_module_module_registration_hook(_note_added)
    _UNIT_MODULES.update(inside)
    # before the marks: a cast makes a new tensor
    _cast_buffers(inside, settings.mp_policy.buffer_dtype)
    unit.refresh(modules)
    for lower in below:
        lower.is_root = False
    for upper in above:
        upper.release(unit)
        unit.is_root = False
    for module in modules:
        module.__dict__[ATTRIBUTE] = unit
        module.register_load_state_dict_pre_hook(_take_wrapped_names)
        module.register_load_state_dict_post_hook(_Loaded(unit, module))
        # Bound methods of the unit: a deep copy of the module copies it, and has hooks of its own
        # unit. post_forward runs always, also where forward raises: else casts would stand in the
        # modules from then on.
        module.register_forward_pre_hook(unit.pre_forward, with_kwargs=True)
        module.register_forward_hook(unit.post_forward, always_call=True)
    return unit


_UNIT_MODULES: "WeakSet[nn.Module]" = WeakSet()  # the modules of units


def _note_added(parent: nn.Module, name: str, module: nn.Module | None) -> None:
    """Module registration hook: says that a module added to a unit stays whole."""
    if (
        parent in _UNIT_MODULES
        and module is not None
        and any(id(parameter) not in OWNERS for parameter in module.parameters())
    ):
        say_once(
            f"fsdp: {type(module).__name__} {name!r}, added to a wrapped {type(parent).__name__}, "
            "stays whole on each device; wrap it with fsdp.fully_shard, or add it before the "
            "model is wrapped"
        )


def _above(modules: Sequence[nn.Module]) -> list[Unit]:
    """The units above these modules that own some of their parameters."""
    owners = {OWNERS.get(id(parameter)) for module in modules for parameter in module.parameters()}
    # The owner of a tied parameter may be a unit beside these modules.
    return [
        unit
        for unit in owners
        if unit is not None
        and any(below in modules for module in unit.modules for below in module.modules())
    ]


def _take_wrapped_names(
    module: nn.Module, state: dict[str, object], prefix: str, *_: object
) -> None:
    """The pre-hook of `load_state_dict`: renames keys that other wrappers saved (PyTorch/XLA's
    FSDPv2, for example) to those of the module."""
    names = {
        key: prefix + bare_name(key.removeprefix(prefix)) for key in state if key.startswith(prefix)
    }
    if all(old == new for old, new in names.items()):
        return
    present = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    for old, new in names.items():
        if old != new and new not in state and old.removeprefix(prefix) not in present:
            state[new] = state.pop(old)


class _Loaded:
    """The post-hook of `load_state_dict`: with `assign=True` modules have new parameters, which the
    unit takes over.

    It syncs the loaded values before a step reads them. Otherwise the first step after it would be
    another program than in a training run without a restart, and round differently.
    """

    def __init__(self, unit: Unit, module: nn.Module):
        self.unit = unit
        unit_ids = {id(parameter) for parameter in (*unit.parameters, *unit.ignored)}
        self.parameters = {
            name: parameter
            for name, parameter in module.named_parameters(remove_duplicate=False)
            if id(parameter) in unit_ids
        }

    def __call__(self, module: nn.Module, incompatible: object) -> None:
        # Without assign=True values are copied into the parameters, which stay the same objects.
        present = {name: module.get_parameter(name) for name in self.parameters}
        new = {
            id(old): present[name]
            for name, old in self.parameters.items()
            if present[name] is not old
        }
        if new:
            move([module])
            self.unit.exchange(new, [module])
            self.parameters = present
        if self.unit.is_root and self.unit.is_on_device and self.unit.settings.mesh.target is None:
            spmd.sync()


def _slots(
    modules: Sequence[nn.Module], ignored_ids: Collection[int]
) -> list[tuple[nn.Module, str]]:
    """The (module, name) of each parameter that modules hold themselves, without ignored ones."""
    entries = [
        (module, name, parameter)
        for module in modules
        for name, parameter in module._parameters.items()
    ]
    return [
        (module, name)
        for module, name, tensor in entries
        if tensor is not None and id(tensor) not in ignored_ids
    ]


def _cast_buffers(modules: Sequence[nn.Module], dtype: torch.dtype | None) -> None:
    """Casts the floating-point buffers that modules hold themselves; None: no cast."""
    for module in modules if dtype is not None else ():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                module._buffers[name] = buffer.to(dtype)


def materialise(
    caller: str, module: nn.Module, *, has_data: bool, param_init_fn: ParamInit | None = None
) -> None:
    """Moves a module to the device: CPU data stays on the host until its shards are uploaded, meta
    tensors are materialised.

    has_data: False for a plan over devices that are not present; meta tensors then get no initial
    values.
    """
    # Collected before `_apply`, which replaces meta tensors by empty ones: these look initialised.
    meta_modules = [
        child
        for child in module.modules()
        if any(
            tensor.is_meta
            for tensor in (*child.parameters(recurse=False), *child.buffers(recurse=False))
        )
    ]
    module._apply(
        lambda tensor: (
            torch.empty_like(tensor, device="xla") if tensor.is_meta else tensor.to("xla")
        )
    )
    for child in meta_modules if has_data else ():
        if param_init_fn is not None:
            param_init_fn(child)
            continue
        reset = getattr(child, "reset_parameters", None)
        if reset is None:
            raise ValueError(
                f"{caller}: {type(child).__name__} is on the meta device and has no "
                "reset_parameters() "
                "to initialise it; give it one, or build the module under `with "
                'torch.device("xla")`'
            )
        reset()


def move(modules: Sequence[nn.Module]) -> None:
    """Moves modules to the device without their meta tensors, which `to_empty` materialises."""
    for module in modules:
        if not all(
            tensor.device.type in ("xla", "meta")
            for tensor in (*module.parameters(), *module.buffers())
        ):
            module._apply(lambda tensor: tensor if tensor.is_meta else tensor.to("xla"))


@ends_at_user_line
@contextmanager
def summon_full_params(
    module: nn.Module, *, recurse: bool = True, writeback: bool = True, with_grads: bool = False
) -> Iterator[None]:
    """A context in which the parameters of a module's units are stored unsharded.

    Values can be read and written without it, too: a tensor is always the global one, however it is
    sharded.

    Args:
        module: a model that is wrapped. recurse: also the units below the outermost.
        writeback: True keeps values written to parameters; False restores their former values at
            the end.
        with_grads: gradients, too, are unsharded in the context.

    Raises ValueError for a module without units. Source:
    `torch.distributed.fsdp.FullyShardedDataParallel.summon_full_params`.

    >>> import torch, spmd, fsdp
    >>> model = fsdp.fully_shard(torch.nn.Linear(4, 2), mesh=spmd.Mesh([0], (1,), ("fsdp",)))
    >>> with fsdp.summon_full_params(model), torch.no_grad():
    ...     spmd.get_sharding(model.weight.zero_()).is_replicated()
    True
    """
    units = list(wrapped_units("summon_full_params", module))[: None if recurse else 1]
    parameters = [parameter for unit in units for parameter in unit.parameters]
    former_values = [] if writeback else [parameter.detach().clone() for parameter in parameters]
    for unit in units:
        unit.unshard(with_gradients=with_grads)
    try:
        yield
    finally:
        for unit in units:
            unit.reshard(with_gradients=with_grads)
        for parameter, value in zip(
            parameters if former_values else (), former_values, strict=True
        ):
            parameter.data = value

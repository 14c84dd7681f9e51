"""Makes modules a unit: their parameters are split, and hooks gather them. Both shapes of the API stand on it."""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import nn

from .api import Settings
from .outputs import BatchSplit
from .units import ATTRIBUTE, Enter, Exit, Unit, slots, unit_of, units_in

ParamInit = Callable[[nn.Module], None]


def attach(
    modules: Sequence[nn.Module], settings: Settings, split: BatchSplit, ignored: Collection[nn.Parameter] = ()
) -> Unit:
    """One unit of modules: it has their parameters but for those that units below have, and those to be ignored.

    Raises ValueError for a module that is a unit already.
    """
    for module in modules:
        if unit_of(module) is not None:
            raise ValueError(
                f"{settings.caller}: {type(module).__name__} is a unit of fsdp already; wrap a module once, children "
                "before their parents"
            )
    inner = {below for module in modules for units in units_in(module).values() for _, below in units}
    below = [unit for module in modules for unit in units_in(module)]
    taken = {id(parameter) for unit in below for parameter in (*unit.parameters, *unit.ignored)}
    left = {id(parameter) for parameter in ignored}
    every = {id(parameter): parameter for module in modules for parameter in module.parameters()}
    own = [parameter for key, parameter in every.items() if key not in taken and key not in left]
    places = [slot for module in modules for slot in slots(module, inner) if id(_at(*slot)) not in left]
    unit = Unit(
        own=own,
        whole=[parameter for key, parameter in every.items() if key in left],
        # Kept only where something is cast: a module that holds its unit, which holds it, would be a cycle.
        slots=list(dict.fromkeys(places)) if settings.mp_policy.param_dtype is not None else (),
        settings=settings,
        split=split,
    )
    _cast_buffers(modules, inner, settings.mp_policy.buffer_dtype)
    unit.refresh(modules)
    for other in below:
        other.is_root = False
    for module in modules:
        module.__dict__[ATTRIBUTE] = unit
        module.register_forward_pre_hook(Enter(unit), with_kwargs=True)
        module.register_forward_hook(Exit(unit), always_call=True)
    return unit


def _at(module: nn.Module, name: str) -> nn.Parameter | None:
    return module._parameters[name]


def _cast_buffers(modules: Sequence[nn.Module], inner: Collection[nn.Module], dtype: torch.dtype | None) -> None:
    below = [module for module in modules if module not in inner] if dtype is not None else []
    while below:
        module = below.pop()
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                module._buffers[name] = buffer.to(dtype)
        below += [child for child in module.children() if child not in inner]


def materialise(caller: str, module: nn.Module, *, has_data: bool, param_init_fn: ParamInit | None = None) -> None:
    """Brings a module onto the device: CPU data stays on the host until its shards go up; meta modules are made.

    Where it is only ever planned, over devices that are not here, what is on meta needs no initial values.
    """
    unmade = [child for child in module.modules() if any(tensor.is_meta for tensor in _own(child))]
    module._apply(lambda tensor: torch.empty_like(tensor, device="xla") if tensor.is_meta else tensor.to("xla"))
    for child in unmade if has_data else ():
        if param_init_fn is not None:
            param_init_fn(child)
            continue
        reset = getattr(child, "reset_parameters", None)
        if reset is None:
            raise ValueError(
                f"{caller}: {type(child).__name__} is on the meta device and has no reset_parameters() "
                'to initialise it; give it one, or build the module under `with torch.device("xla")`'
            )
        reset()


def move(modules: Sequence[nn.Module]) -> None:
    """Brings modules onto the device, all but what is on meta: that comes by `to_empty`."""
    for module in modules:
        if not all(tensor.device.type in ("xla", "meta") for tensor in (*module.parameters(), *module.buffers())):
            module._apply(lambda tensor: tensor if tensor.is_meta else tensor.to("xla"))


def _own(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]

"""The one owner of torch's process-wide state: the device name `xla`, its hooks, factories, autocast and seed."""

import contextlib
import types
from typing import Any

import torch
from torch.optim import optimizer
from torch.utils import _foreach_utils

from . import interrupt, random, runtime
from .autocast import NAME, register_autocast
from .factories import register_factories
from .guard import GUARD, keep_errors_of_backward
from .recompute import join_checkpoint
from .saving import join_saving
from .tensor import XlaTensor, annotate
from .ties import keep_ties
from .uninitialized import join_lazy_modules

aten = torch.ops.aten


def _claim_name() -> None:
    """Renames torch's PrivateUse1 device to `xla`; only one library per process can own that name."""
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", NAME):
        raise ImportError(
            f"torch's one custom device of this process is already called {taken!r}, so `xla` cannot be registered. "
            "Import spmd in a process that does not import the other backend."
        )
    if taken == NAME or hasattr(torch, NAME):
        raise ImportError(
            "the device name 'xla' already has an owner in this process (torch_xla, or another copy of this library). "
            "Import only one of them."
        )
    torch.utils.rename_privateuse1_backend(NAME)


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, index: int) -> bool:
        return True


def _device_module() -> types.ModuleType:
    """`torch.xla`: what torch asks of a device's module."""
    module: Any = types.ModuleType("torch.xla", "The xla device of torch-spmd.")
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = lambda device: None
    module.device = lambda index: contextlib.nullcontext()
    module._is_in_bad_fork = lambda: False
    module._initialized = True  # torch.utils.checkpoint asks before it saves the random state
    module.manual_seed = random.manual_seed
    module.manual_seed_all = random.manual_seed
    module.get_rng_state = lambda device=None: torch.tensor(random.get_state(), dtype=torch.int64, device="cpu")
    module.set_rng_state = lambda state, device=None: random.set_state(tuple(int(part) for part in state.tolist()))
    module.get_rng_state_all = lambda: [module.get_rng_state()]
    module.set_rng_state_all = lambda states: module.set_rng_state(states[0])
    module.initial_seed = lambda: random.get_state()[0] & (1 << 64) - 1
    module.seed = module.seed_all = lambda: random.manual_seed(torch.Generator().seed())
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    return module


def _join_foreach() -> None:
    """Lets torch.optim and clip_grad_norm_ use their list forms, as DTensor does: they know types by exact class."""
    for known in (optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types):
        if XlaTensor not in known:
            known.append(XlaTensor)


def _split_loaded_state() -> None:
    """Lets `Optimizer.load_state_dict` lay a parameter's state out like the parameter, on whose device it puts it."""
    process = optimizer.Optimizer._process_value_according_to_param_policy

    def split(param: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        made = process(param, value, *args, **kwargs)
        if type(made) is XlaTensor and type(param) is XlaTensor and made.shape == param.shape:
            sharding = param._cell.sharding
            if sharding is not None and made._view is None and made._cell.sharding is None:
                annotate(made, sharding)
        return made

    optimizer.Optimizer._process_value_according_to_param_policy = staticmethod(split)  # type: ignore[method-assign]


_claim_name()
_join_foreach()
_split_loaded_state()
runtime_module = _device_module()
torch._register_device_module(NAME, runtime_module)
torch._C._acc.register_python_privateuseone_hook(_Hooks())
torch._C._acc.register_python_privateuseone_device_guard(GUARD)
register_factories()
register_autocast()
keep_errors_of_backward()
interrupt.watch()
join_checkpoint()
join_saving()
keep_ties()
join_lazy_modules()
random.manual_seed(torch.initial_seed())

__all__ = ["NAME", "runtime", "runtime_module"]

"""The owner of torch's process-wide state: the device name `xla`, its hooks, and every patch of
torch."""

import sys
from collections.abc import Callable

import torch
from torch.optim import optimizer
from torch.utils import _foreach_utils

from ..base import interrupt, seed
from ..base.forking import watch_forks
from ..record.call import dispatch
from ..record.memory_formats import register_refusals
from ..record.tensor import XlaTensor, handle_calls_by
from ..record.threads import AT_FIRST_USE, IN_EACH_THREAD
from ..run.schedule import placed_like
from .autocast import NAME, register_autocast, set_autocast_dtype
from .backward import GUARD, run_backward
from .device_module import Hooks, join_accelerator, join_methods, make_module
from .factories import register_factories
from .generator import fork_rng, join_generators
from .imported import import_dynamo_and_dtensor
from .modules import apply_in_place, know_buffers, load_annotated
from .replicas import distributed_init, forward, other_device_type
from .saving import (
    get_restore_location,
    join_saving,
    legacy_load,
    restore_device,
    set_tensor_metadata,
)
from .state_shardings import know_optimizer
from .streams import join_streams
from .subclasses import join_subclasses
from .training import averaging_devices, fill_scaler, join_loaders, join_save_on_cpu, join_staging
from .uninitialized import join_lazy_modules
from .when_imported import Patch

# Libraries with an XLA device for torch of their own, by the name under which they are imported.
OTHER_OWNERS = ("torch_xla", "torch_tpu")


def _claim_name() -> None:
    """Renames torch's PrivateUse1 device to `xla`; only one library per process can own that name.

    Another library that is installed and not imported does no harm. Raises ImportError where one is
    imported.
    """
    owner = next((name for name in OTHER_OWNERS if name in sys.modules), None)
    if owner is not None:
        raise ImportError(
            f"{owner} is already imported, and torch has one XLA device per process. Import spmd "
            f"in a process that does not import {owner}; where torch imports it by itself, set "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0."
        )
    device_name = torch._C._get_privateuse1_backend_name()
    if device_name not in ("privateuseone", NAME):
        raise ImportError(
            f"torch's one custom device of this process is already called {device_name!r}, so "
            "`xla` cannot be registered. Import spmd in a process that does not import the other "
            "backend."
        )
    if device_name == NAME or hasattr(torch, NAME):
        raise ImportError(
            "the device name 'xla' already has an owner in this process, such as another copy of "
            "this library. Import only one of them."
        )
    torch.utils.rename_privateuse1_backend(NAME)


def _join_foreach() -> None:
    """Lets torch.optim and clip_grad_norm_ use their list forms, as DTensor does: they compare
    exact classes."""
    for classes in (optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types):
        if XlaTensor not in classes:
            classes.append(XlaTensor)


def _loaded_state(
    process: Callable[..., torch.Tensor],
    param: torch.Tensor,
    value: torch.Tensor,
    *args: object,
    **kwargs: object,
) -> torch.Tensor:
    """State loaded by `Optimizer.load_state_dict`, sharded like its parameter, whatever the mesh of
    the file; torch moves it to the parameter's device. The tensors passed in stay as they are."""
    result = process(param, value, *args, **kwargs)
    if isinstance(result, XlaTensor) and isinstance(param, XlaTensor) and param._view is None:
        return placed_like(result, param)
    return result


def _join_device() -> None:
    runtime_module.XlaTensor = XlaTensor  # type: ignore[attr-defined]  # its `__module__`
    torch._register_device_module(NAME, runtime_module)
    torch._C._acc.register_python_privateuseone_hook(Hooks())
    torch._C._acc.register_python_privateuseone_device_guard(GUARD)


AT_IMPORT = (
    Patch("the name of torch's PrivateUse1 device", "it is called xla", _claim_name),
    Patch(
        "`XlaTensor.__torch_dispatch__`", "calls are recorded", lambda: handle_calls_by(dispatch)
    ),
    Patch(
        "`torch.optim.optimizer._foreach_supported_types`, "
        "`torch.utils._foreach_utils._foreach_supported_types`",
        "list forms of optimizers and clipping",
        _join_foreach,
    ),
    Patch(
        "`torch.optim.Optimizer._process_value_according_to_param_policy(param, value, ...)`",
        "loaded state sharded like its parameter",
        None,
        (_loaded_state,),
    ),
    Patch(
        "`torch.optim.Optimizer.__init__(self, params, defaults)`, "
        "`torch.optim.Optimizer.__setstate__(self, state)`",
        "state that follows a mark of its parameter",
        None,
        (know_optimizer, know_optimizer),
    ),
    Patch("the module, hooks and guard of the device", "torch calls them", _join_device),
    Patch(
        "the functions `_C._accelerator_*`", "`torch.accelerator` is this device", join_accelerator
    ),
    Patch(
        "`Tensor.xla`, `Module.xla`",
        "methods that torch generates",
        lambda: join_methods(XlaTensor),
    ),
    Patch(
        "`torch.random.fork_rng(devices, enabled, ...)`",
        "generators of the device",
        join_generators,
        (fork_rng,),
    ),
    Patch(
        "`torch.nn.parallel.data_parallel._get_available_device_type()`, "
        "`torch.nn.DataParallel.forward(self, inputs, kwargs)`, "
        "`torch.nn.parallel.DistributedDataParallel.__init__(self, module, ...)`",
        "replicas of xla, which is one device",
        None,
        (other_device_type, forward, distributed_init),
    ),
    Patch(
        "`torch.utils.data._utils.pin_memory.pin_memory(data, device)`",
        "loaders on xla",
        join_loaders,
    ),
    Patch("jax's warning at a fork", "loaders' workers raise at their first use", watch_forks),
    Patch("aten kernels of the device", "factories, composites' gradients", register_factories),
    Patch(
        "kernels of layouts", "sparse, nested and quantized tensors are refused", register_refusals
    ),
    Patch(
        "`torch.set_autocast_dtype`, kernels",
        "autocast on xla, bfloat16 without a dtype",
        register_autocast,
        (set_autocast_dtype,),
    ),
    Patch(
        "pickling, copying, dlpack, `torch.serialization._get_restore_location(map_location)`, "
        "`torch._utils.set_tensor_metadata(tensor, metadata)`, "
        "`torch._utils._restore_device_fake_mode(tensor)`, `torch.serialization._legacy_load`, "
        "`torch.serialization.register_package(priority, tagger, deserializer)`",
        'pickles of xla tensors and map_location="xla"',
        join_saving,
        (get_restore_location, set_tensor_metadata, restore_device, legacy_load),
    ),
    Patch(
        "`torch.optim.swa_utils._get_foreach_kernels_supported_devices()`",
        "averages of integers, as on the CPU",
        None,
        (averaging_devices,),
    ),
    Patch(
        "`torch.autograd.graph.save_on_cpu`",
        "saved values that stay in the program",
        join_save_on_cpu,
    ),
    Patch(
        "`torch.nn.Module._apply(self, fn, recurse)`",
        "parameters that stay the same objects",
        None,
        (apply_in_place,),
    ),
    Patch(
        "`torch.nn.Module._load_from_state_dict(self, state_dict, prefix, local_metadata, ...)`",
        "shardings of assigned state",
        None,
        (load_annotated,),
    ),
    Patch(
        "`Tensor.as_subclass`, `Tensor._make_subclass`, `Tensor.__new__`, `Parameter.__new__`",
        "subclasses keep their class on the device",
        join_subclasses,
    ),
    Patch("a hook of registered buffers", "they are state from the first step on", know_buffers),
    Patch(
        "`torch.nn.UninitializedParameter`, buffers",
        "lazy modules on the device",
        join_lazy_modules,
    ),
)

AT_THE_FIRST_USE = (
    Patch(
        "`torch.autograd._engine_run_backward(t_outputs, ...)`",
        "errors in backward",
        None,
        (run_backward,),
    ),
    Patch("`torch.Stream`, `torch.Event`", "streams that wait", join_streams),
    Patch(
        "`torch.amp.GradScaler._lazy_init_scale_growth_tracker`, "
        "`torch.amp.GradScaler.load_state_dict`",
        "its first and loaded state as data",
        None,
        (fill_scaler, fill_scaler),
    ),
    Patch("the stager of `async_save`", "copies of ours", join_staging),
    Patch(
        "imports of dynamo and DTensor",
        "torch makes them in the first step",
        import_dynamo_and_dtensor,
    ),
)

IN_A_NEW_THREAD = (Patch("handlers of signals", "they run between two ops", interrupt.watch),)

runtime_module = make_module()
for _patch in AT_IMPORT:
    _patch.apply()
AT_FIRST_USE.extend(patch.apply for patch in AT_THE_FIRST_USE)
IN_EACH_THREAD.extend(patch.apply for patch in IN_A_NEW_THREAD)
seed.manual_seed(torch.initial_seed())

__all__ = ["NAME", "runtime_module"]

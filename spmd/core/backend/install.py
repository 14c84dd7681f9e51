"""The one owner of torch's process-wide state: the device name `xla`, its hooks, and every patch of torch."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.optim import optimizer
from torch.utils import _foreach_utils

from ..base import interrupt, seed
from ..base.forking import watch_forks
from ..dispatch.call import dispatch
from ..dispatch.memory_formats import register_refusals
from ..engine.placement import placed_like
from ..lazy.tensor import XlaTensor, handle_calls_by
from ..lazy.threads import AT_FIRST_USE, IN_EACH_THREAD
from . import imported as imported
from .autocast import NAME, register_autocast
from .checkpoint_hooks import join_checkpointing
from .compiled import join_associative_scan, join_control_flow, join_flex_attention
from .device_module import join_accelerator, join_methods, make_module
from .dynamic_marks import join_marks
from .export_from_device import join_decompositions, join_export
from .factories import register_factories
from .generator import join_generators
from .grad_scaler import join_grad_scaler
from .guard import GUARD, keep_errors_of_backward
from .late_imports import import_dynamo_and_dtensor
from .loaders import join_loaders
from .modules import keep_annotations, keep_identity, know_buffers
from .recompute import join_checkpoint
from .replicas import join_data_parallel, join_fully_shard
from .saved_on_cpu import join_save_on_cpu
from .saving import join_saving
from .staging import join_staging
from .streams import join_streams
from .uninitialized import join_lazy_modules

aten = torch.ops.aten


# Libraries with an XLA device for torch of their own, by the name under which they are imported.
OTHER_OWNERS = ("torch_xla", "torch_tpu")


def _claim_name() -> None:
    """Renames torch's PrivateUse1 device to `xla`; only one library per process can own that name.

    Another library that is installed and not imported does no harm. Raises ImportError where one is imported.
    """
    owner = next((name for name in OTHER_OWNERS if name in sys.modules), None)
    if owner is not None:
        raise ImportError(
            f"{owner} is already imported, and torch has one XLA device per process. Import spmd in a process that "
            f"does not import {owner}; where torch imports it by itself, set TORCH_DEVICE_BACKEND_AUTOLOAD=0."
        )
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", NAME):
        raise ImportError(
            f"torch's one custom device of this process is already called {taken!r}, so `xla` cannot be registered. "
            "Import spmd in a process that does not import the other backend."
        )
    if taken == NAME or hasattr(torch, NAME):
        raise ImportError(
            "the device name 'xla' already has an owner in this process, such as another copy of this library. Import "
            "only one of them."
        )
    torch.utils.rename_privateuse1_backend(NAME)


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, index: int) -> bool:
        return True


def _join_foreach() -> None:
    """Lets torch.optim and clip_grad_norm_ use their list forms, as DTensor does: they compare exact classes."""
    for known in (optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types):
        if XlaTensor not in known:
            known.append(XlaTensor)


def _shard_loaded_state() -> None:
    """Has `Optimizer.load_state_dict` shard a parameter's state like the parameter, whose device torch moves it to,
    whatever the mesh of the file: the tensors passed to it stay as they are."""
    process = optimizer.Optimizer._process_value_according_to_param_policy

    def sharded(param: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        made = process(param, value, *args, **kwargs)
        if type(made) is XlaTensor and type(param) is XlaTensor and param._view is None:
            return placed_like(made, param)
        return made

    optimizer.Optimizer._process_value_according_to_param_policy = staticmethod(sharded)  # type: ignore[method-assign]


def _handle_calls() -> None:
    handle_calls_by(dispatch)


def _join_device() -> None:
    torch._register_device_module(NAME, runtime_module)
    torch._C._acc.register_python_privateuseone_hook(_Hooks())
    torch._C._acc.register_python_privateuseone_device_guard(GUARD)


class Patch(NamedTuple):
    """A change of the process: its object, its reason, the check for a tensor of the device that it makes first, and
    the function that installs it."""

    what: str
    why: str
    check: str
    put: Callable[[], None]


# Programs without the device never call these.
_OURS = "it is reached by the device's name or tensors alone"

AT_IMPORT = (
    Patch("the name of torch's PrivateUse1 device", "it is called xla", _OURS, _claim_name),
    Patch("`XlaTensor.__torch_dispatch__`", "calls are recorded", _OURS, _handle_calls),
    Patch("the foreach type lists", "list forms of optimizers and clipping", "a list of exact types", _join_foreach),
    Patch(
        "`Optimizer._process_value_according_to_param_policy`", "loaded state is sharded like its parameter",
        "the type of state and parameter", _shard_loaded_state,
    ),
    Patch("`torch.xla`, hooks and guard of the device", "torch calls them", _OURS, _join_device),
    Patch("`torch._C._accelerator_*`", "`torch.accelerator` is this device", "the device argument", join_accelerator),
    Patch("`Tensor.xla`, `Module.xla`", "methods that torch generates", _OURS, lambda: join_methods(XlaTensor)),
    Patch("`torch.Generator`, `torch.random.fork_rng`", "generators of the device", "its device", join_generators),
    Patch("`nn.DataParallel`, its distributed form", "the device is one, not many", "the module's", join_data_parallel),
    Patch("`_pin_memory` of CPU tensors, loaders' pinning", "a process that pins nothing", "the device", join_loaders),
    Patch("jax's warning at a fork", "loaders' workers raise at their first use", "the caller", watch_forks),
    Patch("aten kernels of the device", "factories, composites' gradients", _OURS, register_factories),
    Patch("kernels of layouts", "sparse, nested and quantized tensors are refused", _OURS, register_refusals),
    Patch("`torch.autocast`, its kernels", "bfloat16 without a dtype", "the device type", register_autocast),
    Patch("pickling, copying, dlpack, `torch.load`", 'map_location="xla"', "the type of a tensor", join_saving),
    Patch("`save_on_cpu`", "saved values stay in the program", "the type of a tensor", join_save_on_cpu),
    Patch("`torch.distributed.checkpoint`", "a chunk for each shard of a tensor", _OURS, join_checkpointing),
    Patch("`nn.Module._apply`", "parameters stay the same objects", "the types before and after", keep_identity),
    Patch("`nn.Module._load_from_state_dict`", "assigned state keeps its sharding", "both types", keep_annotations),
    Patch("a hook of registered buffers", "they are state from the first step on", "a buffer's type", know_buffers),
    Patch("`torch.export.export`", "a copy on the CPU is traced", "the types of tensors", join_export),
    Patch("`ExportedProgram.run_decompositions`", "the same", "the types of tensors", join_decompositions),
    Patch("the compiler around `torch.cond`", "it is an op of ours", "the types of arguments", join_control_flow),
    Patch("the checks of `flex_attention`", "its op is one of ours", "the device of the query", join_flex_attention),
    Patch("the body of `associative_scan`", "its pointwise mode is CUDA's", "the devices", join_associative_scan),
    Patch("uninitialized parameters, buffers", "lazy modules on the device", "the device argument", join_lazy_modules),
)  # fmt: skip

AT_THE_FIRST_USE = (
    Patch(
        "`torch.autograd._engine_run_backward`",
        "errors in backward",
        "that the device is used",
        keep_errors_of_backward,
    ),
    Patch("the body of `checkpoint`", "recomputation that saves memory", "the types of its tensors", join_checkpoint),
    Patch("`torch.Stream`, `torch.Event`", "streams that wait", "the device argument", join_streams),
    Patch(
        "`torch.amp.GradScaler`'s first and loaded state", "it is data", "the types of its tensors", join_grad_scaler
    ),
    Patch("`torch._dynamo.mark_dynamic`", "padded data", "the type of a tensor", join_marks),
    Patch("the stager of `async_save`", "copies of ours", "the type of a tensor", join_staging),
    Patch("torch's own `fully_shard`", "it names this library's", "the module's parameters", join_fully_shard),
    Patch("imports of dynamo and DTensor", "torch makes them in the first step", _OURS, import_dynamo_and_dtensor),
)

IN_A_NEW_THREAD = (
    Patch("handlers of signals", "they run between two ops", "that the device is used", interrupt.watch),
)

runtime_module = make_module()
for _patch in AT_IMPORT:
    _patch.put()
AT_FIRST_USE.extend(patch.put for patch in AT_THE_FIRST_USE)
IN_EACH_THREAD.extend(patch.put for patch in IN_A_NEW_THREAD)
seed.manual_seed(torch.initial_seed())

__all__ = ["NAME", "runtime_module"]

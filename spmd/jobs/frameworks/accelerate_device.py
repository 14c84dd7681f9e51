"""accelerate's choice of a device: xla, in one process, without accelerate's own path for
PyTorch/XLA.

That path ignores `cpu=True`, has no main process off TPUs, and trains in float32 on TPUs and GPUs
where bfloat16 was requested; its plain path, for one device, does all of it. Batches of prepared
loaders are sharded over all devices, and a `FullyShardedDataParallelPlugin` shards the model
(`fsdp_plugin`).
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...core import processes, replaces
from ...tensors.annotate import get_sharding
from .batches import shard_loader
from .fsdp_plugin import shard_by_plugin

DEVICE = torch.device("xla", 0)
_prepared: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()  # models
# the attribute of accelerate's state that holds the plugin of its first Accelerator
_PLUGIN = "fsdp_of_all_devices"


def choose_device(state: Any) -> None:
    """Has a process state that is made from now on take xla, unless the CPU is requested, with its
    FSDP plugin."""
    shared = state.PartialState._shared_state
    if shared and shared["device"].type != DEVICE.type and not shared["_cpu"]:
        raise RuntimeError(
            f"spmd.use: accelerate has taken {shared['device']} already, for the first "
            "Accelerator() or TrainingArguments(); call spmd.use() before it"
        )
    state.PartialState.default_device = property(lambda self: DEVICE)

    # accelerate itself drops the plugin of a process without others.
    @replaces(state.AcceleratorState, "__init__")
    def keep_plugin(
        init: Callable[..., None], self: Any, *args: Any, fsdp_plugin: Any = None, **how: Any
    ) -> None:
        init(self, *args, fsdp_plugin=fsdp_plugin, **how)
        if self.device.type != DEVICE.type:
            return
        sizes = how.get("parallelism_config")
        if sizes is not None and sizes.total_size > 1:
            raise NotImplementedError(
                f"Accelerator: parallelism_config is for one process a device, got {sizes!r}; here "
                "one process has all. For dp_shard_size write "
                "fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2), for tp_size "
                "spmd.dtensor.parallelize_module(model, mesh['tp'], plan) before prepare(), for "
                "cp_size an axis in the tokens' spec, P('fsdp', 'context') (docs/sequences.md); "
                "leave out parallelism_config"
            )
        if vars(self).get(_PLUGIN) is None:
            vars(self)[_PLUGIN] = fsdp_plugin


def shard_models(accelerator: Any) -> None:
    """Has `Accelerator.prepare` shard models by the FSDP plugin, in place."""

    @replaces(accelerator.Accelerator, "prepare_model")
    def prepare_model(
        prepare: Callable[..., nn.Module],
        self: Any,
        model: nn.Module,
        device_placement: bool | None = None,
        evaluation_mode: bool = False,
    ) -> nn.Module:
        plugin = vars(self.state).get(_PLUGIN)
        if plugin is not None and not evaluation_mode:
            shard_by_plugin(model, plugin)
        result = prepare(self, model, device_placement, evaluation_mode)
        _prepared.add(result)
        return result


def shard_batches(data_loader: Any) -> None:
    """Has prepared loaders shard their batches over all devices, unless a prepared model is
    sharded: its units or rules shard what it reads, over their own mesh."""
    for kind in (data_loader.DataLoaderShard, data_loader.DataLoaderDispatcher):
        shard_loader(kind, "accelerate", _is_left)


def _is_left() -> bool:
    return processes.several() or any(map(_is_sharded, list(_prepared)))


def _is_sharded(model: nn.Module) -> bool:
    shardings = (
        get_sharding(tensor) for tensor in model.parameters() if tensor.device.type == DEVICE.type
    )
    return any(sharding is not None and not sharding.is_replicated() for sharding in shardings)


def see_no_torch_xla(imports: Any) -> None:
    """Keeps accelerate on its path for one device; its other modules ask `is_torch_xla_available()`
    of this one."""
    imports._torch_xla_available = False

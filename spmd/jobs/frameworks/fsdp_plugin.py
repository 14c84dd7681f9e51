"""accelerate's `FullyShardedDataParallelPlugin`, of either version: its options as keywords of `fsdp`'s wrapper."""

import re
from collections.abc import Sequence
from typing import Any

from torch import nn

from ...core import messages
from ...names.compat.finder import resolve

# The fields that are keywords of torch's FSDP: `fsdp` knows them, and warns of those that change nothing.
_KEYWORDS = "backward_prefetch", "forward_prefetch", "limit_all_gathers", "sync_module_states"


def shard_by_plugin(model: nn.Module, plugin: Any) -> None:
    """Shards a model in place, as a plugin says; one that has units already stays as it is.

    Raises NotImplementedError, with the lines that do it, for an option that nothing here does.
    """
    if resolve("fsdp.units:units_in")(model):
        return
    if plugin.activation_checkpointing_offload:
        raise NotImplementedError(
            "FullyShardedDataParallelPlugin: activation_checkpointing_offload is not done here; before prepare() write "
            "fsdp.checkpoint_module(layer, policy='offload_dot_with_no_batch_dims') for each layer, and leave out "
            "activation_checkpointing"
        )
    if plugin.state_dict_type.name != "FULL_STATE_DICT":
        text = f"accelerate: {plugin.state_dict_type.name}: save_state writes whole tensors; spmd.CheckpointManager"
        messages.say(f"{text} writes each device's shards", "plugin")
    how = {name: getattr(plugin, name) for name in _KEYWORDS}
    if plugin.fsdp_version == 2:
        how |= {"reshard_after_forward": plugin.reshard_after_forward, "offload_policy": plugin.cpu_offload}
        how |= {} if plugin.mixed_precision_policy is None else {"mp_policy": plugin.mixed_precision_policy}
    else:
        strategy = plugin.sharding_strategy or plugin.reshard_after_forward
        how |= {"sharding_strategy": strategy, "cpu_offload": plugin.cpu_offload}
        how["mixed_precision"] = plugin.mixed_precision_policy
    # accelerate's own function for meta tensors, which it sets with sync_module_states, leaves them empty.
    init = None if plugin.sync_module_states else plugin.param_init_fn
    policy = _policy(model, plugin)
    ignored = _ignored(model, plugin.ignored_modules)
    wrap_units(
        resolve("fsdp:FullyShardedDataParallel"), model, policy, plugin.activation_checkpointing,
        ignored_modules=ignored, param_init_fn=init, **how,
    )  # fmt: skip


def _policy(model: nn.Module, plugin: Any) -> Any:
    """The policy of units that accelerate makes of the plugin; None where it names no class."""
    plugin.set_auto_wrap_policy(model)
    policy = plugin.auto_wrap_policy
    keywords = getattr(policy, "keywords", {})
    return None if keywords.get("transformer_layer_cls") == set() else policy


def _ignored(model: nn.Module, ignored: Any) -> Sequence[nn.Module]:
    """Modules, also by a regular expression of their names, as in accelerate."""
    if isinstance(ignored, str):
        return [module for name, module in model.named_modules() if re.fullmatch(ignored, name)]
    return list(ignored or ())


def wrap_units(wrap: Any, model: Any, policy: Any, checkpointing: bool, **how: Any) -> None:
    """Shards a model in place by a wrapper class of `fsdp`, its units by a policy; checkpointing recomputes the units'
    activations."""
    checkpointed = None
    if checkpointing:

        def checkpointed(unit: Any, **how: Any) -> Any:
            return wrap(resolve("fsdp:checkpoint_module")(unit), **how)

    wrap(model, auto_wrap_policy=policy, auto_wrapper_callable=checkpointed, **how)

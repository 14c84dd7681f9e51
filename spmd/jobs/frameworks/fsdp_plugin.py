"""accelerate's `FullyShardedDataParallelPlugin`, of either version: its options as keywords of
`fsdp`'s wrapper."""

import re
from typing import Any

from torch import nn

from ...core import messages
from ...names.compat.finder import resolve

# The fields that are keywords of torch's FSDP: `fsdp` knows them, and warns of those that change
# nothing.
_KEYWORDS = "backward_prefetch", "forward_prefetch", "limit_all_gathers", "sync_module_states"


def shard_by_plugin(model: nn.Module, plugin: Any) -> None:
    """Shards a model in place, as a plugin says; one that has units already stays as it is.

    Raises NotImplementedError, with the lines that do it, for an option that nothing here does.
    """
    if resolve("fsdp.units:units_in")(model):
        return
    if plugin.activation_checkpointing_offload:
        raise NotImplementedError(
            "FullyShardedDataParallelPlugin: activation_checkpointing_offload is not done here; "
            "before prepare() write fsdp.checkpoint_module(layer, "
            "policy='offload_dot_with_no_batch_dims') for each layer, and leave out "
            "activation_checkpointing"
        )
    if plugin.state_dict_type.name != "FULL_STATE_DICT":
        messages.say(
            "accelerate: save_state writes whole tensors, spmd.CheckpointManager each device's "
            "shards",
            "plugin",
        )
    how = {name: getattr(plugin, name) for name in _KEYWORDS}
    if plugin.fsdp_version == 2:
        how |= {
            "reshard_after_forward": plugin.reshard_after_forward,
            "offload_policy": plugin.cpu_offload,
        }
        how |= (
            {}
            if plugin.mixed_precision_policy is None
            else {"mp_policy": plugin.mixed_precision_policy}
        )
    else:
        how |= {"cpu_offload": plugin.cpu_offload, "mixed_precision": plugin.mixed_precision_policy}
        how["sharding_strategy"] = plugin.sharding_strategy or plugin.reshard_after_forward
    # accelerate's own function for meta tensors, which it sets with sync_module_states, leaves them
    # empty.
    how["param_init_fn"] = None if plugin.sync_module_states else plugin.param_init_fn
    ignored = plugin.ignored_modules or ()
    if isinstance(ignored, str):
        ignored = [
            module
            for name, module in model.named_modules()
            if re.fullmatch(plugin.ignored_modules, name)
        ]
    plugin.set_auto_wrap_policy(model)
    classes = getattr(plugin.auto_wrap_policy, "keywords", {}).get(
        "transformer_layer_cls", (type(model),)
    )
    wrap_units(
        resolve("fsdp:FullyShardedDataParallel"),
        model,
        plugin.auto_wrap_policy if classes else None,
        plugin.activation_checkpointing,
        ignored_modules=list(ignored),
        **how,
    )


def wrap_units(wrap: Any, model: Any, policy: Any, checkpointing: bool, **how: Any) -> None:
    """Shards a model in place by a wrapper class of `fsdp`, its units by a policy; checkpointing
    recomputes the units' activations."""
    checkpointed = None
    if checkpointing:

        def checkpointed(unit: Any, **how: Any) -> Any:
            return wrap(resolve("fsdp:checkpoint_module")(unit), **how)

    wrap(model, auto_wrap_policy=policy, auto_wrapper_callable=checkpointed, **how)

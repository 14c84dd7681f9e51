"""transformers' Trainer: it sees `torch_xla`, which is this library, and `fsdp=True` shards the
model.

With `torch_xla` in sight TrainingArguments take accelerate's device and bfloat16, and checkpoints
have the random state of the device. Modules that were imported before `use()` get the names that
they import only with it in sight.
"""

import importlib
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from ...core import replaces
from ...mesh.hints import did_you_mean
from ...names.compat.finder import resolve
from .fsdp_plugin import wrap_units

_wrapped: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


def see_torch_xla(import_utils: Any) -> None:
    """Has `is_torch_xla_available()` look again; all of transformers calls this one function."""
    if hasattr(import_utils, "_torch_xla_available"):  # transformers 4 looks at its import
        import_utils._torch_xla_available = True
    import_utils.is_torch_xla_available.cache_clear()


# the key of `fsdp_config` that says that accelerate's plugin shards the model
_BY_PLUGIN = "by_plugin"


def complete_arguments(training_args: Any) -> None:
    """Adds what `transformers.training_args` imports of `torch_xla`; both FSDPs of `fsdp_config`
    are `xla_fsdp_v2`, and without one of them accelerate's plugin shards the model, which
    transformers refuses in one process."""
    training_args.xm = importlib.import_module("torch_xla.core.xla_model")
    arguments = training_args.TrainingArguments

    @replaces(arguments, "__post_init__")
    def post_init(original: Callable[..., None], self: Any) -> None:
        original(self)
        if isinstance(self.fsdp_config, dict) and self.fsdp_config.get("xla"):
            # the other one has a file for each process's shards
            self.fsdp_config["xla_fsdp_v2"] = True

    if not hasattr(arguments, "_process_fsdp_args"):  # transformers 4
        return

    @replaces(arguments, "_process_fsdp_args")
    def process(original: Callable[..., Any], self: Any) -> Any:
        plugin = original(self)
        if plugin is None or self.use_cpu:
            return plugin
        if not self.fsdp_config["xla"]:
            # transformers leaves wrapping to `shard_model`
            self.fsdp_config |= {"xla": True, _BY_PLUGIN: True}
        return plugin if self.fsdp_config.get(_BY_PLUGIN) else None


def complete_helpers(trainer_pt_utils: Any) -> None:
    """Adds what `transformers.trainer_pt_utils` imports of `torch_xla`."""
    trainer_pt_utils.xr = importlib.import_module("torch_xla.runtime")


def complete(trainer: Any) -> None:
    """Adds what `transformers.trainer` imports of `torch_xla`, and shards models and batches in its
    place."""
    trainer.xm = importlib.import_module("torch_xla.core.xla_model")
    trainer.met = importlib.import_module("torch_xla.debug.metrics")
    trainer.xr = importlib.import_module("torch_xla.runtime")
    trainer.xs = importlib.import_module("torch_xla.distributed.spmd")
    trainer.IS_XLA_FSDPV2_POST_2_2 = True
    if hasattr(trainer, "wrap_model_xla_fsdp"):
        trainer.wrap_model_xla_fsdp = shard_model
    else:  # transformers 4

        @replaces(trainer.Trainer, "_wrap_model")
        def wrap_model(
            wrap: Callable[..., Any], self: Any, model: nn.Module, *args: Any, **kwargs: Any
        ) -> Any:
            if self.is_fsdp_xla_enabled:
                return shard_model(model, self.args, self.is_fsdp_xla_v2_enabled)
            return wrap(self, model, *args, **kwargs)

    # The root unit shards the batch; transformers would require PyTorch/XLA's loader, where
    # accelerate has its own.
    trainer.tpu_spmd_dataloader = lambda loader: loader


def shard_model(model: nn.Module, args: Any, is_fsdp_xla_v2_enabled: bool) -> nn.Module:
    """Shards a Trainer's model in place, as its `fsdp_config` says, over the mesh that the Trainer
    has set.

    It stays the same object, so that the Trainer makes an optimizer for it (transformers 5 makes
    none for a wrapper) and saves it as the model that it is. Raises ValueError for a class that the
    model has not. With accelerate's plugin `prepare` shards it later.
    """
    if model not in _wrapped and not args.fsdp_config.get(_BY_PLUGIN):
        _wrap(model, args.fsdp_config, args.xla_fsdp_config)
        _wrapped.add(model)
    return model


def _wrap(model: Any, config: dict[str, Any], settings: dict[str, Any]) -> None:
    if config["min_num_params"] > 0:
        policy: Any = partial(
            resolve("fsdp:size_based_auto_wrap_policy"), min_num_params=config["min_num_params"]
        )
    else:
        policy = _classes(model, config.get("transformer_layer_cls_to_wrap")) or None
    if config["xla_fsdp_grad_ckpt"]:
        model.config.use_cache = False  # a checkpointed layer runs again
    wrap = resolve("fsdp:XlaFullyShardedDataParallel")
    wrap_units(wrap, model, policy, config["xla_fsdp_grad_ckpt"], **settings)


def _classes(model: nn.Module, names: list[str] | None) -> set[type[nn.Module]]:
    """The classes of these names, of modules inside the model; by default those that the model says
    not to split."""
    by_name = {type(module).__name__: type(module) for module in model.modules()}
    if names is None:
        return {
            by_name[name]
            for name in getattr(model, "_no_split_modules", None) or ()
            if name in by_name
        }
    for name in names:
        if name not in by_name:
            raise ValueError(
                f"fsdp_config: transformer_layer_cls_to_wrap has {name!r}, which is no class of a "
                f"module of this {type(model).__name__}{did_you_mean(name, by_name)}"
            )
    return {by_name[name] for name in names}

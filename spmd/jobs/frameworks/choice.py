"""`use()`: frameworks that choose a device take xla
([decision](../../docs/decisions/frameworks.md)).

The variable ACCELERATE_TORCH_DEVICE=xla is the same choice.
"""

from collections.abc import Callable
from typing import Any

from ...core import config, ends_at_user_line, patch_when_imported, points
from ...names.compat.finder import install
from . import accelerate_device, lightning_classes, trainer
from .batches import shard_copy, shard_loader

_PRECISIONS = ("MixedPrecision", "HalfPrecision", "DoublePrecision", "Precision")
_FABRIC = (
    "ACCELERATOR_REGISTRY.register(name, accelerator, description, override, ...)",
    "STRATEGY_REGISTRY.register(name, strategy, description, override, ...)",
    "_Connector._choose_strategy(self)",
    "_Connector._check_strategy_and_fallback(self)",
    *_PRECISIONS,
)
_LIGHTNING = (
    "AcceleratorRegistry.register(name, accelerator, description, override, ...)",
    "StrategyRegistry.register(name, strategy, description, override, ...)",
    "_AcceleratorConnector._choose_strategy(self)",
    "_AcceleratorConnector._check_strategy_and_fallback(self)",
    *_PRECISIONS,
)

# By the module that is changed, once it is imported, or now: its patch and the names that this
# needs.
PATCHES: dict[str, tuple[Callable[[Any], None], *tuple[str, ...]]] = {
    "accelerate.utils.imports": (accelerate_device.see_no_torch_xla, "_torch_xla_available"),
    "accelerate.state": (
        accelerate_device.choose_device,
        "PartialState._shared_state",
        "PartialState.default_device",
        "AcceleratorState.__init__",
    ),
    "accelerate.accelerator": (
        accelerate_device.shard_models,
        "Accelerator.prepare_model(self, model, device_placement, evaluation_mode)",
    ),
    "accelerate.data_loader": (
        accelerate_device.shard_batches,
        "DataLoaderShard.__iter__(self)",
        "DataLoaderDispatcher.__iter__(self)",
    ),
    "transformers.utils.import_utils": (
        trainer.see_torch_xla,
        "is_torch_xla_available.cache_clear",
    ),
    "transformers.training_args": (
        trainer.complete_arguments,
        "TrainingArguments.__post_init__(self)",
    ),
    "transformers.trainer_pt_utils": (trainer.complete_helpers,),
    "transformers.trainer": (
        trainer.complete,
        "IS_XLA_FSDPV2_POST_2_2",
        "tpu_spmd_dataloader",
        "Trainer._wrap_model",
    ),
    "timm.data.loader": (
        lambda loaders: shard_loader(loaders.PrefetchLoader, "timm"),
        "PrefetchLoader.__iter__(self)",
    ),
    "lightning.fabric.connector": (lightning_classes.complete_fabric, *_FABRIC),
    "lightning_fabric.connector": (lightning_classes.complete_fabric, *_FABRIC),
    "lightning.pytorch.trainer.connectors.accelerator_connector": (
        lightning_classes.complete_trainer,
        *_LIGHTNING,
    ),
    "pytorch_lightning.trainer.connectors.accelerator_connector": (
        lightning_classes.complete_trainer,
        *_LIGHTNING,
    ),
}


@ends_at_user_line
def use() -> None:
    """Makes xla the device of accelerate, of transformers' and Lightning's Trainer, and of what is
    built on them.

    That is trl, peft, diffusers' scripts. After it `lightning.pytorch.Trainer(accelerator="auto")`
    trains on xla, with the strategies "xla" and "xla_fsdp", and so does `lightning.fabric.Fabric`.

    From here on in this process `Accelerator().device` is xla, and `TrainingArguments().device`,
    unless the CPU is requested (`Accelerator(cpu=True)`, `TrainingArguments(use_cpu=True)`). It may
    be called before or after the import of these, but before the first `Accelerator()`; a second
    call is none. Loops play by themselves (`spmd.config.replay_steps`). `import torch_xla` gives
    names of ours from then on, as after `spmd.compat.install()`. `python -m spmd run` and
    ACCELERATE_TORCH_DEVICE=xla do the same.

    Raises RuntimeError where accelerate has chosen another device already, or a real `torch_xla` is
    installed.

    >>> import spmd
    >>> spmd.use()
    >>> from accelerate import Accelerator
    >>> Accelerator().device
    device(type='xla', index=0)
    """
    install()
    config.replay_steps = True
    if shard_copy not in points.after_upload:
        points.after_upload.append(shard_copy)
    for module, (patch, *needs) in PATCHES.items():
        patch_when_imported(module, patch, "xla as its device", *needs)

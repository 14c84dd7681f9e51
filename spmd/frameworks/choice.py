"""`use()`: frameworks that choose a device take xla ([decision](../../docs/decisions/frameworks.md)).

The variable ACCELERATE_TORCH_DEVICE=xla is the same choice.
"""

from ..compat.finder import install
from ..core.backend.when_imported import patch_when_imported
from ..core.base.config import names_xla_for_frameworks
from . import accelerate_device, fabric, lightning_trainer, trainer

# By the module that is changed, once it is imported, or now.
PATCHES = {
    "accelerate.utils.imports": accelerate_device.see_no_torch_xla,
    "accelerate.state": accelerate_device.choose_device,
    "transformers.utils.import_utils": trainer.see_torch_xla,
    "transformers.training_args": trainer.complete_arguments,
    "transformers.trainer_pt_utils": trainer.complete_helpers,
    "transformers.trainer": trainer.complete,
    "lightning.fabric.connector": fabric.complete,
    "lightning_fabric.connector": fabric.complete,
    "lightning.pytorch.trainer.connectors.accelerator_connector": lightning_trainer.complete,
    "pytorch_lightning.trainer.connectors.accelerator_connector": lightning_trainer.complete,
}  # fmt: skip


def use() -> None:
    """Makes xla the device of accelerate, of transformers' and Lightning's Trainer, and of what is built on them.

    That is trl, peft, diffusers' scripts. After it `lightning.pytorch.Trainer(accelerator="auto")` trains on xla, with
    the strategies "xla" and "xla_fsdp", and so does `lightning.fabric.Fabric`.

    From here on in this process `Accelerator().device` is xla, and `TrainingArguments().device`, unless the CPU is
    requested (`Accelerator(cpu=True)`, `TrainingArguments(use_cpu=True)`). It may be called before or after the import
    of these, but before the first `Accelerator()`; a second call is none. `import torch_xla` gives names of ours from
    then on, as after `spmd.compat.install()`. `python -m spmd run` and ACCELERATE_TORCH_DEVICE=xla do the same.

    Raises RuntimeError where accelerate has chosen another device already, or a real `torch_xla` is installed.

    >>> import spmd
    >>> spmd.use()
    >>> from accelerate import Accelerator
    >>> Accelerator().device
    device(type='xla', index=0)
    """
    install()
    for module, patch in PATCHES.items():
        patch_when_imported(module, patch)


if names_xla_for_frameworks():
    use()

"""accelerate's choice of a device: xla, in one process, without accelerate's own path for PyTorch/XLA.

That path ignores `cpu=True`, has no main process off TPUs, and trains in float32 on TPUs and GPUs where bfloat16 was
requested; its plain path, for one device, does all of it.
"""

from typing import Any

import torch

DEVICE = torch.device("xla", 0)


def choose_device(state: Any) -> None:
    """Has a process state that is made from now on take xla, unless the CPU is requested."""
    shared = state.PartialState._shared_state
    if shared and shared["device"].type != DEVICE.type and not shared["_cpu"]:
        raise RuntimeError(
            f"spmd.use: accelerate has taken {shared['device']} already, for the first Accelerator() or "
            "TrainingArguments(); call spmd.use() before it"
        )
    state.PartialState.default_device = property(lambda self: DEVICE)


def see_no_torch_xla(imports: Any) -> None:
    """Keeps accelerate on its path for one device; its other modules ask `is_torch_xla_available()` of this one."""
    imports._torch_xla_available = False

"""transformers' loop over the experts that tokens have chosen, as grouped products.

The loop's tensors have as many rows as an expert has tokens: each is read by the host, and no
program has them. The same experts by `grouped_mm`, which the library has for each of its models,
have fixed shapes.
"""

import inspect
from typing import Any

import torch

from ..core import config, patch_when_imported


def _change(module: Any) -> None:
    """Registers "eager" among transformers' experts: those of tensors on xla are computed by
    `grouped_mm`.

    Not by another `get_interface`: each of the library's blocks calls it, so that Dynamo would have
    to trace ours.
    """
    grouped = module.grouped_mm_experts_forward

    def forward(
        experts: torch.nn.Module, hidden: torch.Tensor, *arguments: Any, **named: Any
    ) -> torch.Tensor:
        is_grouped = hidden.device.type == "xla" and config.parallel != "off" and not named
        loop = inspect.unwrap(type(experts).forward)  # the class's decorator wraps it
        result: torch.Tensor = (grouped if is_grouped else loop)(
            experts, hidden, *arguments, **named
        )
        return result

    module.ExpertsInterface._global_mapping["eager"] = forward


def join() -> None:
    """Changes transformers, now or when it is imported."""
    names = "ExpertsInterface._global_mapping", "grouped_mm_experts_forward"
    patch_when_imported("transformers.integrations.moe", _change, "experts on xla", *names)


join()

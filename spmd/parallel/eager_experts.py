"""transformers' loop over the experts that tokens have chosen, as grouped products.

The loop's tensors have as many rows as an expert has tokens: each is read by the host, and no program has them. The
same experts by `grouped_mm`, which the library has for each of its models, have fixed shapes.
"""

from collections.abc import Callable
from typing import Any

import torch

from ..core import config, patch_when_imported


def _change(module: Any) -> None:
    """Has models whose experts are "eager" compute those of tensors on xla by `grouped_mm`."""
    get_interface, grouped = module.ExpertsInterface.get_interface, module.grouped_mm_experts_forward

    def chosen(self: Any, experts_implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function: Callable[..., Any] = get_interface(self, experts_implementation, default)

        def forward(experts: Any, hidden: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
            is_grouped = hidden.device.type == "xla" and config.parallel != "off" and not named
            return (grouped if is_grouped else default)(experts, hidden, *arguments, **named)

        return forward if function is default and experts_implementation == "eager" else function

    module.ExpertsInterface.get_interface = chosen


def join() -> None:
    """Changes transformers, now or when it is imported."""
    names = "ExpertsInterface.get_interface(self, experts_implementation, default)", "grouped_mm_experts_forward"
    patch_when_imported("transformers.integrations.moe", _change, "experts on xla", *names)


join()

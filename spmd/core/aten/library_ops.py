"""Custom ops of other libraries whose own kernel reads a value: the same computation without a read, by name."""

import torch

from ..record.overloads import Handler, by_arguments
from ..record.resolve import BY_NAME

aten = torch.ops.aten


def _grouped(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Rows in groups that end at `offs`, each times its group's weight."""
    return aten._grouped_mm(input, weight, offs.int())


def _grouped_backward(
    input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor, grad_output: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    ends = offs.int()
    return aten._grouped_mm(grad_output, weight.mT, ends), aten._grouped_mm(input.mT, grad_output, ends)


# transformers multiplies experts' rows by these in a graph of Dynamo, where their dtype is not bfloat16.
HANDLERS: dict[str, Handler] = {
    "transformers::grouped_mm_fallback": by_arguments(_grouped),
    "transformers::grouped_mm_fallback_backward": by_arguments(_grouped_backward),
}

BY_NAME.update(HANDLERS)

"""torch's `associative_scan` over a sharded dim: by chunks of the devices, so that its halving stays inside of each.

The chunks are scanned side by side, then their totals, which are few; each chunk takes in the total of those before it
(Blelloch, Prefix Sums and Their Applications, 1990, section 1.3). torch's algorithm alone takes every second element
of the whole dim, again and again, which a partitioner gathers each time.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._higher_order_ops.associative_scan import generic_associative_scan as of_torch
from torch.utils._pytree import tree_leaves

from ..core import Patch, config, hardware


def by_chunks(
    operator: Callable[..., Any], arrays: Sequence[torch.Tensor], dim: int = 0, additional_inputs: tuple[Any, ...] = ()
) -> Any:
    """The scan of tensors along their first dim; operator: combines rows of two times as many tensors."""
    length, count = arrays[0].shape[dim], _num_chunks()
    is_here = arrays[0].device.type == "xla" and dim == 0 and config.parallel != "off"
    if not is_here or count < 2 or length % count or length == count:
        return of_torch(operator, arrays, dim, additional_inputs)

    def of_rows(*tensors: torch.Tensor) -> list[torch.Tensor]:
        """The operator of tensors whose rows have two dims."""
        combined = operator(*(x.flatten(0, 1) for x in tensors), *additional_inputs)
        return [x.unflatten(0, tensors[0].shape[:2]) for x in tree_leaves(combined)]

    within = of_torch(of_rows, [x.unflatten(0, (count, -1)) for x in arrays], 1)
    totals = of_torch(operator, [x[:, -1] for x in within], 0, additional_inputs)
    before = [x.roll(1, 0).unsqueeze(1).expand_as(rows) for x, rows in zip(totals, within, strict=True)]
    is_first = torch.arange(count, device=arrays[0].device) == 0
    return [
        torch.where(is_first.view(-1, *[1] * (own.dim() - 1)), own, joined).flatten(0, 1)
        for own, joined in zip(within, of_rows(*before, *within), strict=True)
    ]


@torch.compiler.assume_constant_result
def _num_chunks() -> int:
    return len(hardware.devices())


def _replace() -> None:
    sys.modules["torch._higher_order_ops.associative_scan"].generic_associative_scan = by_chunks  # type: ignore[attr-defined]


Patch(
    "`torch._higher_order_ops.associative_scan.generic_associative_scan(operator, leaves, dim, additional_inputs)`",
    "scans by chunks of the devices", _replace,
).apply()  # fmt: skip

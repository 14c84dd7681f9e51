"""torch's `associative_scan` over a sharded dim: by chunks of the devices, so that its halving
stays inside of each.

The chunks are scanned side by side, then their totals, which are few; each chunk takes in the total
of those before it (Blelloch, Prefix Sums and Their Applications, 1990, section 1.3). torch's
algorithm alone takes every second element of the whole dim, again and again, which a partitioner
gathers each time.
"""

import sys
from types import FunctionType
from typing import Any

import torch

from ..core import Patch, config, hardware


def _by_chunks(operator, arrays, dim=0, additional_inputs=()):
    """The scan of tensors along their first dim; operator: combines rows of two times as many
    tensors.

    It runs with the names of torch's module, at its place, where Dynamo traces it.
    """
    count = _num_chunks() if dim == 0 and arrays[0].device.type == "xla" else 1
    if count == 1 or arrays[0].shape[0] % count or arrays[0].shape[0] == count:
        return _generic_scan_of_torch(operator, arrays, dim, additional_inputs)  # noqa: F821

    def of_rows(*tensors):
        # The operator of tensors whose rows have two dims.
        combined = operator(*[x.flatten(0, 1) for x in tensors], *additional_inputs)
        return [x.unflatten(0, tensors[0].shape[:2]) for x in pytree.tree_leaves(combined)]  # noqa: F821

    within = _generic_scan_of_torch(of_rows, [x.unflatten(0, (count, -1)) for x in arrays], 1, ())  # noqa: F821
    totals = _generic_scan_of_torch(operator, [x[:, -1] for x in within], 0, additional_inputs)  # noqa: F821
    previous = [
        x.roll(1, 0).unsqueeze(1).expand_as(rows) for x, rows in zip(totals, within, strict=True)
    ]
    is_first = torch.arange(count, device=arrays[0].device) == 0
    joined = of_rows(*previous, *within)
    return [
        torch.where(is_first.view(-1, *[1] * (chunk.dim() - 1)), chunk, x).flatten(0, 1)
        for chunk, x in zip(within, joined, strict=True)
    ]


def _num_chunks() -> int:
    return 1 if config.parallel == "off" else len(hardware.devices())


def _replace() -> None:
    function: Any = sys.modules["torch._higher_order_ops.associative_scan"].generic_associative_scan
    names, code = function.__globals__, function.__code__
    names["_generic_scan_of_torch"] = FunctionType(
        code, names, function.__name__, function.__defaults__
    )
    location = {"co_filename": code.co_filename, "co_firstlineno": code.co_firstlineno}
    function.__code__ = _by_chunks.__code__.replace(**location)
    # As `torch.compiler.assume_constant_result` marks it, which would import Dynamo; no function of
    # ours is traced.
    _num_chunks.__code__ = _num_chunks.__code__.replace(**location)
    _num_chunks._dynamo_marked_constant = True  # type: ignore[attr-defined]
    names["_num_chunks"] = _num_chunks


Patch(
    "`torch._higher_order_ops.associative_scan.generic_associative_scan(operator, leaves, dim, "
    "additional_inputs)`",
    "scans by chunks of the devices",
    _replace,
).apply()

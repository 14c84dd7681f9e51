"""Ops of torch's database over dims that the devices do not divide, what XLA pads these dims with
being no number.

    python tests/sweep/uneven.py                    # every op, two samples, float32 where it has it
    python tests/sweep/uneven.py --ops 'index|sort'

A tensor is computed from sharded data so that its padding is NaN, 1 or the largest integer, which
no result may show.
"""

import itertools
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

if __name__ == "__main__":  # this file's folder would hide the package `sweep`
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sweep import sweep
from sweep.command import Result, Sweep, main
from sweep.expected import is_expected
from sweep.uneven_calls import CALLS

import spmd

# By name, a mesh's shape and the axes that shard a tensor's dims of odd size, in their order. Of
# the second and third the last such dim is the first to be sharded.
LAYOUTS = {
    "2x4": ((2, 4), ("model",), False),
    "2x4, last dim": ((2, 4), ("model", "data"), True),
    "2x2x2": ((2, 2, 2), (("data", "expert"), "model"), False),
}


def poisoned(tensor: torch.Tensor, layout: str, is_number: bool) -> torch.Tensor:
    """The tensor with its odd dims sharded; their padding is 1 and the largest integer, or NaN and
    1."""
    shape, axes, is_reversed = LAYOUTS[layout]
    mesh = spmd.Mesh(
        range(8), shape, ("data", "model") if len(shape) == 2 else ("data", "expert", "model")
    )
    odd = [dim for dim, size in enumerate(tensor.shape) if size % 4 and size > 1]
    if tensor.layout is not torch.strided or not odd:
        return tensor
    split = dict(zip(reversed(odd) if is_reversed else odd, axes, strict=False))
    spec = spmd.P(*(split.get(dim) for dim in range(tensor.ndim)))
    data, ones = (
        spmd.mark_sharding(part, mesh, spec) for part in (tensor.clone(), torch.ones_like(tensor))
    )
    if tensor.dtype == torch.bool:
        return data | ~ones
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return data + (1 - ones) if is_number else data / ones
    return data + (1 - ones) * (torch.iinfo(tensor.dtype).max if is_number else 1)


def _compute(
    op: Any, sample: Any, device: str, seed: int, layout: str, is_number: bool
) -> list[Any]:
    change: Callable[[torch.Tensor], torch.Tensor] | None = None
    if device == "xla":
        change = partial(poisoned, layout=layout, is_number=is_number)
    given = sweep.given_on(op, sample, device, change)
    torch.manual_seed(seed)
    return sweep.results_of(op, sample, given, op.op(given.input, *given.args, **given.kwargs))


def run_op(op: Any, dtype: torch.dtype | None = None, samples: int = 2) -> Result:
    """Compares the first samples of an op in each layout with CPU, forward and backward."""
    began = time.perf_counter()
    dtype = dtype or sweep.usual_dtype(op)
    torch.manual_seed(0)
    with_gradient = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    inputs = itertools.islice(
        op.sample_inputs("cpu", dtype, requires_grad=with_gradient), samples or None
    )
    cases = [
        sweep.Case(
            f"sample {index}, {layout}",
            sample,
            partial(_compute, layout=layout, is_number=is_number),
        )
        for index, sample in enumerate(inputs)
        for layout, is_number in zip(LAYOUTS, (False, True, False), strict=True)
    ]
    return sweep.run_cases(op, str(dtype).removeprefix("torch."), cases, began)


def run_call(name: str) -> Result:
    """The same of a call of `uneven_calls.py`."""
    function, tensors = CALLS[name]

    def compute(
        op: Any, sample: Any, device: str, seed: int, layout: str, is_number: bool
    ) -> list[Any]:
        moved = [tensor.clone().to(device) for tensor in tensors]
        results = function(
            *(poisoned(one, layout, is_number) if device == "xla" else one for one in moved)
        )
        return [
            result.detach() for result in (results if isinstance(results, tuple) else (results,))
        ]

    cases = [
        sweep.Case(
            layout,
            SimpleNamespace(input=None, args=(), kwargs={}),
            partial(compute, layout=layout, is_number=is_number),
        )
        for layout, is_number in itertools.product(LAYOUTS, (False, True))
    ]
    return sweep.run_cases(
        SimpleNamespace(name=name, variant_test_name=""), "float32", cases, time.perf_counter()
    )


def _run_named(name: str, dtype: str, samples: int) -> Result:
    return run_op(sweep.OPS[name], None if dtype == sweep.USUAL else getattr(torch, dtype), samples)


if __name__ == "__main__":
    spmd.simulate(8)
    title = "operators of torch.testing over uneven dims, xla against CPU"
    main(
        Sweep(
            __file__,
            title,
            __doc__,
            tuple(sweep.OPS),
            "dtypes",
            sweep.USUAL,
            _run_named,
            is_expected,
        )
    )

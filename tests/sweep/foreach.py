"""Every list op of torch's foreach databases on `xla` against CPU: functional, in place, gradients,
size zero.

    python tests/sweep/foreach.py --samples 0                      # float32, all samples
    python tests/sweep/foreach.py --samples 0 --dtypes bfloat16,int64 --ops pow

torch's samples have lists, one number, a list of numbers and a tensor as last argument; to them
come lists of mixed dtypes, and shapes that broadcast. An op that CPU refuses must be refused with
an error of the same class.
"""

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.testing import make_tensor
from torch.testing._internal import common_methods_invocations as database
from torch.utils._pytree import tree_flatten, tree_map

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sweep import cases
from sweep.cases import WIDER, Outcome, Pair
from sweep.command import UNTRIED, Result, Sweep, main

OPS = {
    op.name: op
    for group in ("unary", "binary", "pointwise", "reduce", "other")
    for op in getattr(database, f"foreach_{group}_op_db")
}

# (name, dtype) -> reason.
EXPECTED: dict[tuple[str, str], str] = {}

# torch's 10,000 are for its CUDA kernels, which go through a list in chunks
database.NUM_SIZE0_TENSORS = 20
COUNTS = [3, 5]


def samples(
    op: Any, dtype: torch.dtype, with_gradient: bool
) -> Iterator[tuple[str, Any, tuple[Any, ...], Any]]:
    """The trials of an op: (name, list, arguments, keyword arguments)."""
    options = {"num_input_tensors": COUNTS, "allow_higher_dtype_scalars": True}
    # Said as cpu:0, the database puts tensors of size zero among the others, as it does for
    # accelerators.
    for noncontiguous in (False, True):
        given = op.sample_inputs(
            "cpu:0", dtype, requires_grad=with_gradient, noncontiguous=noncontiguous, **options
        )
        for index, sample in enumerate(given):
            # The database changes the argument list after it has given it away.
            yield (
                f"sample {index}, {noncontiguous=}",
                sample.input,
                tuple(sample.args),
                sample.kwargs,
            )
    for index, sample in enumerate(
        op.sample_zero_size_inputs("cpu", dtype, requires_grad=with_gradient)
    ):
        yield f"size zero {index}", sample.input, tuple(sample.args), sample.kwargs
    yield from _mixed(op, dtype, with_gradient)


def _mixed(
    op: Any, dtype: torch.dtype, with_gradient: bool
) -> Iterator[tuple[str, Any, tuple[Any, ...], Any]]:
    """Lists whose dtypes or shapes differ from each other, or from those of the other list."""
    make = functools.partial(make_tensor, device="cpu", requires_grad=False)
    others = (torch.float64, torch.bfloat16, torch.int32, torch.bool)
    arity = getattr(op.sample_inputs_func, "arity", 1)
    if op.name == "_foreach_mm":
        return
    for other in others:
        lists = [[make((2, 3), dtype=dtype), make((3,), dtype=other)] for _ in range(arity)]
        yield f"mixed in a list, {other}", lists[0], tuple(lists[1:]), {}
        if arity > 1:
            rest = [[make((3,), dtype=other), make((1, 3), dtype=other)] for _ in range(arity - 1)]
            yield (
                f"mixed between lists, {other}",
                [make((2, 3), dtype=dtype) for _ in range(2)],
                tuple(rest),
                {},
            )
            yield f"grows, {other}", [make((3,), dtype=dtype)] * 2, tuple(rest), {}
    if arity > 1:
        yield (
            "lengths differ",
            [make(3, dtype=dtype)],
            tuple([make(3, dtype=dtype)] * 2 for _ in range(arity - 1)),
            {},
        )
    yield "no tensors", [], tuple([] for _ in range(arity - 1)), {}


def compute(
    function: Any, device: str, given: tuple[Any, Any, Any], is_in_place: bool, wide: bool = False
) -> list[Any]:
    """The results of one call on one device, then the gradients of the tensors that ask for one."""
    leaves: list[torch.Tensor] = []
    places: dict[int, torch.Tensor] = {}

    def move(value: Any) -> Any:
        if isinstance(value, torch.dtype) and wide:
            return WIDER.get(value, value)
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in places:
            moved = (
                value.detach()
                .clone()
                .to(device, WIDER.get(value.dtype, value.dtype) if wide else value.dtype)
            )
            if value.requires_grad:
                leaves.append(moved.requires_grad_())
            places[id(value)] = moved.clone() if is_in_place and value.requires_grad else moved
        return places[id(value)]

    tensors, args, kwargs = tree_map(move, given)
    made = function(tensors, *args, **kwargs)
    outputs = tree_flatten(tensors if is_in_place else made)[0]
    wanted = [out for out in outputs if isinstance(out, torch.Tensor) and out.requires_grad]
    if not wanted or not leaves:
        return outputs
    cotangents = [cases.cotangent(out) for out in wanted]
    return outputs + list(torch.autograd.grad(wanted, leaves, cotangents, allow_unused=True))


def case(op: Any, dtype: torch.dtype, count: int = 0) -> Callable[[Outcome], None]:
    """Everything that is tried of an op in one dtype; count: the number of samples, 0 for all."""

    def tried(outcome: Outcome) -> None:
        ways = [("", op.op, False)] * op.supports_out + [(" in place", op.inplace_variant, True)]
        for with_gradient in (False, True):
            if with_gradient and not (
                op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
            ):
                continue
            pairs: list[Pair] = []
            for what, *given in itertools.islice(samples(op, dtype, with_gradient), count or None):
                for suffix, function, is_in_place in ways:
                    if function is None:
                        continue
                    on = functools.partial(
                        compute, function, given=tuple(given), is_in_place=is_in_place
                    )
                    found = outcome.both(what + suffix, on)
                    if found is not None:
                        pairs.append(
                            Pair(what + suffix, *found, functools.partial(on, "cpu", wide=True))
                        )
            outcome.check(pairs)

    return tried


def run_named(name: str, dtype: str, count: int = 0) -> Result:
    """One op of the databases in one dtype, by their names."""
    op, kind = OPS[name], getattr(torch, dtype)
    if kind not in op.supported_dtypes("cpu"):
        return Result(name, dtype, UNTRIED)
    return cases.run(name, dtype, case(op, kind, count))[0]


def is_expected(name: str, dtype: str) -> bool:
    """True for an op that is known to fail in a dtype."""
    return (name, dtype) in EXPECTED


if __name__ == "__main__":
    title = "list ops of torch.testing, xla against CPU"
    main(Sweep(__file__, title, __doc__, tuple(OPS), "dtypes", "float32", run_named, is_expected))

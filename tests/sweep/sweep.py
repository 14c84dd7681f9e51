"""Every op of torch's own operator database, on `xla` against CPU: values, dtypes, shapes and
gradients.

    python tests/sweep/sweep.py              # every op, two samples, float32 where it has it
    python tests/sweep/sweep.py --ops '^linalg' --dtypes float32,bfloat16,int64 --samples 20
    python tests/sweep/sweep.py --samples 0  # all samples

An op is recorded for all its samples and run as one program. A command works in processes of a few
ops each, so that a crash or a hang costs one op. `expected.py` says which ops are not right, and
why; `test_sweep.py` holds both to it.
"""

import contextlib
import copy
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

if __name__ == "__main__":  # this file's folder would hide the package `sweep`
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from references import REFERENCES, on_cpu
from support import TOLERANCE
from sweep.command import ERROR, HOST, LOWERED, UNTRIED, WRONG, Result, Sweep, main
from sweep.command import head as _head
from sweep.expected import is_expected

import spmd

USUAL = "usual"

# What these return is memory as it was found: only its shape and dtype can be compared.
UNINITIALISED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)


# Of equal values these may name any; what they name must be equal. The position of their argument
# dim.
TIES = {"sort": 0, "argsort": 0, "topk": 1, "kthvalue": 1, "mode": 0}

# Their index tensors must be on the CPU on any device.
CPU_ARGUMENTS = frozenset({"tensor_split"})


def full_name(op: Any) -> str:
    """The op's name with its variant, which together are unique in the database."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


OPS = {full_name(op): op for op in op_db}

for _name, _reference in REFERENCES.items():
    if _name in OPS:  # an older torch has not all of them
        OPS[_name].op = on_cpu(_reference, OPS[_name].op)

# The database fixes the seed around random ops; here two draws on CPU must differ, which is how a
# random op is known.
database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)


def usual_dtype(op: Any) -> torch.dtype:
    """float32, or what the op takes instead."""
    supported = op.supported_dtypes("cpu")
    usual = (torch.float32, torch.int64, torch.bool, torch.complex64, *supported)
    return next((dtype for dtype in usual if dtype in supported), torch.float32)


def run_op(op: Any, dtype: torch.dtype | None = None, samples: int = 2) -> Result:
    """Compares the first `samples` samples (0: all) of one op of the database with CPU, forward and
    backward.

    dtype: None stands for float32, or for what the op takes instead.
    """
    began = time.perf_counter()
    dtype = dtype or usual_dtype(op)
    name, kind = full_name(op), str(dtype).removeprefix("torch.")
    if dtype not in op.supported_dtypes("cpu"):
        return Result(name, kind, UNTRIED)
    torch.manual_seed(0)
    with_gradient = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    given = list(
        itertools.islice(
            op.sample_inputs("cpu", dtype, requires_grad=with_gradient), samples or None
        )
    )
    return run_cases(
        op,
        kind,
        [Case(f"sample {index}", sample, _compute) for index, sample in enumerate(given)],
        began,
    )


@dataclass(frozen=True, slots=True)
class Case:
    """One way to call an op with one sample. compute: (op, sample, device, seed) -> what is
    compared."""

    name: str
    sample: Any
    compute: Callable[[Any, Any, str, int], list[Any]]


def run_cases(op: Any, kind: str, cases: Sequence[Case], began: float) -> Result:
    """Computes every case on both devices and compares."""
    name = full_name(op)
    if not cases:
        return Result(name, kind, UNTRIED)
    visits = host_visits()
    messages = _run_together(op, cases)
    visited = visits != messages.visits
    seconds = time.perf_counter() - began
    if messages.errors:
        return Result(name, kind, ERROR, messages.errors[0], len(cases), seconds)
    if messages.differences:
        return Result(name, kind, WRONG, messages.differences[0], len(cases), seconds)
    return Result(name, kind, HOST if visited else LOWERED, "", len(cases), seconds)


def host_visits() -> int:
    return sum(map(spmd.metrics.counter, ("host_ops", "host_reads", "fallbacks")))


@dataclass(slots=True)
class _Messages:
    errors: list[str]
    differences: list[str]
    visits: int = 0


def _run_together(op: Any, cases: Sequence[Case]) -> _Messages:
    """Records every case, runs them as one program, compares; one by one when that program
    fails."""
    messages = _Messages([], [])
    recorded = []
    for case in cases:
        expected, again = (
            case.compute(op, case.sample, "cpu", 0),
            case.compute(op, case.sample, "cpu", 1),
        )
        is_random = not _agree(expected, again)
        try:
            actual = case.compute(op, case.sample, "xla", 0)
        except Exception as error:
            messages.errors.append(f"{case.name}: {_head(error)}")
            continue
        recorded.append((case, actual, expected, is_random))
    messages.visits = host_visits()
    with contextlib.suppress(Exception):  # reading below says which case it was
        spmd.sync()
    for case, actual, expected, is_random in recorded:
        try:
            _check(op, case, actual, expected, is_random)
        except AssertionError as error:
            if _is_rounding(op, case, actual, expected):
                continue
            messages.differences.append(f"{case.name}: {_head(error)}")
        except Exception as error:
            messages.errors.append(f"{case.name}: {_head(error)}")
    return messages


@dataclass(slots=True)
class Given:
    """A sample's arguments on one device, and the tensors among them that ask for a gradient."""

    input: Any
    args: Any
    kwargs: dict[str, Any]
    leaves: list[torch.Tensor]


def given_on(
    op: Any, sample: Any, device: str, change: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> Given:
    """A sample's arguments copied to a device. change: what to make of every tensor there."""
    leaves: list[torch.Tensor] = []

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            moved = _copied(value.detach(), device, op.name.startswith("as_strided"))
            moved = moved if change is None else change(moved)
            if value.requires_grad:
                leaves.append(moved.requires_grad_())
            return moved
        if isinstance(value, torch.device) or (type(value) is str and value == "cpu"):
            return torch.device(device)
        return value

    first, args, kwargs = tree_map(
        move, (sample.input, () if op.name in CPU_ARGUMENTS else sample.args, sample.kwargs)
    )
    return Given(first, sample.args if op.name in CPU_ARGUMENTS else args, kwargs, leaves)


def _compute(op: Any, sample: Any, device: str, seed: int) -> list[Any]:
    """The results of one sample on one device, then the gradients of the tensors that ask for
    one."""
    given = given_on(op, sample, device)
    torch.manual_seed(seed)
    return results_of(op, sample, given, op.op(given.input, *given.args, **given.kwargs))


def results_of(op: Any, sample: Any, given: Given, result: Any) -> list[Any]:
    """The compared tensors of a call: its results, then the gradients of the tensors that ask for
    one."""
    outputs = [*tree_flatten(sample.output_process_fn_grad(result))[0]]
    if op.name in TIES and given.input.dim():
        outputs[-1] = _named(given.input.detach(), outputs[-1], *_dim_of(op, sample))
    wanted = [
        output for output in outputs if isinstance(output, torch.Tensor) and output.requires_grad
    ]
    if not wanted or not given.leaves:
        return outputs
    return outputs + list(
        torch.autograd.grad(
            wanted, given.leaves, [cotangent(output) for output in wanted], allow_unused=True
        )
    )


def _copied(value: torch.Tensor, device: str, with_memory: bool) -> torch.Tensor:
    """A copy on a device; with the memory around it for ops that look there."""
    if not with_memory or value.layout is not torch.strided:
        return value.clone().to(device)
    size = value.untyped_storage().nbytes() // value.element_size()
    memory = value.as_strided((size,), (1,), 0).clone().to(device)
    return memory.as_strided(value.shape, value.stride(), value.storage_offset())


def _dim_of(op: Any, sample: Any) -> tuple[int, bool]:
    def argument(name: str, place: int, default: Any) -> Any:
        return sample.kwargs.get(name, sample.args[place] if len(sample.args) > place else default)

    place = TIES[op.name]
    keeps = op.name not in ("kthvalue", "mode") or argument("keepdim", place + 1, False)
    return argument("dim", place, -1), keeps


def _named(values: torch.Tensor, index: torch.Tensor, dim: int, keeps: bool) -> torch.Tensor:
    assert index.dtype == torch.int64, index.dtype
    return values.gather(dim, index if keeps else index.unsqueeze(dim))


WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


def _is_rounding(op: Any, case: Case, actual: list[Any], expected: list[Any]) -> bool:
    """True where CPU itself is that far from the result in float64, as of an ill-conditioned
    sample.

    Every result of the device must then be within the table, or within twice CPU's own error (a
    tensor's greatest).
    """

    def widen(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in WIDER:
            return value.detach().to(WIDER[value.dtype]).requires_grad_(value.requires_grad)
        return WIDER.get(value, value) if isinstance(value, torch.dtype) else value

    wide, given = copy.copy(case.sample), case.sample
    wide.input, wide.args, wide.kwargs = tree_map(widen, (given.input, given.args, given.kwargs))
    try:
        exact = case.compute(op, wide, "cpu", 0)
    except Exception:
        return False
    if not len(actual) == len(expected) == len(exact):
        return False
    return all(_is_as_exact(*three) for three in zip(actual, expected, exact, strict=True))


def _is_as_exact(actual: Any, expected: Any, exact: Any) -> bool:
    if not isinstance(expected, torch.Tensor):
        return type(actual) is type(expected) and (
            isinstance(actual, (float, complex)) or actual == expected
        )
    if expected.dtype not in WIDER:
        return actual.dtype == expected.dtype and torch.equal(actual.cpu(), expected)
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return False
    one, other, exact = (
        actual.detach().cpu().to(exact.dtype),
        expected.detach().to(exact.dtype),
        exact.detach(),
    )
    rtol, atol = TOLERANCE[expected.dtype]
    if torch.allclose(one, other, rtol=rtol, atol=atol, equal_nan=True):
        return True
    finite = exact.isfinite() & other.isfinite()
    if not torch.allclose(one[~finite], other[~finite], equal_nan=True):
        return False
    errors = (other - exact)[finite].abs()
    return not errors.numel() or bool(((one - exact)[finite].abs() <= 2 * errors.max()).all())


def cotangent(output: torch.Tensor) -> torch.Tensor:
    ramp = torch.linspace(0.5, 1.5, max(output.numel(), 1), dtype=torch.float64, device="cpu")[
        : output.numel()
    ]
    return ramp.reshape(output.shape).to(output.dtype).to(output.device)


def _agree(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or one.layout is not torch.strided:
        return True
    one, other = _comparable(one), _comparable(other)
    return one.shape == other.shape and torch.allclose(
        one, other, rtol=1e-3, atol=1e-3, equal_nan=True
    )


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a dtype that torch compares on CPU: it does not compare eight-bit
    floats."""
    return tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize == 1 else tensor


def _check(op: Any, case: Case, actual: list[Any], expected: list[Any], is_random: bool) -> None:
    """Compares; where that fails and CPU's own draws differ, again with as many of them as tell how
    far they spread.

    Two draws may be equal by chance, and one draw may decide many elements, such as a whole channel
    in dropout3d.
    """
    try:
        _compare(op, actual, expected, is_random)
    except AssertionError:
        draws = [case.compute(op, case.sample, "cpu", seed) for seed in range(1, 17)]
        if not all(_agree(expected, draw) for draw in draws):
            return _compare(op, actual, expected, True, draws)
        if not all(
            _is_as_near(one, each) for one, *each in zip(actual, expected, *draws, strict=True)
        ):
            raise


def _is_as_near(one: Any, draws: list[Any]) -> bool:
    """True for a result within six standard deviations of draws that agree roughly (0 without
    random numbers)."""
    first = draws[0]
    if not isinstance(first, torch.Tensor) or first.dtype not in TOLERANCE:
        return False
    if not isinstance(one, torch.Tensor) or (one.dtype, one.shape) != (first.dtype, first.shape):
        return False
    rtol, atol = TOLERANCE[first.dtype]
    wide = torch.stack(draws).detach().to(WIDER.get(first.dtype, first.dtype))
    mean, spread = wide.mean(0), wide.std(0)
    return bool(((one.detach().cpu() - mean).abs() <= atol + rtol * mean.abs() + 6 * spread).all())


def _compare(
    op: Any,
    actual: list[Any],
    expected: list[Any],
    is_random: bool,
    draws: Sequence[list[Any]] = (),
) -> None:
    assert len(actual) == len(expected), f"{_brief(actual)}, expected {_brief(expected)}"
    for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
        if not isinstance(other, torch.Tensor):
            assert type(one) is type(other), f"result {index}: {one!r}, expected {other!r}"
            assert one == other or is_random or one != one or _close(one, other), (
                f"result {index}: {one!r}, expected {other!r}"
            )
            continue
        assert isinstance(one, torch.Tensor), f"result {index}: {one!r}, expected a tensor"
        assert one.device.type == "xla", f"result {index} is on {one.device}, expected xla"
        assert one.dtype == other.dtype, f"result {index}: {one.dtype}, expected {other.dtype}"
        assert one.shape == other.shape, (
            f"result {index}: {tuple(one.shape)}, expected {tuple(other.shape)}"
        )
        one, other = one.detach().cpu(), other.detach()
        if op.name in UNINITIALISED:
            continue
        if is_random:
            _compare_moments(one, other, [draw[index] for draw in draws])
            continue
        rtol, atol = TOLERANCE.get(other.dtype, (0, 0))
        one, other = _comparable(one), _comparable(other)
        torch.testing.assert_close(
            one,
            other,
            rtol=rtol,
            atol=atol,
            equal_nan=True,
            msg=lambda text, i=index: f"result {i}: {text}",
        )


def _brief(results: list[Any]) -> str:
    return f"{len(results)} results {[one for one in results if not isinstance(one, torch.Tensor)]}"


def _close(one: Any, other: Any) -> bool:
    rtol, atol = TOLERANCE[torch.float32]
    return isinstance(one, float) and abs(one - other) <= atol + rtol * abs(other)


def _compare_moments(
    one: torch.Tensor, other: torch.Tensor, draws: Sequence[torch.Tensor] = ()
) -> None:
    """Means of two draws differ by less than six standard errors; both are finite where the other
    is.

    draws: more of CPU's; the standard error is then that of their means, else that of independent
    elements.
    """
    if not other.dtype.is_floating_point or other.numel() < 8:
        return
    one, other = one.double().flatten(), other.double().flatten()
    if not other.isfinite().all():
        return
    assert one.isfinite().all(), "a draw is not finite"
    if draws:
        error = (
            6
            * torch.stack([draw.detach().double().mean() for draw in (*draws, other)]).std().item()
            * 2**0.5
        )
    else:
        error = 6 * max(one.std().item(), other.std().item()) * (2 / other.numel()) ** 0.5
    assert abs(one.mean() - other.mean()) <= error + 1e-6, (
        f"means of the draws: {one.mean():.4f}, expected {other.mean():.4f}"
    )


def _run_named(name: str, dtype: str, samples: int) -> Result:
    return run_op(OPS[name], None if dtype == USUAL else getattr(torch, dtype), samples)


if __name__ == "__main__":
    title = "operators of torch.testing, xla against CPU"
    main(Sweep(__file__, title, __doc__, tuple(OPS), "dtypes", USUAL, _run_named, is_expected))

"""Tools that find a fault: eager execution, the op that made the first NaN, the op that differs
from the CPU."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from ...core import XlaTensor, ends_at_user_line, held, points, syncs, tensor_meta, user_line
from ...core.extend import call, execute, op_watch, user_lines
from .nans import INFINITE, NAN, NanGuard


@ends_at_user_line
@contextlib.contextmanager
def eager() -> Iterator[None]:
    """A context in which each op runs as it is called, so that an error is raised at the line of
    the call.

    Results are the same, up to the rounding of ops that one program would have fused. Each new op
    is compiled by itself: it is slow, and meant to find a fault. Ops recorded before run on entry.
    It holds for the calling thread.

    >>> import torch, spmd
    >>> with spmd.eager():
    ...     y = torch.ones(2, device="xla") + 1
    >>> spmd.get_stablehlo()
    ''
    """
    syncs.sync()
    with op_watch.watching(_run_now):
        yield
    syncs.sync()


def _run_now(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = call.dispatch(func, types, args, kwargs)
    syncs.sync(wait=True)
    return result


def _run_own_op() -> None:
    """Runs an op that was recorded without dispatch, where this thread is in `eager`."""
    if op_watch.watcher.value is _run_now:
        syncs.sync(wait=True)


points.after_own_op.append(_run_own_op)


@ends_at_user_line
@contextlib.contextmanager
def nan_guard(*, inf: bool = True) -> Iterator[None]:
    """A context in which a program that computes a NaN or an infinity raises an error that names
    the op and its line.

    The op named is the first whose result has one while its operands have none. Where a NaN comes
    in with data (of a batch, a parameter, a buffer, an optimizer's state) and reaches a result,
    that data and its line are named; so is the op that brings an infinity, or a number of the
    user's that is one, into a parameter, and the op that brings a NaN or an infinity to a cast to
    integers, which have no value for it. An infinity that goes elsewhere
    (`masked_fill(mask, -inf)`) is no error, nor a value that the program never needs. Inside,
    programs return one flag per value and donate nothing, so tensors keep the data from before the
    program that failed; ops that need the value at fault are dropped, and all others stay recorded.
    Pending ops run when it ends. It holds for the calling thread.

    Args:
        inf: look for infinities, too.

    Raises FloatingPointError, at the sync or read that runs the program; for CPU data that is cast
    to integers on its way to the device, at the copy.

    >>> import torch, spmd
    >>> x = torch.tensor([1.0, -1.0]).to("xla")
    >>> with spmd.nan_guard():
    ...     y = x.log()
    Traceback (most recent call last):
    ...
    spmd.tools.debug.nans.NanError: nan_guard: the first NaN was made by aten.log(float32[2]), ...
    """
    with execute.guard.held(NanGuard(NAN | INFINITE if inf else NAN)):
        yield
        syncs.sync()


# By dtype: the largest difference of an op's result from the CPU's, relative to its largest
# element, and absolute.
TOLERANCE = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 2e-5,
    torch.complex64: 2e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
}


@ends_at_user_line
def check(fn: Callable[..., Any], *args: Any, cpu: Callable[..., Any] | None = None) -> Any:
    """Runs a function on the device and on the CPU from the same inputs, and names the first op
    that differs.

    Each op that the function calls on the device, backward included, is run on the CPU as well,
    from the operands that the device had. A result differs when an element is further off than
    tolerance x (1 + largest element): 2e-5 for float32, 2e-2 for bfloat16, 2e-3 for float16, 1e-9
    for float64, exact for integers. Then the full function runs on the CPU; the norm of its
    results' difference may be five times as large, because rounding adds up. Ops that draw random
    numbers are not compared, nor in that case the full function; an op that the CPU lacks is
    checked only there. Returns the function's result on the device.

    Args:
        fn: a function or module; a module is copied to the CPU.
        args: pytrees of tensors and modules; tensors may be on xla, sharded or not, or on the CPU,
            and are moved.
        cpu: the function for the CPU in place of `fn`, where `fn` itself holds device tensors (a
            model, a closure).

    Raises AssertionError that names the op, the user's line, and the difference.

    >>> import torch, spmd
    >>> spmd.check(lambda x: (x @ x).relu(), torch.eye(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    reference = fn if cpu is None else cpu
    reference, inputs = tree_map(_to_cpu, (reference, args))
    comparison = _Comparison()
    with op_watch.watching(comparison):
        result = fn(*tree_map(_to_device, args))
    if not comparison.is_random:
        _compare_whole(result, reference, inputs)
    return result


def _to_cpu(value: Any) -> Any:
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).to("cpu")
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone().requires_grad_(value.requires_grad)
    return value


def _to_device(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and not isinstance(value, XlaTensor):
        return value.detach().to("xla").requires_grad_(value.requires_grad)
    return value


class _Comparison:
    """A watcher that runs each op on the CPU as well; the ops that an op calls are part of it."""

    def __init__(self) -> None:
        self.inside = False
        self.is_random = False

    def __call__(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.inside:
            return call.dispatch(func, types, args, kwargs)
        with held(self, inside=True):
            if torch.Tag.nondeterministic_seeded in func.tags:
                self.is_random = True
                return call.dispatch(func, types, args, kwargs)
            copies, keywords = tree_map(_operand, (args, kwargs))
            result = call.dispatch(func, types, args, kwargs)
            self._compare(func, (result, args, kwargs), copies, keywords)
            return result

    def _compare(
        self, func: Any, actual: Any, copies: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        name = func._schema.name.split("::")[1]
        if name.lstrip("_").removeprefix("new_").startswith("empty") or name.startswith("resize"):
            return  # uninitialized memory
        try:
            expected = func(*copies, **keywords)
        except (NotImplementedError, RuntimeError):
            return  # the CPU has no such op: only the full function is compared
        written = func._schema.is_mutable
        expected = (expected, copies, keywords) if written else expected
        problem = _difference(actual if written else actual[0], expected)
        if problem is not None:
            operands = [
                value for value in tree_flatten(actual[1:])[0] if isinstance(value, XlaTensor)
            ]
            shapes = ", ".join(repr(tensor_meta(tensor)) for tensor in operands)
            raise AssertionError(
                f"check: {func}({shapes}) differs from the CPU: {problem}. Called at {_line()}"
            )


def _line() -> Any:
    node = torch._C._current_autograd_node()
    line = (
        None
        if node is None
        else user_lines.forward_line(user_lines.THREADS.backward.base + node._sequence_nr())
    )
    return user_line() if line is None else f"the backward of {line}"


def _operand(value: Any) -> Any:
    if isinstance(value, XlaTensor):
        return value.detach().cpu()
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "xla" else value


def _pairs(actual: Any, expected: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    ours, theirs = (
        [value.detach().cpu() for value in tree_flatten(tree)[0] if isinstance(value, torch.Tensor)]
        for tree in (actual, expected)
    )
    return list(zip(ours, theirs, strict=False))


def _difference(actual: Any, expected: Any) -> str | None:
    """Describes the difference between the tensors of two trees; None where they agree."""
    for ours, theirs in _pairs(actual, expected):
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            return f"{ours.dtype}{list(ours.shape)} instead of {theirs.dtype}{list(theirs.shape)}"
        tolerance = TOLERANCE.get(theirs.dtype, 0)
        limit = tolerance * (1 + magnitude(theirs)) if tolerance else 0
        if not torch.allclose(ours, theirs, rtol=0, atol=limit, equal_nan=True):
            off = (ours != theirs) & ~(ours.isnan() & theirs.isnan())
            return (
                f"{int(off.sum())} of {off.numel()} elements, the worst by "
                f"{distance(ours, theirs):.3g} where {limit:.3g} is allowed"
            )
    return None


def _compare_whole(result: Any, reference: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        expected = reference(*arguments)
    except RuntimeError as error:
        raise RuntimeError(
            "check: every op agrees with the CPU, but the function itself does not run there "
            f"({error}). Pass the tensors it uses as arguments, or the function for the CPU as "
            "cpu="
        ) from error
    for ours, theirs in _pairs(result, expected):
        tolerance = 5 * TOLERANCE.get(theirs.dtype, 0)
        scale = float(wide(theirs).norm())
        off = (
            float((wide(ours) - wide(theirs)).norm())
            if ours.shape == theirs.shape
            else float("inf")
        )
        if off > tolerance * (scale + 1e-6):
            raise AssertionError(
                "check: each op agrees with the CPU, but the function's result differs by "
                f"{off:.3g} (norm {scale:.3g}): it reads its device, sees aliases "
                "differently, or amplifies rounding"
            )


# --- differences of two values -------------------------------------------------------------------


def distance(value: torch.Tensor | None, reference: torch.Tensor | None) -> float:
    """The largest absolute difference of two values; infinite where only one is there, is a NaN, or
    has this shape."""
    if value is None or reference is None or value.shape != reference.shape:
        return float("inf")
    if not value.numel():
        return 0.0
    value, reference = wide(value), wide(reference)
    same = (value == reference) | (value.isnan() & reference.isnan())
    return float(
        (value - reference)
        .abs()
        .nan_to_num(nan=float("inf"), posinf=float("inf"))
        .where(~same, 0.0)
        .max()
    )


def magnitude(value: torch.Tensor) -> float:
    """The largest finite absolute value."""
    absolute = wide(value).abs()
    finite = absolute[absolute.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def wide(value: torch.Tensor) -> torch.Tensor:
    """The value in double precision."""
    return value.to(torch.complex128 if value.is_complex() else torch.float64)

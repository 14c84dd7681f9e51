"""Exceptions and Ctrl-C in places where torch's C++ takes none: the device guard, and the run of a backward pass."""

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..interrupt import later
from ..ir.graph import origin
from ..ir.source import THREADS, Line, Ring, forward_ring
from ..lazy.tensor import XlaTensor
from ..lazy.threads import enter_thread

_TYPE = torch._C._autograd.DeviceType.PrivateUse1
_interrupted = threading.local()  # .error: what was raised in this thread's backward pass
_probe = ().__len__  # the cheapest call that the interpreter does not specialise


class _Guard(torch._C._acc.DeviceGuard):
    # torch asks this several times an op, and no exception may come out: so it runs no bytecode that Ctrl-C could stop.
    type_ = itertools.repeat(_TYPE).__next__  # type: ignore[assignment]  # torch's stub has another type


def _type_in_backward() -> Any:
    """What `_Guard.type_` is during a backward pass.

    The engine asks it also while it unwinds from a Python exception (a hook that raised), from a C++ destructor; to
    leave it with that exception still set would abort the process. Python turns a call made with an exception set into
    a SystemError caused by it: so it is found and kept, for `run_backward` to raise.
    """
    try:
        _probe()
    except SystemError as error:
        _interrupted.error = error.__cause__
    return _TYPE


GUARD = _Guard()
_backward_lock = threading.Lock()
_num_backward = 0


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    global _num_backward
    with _backward_lock:
        _num_backward += 1
        GUARD.type_ = _type_in_backward  # type: ignore[method-assign]
    try:
        yield
    finally:
        with _backward_lock:
            _num_backward -= 1
            if not _num_backward:
                del GUARD.type_


def _recorded_in(roots: Sequence[torch.Tensor]) -> Ring:
    """The ring of the thread that recorded what a backward pass starts from."""
    for root in roots:
        if type(root) is XlaTensor and root.grad_fn is not None:
            made: Any = root._view or origin(root._cell.value)
            place = None if made is None else Line(made.code, made.instruction)
            return forward_ring(root.grad_fn._sequence_nr(), place)
    return THREADS.ring


def keep_errors_of_backward() -> None:
    """Raises what `_type_in_backward` kept; the engine itself has forgotten it by then."""
    engine = torch.autograd._engine_run_backward

    def run_backward(roots: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        enter_thread()
        around, THREADS.backward = THREADS.backward, _recorded_in(roots)
        try:
            # Ctrl-C raised within `_type_in_backward` would abort the process.
            with later(), _guarded():
                return engine(roots, *args, **kwargs)
        except SystemError:
            error, _interrupted.error = getattr(_interrupted, "error", None), None
            if error is None:
                raise
            raise error from None
        finally:
            THREADS.backward = around

    torch.autograd._engine_run_backward = run_backward  # type: ignore[assignment]

"""Exceptions and Ctrl-C where torch's C++ allows none: in the device guard, and during a backward pass."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..base.interrupt import later
from ..base.state import PerThread, held
from ..graph.graph import origin
from ..graph.source import THREADS, Line, Ring, forward_ring
from ..record.tensor import XlaTensor
from ..record.threads import enter_thread
from .when_imported import replaces

_TYPE = torch._C._autograd.DeviceType.PrivateUse1
_interrupted = PerThread[BaseException | None](None)  # the exception raised in this thread's backward pass
_probe = ().__len__  # the cheapest call that the interpreter does not specialise


class _Guard(torch._C._acc.DeviceGuard):
    # torch calls this several times an op, and no exception may come out: it runs no bytecode that Ctrl-C could stop.
    type_ = itertools.repeat(_TYPE).__next__  # type: ignore[assignment]  # torch's stub has another type


def _type_in_backward() -> torch._C._autograd.DeviceType:
    """Replaces `_Guard.type_` during a backward pass.

    The engine calls it also while it unwinds from a Python exception (a hook that raised), from a C++ destructor; a
    return with that exception still set would abort the process. Python raises a SystemError caused by it for a call
    made with an exception set: so the exception is found and kept, and `run_backward` raises it.
    """
    try:
        _probe()
    except SystemError as error:
        _interrupted.value = error.__cause__
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
    """The ring of the thread that recorded the roots of a backward pass."""
    for root in roots:
        if type(root) is XlaTensor and root.grad_fn is not None:
            result: Any = root._view or origin(root._storage.value)
            line = None if result is None else Line(result.code, result.instruction)
            return forward_ring(root.grad_fn._sequence_nr(), line)
    return THREADS.ring


def keep_errors_of_backward() -> None:
    """Raises the exception that `_type_in_backward` kept, which the engine itself has dropped by then."""

    @replaces(torch.autograd, "_engine_run_backward")
    def run_backward(
        engine: Callable[..., object], roots: Sequence[torch.Tensor], *args: object, **kwargs: object
    ) -> object:
        enter_thread()
        if torch._C._is_multithreading_enabled():  # by `torch.inference_mode(False)`
            torch.autograd.set_multithreading_enabled(False)
        try:
            # Ctrl-C raised within `_type_in_backward` would abort the process.
            with held(THREADS, backward=_recorded_in(roots)), later(), _guarded():
                return engine(roots, *args, **kwargs)
        except SystemError:
            error, _interrupted.value = _interrupted.value, None
            if error is None:
                raise
            raise error from None

"""Signals whose handlers may raise (Ctrl-C, an alarm, a preemption): when they are handled, and
when they must wait.

torch calls the device guard from C++ functions that let no exception out, and the call itself lets
Python run its signal handlers: an exception of one aborts the process. So from the first use of the
device every handler written in Python is replaced by one that calls it a moment later: at the next
op that is recorded, between two ops, or, without one, after `PATIENCE`.
"""

import _signal
import _thread
import _weakrefset
import contextlib
import gc
import itertools
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NamedTuple

from torch.utils import weak

from .counters import pace

# Seconds after which a signal that no op has taken is handled anywhere in the program: in a sleep,
# in a compilation.
PATIENCE = 0.05

_SIGNALS = sorted(signal.valid_signals())


Handler = Callable[[int, FrameType | None], object]


class _Press(NamedTuple):
    """A received signal: an id of its own, its number, and its handler.

    Without the interrupted frame: a thread that reads the press at exit would free the frame's
    tensors in a dying interpreter, which aborts. Handlers get the frame of their own call.
    """

    id: int
    number: int
    handler: Handler


_ids = itertools.count()
HELD: list[_Press] = []  # not handled yet
_due: list[_Press] = []  # presses of HELD that have waited for `PATIENCE`


class _DeferringHandler:
    """A handler of signals that calls the user's handler between two ops, or when it is due."""

    def __init__(self, handler: Handler):
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Holds a signal of the user. A signal of `_resend` calls the handlers of held signals
        that are due."""
        is_ours, due = _receive(number)
        if due and not _must_wait(frame):
            _forget(due)
            self.handler(number, frame)
        elif not due and not is_ours:
            _hold(_Press(next(_ids), number, self.handler))


def _hold(press: _Press) -> None:
    HELD.append(press)
    pace.look_at = -1  # delivered at the next op boundary
    # A threading.Thread would wait for its start.
    _thread.start_new_thread(_resend, (press.id, press.number, pace.recorded_ops))


def _forget(presses: list[_Press]) -> None:
    """Removes presses from the lists of those that wait."""
    for waiting in (HELD, _due):
        waiting[:] = [press for press in waiting if press not in presses]


def _resend(press_id: int, number: int, num_ops: int) -> None:
    """Sends the main thread a real signal, which ends a blocking system call, until the handler has
    run.

    One signal is not enough: it does not end a system call that the thread is about to enter.
    Nothing is sent while recording goes on (more ops than `num_ops`, their number at the signal's
    arrival): the next op runs the handler.
    """
    time.sleep(PATIENCE)
    main = threading.main_thread().ident
    assert main is not None
    while any(press.id == press_id for press in HELD):
        if pace.recorded_ops != num_ops:
            num_ops, pace.look_at = pace.recorded_ops, -1
        else:
            if all(press.id != press_id for press in _due):
                _due.extend(press for press in HELD if press.id == press_id)
            _sent.add(number)
            signal.pthread_kill(main, number)
        time.sleep(PATIENCE)


_sent: set[int] = set()  # by `_resend`, and not received yet


def _receive(number: int) -> tuple[bool, list[_Press]]:
    """Receives a signal; returns (whether `_resend` sent it, the due presses of its number)."""
    is_ours = number in _sent
    _sent.discard(number)
    return is_ours, [press for press in _due if press.number == number and press in HELD]


# The files of weak dictionaries' callbacks, which run when a key or value is freed.
_WEAK_DICTIONARIES = frozenset({weakref.__file__, _weakrefset.__file__, weak.__file__})


def _must_wait(frame: FrameType | None) -> bool:
    """True where Python drops an exception: in a finalizer, or in a callback of the garbage
    collector (jax has one) or of a weak reference; and in jax called by this library.

    jaxlib's caches keep an entry that an exception has cut short, and call each later use of it a
    recursion.
    """
    callbacks = {getattr(called, "__code__", None) for called in gc.callbacks}
    is_in_jax = False
    while frame is not None:
        code = frame.f_code
        if code in callbacks or code.co_name == "__del__":
            return True
        if code.co_name in ("remove", "_remove") and code.co_filename in _WEAK_DICTIONARIES:
            return True
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        # Frames come from the inside out: jax's first, then this library's that called it.
        if is_in_jax and package == "spmd":
            return True
        is_in_jax = is_in_jax or package in ("jax", "jaxlib")
        frame = frame.f_back
    return False


def _is_main() -> bool:
    """True in the main thread, the only one in which Python runs handlers."""
    return threading.current_thread() is threading.main_thread()


def watch() -> None:
    """Replaces the handlers written in Python by ours.

    Called again at each sync, as a notebook restores Python's own handlers at each cell.
    """
    if _delayed_handlers or not _is_main():
        return
    for number in _SIGNALS:
        handler = _signal.getsignal(number)
        if callable(handler) and type(handler) is not _DeferringHandler:
            signal.signal(number, _DeferringHandler(handler))


def raise_held() -> None:
    """Runs the handlers of held signals, and of the signals that these handlers send; between two
    ops, where a handler may raise."""
    while HELD and _is_main():
        presses = list(HELD)
        _forget(presses)
        # `_hold` set -1; at 0 the next op looks again, and sets the pace anew.
        pace.look_at = 0
        _call(presses)


def _call(presses: list[_Press]) -> None:
    """Calls handlers; raises the first of their exceptions after all calls."""
    raised = None
    for press in presses:
        try:
            press.handler(press.number, sys._getframe(2))
        except BaseException as error:
            raised = raised or error
    if raised is not None:
        raise raised


# --- putting off ----------------------------------------------------------------------------------

_delayed_handlers: dict[int, Handler] = {}  # inside `later`: number -> its handler; empty outside
NOTED: list[_Press] = []


def _note(number: int, frame: FrameType | None) -> None:
    """The handler inside `later`: notes a signal that the user or the system sent."""
    is_ours, _ = _receive(number)
    handler = (
        None if is_ours else _delayed_handlers.get(number)
    )  # a resent one has its press in HELD
    if handler is not None:
        NOTED.append(
            _Press(
                next(_ids),
                number,
                handler.handler if type(handler) is _DeferringHandler else handler,
            )
        )


@contextlib.contextmanager
def later() -> Iterator[None]:
    """Delays signals until the end of the block."""
    if _delayed_handlers or not _is_main():
        yield
        return
    try:
        # Inside, a signal is only noted.
        for number in _SIGNALS:
            handler = _signal.getsignal(number)  # signal's own make enums, at 46 a step
            if callable(handler):
                _delayed_handlers[number] = handler
                _signal.signal(number, _note)
        yield
    finally:
        for delayed, handler in list(_delayed_handlers.items()):
            _signal.signal(delayed, handler)
        _delayed_handlers.clear()
        _deliver()


def _deliver() -> None:
    """Runs the handlers of delayed signals, and of the signals that these handlers send (an alarm's
    may send Ctrl-C)."""
    while presses := [*HELD, *NOTED]:
        NOTED.clear()
        _forget(presses)
        _call(presses)


@contextlib.contextmanager
def soon() -> Iterator[None]:
    """Inside of `later`: handles the pending signals, then new ones at once. Any line of the block
    may raise a handler's exception.

    If an `except` in the block raises another exception instead, the block still raises the
    handler's.
    """
    if not _delayed_handlers or not _is_main():
        yield
        return
    # The handlers of before `later`, wrapped so that their exceptions are known here.
    handlers = dict(_delayed_handlers)
    raised: list[BaseException] = []

    def immediate(handler: Handler) -> Callable[[int, FrameType | None], None]:
        user_handler = handler.handler if type(handler) is _DeferringHandler else handler

        def call(number: int, frame: FrameType | None) -> None:
            """The handler while the block runs: calls the user's handler now, unless Python would
            drop its exception."""
            is_ours, due = _receive(number)
            if _must_wait(frame) or (is_ours and not due):
                if not is_ours:
                    _hold(_Press(next(_ids), number, user_handler))
                return
            _forget(due)
            try:
                user_handler(number, frame)
            except BaseException as error:
                raised.append(error)
                raise

        return call

    try:
        for number, handler in handlers.items():
            signal.signal(number, immediate(handler))
        _delayed_handlers.clear()
        _deliver()
        yield
    except BaseException as error:
        if raised and error is not raised[0]:
            raise raised[0] from None
        raise
    finally:
        _delayed_handlers.update(handlers)
        for number in handlers:
            signal.signal(number, _note)


class _HandlerError(BaseException):
    """Carries an exception of a handler, as its cause, out of a traced function: no `except
    Exception` on the way stops it."""


@contextlib.contextmanager
def between_ops() -> Iterator[None]:
    """Delays signals to the end of the block, or until `poll`; the block raises the exceptions of
    handlers unchanged."""
    try:
        with later():
            yield
    except _HandlerError as wrapper:
        assert wrapper.__cause__ is not None
        raise wrapper.__cause__ from None


def poll() -> None:
    """Handles the signals that `between_ops` delays; called where an exception may end a trace
    of jax."""
    if (HELD or NOTED) and _delayed_handlers:
        try:
            with soon():
                pass
        except BaseException as error:
            raise _HandlerError from error

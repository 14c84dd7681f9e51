"""Spans of the host's work: rows of jax's traces and of torch.profiler's; nothing where neither is on."""

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import torch

PREFIX = "spmd::"

_NOTHING: AbstractContextManager[Any] = contextlib.nullcontext()
_is_jax_on = jax.profiler.TraceAnnotation.is_enabled
_is_torch_on = torch.autograd._profiler_enabled

# The programs that a trace of `spmd.profiler` has seen, by the numbers in its dispatch rows; None outside of one.
_programs: dict[int, Any] | None = None


def keep_programs() -> None:
    """Begins to keep the programs that run."""
    global _programs
    _programs = {}


def kept_programs() -> dict[int, Any]:
    """Ends it; returns the programs, by the numbers that `note_program` gave."""
    global _programs
    kept, _programs = _programs or {}, None
    return kept


def span(name: str, about: Callable[[], dict[str, Any]] = dict) -> AbstractContextManager[Any]:
    """A context that is a row of the traces that are on. about: makes its arguments, only where it is one."""
    if not _is_jax_on():
        return torch.profiler.record_function(PREFIX + name) if _is_torch_on() else _NOTHING
    stack = contextlib.ExitStack()
    stack.enter_context(jax.profiler.TraceAnnotation(PREFIX + name, **about()))
    if _is_torch_on():
        stack.enter_context(torch.profiler.record_function(PREFIX + name))
    return stack


def note_program(program: Any) -> int:
    """Keeps a program of the trace that is on; returns its number in it, 0 where none is on."""
    if _programs is None:
        return 0
    _programs[id(program)] = program
    return id(program)


class _Thread(threading.local):
    recording: Any = None  # the row that is open, since the first op after a sync


_thread = _Thread()


def note_op() -> None:
    """Opens the row of this thread's recording, unless it is open."""
    if _thread.recording is None and _is_jax_on():
        _thread.recording = jax.profiler.TraceAnnotation(f"{PREFIX}record")
        _thread.recording.__enter__()


def end_recording() -> None:
    """Closes the row of this thread's recording: a sync begins."""
    if _thread.recording is not None:
        _thread.recording.__exit__(None, None, None)
        _thread.recording = None

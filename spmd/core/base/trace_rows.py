"""Trace rows: spans of the host's work in jax's traces and in torch.profiler's; nothing where
neither is on."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import jax
import torch

from .state import PerThread

PREFIX = "spmd::"  # of the names of trace rows
_NOTHING: AbstractContextManager[object] = contextlib.nullcontext()
_is_jax_on = jax.profiler.TraceAnnotation.is_enabled
_is_torch_on = torch.autograd._profiler_enabled


def span(name: str, about: Callable[[], dict[str, str]] = dict) -> AbstractContextManager[object]:
    """A context that is a row of the running traces. about: makes the row's arguments; called only
    while a trace runs."""
    if not _is_jax_on():
        return torch.profiler.record_function(PREFIX + name) if _is_torch_on() else _NOTHING
    stack = contextlib.ExitStack()
    stack.enter_context(jax.profiler.TraceAnnotation(PREFIX + name, **about()))
    if _is_torch_on():
        stack.enter_context(torch.profiler.record_function(PREFIX + name))
    return stack


# The row of a thread's recording that is open, since the first op after a sync.
_recording = PerThread[jax.profiler.TraceAnnotation | None](None)


def note_op() -> None:
    """Opens the row of this thread's recording, unless it is open."""
    if _recording.value is None and _is_jax_on():
        _recording.value = jax.profiler.TraceAnnotation(f"{PREFIX}record")
        _recording.value.__enter__()


def end_recording() -> None:
    """Closes the row of this thread's recording: a sync begins."""
    if _recording.value is not None:
        _recording.value.__exit__(None, None, None)
        _recording.value = None

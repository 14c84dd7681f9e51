"""Traces of the devices and the host by jax's profiler, with the user's modules and lines on the
devices' rows."""

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any

import jax

from ...core import config, ends_at_user_line, held, in_flight, points, processes, trace_rows
from ...core.extend import Program
from . import trace_files


@ends_at_user_line
class Trace(jax.profiler.TraceAnnotation):
    """A block with a name in traces.

    Args: `name`, and keywords that the row shows. Source: `torch_xla.debug.profiler.Trace`.

    >>> import spmd
    >>> with spmd.profiler.Trace("forward", layer=3):
    ...     pass
    """

    def __init__(self, name: str, **kwargs: Any):
        super().__init__(name, **kwargs)


@ends_at_user_line
class StepTrace(jax.profiler.StepTraceAnnotation):
    """A step with a name and a number in traces; viewers and `summary` count by these. It starts no
    sync.

    Args: `name`, and `step_num=`, the number of the step. Source:
    `jax.profiler.StepTraceAnnotation`.

    >>> import spmd
    >>> with spmd.profiler.StepTrace("train", step_num=0):
    ...     spmd.sync()
    """


_lock = threading.Lock()
_open: tuple[Path, AbstractContextManager[None]] | None = None
# those that the trace has seen, by the numbers in its dispatch rows
_programs: dict[int, Program] = {}


def _keep(program: Program) -> None:
    _programs[id(program)] = program


@ends_at_user_line
def start_trace(folder: str | PathLike[str], *, python: bool = False) -> None:
    """Starts a trace of this process, which `stop_trace` writes: see `trace`.

    Raises RuntimeError where one is on.

    >>> import tempfile, spmd
    >>> spmd.profiler.start_trace(tempfile.mkdtemp())
    >>> _ = spmd.profiler.stop_trace()
    """
    global _open
    with _lock:
        if _open is not None:
            raise RuntimeError(
                f"start_trace: a trace into {_open[0]} is on; call spmd.profiler.stop_trace() first"
            )
        path = Path(folder)
        # jax names its files by the host, which several processes may share
        if processes.several():
            path = path / f"process_{processes.index()}"
        in_flight.wait()  # what ran before is none of the trace
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = int(python)
        jax.profiler.start_trace(str(path), profiler_options=options)
        noting = held(config, module_paths=True)
        noting.__enter__()
        points.before_run.append(_keep)
        _open = path, noting


@ends_at_user_line
def stop_trace() -> Path:
    """Ends the trace: waits for the devices and writes the files; returns the folder with them.

    Raises RuntimeError where none is on.

    >>> import spmd
    >>> spmd.profiler.stop_trace()
    Traceback (most recent call last):
    RuntimeError: stop_trace: no trace is on; call spmd.profiler.start_trace(folder) first
    """
    global _open
    with _lock:
        if _open is None:
            raise RuntimeError(
                "stop_trace: no trace is on; call spmd.profiler.start_trace(folder) first"
            )
        (path, noting), _open = _open, None
        points.before_run.remove(_keep)
        programs = _programs.copy()
        _programs.clear()
        noting.__exit__(None, None, None)
        try:
            in_flight.wait()
        finally:
            trace_rows.end_recording()
            jax.profiler.stop_trace()
        return trace_files.complete(path, programs)


@ends_at_user_line
@contextlib.contextmanager
def trace(folder: str | PathLike[str], *, python: bool = False) -> Iterator[None]:
    """Traces this process inside the context, and writes `folder/plugins/profile/<time>/`.

    `*.trace.json.gz` opens in https://ui.perfetto.dev: a row for each device, whose blocks have
    your module path, the ops and your line, and the host's rows: record, compile, dispatch, wait,
    upload. `*.xplane.pb` opens in TensorBoard (`pip install xprof`). `summary` prints the same as a
    table. While it is on, each op's module is noted, at some microseconds an op; no program is
    compiled again for it. With several processes each writes a folder of its own,
    `process_<number>`.

    Args:
        folder: for the files. python: a row for each call of a Python function, too, which slows
            the host down.

    Raises RuntimeError where a trace is on.

    >>> import tempfile, torch, spmd
    >>> x = torch.ones(4, 4, device="xla")
    >>> folder = tempfile.mkdtemp()
    >>> with spmd.profiler.trace(folder):
    ...     with spmd.profiler.StepTrace("step", step_num=0):
    ...         y = x @ x
    ...         spmd.sync()
    >>> spmd.profiler.summary(folder).num_steps
    1
    """
    start_trace(folder, python=python)
    try:
        yield
    finally:
        stop_trace()

"""`torch_xla.debug.profiler` (xp) by `spmd.profiler`: traces of what the devices and the host
do."""

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from ...core import processes
from ...tensors.runtime import sync
from ...tools.profiler import profile_server, traces

Function = TypeVar("Function", bound=Callable[..., Any])


class StepBlock(traces.StepTrace):
    """A step with a name and a number (`step_num=`) in traces; a sync ends it.

    >>> import spmd
    >>> with spmd.torch_xla.xla_profiler.StepBlock("train", step_num=0):
    ...     pass
    """

    def __exit__(self, *error: Any) -> Any:
        if not error or error[0] is None:
            sync()
        return super().__exit__(*error)


def trace_me(scope: str) -> Callable[[Function], Function]:
    """Decorates a function whose calls are blocks of this name in traces.

    >>> import spmd
    >>> @spmd.torch_xla.xla_profiler.trace_me("loss")
    ... def loss(x):
    ...     return x + 1
    >>> loss(1)
    2
    """
    return functools.partial(jax.profiler.annotate_function, name=scope)


def start_server(port: int, only_on_master: bool = True) -> int | None:
    """Starts `spmd.profiler.start_server` on loopback; only_on_master: in the first of several
    processes alone.

    >>> import spmd
    >>> port = spmd.torch_xla.xla_profiler.start_server(0)
    >>> spmd.profiler.stop_server()
    """
    return None if only_on_master and processes.index() else profile_server.start_server(port)


def trace(
    service_addr: str,
    logdir: str,
    duration_ms: int = 1000,
    num_tracing_attempts: int = 3,
    delay_ms: int = 0,
    interval_s: int = 5,
) -> None:
    """Traces the process of `start_server` at an address and writes the files
    (`spmd.profiler.capture`).

    Tried again `num_tracing_attempts` times, after `interval_s` seconds.

    >>> import tempfile, spmd
    >>> port = spmd.torch_xla.xla_profiler.start_server(0)
    >>> spmd.torch_xla.xla_profiler.trace(f"localhost:{port}", tempfile.mkdtemp(), duration_ms=10)
    >>> spmd.profiler.stop_server()
    """
    time.sleep(delay_ms / 1e3)
    for attempt in range(num_tracing_attempts):
        try:
            profile_server.capture(service_addr, logdir, duration_ms / 1e3)
            return
        except (RuntimeError, ConnectionError):
            if attempt + 1 == num_tracing_attempts:
                raise
            time.sleep(interval_s)


def trace_detached(*args: Any, **kwargs: Any) -> threading.Thread:
    """Calls `trace` with these arguments in a thread, which it returns.

    >>> import tempfile, spmd
    >>> port = spmd.torch_xla.xla_profiler.start_server(0)
    >>> folder = tempfile.mkdtemp()
    >>> spmd.torch_xla.xla_profiler.trace_detached(
    ...     f"localhost:{port}", folder, duration_ms=10
    ... ).join()
    >>> spmd.profiler.stop_server()
    """
    thread = threading.Thread(target=trace, args=args, kwargs=kwargs, name="spmd.profiler.trace")
    thread.start()
    return thread

"""The status line of a plan: its stages and seconds."""

import contextlib
import threading
import time
from collections.abc import Iterator

from ...core.extend import held
from ..explain.status import status


class _ProgressThread(threading.local):
    def __init__(self) -> None:
        self.stages: list[str] = []  # the outermost first


_thread = _ProgressThread()


@contextlib.contextmanager
def stage(text: str) -> Iterator[None]:
    """Shows the text while the context is open, after the texts of the enclosing stages (see `status`)."""
    stages, started = _thread.stages, time.monotonic()

    def describe() -> str:
        return f"{': '.join(stages)}, {time.monotonic() - started:.0f} s"

    stages.append(text)
    try:
        with contextlib.nullcontext() if len(stages) > 1 else status("planning", describe):
            yield
    finally:
        stages.pop()


def silent() -> contextlib.AbstractContextManager[None]:
    """Hides the stages inside the context."""
    return held(_thread, stages=[""])

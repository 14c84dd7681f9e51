"""A progress line of a plan: its stages and seconds; nothing is shown where stderr is not a terminal."""

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator

from ..core.base.config import config
from ..core.base.state import held

_EVERY = 0.5  # seconds
_ERASE = "\r\033[K"


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stages: list[str] = []  # the outermost first


_thread = _Thread()


@contextlib.contextmanager
def stage(text: str) -> Iterator[None]:
    """Shows the text while the context is open, after the texts of the enclosing stages; `config.slow_compile_seconds`
    after the outermost began, or never where that is 0."""
    stages = _thread.stages
    stages.append(text)
    try:
        with contextlib.nullcontext() if len(stages) > 1 or not _is_shown() else _written(stages):
            yield
    finally:
        stages.pop()


def silent() -> contextlib.AbstractContextManager[None]:
    """Hides the stages inside the context."""
    return held(_thread, stages=[""])


def _is_shown() -> bool:
    return bool(config.slow_compile_seconds) and sys.stderr.isatty()


@contextlib.contextmanager
def _written(stages: list[str]) -> Iterator[None]:
    started, ended = time.monotonic(), threading.Event()

    def write() -> None:
        if ended.wait(config.slow_compile_seconds):
            return
        while not ended.wait(_EVERY):
            text = f"spmd: {': '.join(stages)}, {time.monotonic() - started:.0f} s"
            print(f"{_ERASE}{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
        print(_ERASE, end="", file=sys.stderr, flush=True)

    writer = threading.Thread(target=write, name="spmd-plan-progress", daemon=True)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()

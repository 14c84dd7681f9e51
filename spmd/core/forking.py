"""Forked processes: XLA's threads do not survive a fork, so a child leaves alone the device that its parent started.

Nothing here is asked per recorded op: what a thread knows is forgotten at the fork, so that its next op asks (see
`core.lazy.threads.enter_thread`).
"""

import gc
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from torch.utils.data import dataloader

from .jax_private import has_started_in_parent, wrap_fork_warning

_Lock = TypeVar("_Lock")

_is_bad = False
_locks: list[Any] = []
_forgets: list[Callable[[], None]] = []


def survives_fork(lock: _Lock) -> _Lock:
    """A lock that is free in a child, whoever held it in the parent."""
    _locks.append(lock)
    return lock


def on_bad_fork(forget: Callable[[], None]) -> None:
    """Calls `forget` in each child that may not use the device."""
    _forgets.append(forget)


def is_in_bad_fork() -> bool:
    """Whether this process was forked from one that had started the device."""
    return _is_bad


def check() -> None:
    """RuntimeError where this process may not use the device; asked at a thread's first op, and before transfers."""
    if _is_bad:
        raise RuntimeError(
            "Cannot use the xla device in a forked subprocess: its parent had started the device, and XLA's threads do "
            "not live on in a fork. Keep the subprocess on the CPU (a Dataset gives CPU tensors, the training loop "
            "moves them), or start it by 'spawn': DataLoader(multiprocessing_context='spawn') or "
            "torch.multiprocessing.get_context('spawn')."
        )


def _enter_child() -> None:
    global _is_bad
    for lock in _locks:
        lock._at_fork_reinit()
    if not has_started_in_parent():
        return
    _is_bad = True
    gc.freeze()  # a collection here would free the parent's device buffers, which takes XLA's locks
    for forget in _forgets:
        forget()


def _quiet_for_loaders(warn: Callable[[], None]) -> Callable[[], None]:
    """jax's warning at a fork, but not at a DataLoader's: `check` tells its workers what they may not do."""

    def at_fork() -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == dataloader.__file__:
                return
            frame = frame.f_back
        warn()

    return at_fork


def watch_forks() -> None:
    """Joins Python's forks. jax hands its warning to Python when its backend starts; if it has, that one stays."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_enter_child)
        wrap_fork_warning(_quiet_for_loaders)

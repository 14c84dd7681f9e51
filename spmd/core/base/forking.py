"""Forked processes: XLA's threads do not survive a fork, so a child must not use a device that its
parent started.

Recorded ops are not checked one by one: the state of threads is dropped at the fork, so that the
next op of each checks again (see `core.record.threads.enter_thread`).
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
    """Returns the lock, which is free in a child even if it was held in the parent."""
    _locks.append(lock)
    return lock


def on_bad_fork(forget: Callable[[], None]) -> None:
    """Calls `forget` in each child that may not use the device."""
    _forgets.append(forget)


def is_in_bad_fork() -> bool:
    """True if this process was forked from one that had started the device."""
    return _is_bad


def check() -> None:
    """Raises RuntimeError where this process may not use the device; called at a thread's first op
    and by transfers."""
    if _is_bad:
        raise RuntimeError(
            "Cannot use the xla device in a forked subprocess: its parent had started the device, "
            "and XLA's threads do not live on in a fork. Keep the subprocess on the CPU (a "
            "Dataset gives CPU tensors, the training loop moves them), or start it by 'spawn': "
            "DataLoader(multiprocessing_context='spawn') or "
            "torch.multiprocessing.get_context('spawn')."
        )


def _enter_child() -> None:
    """Runs in each forked child: frees the locks, and forbids the device if the parent had started
    it."""
    global _is_bad
    for lock in _locks:
        lock._at_fork_reinit()
    if not has_started_in_parent():
        return
    _is_bad = True
    gc.freeze()  # a collection here would free the parent's device buffers, which takes XLA's locks
    for forget in _forgets:
        forget()


# torch's loader and torchdata's, which starts its workers by itself.
_LOADERS = (
    dataloader.__file__,
    os.path.join("torchdata", "stateful_dataloader", "stateful_dataloader.py"),
)


def _quiet_for_loaders(warn: Callable[[], None]) -> Callable[[], None]:
    """Returns jax's warning at a fork, silent for a loader's: `check` raises where its workers use
    the device."""

    def at_fork() -> None:
        """Warns unless a loader's frame is among the callers."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.endswith(_LOADERS):
                return
            frame = frame.f_back
        warn()

    return at_fork


def watch_forks() -> None:
    """Registers with Python's forks. jax registers its warning when its backend starts; one
    registered before stays."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_enter_child)
        wrap_fork_warning(_quiet_for_loaders)

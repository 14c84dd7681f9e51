"""Where the thread stands that traces a program: over which devices, and whether on one shard of them."""

import contextlib
import threading
from collections.abc import Iterator


class _Program(threading.local):
    """order: the devices of the program, where several meshes meet. by_hand: its axes along which a shard is traced."""

    order: tuple[int, ...] | None = None
    by_hand: frozenset[str] = frozenset()


program = _Program()


@contextlib.contextmanager
def program_devices(order: tuple[int, ...] | None) -> Iterator[None]:
    """What is traced inside runs on these devices in this order, and several meshes meet in it; None: one mesh."""
    before, program.order = program.order, order
    try:
        yield
    finally:
        program.order = before


@contextlib.contextmanager
def by_hand(axes: frozenset[str]) -> Iterator[None]:
    """What is traced inside is a shard along these axes of the mesh: layouts are of its piece, over others."""
    before, program.by_hand = program.by_hand, axes
    try:
        yield
    finally:
        program.by_hand = before

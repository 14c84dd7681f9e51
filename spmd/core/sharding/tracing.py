"""The place of the thread that traces a program: over which devices, and whether in one shard of them."""

import contextlib
import threading
from collections.abc import Iterator


class _Program(threading.local):
    """order: the program's devices, where several meshes meet. manual_axes: its axes along which a shard is traced."""

    order: tuple[int, ...] | None = None
    manual_axes: frozenset[str] = frozenset()


program = _Program()


@contextlib.contextmanager
def program_devices(order: tuple[int, ...] | None) -> Iterator[None]:
    """Has a program traced inside run on these devices in this order, with several meshes in it; None: one mesh."""
    before, program.order = program.order, order
    try:
        yield
    finally:
        program.order = before


@contextlib.contextmanager
def manual_axes(axes: frozenset[str]) -> Iterator[None]:
    """Traces one shard along these axes of the mesh: shardings inside are of that shard, over the other axes."""
    before, program.manual_axes = program.manual_axes, axes
    try:
        yield
    finally:
        program.manual_axes = before

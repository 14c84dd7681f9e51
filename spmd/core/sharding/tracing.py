"""The place of the thread that traces a program: over which devices, and whether in one shard of them."""

import threading
from contextlib import AbstractContextManager
from typing import Any

from ..base.state import held


class _Program(threading.local):
    """order: the program's devices, where several meshes meet. manual_axes: its axes along which a shard is traced, so
    that shardings are of that shard, over the other axes; shard: facts of that shard (`lower.manual_lowering`)."""

    order: tuple[int, ...] | None = None
    manual_axes: frozenset[str] = frozenset()
    shard: Any = None


program = _Program()


def program_devices(order: tuple[int, ...] | None) -> AbstractContextManager[None]:
    """Has a program traced inside run on these devices in this order, with several meshes in it; None: one mesh."""
    return held(program, order=order)

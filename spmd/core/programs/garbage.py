"""Turns Python's cyclic collector off during work that makes very many objects at once."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collected_later() -> Iterator[None]:
    """Turns collection off inside, in all threads: compiling a graph makes little garbage, and a full collection scans
    all objects of a model each time. Has no effect if the collector is off already."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

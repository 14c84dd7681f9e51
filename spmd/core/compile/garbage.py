"""Python's cyclic collector, kept out of what makes very many objects at once."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collected_later() -> Iterator[None]:
    """Nothing is collected meanwhile, in any thread: of what compiling a graph makes little is garbage, and a full
    collection looks at the whole of a model each time. Does nothing where the collector is off already."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

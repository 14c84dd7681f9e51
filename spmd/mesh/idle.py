"""One line for a dim that a mesh splits into more parts than it has rows for: devices that compute on padding alone."""

import functools

from ..core.base.messages import say
from ..core.sharding.value import Sharding


def note_idle(caller: str, shape: tuple[int, ...], sharding: Sharding) -> None:
    """Prints the line, once for each shape and number of parts."""
    for dim, (size, ways) in enumerate(zip(shape, sharding.tiles(len(shape)), strict=True)):
        if size % ways:
            _note(caller, shape, dim, ways, ways - -(-size // -(-size // ways)))


@functools.cache
def _note(caller: str, shape: tuple[int, ...], dim: int, ways: int, idle: int) -> None:
    if idle > 0:
        text = f"dim {dim} of {list(shape)} is split {ways} ways: {idle} of {ways} parts are padding alone and idle"
        say(f"{caller}: {text}; make it a multiple of {ways}", "idle")

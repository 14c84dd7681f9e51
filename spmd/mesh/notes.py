"""Lines for a dim that a mesh does not divide, and errors that end at the user's line; `fsdp` takes them from here."""

import functools

from ..core import Sharding, messages
from ..core import ends_at_user_line as ends_at_user_line


def note_idle(caller: str, shape: tuple[int, ...], sharding: Sharding) -> None:
    """Prints the line, once for each shape and number of parts."""
    for dim, (size, ways) in enumerate(zip(shape, sharding.tiles(len(shape)), strict=True)):
        if size % ways:
            _note(caller, shape, dim, ways, ways - -(-size // -(-size // ways)))


@functools.cache
def _note(caller: str, shape: tuple[int, ...], dim: int, ways: int, idle: int) -> None:
    if idle > 0:
        text = f"dim {dim} of {list(shape)} is split {ways} ways: {idle} of {ways} parts are padding alone and idle"
        messages.say(f"{caller}: {text}; make it a multiple of {ways}", "idle")


@functools.cache
def note_whole(caller: str, shape: tuple[int, ...], dim: int, ways: int) -> None:
    """Prints, once for each shape, that each device computes all rows of a batch that the devices do not divide."""
    text = f"dim {dim} of {list(shape)} is not a multiple of the {ways} devices of the batch"
    messages.say(
        f"{caller}: {text}: each device computes all of its {shape[dim]} rows; make it a multiple of {ways}", "idle"
    )

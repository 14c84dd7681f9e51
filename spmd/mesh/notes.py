"""Lines for a dim that a mesh does not divide, and errors that end at the user's line; `fsdp` takes
them from here."""

import functools

from ..core import Sharding, messages
from ..core import ends_at_user_line as ends_at_user_line
from ..core import warn as warn

# Prints a line about devices that do no work of their own; a text once.
say_once = functools.cache(functools.partial(messages.say, kind="idle"))


@functools.lru_cache(1024)  # a step marks the same shapes again, and builds no text for them
def note_idle(caller: str, shape: tuple[int, ...], sharding: Sharding) -> None:
    """Prints, for each dim, how many parts are padding alone."""
    for dim, (size, ways) in enumerate(zip(shape, sharding.tiles(len(shape)), strict=True)):
        if size % ways and (idle := ways - -(-size // -(-size // ways))) > 0:
            text = (
                f"dim {dim} of {list(shape)} is split {ways} ways: {idle} of {ways} parts are "
                "padding alone and idle"
            )
            say_once(f"{caller}: {text}; make it a multiple of {ways}")


@functools.lru_cache(1024)
def note_whole(caller: str, shape: tuple[int, ...], dim: int, ways: int) -> None:
    """Prints that each device computes all rows of a batch that the devices do not divide."""
    text = f"dim {dim} of {list(shape)} is not a multiple of the {ways} devices of the batch"
    say_once(
        f"{caller}: {text}: each device computes all of its {shape[dim]} rows; make it a multiple "
        f"of {ways}"
    )

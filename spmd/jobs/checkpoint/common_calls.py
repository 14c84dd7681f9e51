"""Calls that all processes make: compared before anything is written or read, and their words to each other."""

from ...core import observation, processes, user_line
from ..exchange import Words
from .all_or_none import Alone, Channel


def exchange() -> Channel:
    """The exchange of one call."""
    return Words() if processes.several() else Alone()


def agree(what: str) -> None:
    """Compares the call with those of the other processes; a compiled step that makes it is recorded at each call."""
    observing = observation.active()
    if observing is not None:
        observing.reads.append(f"{what} at {user_line()}")
    if processes.several():
        processes.agree(what, what.encode(), user_line())

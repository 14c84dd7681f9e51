"""The number of recorded ops, and the number at which the recorder looks for ops that must run.

Plain numbers of this module: the recorder adds to them under its own lock.
"""

import sys
from contextlib import AbstractContextManager

from .config import config
from .state import held

recorded_ops = 0  # since the start
synced_ops = 0  # their number at the last sync
look_at = 0  # the number at which the recorder looks
wait = 0  # from the last look to this one
longest = 0  # of the graphs that were synced: a step of this length has no loop in it
has_cut = False  # whether finished iterations of a loop have run since the last sync
early = 0  # ops of two iterations of the loop found last, 0 since a look found none: so many may be the loop again


def look_after(num_ops: int) -> None:
    """Has the recorder look again after so many ops, at the latest `config.max_pending_ops` after the last sync."""
    global wait, look_at
    wait = num_ops
    limit = synced_ops + config.max_pending_ops
    look_at = min(recorded_ops + num_ops, limit) if config.loop_search_ops else limit


def rest(num_ops: int, *, had_loop: bool) -> None:
    """Resets the counts after a sync over the first `num_ops` ops. A step is as long as the longest so far; only one of
    three times that length may have a loop in it."""
    global longest, synced_ops, has_cut
    has_cut = False
    if not had_loop:
        longest = max(longest, num_ops - synced_ops)
    synced_ops = num_ops
    look_after(early or max(config.loop_search_ops, 3 * longest))


def unchanged() -> AbstractContextManager[None]:
    """Restores the counts at the end."""
    names = ("recorded_ops", "synced_ops", "look_at", "wait", "longest", "early", "has_cut")
    return held(sys.modules[__name__], **{name: globals()[name] for name in names})

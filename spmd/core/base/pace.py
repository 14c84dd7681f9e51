"""The pace of recording: the numbers of ops at which the recorder looks for ops that must run."""

from contextlib import AbstractContextManager

from .config import config
from .state import held


class Pace:
    """The number of recorded ops, and the number at which the recorder looks for ops that must run.

    Plain numbers: the recorder adds to them under its own lock. recorded_ops: since the start.
    synced_ops: their number at the last sync. look_at: the number at which the recorder looks.
    wait: from the last look to this one. longest: of the graphs that were synced: a step of this
    length has no loop in it. has_cut: whether finished iterations of a loop have run since the last
    sync. early: ops of two iterations of the loop found last, 0 since a look found none: so many
    may be the loop again.
    """

    __slots__ = ("early", "has_cut", "longest", "look_at", "recorded_ops", "synced_ops", "wait")

    def __init__(self) -> None:
        self.recorded_ops = self.synced_ops = self.look_at = self.wait = self.longest = (
            self.early
        ) = 0
        self.has_cut = False

    def look_after(self, num_ops: int) -> None:
        """Has the recorder look again after so many ops, at the latest `config.max_pending_ops`
        after the last sync."""
        self.wait = num_ops
        limit = self.synced_ops + config.max_pending_ops
        self.look_at = min(self.recorded_ops + num_ops, limit) if config.loop_search_ops else limit

    def rest(self, num_ops: int, *, had_loop: bool) -> None:
        """Resets the counts after a sync over the first `num_ops` ops. A step is as long as the
        longest so far; only one of three times that length may have a loop in it."""
        self.has_cut = False
        if not had_loop:
            self.longest = max(self.longest, num_ops - self.synced_ops)
        self.synced_ops = num_ops
        self.look_after(self.early or max(config.loop_search_ops, 3 * self.longest))

    def unchanged(self) -> AbstractContextManager[None]:
        """Restores the counts at the end."""
        return held(self, **{name: getattr(self, name) for name in self.__slots__})


pace = Pace()

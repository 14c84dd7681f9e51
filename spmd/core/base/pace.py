"""The pace of recording: the numbers of ops at which the recorder looks for ops that must run."""

from contextlib import AbstractContextManager

from .config import config
from .state import held


class Pace:
    """The number of recorded ops, and the number at which the recorder looks for ops that must run.

    Plain numbers of ops: the recorder adds to them under its own lock. recorded_ops: since the
    start. synced_ops: `recorded_ops` at the last sync. look_at: `recorded_ops` at the next look.
    wait: from the last look to the next one. longest: the length of the longest synced graph, a
    step without a loop in it. has_cut: finished iterations of a loop have run since the last sync.
    early: the length of two iterations of the last found loop, after which the next look may find
    it again; 0 for none.
    """

    __slots__ = ("early", "has_cut", "longest", "look_at", "recorded_ops", "synced_ops", "wait")

    def __init__(self) -> None:
        self.recorded_ops = self.synced_ops = self.look_at = self.wait = self.longest = (
            self.early
        ) = 0
        self.has_cut = False

    def look_after(self, num_ops: int) -> None:
        """Schedules the recorder's next look after this number of ops, at the latest
        `config.max_pending_ops` after the last sync."""
        self.wait = num_ops
        limit = self.synced_ops + config.max_pending_ops
        self.look_at = min(self.recorded_ops + num_ops, limit) if config.loop_search_ops else limit

    def restart(self, num_ops: int, *, had_loop: bool) -> None:
        """Restarts the counts after a sync of the first `num_ops` ops. A step has at most `longest`
        ops; only a graph of three times that length may contain a loop."""
        self.has_cut = False
        if not had_loop:
            self.longest = max(self.longest, num_ops - self.synced_ops)
        self.synced_ops = num_ops
        self.look_after(self.early or max(config.loop_search_ops, 3 * self.longest))

    def unchanged(self) -> AbstractContextManager[None]:
        """Restores the counts at the end."""
        return held(self, **{name: getattr(self, name) for name in self.__slots__})


pace = Pace()

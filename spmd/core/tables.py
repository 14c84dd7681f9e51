"""Tables that do not grow without end, for all that is looked up again and again: layouts, ops, places in the code."""

import itertools
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from . import metrics
from .config import config
from .forking import survives_fork

_lock = survives_fork(threading.RLock())  # what is dropped may run a user's `__del__`, which records
Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class Bounded(Generic[Key, Item]):
    """At most `limit` items (None: `config.entry_cache_size`) by their keys: a full table drops the older half of them.

    rows: them all, for reading alone: where every recorded op looks, only a plain dict is quick enough.
    """

    __slots__ = ("limit", "rows")

    def __init__(self, limit: int | None = None):
        self.limit = limit
        self.rows: dict[Key, Item] = {}

    def get(self, key: Key) -> Item | None:
        """The item of a key, where the table has it."""
        return self.rows.get(key)

    def __len__(self) -> int:
        return len(self.rows)

    def keep(self, key: Key, item: Item) -> Item:
        """Puts an item into the table and returns it."""
        with _lock:
            limit = self.limit or config.entry_cache_size
            if len(self) >= limit and key not in self.rows:
                for old in list(itertools.islice(self.rows, len(self) - limit // 2)):
                    del self.rows[old]
                metrics.add("tables_halved")
            self.rows[key] = item
        return item

    def clear(self) -> None:
        """Drops all items."""
        with _lock:
            self.rows.clear()


class Interned(Bounded[Key, Item]):
    """A bounded table of items that are compared by identity: of one key there is one, for as long as anyone has it.

    What the table has dropped and a compiled program, a pending op or a tensor still holds is found again, so that a
    steady program stays the same program however many others come and go. What nobody holds is freed.
    """

    __slots__ = ("_alive",)

    def __init__(self, limit: int | None = None):
        super().__init__(limit)
        self._alive: WeakValueDictionary[Key, Any] = WeakValueDictionary()

    def of(self, key: Key, make: Callable[[], Item]) -> Item:
        """The item of a key, made where there is none."""
        found = self._alive.get(key)
        if found is None:
            made = make()
            with _lock:
                found = self._alive.setdefault(key, made)
        return self.keep(key, found)

    def num_alive(self) -> int:
        """How many there are, here or with someone else."""
        return len(self._alive)

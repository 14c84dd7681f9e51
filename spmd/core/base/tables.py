"""Tables for all that is looked up again and again: layouts, ops, places in the code, and the
programs of a function that no recorded graph names."""

import itertools
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from . import counters
from .config import config
from .forking import survives_fork

_lock = survives_fork(threading.RLock())  # a dropped item may run a user's `__del__`, which records
Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class Bounded(Generic[Key, Item]):
    """A table of at most `limit` items (None: `config.op_table_size`): a full one drops the older
    half of them.

    rows: all items by key, only for reading: for a look-up at every recorded op only a plain dict
    is quick enough.
    """

    __slots__ = ("limit", "rows")

    def __init__(self, limit: int | None = None):
        self.limit = limit
        self.rows: dict[Key, Item] = {}

    def get(self, key: Key) -> Item | None:
        """Returns the item of a key, or None."""
        return self.rows.get(key)

    def __len__(self) -> int:
        return len(self.rows)

    def keep(self, key: Key, item: Item) -> Item:
        """Puts an item into the table and returns it."""
        with _lock:
            limit = self.limit or config.op_table_size
            if len(self) >= limit and key not in self.rows:
                for oldest in list(itertools.islice(self.rows, len(self) - limit // 2)):
                    del self.rows[oldest]
                counters.add("tables_halved")
            self.rows[key] = item
        return item

    def clear(self) -> None:
        """Drops all items."""
        with _lock:
            self.rows.clear()


class Interned(Bounded[Key, Item]):
    """A bounded table of items that are compared by identity: a key has one item for as long as any
    reference to it.

    A dropped item is found again as long as a compiled program, a pending op or a tensor holds it,
    so that a steady program stays the same program however many others come and go. Without a
    reference it is freed.
    """

    __slots__ = ("_alive",)

    def __init__(self, limit: int | None = None):
        super().__init__(limit)
        self._alive: WeakValueDictionary[Key, Item] = WeakValueDictionary()

    def of(self, key: Key, make: Callable[[], Item]) -> Item:
        """Returns the item of a key, made where there is none."""
        item = self.rows.get(key)
        if item is not None:
            return item
        item = self._alive.get(key)
        if item is None:
            # Outside of the lock, as `make` may record. The item of a faster thread stays.
            new = make()
            with _lock:
                item = self._alive.setdefault(key, new)
        return self.keep(key, item)

"""Recorded values that a later op reads and no tensor has."""

# Most are read before a sync comes, and need no storages.

import weakref
from collections.abc import Sequence

from ..graph.graph import Value
from ..sharding.value import Sharding
from . import recorders
from .storage import BEFORE_PENDING, Storage


class Kept:
    """Such values of one op, with their annotations; a sync before they are read computes them."""

    __slots__ = ("__weakref__", "_shardings", "_storages", "_values")

    def __init__(self, values: Sequence[Value], shardings: Sequence[Sharding | None]):
        self._values: Sequence[Value] | None = values
        self._shardings, self._storages = shardings, list[Storage]()
        _KEPT.add(self)
        if recorders.are_several:  # a value has the thread that recorded it
            self.store()

    def values(self) -> Sequence[Value]:
        """The values now."""
        return [x.value for x in self._storages] if self._values is None else self._values

    def store(self) -> None:
        """Gives the values storages."""
        if self._values is not None:
            self._storages = [
                Storage(value, value.meta, sharding)
                for value, sharding in zip(self._values, self._shardings, strict=True)
            ]
            self._values = None
        _KEPT.discard(self)


_KEPT: weakref.WeakSet[Kept] = weakref.WeakSet()


def has_any() -> bool:
    """True if some have no storages yet."""
    return len(_KEPT) > 0


def _store_all() -> None:
    for kept in [*_KEPT]:
        kept.store()


BEFORE_PENDING.append(_store_all)

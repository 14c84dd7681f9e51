"""Store: one buffer whose rows are the data of several leaves; which leaves are all the rows of a store."""

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from ..sharding import rows
from ..sharding.value import Sharding

Family = tuple[int, ...]


class Store:
    """A buffer [rows, *shape] and the leaves that have their data in it. It lives as long as one of them does.

    sharding: how each row lies; the buffer lies so behind an unsplit first dim. A dim that the mesh does not divide is
    padded in it as in a row. A leaf of a store has no buffer of its own and takes copies of its row (`Leaf.placed`); it
    leaves when it gets one (`Leaf.take`), and dies when it is overwritten: its row is nobody's then.
    """

    __slots__ = ("__weakref__", "_leaves", "buffer", "sharding")

    def __init__(self, buffer: jax.Array, sharding: Sharding, leaves: Sequence[Any]):
        self.buffer = buffer
        self.sharding = sharding
        self._leaves = [weakref.ref(leaf) for leaf in leaves]
        for index, leaf in enumerate(leaves):
            leaf.lie_in(self, index)
        _alive.add(self)

    @staticmethod
    def of(leaves: Sequence[Any]) -> "Store":
        """A store of leaves of one shape and layout, which give up their own buffers; back when the devices are done,
        so that the next store finds those buffers free."""
        sharding = leaves[0].sharding
        made = rows.stacked([leaf.placed()[0] for leaf in leaves], sharding)
        jax.block_until_ready(made)
        return Store(made, sharding, leaves)

    def __len__(self) -> int:
        return len(self._leaves)

    def leaf(self, index: int) -> Any:
        """The leaf that has its data in a row; None where nobody has."""
        leaf = self._leaves[index]()
        return leaf if leaf is not None and leaf.store is self and leaf.row == index else None

    def leaves(self) -> list[Any]:
        """Those that have their data here."""
        return [leaf for index in range(len(self)) if (leaf := self.leaf(index)) is not None]

    def placed(self) -> jax.Array:
        """The buffer with all rows."""
        return self.buffer

    def copy_of(self, index: int) -> jax.Array:
        """A buffer with one row."""
        return rows.row(self.buffer, index, self.sharding)

    def pass_on(self, index: int, leaf: Any) -> None:
        """Gives the row of a leaf, which has a copy of it from then on, to another leaf."""
        before = self._leaves[index]()
        assert before is not None, "a leaf has the row"
        before.take(self.copy_of(index), self.sharding)
        self._leaves[index] = weakref.ref(leaf)
        leaf.lie_in(self, index)

    def put(self, index: int, leaf: Any) -> None:
        """Gives a leaf, which has a buffer of its own, a row that nobody has."""
        assert self.leaf(index) is None, "a row is one leaf's"
        self.buffer = rows.with_row(self.buffer, index, leaf.placed()[0], self.sharding)
        self._leaves[index] = weakref.ref(leaf)
        leaf.lie_in(self, index)


_alive: "weakref.WeakSet[Store]" = weakref.WeakSet()


def store_of(leaves: Sequence[Any]) -> Store | None:
    """The store whose rows these leaves are, all of them and in order."""
    store: Store | None = leaves[0].store
    if store is None or len(store) != len(leaves):
        return None
    for index, leaf in enumerate(leaves):
        if leaf.store is not store or leaf.row != index:
            return None
    return store


def whole_stores(leaves: Sequence[Any], among: Iterable[int]) -> tuple[Family, ...]:
    """Of each store all of whose rows are leaves at these places, where they are, row by row."""
    if not _alive:
        return ()
    places: dict[Store, dict[int, int]] = {}
    for place in among:
        store = leaves[place].store
        if store is not None:
            places.setdefault(store, {})[leaves[place].row] = place
    return tuple(
        tuple(found[row] for row in range(len(store))) for store, found in places.items() if len(found) == len(store)
    )

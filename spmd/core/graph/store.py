"""Store: one buffer whose rows are the data of several tensors; which inputs of a graph are all rows of a store."""

# Why rows of one buffer and not views of one parameter: a program that loops over layers wants an array of all their
# weights, and a user wants each as a tensor of its own. torch takes views of one parameter for tied weights, and saves
# all of them with each.
#
# Why a single reader gets a copy of its row: a buffer that is lent keeps the whole stack from being donated.

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from ..sharding.value import Sharding
from . import lent, store_rows

StackGroup = tuple[int, ...]


class Store:
    """A buffer [rows, *shape] and the device data of its rows. It lives as long as one of them does.

    sharding: of each row; the buffer has an unsharded first dim in front of it. A dim that the mesh does not divide is
    padded in the store as in a row. Device data in a store has no buffer of its own and takes copies of its row
    (`DeviceData.placed`); it leaves the store when it gets a buffer (`DeviceData.take`). When its value is overwritten,
    it is freed and its row is free.
    """

    __slots__ = ("__weakref__", "_refs", "buffer", "sharding")

    def __init__(self, buffer: jax.Array, sharding: Sharding, inputs: Sequence[Any]):
        self.buffer = buffer
        self.sharding = sharding
        self._refs = [weakref.ref(device_data) for device_data in inputs]
        for index, device_data in enumerate(inputs):
            device_data.move_into(self, index)
        _alive.add(self)

    @staticmethod
    def of(inputs: Sequence[Any]) -> "Store":
        """Returns a store of device data of one shape and sharding, whose own buffers it replaces.

        Waits for the devices, so that the next store finds those buffers free.
        """
        sharding = inputs[0].sharding
        result = store_rows.stacked([device_data.placed()[0] for device_data in inputs], sharding)
        jax.block_until_ready(result)
        return Store(result, sharding, inputs)

    def __len__(self) -> int:
        return len(self._refs)

    def device_data(self, index: int) -> Any:
        """Returns the device data of a row; None for a free row."""
        data = self._refs[index]()
        return data if data is not None and data.store is self and data.row == index else None

    def inputs(self) -> list[Any]:
        """Returns the device data of all rows that are not free."""
        return [device_data for index in range(len(self)) if (device_data := self.device_data(index)) is not None]

    def placed(self) -> jax.Array:
        """Returns the buffer with all rows."""
        return self.buffer

    def copy_of(self, index: int) -> jax.Array:
        """Returns a buffer with a copy of one row."""
        return store_rows.row(self.buffer, index, self.sharding)

    def pass_on(self, index: int, device_data: Any) -> None:
        """Gives a row to other device data; that which had it takes a copy."""
        before = self._refs[index]()
        assert before is not None, "the row is not free"
        before.take(self.copy_of(index), self.sharding)
        self._refs[index] = weakref.ref(device_data)
        device_data.move_into(self, index)

    def put(self, index: int, device_data: Any) -> None:
        """Copies device data that has a buffer of its own into a free row."""
        assert self.device_data(index) is None, "the row is free"
        own = [self.buffer]
        lent.spare(own, [0])
        self.buffer = store_rows.with_row(own[0], index, device_data.placed()[0], self.sharding)
        self._refs[index] = weakref.ref(device_data)
        device_data.move_into(self, index)


_alive: "weakref.WeakSet[Store]" = weakref.WeakSet()


def store_of(inputs: Sequence[Any]) -> Store | None:
    """Returns the store whose rows these inputs are, all of them and in order; None if there is none."""
    store: Store | None = inputs[0].store
    if store is None or len(store) != len(inputs):
        return None
    for index, device_data in enumerate(inputs):
        if device_data.store is not store or device_data.row != index:
            return None
    return store


def full_stores(inputs: Sequence[Any], among: Iterable[int]) -> tuple[StackGroup, ...]:
    """Returns, for each store all of whose rows are inputs at these places, the places by row."""
    if not _alive:
        return ()
    places: dict[Store, dict[int, int]] = {}
    for place in among:
        store = inputs[place].store
        if store is not None:
            places.setdefault(store, {})[inputs[place].row] = place
    return tuple(
        tuple(found[row] for row in range(len(store))) for store, found in places.items() if len(found) == len(store)
    )

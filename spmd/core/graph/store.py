"""Data that exists: DeviceData, a value of its own; Store, one buffer whose rows are the data of
several tensors.

Rows are stacked, copied and set device by device: no collectives, whatever the mesh, however many
processes.
"""

import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from types import CodeType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from ..base import in_flight
from ..base.jax_private import device_order
from ..files.small_programs import SmallProgram
from ..sharding.partitioner import compiler_context
from ..sharding.value import DEVICE, Sharding
from . import buffer_leases
from .buffer_leases import is_lent
from .errors import AbstractError, LostError
from .meta import Meta
from .stacked import read_row, write_row

# Why rows of one buffer and not views of one parameter: a program that loops over layers wants an
# array of all their weights, and a user wants each as a tensor of its own. torch takes views of one
# parameter for tied weights, and saves all of them with each.
#
# Why a single reader gets a copy of its row: a buffer that is lent keeps the whole stack from being
# donated.


StackGroup = tuple[int, ...]
# By the index of a result, or of a stack of them: each with the input that it replaces.
Replaced = dict[int | StackGroup, list[tuple[int, int]]]


# Changes when data on devices gets another buffer, or enters or leaves a store.
num_moved = 0


# Returns a number above those of all values so far; nodes and device data share it.
next_serial = itertools.count().__next__


class Store:
    """A buffer [rows, *shape] and the device data of its rows. It lives as long as one of these.
    host: (buffer, its copy on the host), for reads of rows. sharding: of each row; its `stack` axes
    shard the buffer's first dim. A dim that the mesh does not divide is padded in the store as in a
    row. Device data in a store has no buffer of its own and takes copies of its row
    (`DeviceData.placed`); it leaves the store when it gets a buffer (`DeviceData.take`). When its
    value is overwritten, it is freed and its row is free.
    """

    __slots__ = ("__weakref__", "_refs", "buffer", "host", "sharding")

    def __init__(self, buffer: jax.Array, sharding: Sharding, inputs: Sequence["DeviceData"]):
        self.buffer = buffer
        self.host: tuple[jax.Array, np.ndarray] | None = None
        self.sharding = sharding
        # Weak, as the data refers to its store: a store ends with the last of its rows, without the
        # cyclic collector.
        self._refs = [weakref.ref(device_data) for device_data in inputs]
        for index, device_data in enumerate(inputs):
            device_data.move_into(self, index)
        _alive.add(self)

    @staticmethod
    def of(inputs: Sequence["DeviceData"], sharding: Sharding) -> "Store":
        """Returns a store of device data of one shape and sharding, whose own buffers it replaces.

        Waits for the devices, so that the next store finds those buffers free.
        """
        result = stacked([device_data.block_buffer()[0] for device_data in inputs], sharding)
        # The rows' own buffers are free when the copy is done: the next store would else need room
        # for both.
        jax.block_until_ready(result)
        return Store(result, sharding, inputs)

    def __len__(self) -> int:
        return len(self._refs)

    def device_data(self, index: int) -> "DeviceData | None":
        """Returns the device data of a row; None for a free row."""
        data = self._refs[index]()
        return data if data is not None and data.store is self and data.row == index else None

    def placed(self) -> jax.Array:
        """Returns the buffer with all rows."""
        return self.buffer

    def on_host(self, index: int) -> np.ndarray | None:
        """Returns a row in the host's copy of the buffer; None if there is none."""
        host = self.host  # once: a reader outside of the lock may replace it between two looks
        return host[1][index, ...] if host is not None and host[0] is self.buffer else None

    def copy_of(self, index: int) -> tuple[jax.Array, Sharding]:
        """Returns a buffer with a copy of one row on the devices where it lies, and its sharding
        there."""
        return row(self.buffer, index, self.sharding), self.lies_as(index)

    def lies_as(self, index: int) -> Sharding:
        """Returns the sharding of one row on the devices where it lies."""
        return block_of(self.sharding, self.buffer.shape[0], index)[0]

    def pass_on(self, index: int, device_data: "DeviceData") -> None:
        """Gives a row to other device data; its former data moves into a copy."""
        self._evict(index)
        self._refs[index] = weakref.ref(device_data)
        device_data.move_into(self, index)

    def put(self, index: int, device_data: "DeviceData") -> None:
        """Moves device data into a row; its own buffer is at least where the row lies."""
        assert device_data.buffer is not None, "it is on devices"
        self._evict(index)
        buffers = [self.buffer]
        buffer_leases.spare(buffers, [0])
        # The data gives up its buffer only when the row is written: an error before loses neither.
        self.buffer = with_row(buffers[0], index, device_data.buffer, self.sharding)
        self.pass_on(index, device_data)

    def _evict(self, index: int) -> None:
        """Moves the data of a row, if any, out of the store into a copy."""
        former = self.device_data(index)
        if former is not None:
            former.take(*former.placed())


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class DeviceData:
    """A value that exists: a device buffer, or host data that has not been uploaded yet; or an
    abstract value, of which only shape and layout are known (`is_abstract`), for programs that are
    compiled and never run.

    `sharding`: the sharding of the buffer, or of the upload to come; `lost_reason`: the reason why
    the buffer was given up; the data may be a `row` of a `store` instead of a buffer of its own.
    `maker`: a weak reference to the program whose result this is; `source`: the user's (code, last
    instruction), or the index of the result of the maker. `holder`: a weak reference to the storage
    whose value this is.
    """

    meta: Meta
    _: KW_ONLY
    buffer: jax.Array | None = None
    host: np.ndarray | None = None
    sharding: Sharding | None = None
    maker: Any = None
    source: tuple[CodeType | None, int] | int | None = None
    is_abstract: bool = False
    store: Store | None = field(init=False, default=None)
    row: int = field(init=False, default=0)
    lost_reason: str | None = field(init=False, default=None)
    serial: int = field(init=False, default_factory=next_serial)
    holder: Any = field(init=False, default=None)

    def is_on_devices(self) -> bool:
        """True if it holds memory of the devices: a buffer of its own, or a row of a store."""
        return self.buffer is not None or self.store is not None

    def take(self, buffer: jax.Array, sharding: Sharding) -> None:
        """Makes this buffer the memory of the data."""
        global num_moved
        is_move = self.is_on_devices()
        self.buffer, self.sharding = buffer, sharding
        self.host = self.store = None
        num_moved += is_move

    @property
    def stored_row(self) -> "tuple[Store, int] | None":
        """The store of a row and its index there."""
        return None if self.store is None else (self.store, self.row)

    def take_row(self, stored_row: "tuple[Store, int] | None", sharding: Sharding) -> None:
        """Moves a value from the devices of a block into this row of a store if the row lies on
        them, else to all devices."""
        if stored_row is not None and stored_row[0].lies_as(stored_row[1]) is self.sharding:
            stored_row[0].put(stored_row[1], self)
        else:
            assert self.buffer is not None and self.sharding is not None
            self.take(_spread(self.buffer, self.sharding, sharding), sharding)

    def move_into(self, store: Store, row: int) -> None:
        """Makes a row of a store the memory of the data."""
        global num_moved
        self.store, self.row, self.sharding = store, row, store.sharding
        self.host = self.buffer = None
        num_moved += 1

    def placed(self) -> tuple[jax.Array, Sharding]:
        """Returns the buffer of a value on devices, or a copy of its row on all devices of its
        sharding; and the sharding."""
        assert self.sharding is not None
        if self.store is None:
            assert self.buffer is not None
            return self.buffer, self.sharding
        if not self.store.buffer.is_fully_addressable and len(self.sharding.blocks()) > 1:
            return _row_everywhere(self.store.buffer, self.row, self.sharding), self.sharding
        buffer, sharding = self.store.copy_of(self.row)
        return (
            (buffer if sharding is self.sharding else _spread(buffer, sharding, self.sharding)),
            self.sharding,
        )

    def block_buffer(self) -> tuple[jax.Array, Sharding]:
        """Returns the buffer of a value on devices, or a copy of its row on the devices where it
        lies; its sharding."""
        return self.placed() if self.store is None else self.store.copy_of(self.row)

    def buffer_and_row(self) -> tuple[jax.Array, int | None]:
        """Returns the buffer of a value on devices, and the value's row in it if the buffer is a
        store's."""
        buffer_owner = self if self.store is None else self.store
        assert buffer_owner.buffer is not None
        return buffer_owner.buffer, None if self.store is None else self.row

    @property
    def is_state(self) -> bool:
        """True if this is the value of a module's parameter or buffer."""
        storage = self.holder() if self.holder is not None else None
        return storage is not None and storage.is_state

    def give_up(self, why: str) -> None:
        """Drops the data; the next use raises LostError with this reason."""
        global num_moved
        is_move = self.is_on_devices()
        self.lost_reason, self.buffer, self.store = why, None, None
        num_moved += is_move

    def is_lost(self) -> bool:
        """True if the buffer was donated."""
        buffer = self.buffer if self.store is None else self.store.buffer
        return buffer is not None and buffer.is_deleted()

    def is_lent(self) -> bool:
        """True if the buffer is lent to a reader outside the graph."""
        return self.buffer is not None and is_lent(self.buffer)

    def is_unreferenced(self) -> bool:
        """True if the storage of this data is gone and its buffer is not referenced from outside
        the graph."""
        return (
            self.holder is not None
            and self.holder() is None
            and self.buffer is not None
            and not self.is_lent()
        )

    def check(self) -> None:
        """Raises LostError if the data was given up by a failed run, AbstractError if the value is
        abstract."""
        if self.is_abstract:
            raise AbstractError(
                f"{self.meta!r} is abstract: it has a shape, a layout ({self.sharding!r}) and no "
                "data"
            )
        # jax marks a donated buffer as deleted when the run begins, also where the run then fails.
        if self.lost_reason is None and self.is_lost():
            self.lost_reason = "its buffer was donated to a run that was interrupted"
        if self.lost_reason is not None:
            raise LostError(
                f"this tensor's data ({self.meta!r}) is lost: {self.lost_reason}. Load or "
                "initialise it again."
            )


def buffers_of(owners: "Sequence[DeviceData | Store | None]") -> list[Any]:
    """Returns the buffers of data and of stores, in order; None for None."""
    return [None if owner is None else owner.buffer for owner in owners]


def refill(owner: "DeviceData | Store", buffer: jax.Array) -> None:
    """Gives data, or a store, the buffer of its new value, where nothing else refers to the old
    value."""
    # Without `take`: where the old value was donated to this run, neither the sharding nor the row
    # changes.
    owner.buffer = buffer


_alive: "weakref.WeakSet[Store]" = weakref.WeakSet()


def store_of(inputs: Sequence["DeviceData"]) -> Store | None:
    """Returns the store whose rows these inputs are, all of them and in order; None if there is
    none."""
    store: Store | None = inputs[0].store
    if store is None or len(store) != len(inputs):
        return None
    for index, device_data in enumerate(inputs):
        if device_data.store is not store or device_data.row != index:
            return None
    return store


def full_stores(inputs: Sequence["DeviceData"], indices: Iterable[int]) -> tuple[StackGroup, ...]:
    """Returns a stack group for each store all of whose rows are among the inputs at these indices:
    their indices, by row."""
    # This runs at each sync, and most programs have no stores.
    if not _alive:
        return ()
    index_of_row: dict[Store, dict[int, int]] = {}
    for index in indices:
        store = inputs[index].store
        if store is not None:
            index_of_row.setdefault(store, {})[inputs[index].row] = index
    return tuple(
        tuple(rows[row] for row in range(len(store)))
        for store, rows in index_of_row.items()
        if len(rows) == len(store)
    )


def stacked(rows: Sequence[jax.Array], sharding: Sharding) -> jax.Array:
    """Returns a new array whose rows are these arrays, each of this sharding."""
    # Each block of devices gets equally many rows: copies of the last row fill up the last block.
    blocks = sharding.blocks()
    rows_per_block = -(-len(rows) // len(blocks))
    padded = [*rows, *[rows[-1]] * (rows_per_block * len(blocks) - len(rows))]
    shape = (rows_per_block, *rows[0].shape)
    parts = [
        _run(
            _stack,
            padded[start : start + rows_per_block],
            [sharding] * rows_per_block,
            shape,
            block.behind_rows(),
        )
        for start, block in zip(range(0, len(padded), rows_per_block), blocks, strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    shards = dict(itertools.chain.from_iterable(shards_by_device(part).items() for part in parts))
    return from_shards(shards, (len(padded), *rows[0].shape), sharding.behind_rows().jax)


def stack_program(count: int, sharding: Sharding) -> SmallProgram:
    """Returns the program that stacks this number of arrays of this sharding."""
    named = sharding.jax
    return _program(_stack, named.mesh, (named.spec,) * count, sharding.behind_rows().jax.spec, 0)


def row(stack: jax.Array, index: int, sharding: Sharding) -> jax.Array:
    """Returns a copy of one row of a stack on the devices where it lies; sharding: of a row."""
    block, block_row = block_of(sharding, stack.shape[0], index)
    return _run(
        read_row, [stack], [sharding.behind_rows()], stack.shape[1:], block, np.int32(block_row)
    )


def with_row(stack: jax.Array, index: int, row: jax.Array, sharding: Sharding) -> jax.Array:
    """Returns the stack with `row` at this index, in the memory of the stack, which is donated;
    sharding: of a row."""
    block, block_row = block_of(sharding, stack.shape[0], index)
    shape = (stack.shape[0] // len(sharding.blocks()), *stack.shape[1:])
    shards, shardings = shards_by_device(stack), [sharding.behind_rows(), sharding]
    part = _run(write_row, [stack, row], shardings, shape, block.behind_rows(), np.int32(block_row))
    return (
        part
        if block is sharding
        else from_shards(shards | shards_by_device(part), stack.shape, shardings[0].jax)
    )


def block_of(sharding: Sharding, num_rows: int, row_index: int) -> tuple[Sharding, int]:
    """Returns the sharding of one of `num_rows` rows on the devices of its block, and the row's
    index in the block."""
    blocks = sharding.blocks()
    rows_per_block = -(-num_rows // len(blocks))  # rounded up
    return blocks[row_index // rows_per_block], row_index % rows_per_block


def _spread(buffer: jax.Array, block: Sharding, sharding: Sharding) -> jax.Array:
    """Copies a row from the devices of its block to all devices of its sharding."""
    shards, devices = shards_by_device(buffer), device_order(block.jax)
    copies: dict[jax.Device, jax.Array] = {}
    for target in sharding.blocks():
        for device, source in zip(device_order(target.jax), devices, strict=True):
            single = SingleDeviceSharding(device, memory_kind=target.jax.memory_kind)
            copies[device] = jax.device_put(shards[source], single)
    return from_shards(copies, buffer.shape, sharding.jax)


def _row_everywhere(stack: jax.Array, index: int, sharding: Sharding) -> jax.Array:
    """Returns a copy of a row, which may lie on other processes' devices, on all devices of its
    sharding: all processes must call it."""
    with compiler_context():
        return _launch(jax.jit(read_row, out_shardings=sharding.jax), stack, np.int32(index))


def shards_by_device(array: jax.Array) -> dict[jax.Device, jax.Array]:
    """Returns the shards of an array on devices of this process."""
    return {shard.device: shard.data for shard in array.addressable_shards}


def from_shards(
    shards: Mapping[jax.Device, jax.Array],
    shape: tuple[int, ...],
    sharding: jax.sharding.Sharding,
    dtype: Any = None,
) -> jax.Array:
    """Returns the array of this shape whose shards are on these devices of this process. dtype: of
    one that lies on other processes' devices alone."""
    order = [device for device in device_order(sharding) if device in shards]
    return jax.make_array_from_single_device_arrays(
        shape, sharding, [shards[device] for device in order], dtype=None if order else dtype
    )


def _stack(*rows: jax.Array) -> jax.Array:
    return jnp.stack(rows)


Body = Callable[..., jax.Array]


def _run(
    body: Body,
    arrays: Sequence[jax.Array],
    shardings: Sequence[Sharding],
    shape: tuple[int, ...],
    sharding: Sharding,
    *numbers: np.int32,
) -> jax.Array:
    """Computes a result of this shape and sharding, each device's shard from its shards of the
    arrays."""
    with compiler_context():
        if sharding.memory != DEVICE:  # programs compute in the devices' own memory
            device_shardings = [
                operand_sharding.with_spec(operand_sharding.spec) for operand_sharding in shardings
            ]
            moved = [
                jax.device_put(array, operand_sharding.jax)
                for array, operand_sharding in zip(arrays, device_shardings, strict=True)
            ]
            return jax.device_put(
                _run(
                    body,
                    moved,
                    device_shardings,
                    shape,
                    sharding.with_spec(sharding.spec),
                    *numbers,
                ),
                sharding.jax,
            )
        named = sharding.jax
        # jitted over all devices where this process has them: then nothing is taken apart and put
        # together.
        if arrays[0].is_fully_addressable and arrays[0].sharding.device_set == named.device_set:
            specs = tuple(operand_sharding.jax.spec for operand_sharding in shardings)
            return _launch(
                _program(body, named.mesh, specs, named.spec, len(numbers)), *arrays, *numbers
            )
        # A program over the devices of this process alone, which another process need not run at
        # the same time.
        shards = list(map(shards_by_device, arrays))
        devices = tuple(device for device in device_order(named) if device in shards[0])
        if not devices:  # the block of other processes
            return from_shards({}, shape, named, arrays[0].dtype)
        local = [
            _joined([shards_of_array[device] for device in devices], devices)
            for shards_of_array in shards
        ]
        # Each shard as a row of an array over the local devices: the sharding of the whole is not
        # needed for it.
        specs = tuple(_first_dim_split(len(array.shape)) for array in arrays)
        result = _launch(
            _program(body, _mesh(devices), specs, _first_dim_split(len(shape)), len(numbers)),
            *local,
            *numbers,
        )
        return from_shards(shards_by_device(result), shape, named)


def _launch(
    program: Callable[..., jax.Array], array: jax.Array, *operands: jax.Array | np.int32
) -> jax.Array:
    in_flight.make_room(len(array.sharding.device_set))
    result = program(array, *operands)
    in_flight.note(result)
    return result


def _joined(shards: list[jax.Array], devices: tuple[jax.Device, ...]) -> jax.Array:
    """Returns the shards of the devices as one array, without copying: along the first dim, if they
    have one."""
    shape = shards[0].shape
    global_shape = (len(shards) * shape[0], *shape[1:]) if shape else ()
    sharding = NamedSharding(_mesh(devices), _first_dim_split(len(shape)))
    return jax.make_array_from_single_device_arrays(global_shape, sharding, shards)


@functools.lru_cache(64)
def _mesh(devices: tuple[jax.Device, ...]) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(devices), ("device",))


def _first_dim_split(rank: int) -> PartitionSpec:
    return PartitionSpec("device") if rank else PartitionSpec()


@functools.lru_cache(256)
def _program(
    body: Body,
    mesh: jax.sharding.Mesh,
    specs: tuple[PartitionSpec, ...],
    spec: PartitionSpec,
    num_numbers: int,
) -> SmallProgram:
    numbers = (PartitionSpec(),) * num_numbers
    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=(*specs, *numbers), out_specs=spec, check_vma=False
    )
    return SmallProgram(
        mapped,
        body.__name__,
        mesh.axis_names,
        specs,
        spec,
        donate_argnums=(0,) if body is write_row else (),
    )

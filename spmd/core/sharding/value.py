"""The Sharding value: mesh, spec and memory of one array. The only file that writes it as XLA's."""

import itertools
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.sharding import Sharding as JaxSharding

from ..base.jax_private import device_order, hlo_sharding, is_reordered, xla_client
from ..base.tables import Interned
from .text import Tiling, spell
from .topology import Target, grid, ordinal, program, stand_in

# --- the spec -------------------------------------------------------------------------------------

# jax's own: a dim of a user's spec that the partitioner chooses
UNCONSTRAINED = PartitionSpec.UNCONSTRAINED


class Dim(NamedTuple):
    """The mesh axes that shard one dim, the first the slowest; where it is open, the partitioner
    chooses.

    A tuple, as a Spec is, because both are in keys that are hashed at each call.
    """

    axes: tuple[str, ...] = ()
    is_open: bool = False


UNSHARDED = Dim()
OPEN = Dim(is_open=True)


class Spec(NamedTuple):
    """The dims in order; dims behind the last one are unsharded. unreduced: the mesh axes over
    which the array is still to be summed.

    stack: for an array that is a row of a stack, the mesh axes that divide the stack into blocks of
    rows. A row in a stack lies on the devices of its block alone; outside of it the array is
    replicated over these axes.

    >>> Spec.of((), ("data", "fsdp")).entries(3)
    (None, ('data', 'fsdp'), None)
    """

    dims: tuple[Dim, ...] = ()
    unreduced: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()

    @staticmethod
    def of(*axes: tuple[str, ...]) -> "Spec":
        """Returns the spec of dims that are sharded over these axes, or over none."""
        return Spec(tuple(map(Dim, axes)))

    @property
    def is_open(self) -> bool:
        """True if the partitioner chooses a dim."""
        return OPEN in self.dims

    def closed(self) -> "Spec":
        """Returns the spec with open dims unsharded."""
        return self._replace(dims=tuple([UNSHARDED if dim.is_open else dim for dim in self.dims]))

    def over(self, sizes: "dict[str, int]") -> "Spec":
        """Returns the canonical spec on a mesh of these axes: without axes of one device and
        trailing unsharded dims.

        On one device no dim is open, either.
        """
        is_single = all(size == 1 for size in sizes.values())
        dims = [
            UNSHARDED
            if is_single
            else dim
            if dim.is_open
            else Dim(tuple([axis for axis in dim.axes if sizes[axis] > 1]))
            for dim in self.dims
        ]
        while dims and dims[-1] == UNSHARDED:
            dims.pop()
        unreduced = self.unreduced and tuple(
            [axis for axis in sizes if axis in self.unreduced and sizes[axis] > 1]
        )
        return Spec(
            tuple(dims),
            unreduced,
            self.stack and tuple([axis for axis in self.stack if sizes[axis] > 1]),
        )

    def entries(self, rank: int) -> tuple[object, ...]:
        """Returns the spec as a user writes it, per dim: an axis, a tuple of axes, None, or
        UNCONSTRAINED."""
        return tuple([_entry(dim) for dim in self.dims]) + (None,) * (rank - len(self.dims))


def _entry(dim: Dim) -> object:
    """Returns a dim as a user writes it: an axis, a tuple of axes, None, or UNCONSTRAINED."""
    if dim.is_open:
        return UNCONSTRAINED
    return None if not dim.axes else dim.axes[0] if len(dim.axes) == 1 else dim.axes


def jax_spec(dims: Sequence[Dim]) -> PartitionSpec:
    """Returns the dims as jax's PartitionSpec."""
    return PartitionSpec(*map(_entry, dims))


# --- the sharding ---------------------------------------------------------------------------------

DEVICE = "device"  # the memory in which programs compute
HOST = "pinned_host"  # the machine's own memory, from which a device can copy by itself

_INTERNED: "Interned[tuple, Sharding]" = Interned(4096)


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Sharding:
    """The sharding of an array: a mesh, for each tensor dim the mesh axes that shard it, in order,
    and the memory.

    Values are interned, so equal shardings are the same object: a spec of all None, a shorter spec
    and "replicated" are one value. Build them with `Sharding.of`.

    Attributes:
        device_ids: the mesh's devices by ordinal (see `topology`), row-major; `mesh_shape` and
            `axis_names`: its shape and axes.
        spec: the axes of each dim (see `Spec`); trailing unsharded dims left out. is_open: whether
            the partitioner chooses a dim.
        memory: "device", "pinned_host" or "unpinned_host".
        target: the target whose devices these are; None: those here (see `topology`).
        devices: the mesh's devices as a set, those of different targets different. jax: the same as
            a `jax.sharding.NamedSharding` over the mesh itself.

    >>> from spmd.core.sharding.value import Sharding
    >>> Sharding.of((0,), (1,), ("x",)).text(2)
    '{replicated}'
    """

    device_ids: tuple[int, ...]
    mesh_shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    spec: Spec
    memory: str
    target: Target
    is_open: bool = field(init=False)
    devices: frozenset[Any] = field(init=False)
    _jax: NamedSharding | None = field(init=False, default=None)
    _over: dict[tuple[int, ...], NamedSharding] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.is_open = self.spec.is_open
        ids = self.device_ids
        self.devices = frozenset(
            ids if self.target is None else [f"{self.target}/{i}" for i in ids]
        )

    @staticmethod
    def of(
        device_ids: tuple[int, ...],
        mesh_shape: tuple[int, ...],
        axis_names: tuple[str, ...],
        spec: Spec = Spec(),
        memory: str = DEVICE,
        target: Target = None,
    ) -> "Sharding":
        """Returns the interned sharding; axes of size 1 and trailing unsharded dims do not make a
        difference."""
        spec = spec.over(dict(zip(axis_names, mesh_shape, strict=True)))
        key = (device_ids, mesh_shape, axis_names, spec, memory, target)
        sharding = _INTERNED.get(key)
        return sharding if sharding is not None else _INTERNED.of(key, lambda: Sharding(*key))

    @staticmethod
    def single(device_id: int, memory: str = DEVICE, target: Target = None) -> "Sharding":
        """Returns the sharding of an array on one device."""
        return Sharding.of((device_id,), (1,), ("device",), Spec(), memory, target)

    def with_spec(self, spec: Spec, memory: str = DEVICE) -> "Sharding":
        """Returns another sharding on the same mesh."""
        return Sharding.of(
            self.device_ids, self.mesh_shape, self.axis_names, spec, memory, self.target
        )

    def behind_rows(self) -> "Sharding":
        """Returns the sharding of a stack of arrays with this sharding."""
        return self.with_spec(
            Spec((Dim(self.spec.stack), *self.spec.dims), self.spec.unreduced), self.memory
        )

    def blocks(self) -> "list[Sharding]":
        """Returns the sharding of a row of each block of a stack, on the devices of the block
        alone."""
        if not self.spec.stack:
            return [self]
        axes = [self.axis_names.index(axis) for axis in self.spec.stack]
        ids = np.moveaxis(
            np.array(self.device_ids).reshape(self.mesh_shape), axes, range(len(axes))
        )
        block_shape = tuple(
            1 if axis in axes else size for axis, size in enumerate(self.mesh_shape)
        )
        block_ids = ids.reshape(math.prod(ids.shape[: len(axes)]), -1).tolist()
        spec = self.spec._replace(stack=())
        return [
            Sharding.of(
                tuple(device_ids), block_shape, self.axis_names, spec, self.memory, self.target
            )
            for device_ids in block_ids
        ]

    def replicated(self) -> "Sharding":
        """Returns the replicated sharding on the same mesh."""
        return self.with_spec(Spec())

    def closed(self) -> "Sharding":
        """Returns the sharding with open dims unsharded, in which data is placed."""
        return self.with_spec(self.spec.closed(), self.memory) if self.is_open else self

    @staticmethod
    def from_jax(
        sharding: jax.sharding.Sharding, rank: int, meshes: "Iterable[Sharding]" = ()
    ) -> "Sharding":
        """Returns the Sharding for the jax sharding that the compiler chose for a result of `rank`
        dims.

        It is named by the axes of the first of these meshes that can express it, else by axes of
        its own: every way to cut an array into tiles is a mesh, in some order of the devices.
        """
        first_mesh = next(iter(meshes), None)
        target = None if first_mesh is None else first_mesh.target
        device_target = target if target is not None else stand_in.value
        memory = memory_of(sharding)
        if isinstance(sharding, jax.sharding.SingleDeviceSharding):
            (device,) = sharding.device_set
            return Sharding.single(ordinal(device, device_target), memory, target)
        order = tuple(ordinal(device, device_target) for device in device_order(sharding))
        # Devices as ordinals; then the tiling, in whichever axes name it.
        tiling = hlo_sharding(sharding, rank)
        if tiling.is_replicated():
            return (first_mesh or Sharding.of(order, (len(order),), ("devices",))).with_spec(
                Spec(), memory
            )
        tiles, sums, copies, numbers = _tiles_of(tiling, rank, len(order))
        devices = tuple(np.array(order)[numbers].reshape(-1).tolist())
        return Sharding.of_tiling(Tiling(tiles, sums, copies, devices), meshes, memory, target)

    @staticmethod
    def of_tiling(
        tiling: Tiling,
        meshes: "Iterable[Sharding]" = (),
        memory: str = DEVICE,
        target: Target = None,
    ) -> "Sharding":
        """Returns the Sharding of a tiling in the axes of the first mesh that can express it, else
        in axes of its own."""
        tiles, sums, copies, devices = tiling
        groups = _in_order(np.array(devices), sums, copies)
        for mesh in meshes:
            for *axes, unreduced in mesh.specs((*tiles, sums)):
                candidate = mesh.with_spec(Spec.of(*axes)._replace(unreduced=unreduced), memory)
                if candidate._groups() == groups:
                    return candidate
        # No mesh expresses it: an axis for each dim, one for summands, one for copies.
        sizes = {f"dim{i}": size for i, size in enumerate(tiles)} | {"sums": sums}
        axis_sizes = {axis: size for axis, size in sizes.items() if size > 1} | {"copies": copies}
        dims = tuple(Dim((f"dim{i}",) if size > 1 else ()) for i, size in enumerate(tiles))
        spec = Spec(dims, ("sums",) if sums > 1 else ())
        return Sharding.of(
            groups, tuple(axis_sizes.values()), tuple(axis_sizes), spec, memory, target
        )

    def specs(self, tiles: tuple[int, ...]) -> "Iterator[tuple[tuple[str, ...], ...]]":
        """Yields every choice of this mesh's axes for the dims of an array that divides the dims
        into these numbers of tiles."""
        size_of = {
            axis: num_devices for axis, num_devices in self.mesh_axes().items() if num_devices > 1
        }

        return _splits(tiles, size_of)

    @property
    def platform(self) -> str:
        """The kind of its devices: "cpu", "gpu", "tpu"."""
        return str(next(iter(self.jax.device_set)).platform)  # type: ignore[attr-defined]  # jax has no type for devices

    @property
    def jax(self) -> NamedSharding:
        if self.target is None and stand_in.value is not None:
            return self._stand_in().jax
        if self._jax is None:
            mesh = _auto_mesh(self.device_ids, self.mesh_shape, self.axis_names, self.target)
            self._jax = NamedSharding(
                mesh, jax_spec(self._reduced_dims()), memory_kind=self._kind()
            )
        return self._jax

    def _reduced_dims(self) -> tuple[Dim, ...]:
        """Returns the dims of the spec; raises NotImplementedError if it has unreduced axes."""
        if self.spec.unreduced:
            raise NotImplementedError(
                f"{self!r}: an array cannot be constrained to be unreduced over a mesh axis: jax "
                f"{jax.__version__} takes unreduced axes only where the user, not the "
                "partitioner, sets each value's sharding (AxisType.Explicit)"
            )
        return self.spec.dims

    def _stand_in(self) -> "Sharding":
        """Returns this sharding over the target's devices (see `topology.standing_in`)."""
        return Sharding.of(
            self.device_ids,
            self.mesh_shape,
            self.axis_names,
            self.spec,
            self.memory,
            stand_in.value,
        )

    def _kind(self) -> str | None:
        """Returns the memory kind as jax names it; None: the device's default."""
        return None if self.memory == DEVICE else self.memory

    def over(self, order: tuple[int, ...]) -> NamedSharding:
        """Returns the same sharding in a program with this order of devices, in which several
        meshes meet.

        There all of them are one mesh with an axis per prime factor of the number of devices; a
        mesh's own order of the devices is an attribute of the jax sharding.
        """
        if self.target is None and stand_in.value is not None:
            return self._stand_in().over(order)
        sharding = self._over.get(order)
        if sharding is not None:
            return sharding
        primes, ascending, factor_names = self._factors()
        index_of = {device: i for i, device in enumerate(order)}
        # The devices with the prime factors in ascending order, as indices in the program's order.
        ids = np.array(self.device_ids).reshape(primes).transpose(ascending).reshape(-1)
        logical_ids = tuple(index_of[device] for device in ids.tolist())
        sorted_primes = tuple(sorted(primes))
        mesh = _auto_mesh(
            order,
            sorted_primes,
            tuple(f"factor{i}" for i in range(len(sorted_primes))),
            self.target,
        )
        dims = [
            Dim(tuple(factor for axis in dim.axes for factor in factor_names[axis]), dim.is_open)
            for dim in self._reduced_dims()
        ]
        is_in_order = logical_ids == tuple(range(len(order)))
        # jax's own parameter for an array on a mesh whose devices are in another order.
        result = NamedSharding(
            mesh,
            jax_spec(dims),
            memory_kind=self._kind(),
            _logical_device_ids=None if is_in_order else logical_ids,
        )
        self._over[order] = result
        return result

    def _factors(self) -> tuple[list[int], list[int], dict[str, tuple[str, ...]]]:
        """Returns the prime factors of the axes' sizes, the order that sorts them, and by axis the
        names of its factors in a program of several meshes."""
        factors = [_primes(size) for size in self.mesh_shape]
        all_primes = [prime for primes in factors for prime in primes]
        ascending = sorted(range(len(all_primes)), key=lambda i: all_primes[i])
        factor_names, start = {}, 0
        for axis, primes in zip(self.axis_names, factors, strict=True):
            factor_names[axis] = tuple(
                f"factor{ascending.index(start + i)}" for i in range(len(primes))
            )
            start += len(primes)
        return all_primes, ascending, factor_names

    def in_program(self) -> NamedSharding:
        """Returns the sharding in terms of the program that is being traced (see `topology`)."""
        order = program.order
        result = self.jax if order is None or len(order) == 1 else self.over(order)
        mesh = jax.sharding.get_abstract_mesh() if program.manual_axes else result.mesh
        return (
            result
            if mesh is result.mesh
            else NamedSharding(mesh, result.spec, memory_kind=result.memory_kind)
        )

    def by_axis(self) -> tuple[Any, dict[str, tuple[str, ...]]]:
        """Returns the mesh of the traced program, and for each axis of this mesh the axes there
        that stand for it: one per prime factor where several meshes meet (see `over`)."""
        if (order := program.order) is None or len(order) == 1:
            return self.replicated().jax.mesh, {axis: (axis,) for axis in self.axis_names}
        in_order = self.replicated().over(order)
        if is_reordered(in_order):
            raise NotImplementedError(
                f"{self!r}: a manual computation in a program whose first mesh has another order "
                f"of the devices, {order}; give both meshes one order, or call spmd.sync() "
                "between them"
            )
        return in_order.mesh, self._factors()[2]

    def is_as(self, other: "Sharding", rank: int) -> bool:
        """True if an array of `rank` dims has the same shard on each device under both
        shardings."""
        if self is other:
            return True
        return (
            self.devices == other.devices
            and self.memory == other.memory
            and self.tiles(rank) == other.tiles(rank)
            and (self.is_replicated() or self._groups() == other._groups())
        )

    def allows(self, actual_sharding: JaxSharding, rank: int) -> bool:
        """True if the sharding that the compiler chose for an array of `rank` dims agrees with this
        one; open dims agree with any."""
        requested = self.in_program()
        if not self.is_open:
            return requested.is_equivalent_to(actual_sharding, rank)
        closed_dims = [
            dim
            for dim in range(rank)
            if dim >= len(self.spec.dims) or not self.spec.dims[dim].is_open
        ]
        shape = (len(self.device_ids),) * rank  # every tiling over so many devices divides it
        requested_indices, actual_indices = (
            requested.devices_indices_map(shape),
            actual_sharding.devices_indices_map(shape),
        )
        return all(
            requested_indices[device][dim] == actual_indices[device][dim]
            for device in requested_indices
            for dim in closed_dims
        )

    def mesh_axes(self) -> "OrderedDict[str, int]":
        """Returns axis name -> size."""
        return OrderedDict(zip(self.axis_names, self.mesh_shape, strict=True))

    def tiles(self, rank: int) -> tuple[int, ...]:
        """Returns the number of tiles of each of `rank` dims."""
        size_of = self.mesh_axes()
        tiles_of_dims = tuple(
            math.prod(map(size_of.__getitem__, dim.axes)) for dim in self.spec.dims
        )
        return tiles_of_dims + (1,) * (rank - len(tiles_of_dims))

    def shard_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of one device's shard: ceil(dim / tiles), so the last shards of an
        uneven dim are padded."""
        return tuple(
            -(-dim // num_tiles)
            for dim, num_tiles in zip(shape, self.tiles(len(shape)), strict=True)
        )

    def padded_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the smallest shape that holds `shape` and divides evenly: that of all device
        buffers together."""
        return tuple(
            -(-dim // num_tiles) * num_tiles
            for dim, num_tiles in zip(shape, self.tiles(len(shape)), strict=True)
        )

    def is_replicated(self) -> bool:
        return not self.spec.dims and not self.spec.unreduced

    def partition_spec(self, rank: int) -> tuple[object, ...]:
        """Returns the spec as a user writes it, one entry per dim: an axis, a tuple of axes, None,
        or UNCONSTRAINED.

        The axes of a mesh without names are numbers.
        """
        entries = self.spec.entries(rank)
        return tuple(map(_number, entries)) if self.given_names is None else entries

    @property
    def given_names(self) -> tuple[str, ...] | None:
        """The axes' names that a user gave; None for a mesh without names, whose axes are
        numbers."""
        return (
            None
            if self.axis_names == tuple(map(str, range(len(self.axis_names))))
            else self.axis_names
        )

    def text(self, rank: int, *, iota: bool = False) -> str:
        """Returns the sharding of a tensor of `rank` dims as GSPMD text, with lists of devices as
        in PyTorch/XLA.

        iota: writes devices in the newer form, `<=[8]`, if their order allows it. Open dims follow
        as `unspecified_dims`, as in the `backend_config` of `@Sharding`. `Mesh.sharding` parses
        the text.
        Source: `xla::OpSharding` (tile assignment, `last_tile_dim_replicate`, `last_tile_dims`).
        """
        open_dims = [i for i, dim in enumerate(self.spec.dims) if dim.is_open]
        open_text = f" unspecified_dims=[{','.join(map(str, open_dims))}]" if open_dims else ""
        return (
            spell(Tiling(self.tiles(rank), *self.last_tiles(), self._groups()), iota=iota)
            + open_text
        )

    def _groups(self) -> tuple[int, ...]:
        """Returns the devices in the order of tiles, summands and copies."""
        used_axes = [*(axis for dim in self.spec.dims for axis in dim.axes), *self.spec.unreduced]
        used_indices = [self.axis_names.index(axis) for axis in used_axes]
        unused_indices = [i for i in range(len(self.axis_names)) if i not in used_indices]
        ids = np.array(self.device_ids).reshape(self.mesh_shape)
        return _in_order(ids.transpose(used_indices + unused_indices), *self.last_tiles())

    def last_tiles(self) -> tuple[int, int]:
        """Returns (number of summands of an unreduced tile, number of copies of each)."""
        size_of = self.mesh_axes()
        sums = math.prod(size_of[axis] for axis in self.spec.unreduced)
        return sums, len(self.device_ids) // (sums * math.prod(self.tiles(len(self.spec.dims))))

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh_axes().items())
        details = "" if self.memory == DEVICE else f", {self.memory}"
        details += f", unreduced={self.spec.unreduced}" if self.spec.unreduced else ""
        details += f", stack={self.spec.stack}" if self.spec.stack else ""
        details += "" if self.target is None else f", target={self.target!r}"
        return f"Sharding(({axes}), {self.partition_spec(len(self.spec.dims))}{details})"

    def __reduce__(self) -> tuple:
        return Sharding.of, (
            self.device_ids,
            self.mesh_shape,
            self.axis_names,
            self.spec,
            self.memory,
            self.target,
        )


def _auto_mesh(
    ordinals: tuple[int, ...], shape: tuple[int, ...], names: tuple[str, ...], target: Target
) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(
        grid(ordinals, shape, target), names, axis_types=(AxisType.Auto,) * len(names)
    )


def _number(entry: object) -> object:
    """Returns an entry of a spec with its axes as numbers, for a mesh without names."""
    if isinstance(entry, tuple):
        return tuple(map(int, entry))
    return int(entry) if isinstance(entry, str) else entry


def _tiles_of(
    tiling: xla_client.HloSharding, rank: int, num_devices: int
) -> tuple[tuple[int, ...], int, int, np.ndarray]:
    """Returns the tiles of each dim, the summands and copies of a tile, and the devices of a tiling
    of XLA's."""
    if tiling.is_unreduced():
        return (1,) * rank, num_devices, 1, np.arange(num_devices)
    if not tiling.is_tiled() or tiling.is_manual():
        raise NotImplementedError(
            f"a result came back with a sharding that is no tiling of its mesh: {tiling}"
        )
    tiles = tuple(tiling.tile_assignment_dimensions())
    # the kinds of the tile dims behind the array's own; empty for a single one, of copies
    kinds = tiling.subgroup_types()
    sum_dims = [rank + i for i, kind in enumerate(kinds) if kind == _UNREDUCED]
    sums = math.prod(tiles[i] for i in sum_dims)
    copies = num_devices // (sums * math.prod(tiles[:rank]))
    device_numbers = np.array(tiling.tile_assignment_devices()).reshape(tiles)
    return (
        tiles[:rank],
        sums,
        copies,
        np.moveaxis(device_numbers, sum_dims, range(rank, rank + len(sum_dims))),
    )


_UNREDUCED = xla_client.OpSharding.Type.UNREDUCED


def memory_of(sharding: jax.sharding.Sharding) -> str:
    """Returns the memory of a jax sharding: a device's default memory is "device" everywhere."""
    device: Any = device_order(sharding)[0]
    kind = sharding.memory_kind
    return DEVICE if kind is None or kind == device.default_memory().kind else kind


def _in_order(ids: np.ndarray, sums: int, copies: int) -> tuple[int, ...]:
    """Returns the devices by tile, summand and copy: the copies of a summand in ascending order,
    the summands of a tile by their first device."""
    tiles = np.sort(ids.reshape(-1, sums, copies), axis=2)
    return tuple(
        device for tile in tiles.tolist() for summand in sorted(tile) for device in summand
    )


def _primes(number: int) -> list[int]:
    """Returns the prime factors of a number, in order."""
    primes, prime = [], 2
    while number > 1:
        while number % prime == 0:
            primes.append(prime)
            number //= prime
        prime += 1
    return primes


def _splits(
    dims: tuple[int, ...], size_of: dict[str, int]
) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yields every choice of axes for dims of these numbers of tiles, the product of the axes'
    sizes."""
    if not dims:
        yield ()
        return
    for num_axes in range(len(size_of) + 1):
        for axes in itertools.permutations(size_of, num_axes):
            if math.prod(size_of[axis] for axis in axes) == dims[0]:
                unused_sizes = {axis: size for axis, size in size_of.items() if axis not in axes}
                for later_axes in _splits(dims[1:], unused_sizes):
                    yield (axes, *later_axes)

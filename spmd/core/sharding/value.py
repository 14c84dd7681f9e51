"""The Sharding value: how one array lies on a mesh. The only file that knows how GSPMD and Shardy are spelled."""

import contextlib
import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jax._src import config as jax_config  # the partitioner as a context: the public switch is process-wide
from jax._src.lib import xla_client  # the partitioner's own report of what it chose (see `report_sharding`)
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo
from jax._src.sharding_impls import GSPMDSharding
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..config import config
from ..tables import Interned
from .topology import Target, grid, ordinal, stand_in

# None in a jax that knows one partitioner only, which is Shardy.
_SWITCH = getattr(jax_config, "use_shardy_partitioner", None)
if _SWITCH is None:
    config.partitioner = "shardy"

Spec = tuple[tuple[str, ...], ...]

DEVICE = "device"  # the memory in which programs compute
HOST = "pinned_host"  # the machine's own, from which a device can copy by itself

_INTERNED: "Interned[tuple, Sharding]" = Interned(4096)


class Sharding:
    """Where an array lies: on a mesh, for each tensor dim the mesh axes it is split over, in order, in which memory.

    Values are interned, so equal shardings are the same object: a spec of all None, a shorter spec and "replicated" are
    one value. Build them with `Sharding.of`.

    Attributes:
        device_ids: the mesh's devices by ordinal (see `topology`), row-major; `mesh_shape` and `axis_names`: its shape
            and axes.
        spec: per tensor dim the tuple of axis names it is split over; trailing unsplit dims left out.
        memory: "device", "pinned_host" or "unpinned_host".
        target: whose devices these are; None: those here (see `topology`).
        devices: the mesh's devices as a set, those of different targets different. jax: the same as a
            `jax.sharding.NamedSharding` over the mesh itself.

    >>> from spmd.core.sharding.value import Sharding
    >>> Sharding.of((0,), (1,), ("x",), ((),)).text(2)
    '{replicated}'
    """

    __slots__ = (
        "__weakref__", "_jax", "_over", "axis_names", "device_ids", "devices", "memory", "mesh_shape", "spec", "target",
    )  # fmt: skip

    def __init__(
        self,
        device_ids: tuple[int, ...],
        mesh_shape: tuple[int, ...],
        axis_names: tuple[str, ...],
        spec: Spec,
        memory: str,
        target: Target,
    ):
        self.device_ids = device_ids
        self.mesh_shape = mesh_shape
        self.axis_names = axis_names
        self.spec = spec
        self.memory = memory
        self.target = target
        self.devices = frozenset[Any](device_ids if target is None else [f"{target}/{i}" for i in device_ids])
        self._jax: NamedSharding | None = None
        self._over: dict[tuple[int, ...], NamedSharding] = {}

    @staticmethod
    def of(
        device_ids: tuple[int, ...],
        mesh_shape: tuple[int, ...],
        axis_names: tuple[str, ...],
        spec: Spec,
        memory: str = DEVICE,
        target: Target = None,
    ) -> "Sharding":
        """The interned sharding of these parts; axes of size 1 and trailing unsplit dims do not make a difference."""
        size = dict(zip(axis_names, mesh_shape, strict=True))
        spec = tuple(tuple(axis for axis in axes if size[axis] > 1) for axes in spec)
        while spec and not spec[-1]:
            spec = spec[:-1]
        key = (device_ids, mesh_shape, axis_names, spec, memory, target)
        found = _INTERNED.get(key)
        return found if found is not None else _INTERNED.of(key, lambda: Sharding(*key))

    @staticmethod
    def single(device_id: int, memory: str = DEVICE, target: Target = None) -> "Sharding":
        """Whole on one device."""
        return Sharding.of((device_id,), (1,), ("device",), (), memory, target)

    def with_spec(self, spec: Spec, memory: str = DEVICE) -> "Sharding":
        """Another layout on the same mesh."""
        return Sharding.of(self.device_ids, self.mesh_shape, self.axis_names, spec, memory, self.target)

    def behind_rows(self) -> "Sharding":
        """How a stack of arrays that lie so lies: each row so, the rows not split."""
        return self.with_spec(((), *self.spec), self.memory)

    def replicated(self) -> "Sharding":
        """Whole in the memory of every device of the same mesh."""
        return self.with_spec(())

    @staticmethod
    def from_jax(chosen: jax.sharding.Sharding, rank: int, meshes: "Iterable[Sharding]" = ()) -> "Sharding":
        """The value of a sharding that the compiler chose for a result of `rank` dims.

        It is named by the axes of the first of these meshes that can say it, else by axes of its own: every way of
        cutting an array into tiles is a mesh, in some order of the devices.
        """
        known = next(iter(meshes), None)
        target = None if known is None else known.target
        there = target if target is not None else stand_in()
        memory = memory_of(chosen)
        if isinstance(chosen, jax.sharding.SingleDeviceSharding):
            (device,) = chosen.device_set
            return Sharding.single(ordinal(device, there), memory, target)
        order = tuple(ordinal(device, there) for device in chosen._device_assignment)
        tiling = chosen._to_xla_hlo_sharding(rank)
        if tiling.is_replicated():
            return (known or Sharding.of(order, (len(order),), ("devices",), ())).with_spec((), memory)
        if not tiling.is_tiled() or tiling.is_manual():
            raise NotImplementedError(f"a result came back with a sharding that is no tiling of its mesh: {chosen}")
        tiles = tuple(tiling.tile_assignment_dimensions())
        ids = np.array(order)[np.array(tiling.tile_assignment_devices())].reshape(*tiles[:rank], -1)
        groups = tuple(np.sort(ids.reshape(math.prod(tiles[:rank]), -1), axis=1).reshape(-1).tolist())
        for mesh in meshes:
            for spec in mesh._specs(tiles[:rank]):
                named = mesh.with_spec(spec, memory)
                if named._groups() == groups:
                    return named
        copies = len(order) // math.prod(tiles[:rank])
        cut = {f"dim{i}": size for i, size in enumerate(tiles[:rank]) if size > 1}
        spec = tuple((f"dim{i}",) if size > 1 else () for i, size in enumerate(tiles[:rank]))
        return Sharding.of(groups, (*cut.values(), copies), (*cut, "copies"), spec, memory, target)

    def _specs(self, tiles: tuple[int, ...]) -> "Iterator[Spec]":
        """Every spec over this mesh that cuts the dims of an array into so many pieces."""
        size = {axis: n for axis, n in self.mesh_axes().items() if n > 1}

        def split(dims: tuple[int, ...], left: tuple[str, ...]) -> "Iterator[Spec]":
            if not dims:
                yield ()
                return
            for count in range(len(left) + 1):
                for axes in itertools.permutations(left, count):
                    if math.prod(size[axis] for axis in axes) == dims[0]:
                        for rest in split(dims[1:], tuple(axis for axis in left if axis not in axes)):
                            yield (axes, *rest)

        return split(tiles, tuple(size))

    @property
    def jax(self) -> NamedSharding:
        if self.target is None and stand_in() is not None:
            return self._stand_in().jax
        if self._jax is None:
            devices = grid(self.device_ids, self.mesh_shape, self.target)
            mesh = jax.sharding.Mesh(devices, self.axis_names, axis_types=(AxisType.Auto,) * len(self.axis_names))
            self._jax = NamedSharding(mesh, PartitionSpec(*_entries(self.spec)), memory_kind=self._kind())
        return self._jax

    def _stand_in(self) -> "Sharding":
        """The same over the devices that stand for those here (see `topology.standing_in`)."""
        return Sharding.of(self.device_ids, self.mesh_shape, self.axis_names, self.spec, self.memory, target=stand_in())

    def _kind(self) -> str | None:
        """The memory as jax says it."""
        return None if self.memory == DEVICE else self.memory

    def over(self, order: tuple[int, ...]) -> NamedSharding:
        """The same layout in a program whose devices stand in this order and in which several meshes meet.

        All of them are seen there as one mesh with an axis per prime factor of the number of devices; what a mesh makes
        of the order of the devices is said beside it.
        """
        if self.target is None and stand_in() is not None:
            return self._stand_in().over(order)
        found = self._over.get(order)
        if found is not None:
            return found
        factors = [_primes(size) for size in self.mesh_shape]
        flat = [prime for primes in factors for prime in primes]
        sorting = sorted(range(len(flat)), key=lambda i: flat[i])
        place = {device: i for i, device in enumerate(order)}
        ids = np.array(self.device_ids).reshape(flat).transpose(sorting).reshape(-1)
        logical = tuple(place[device] for device in ids.tolist())
        names, start = {}, 0
        for axis, primes in zip(self.axis_names, factors, strict=True):
            names[axis] = tuple(f"factor{sorting.index(start + i)}" for i in range(len(primes)))
            start += len(primes)
        sizes = tuple(sorted(flat))
        mesh = jax.sharding.Mesh(
            grid(order, sizes, self.target),
            tuple(f"factor{i}" for i in range(len(sizes))),
            axis_types=(AxisType.Auto,) * len(sizes),
        )
        spec = tuple(tuple(factor for axis in axes for factor in names[axis]) for axes in self.spec)
        is_in_order = logical == tuple(range(len(order)))
        # jax's own way to say that an array on a mesh lies on its devices in another order.
        made = NamedSharding(
            mesh,
            PartitionSpec(*_entries(spec)),
            memory_kind=self._kind(),
            _logical_device_ids=None if is_in_order else logical,
        )
        self._over[order] = made
        return made

    def in_program(self) -> NamedSharding:
        """The layout as the program that is being traced spells it (see `program_devices`)."""
        order = getattr(_program, "order", None)
        return self.jax if order is None or len(order) == 1 else self.over(order)

    def is_as(self, other: "Sharding", rank: int) -> bool:
        """Whether an array of `rank` dims lies the same in both: the same piece on each device."""
        if self is other:
            return True
        return (
            self.devices == other.devices
            and self.memory == other.memory
            and self.tiles(rank) == other.tiles(rank)
            and (self.is_replicated() or self._groups() == other._groups())
        )

    def mesh_axes(self) -> "OrderedDict[str, int]":
        """Axis name -> size."""
        return OrderedDict(zip(self.axis_names, self.mesh_shape, strict=True))

    def tiles(self, rank: int) -> tuple[int, ...]:
        """Into how many pieces each of `rank` dims is cut."""
        size = self.mesh_axes()
        cut = tuple(math.prod(size[axis] for axis in axes) for axes in self.spec)
        return cut + (1,) * (rank - len(cut))

    def shard_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one device's piece: ceil(dim / pieces), so the last pieces of an uneven dim are padded."""
        return tuple(-(-dim // cut) for dim, cut in zip(shape, self.tiles(len(shape)), strict=True))

    def padded_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The smallest shape that holds `shape` and divides evenly; what the device buffers together hold."""
        return tuple(-(-dim // cut) * cut for dim, cut in zip(shape, self.tiles(len(shape)), strict=True))

    def is_replicated(self) -> bool:
        return not self.spec

    def partition_spec(self, rank: int) -> tuple[str | tuple[str, ...] | None, ...]:
        """The spec as a user writes it, one entry per dim: an axis, a tuple of axes, or None."""
        entries = tuple(None if not axes else axes[0] if len(axes) == 1 else axes for axes in self.spec)
        return entries + (None,) * (rank - len(entries))

    def text(self, rank: int) -> str:
        """The sharding of a tensor of `rank` dims as GSPMD text with device lists, as PyTorch/XLA printed it.

        Source: `xla::OpSharding` (tile assignment, `last_tile_dim_replicate`).
        """
        if not self.spec:
            return "{replicated}"
        copies = len(self.device_ids) // math.prod(self.tiles(rank))
        devices = ",".join(map(str, self._groups()))
        tiles = [*self.tiles(rank), *([copies] if copies > 1 else [])]
        tail = " last_tile_dim_replicate" if copies > 1 else ""
        return f"{{devices=[{','.join(map(str, tiles))}]{devices}{tail}}}"

    def _groups(self) -> tuple[int, ...]:
        """The devices tile by tile; those that hold copies of one tile stand together, in order."""
        used = [self.axis_names.index(axis) for axes in self.spec for axis in axes]
        rest = [i for i in range(len(self.axis_names)) if i not in used]
        copies = math.prod(self.mesh_shape[i] for i in rest)
        ids = np.array(self.device_ids).reshape(self.mesh_shape)
        groups = ids.transpose(used + rest).reshape(-1, copies)
        return tuple(np.sort(groups, axis=1).reshape(-1).tolist())

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh_axes().items())
        where = "" if self.memory == DEVICE else f", {self.memory}"
        where += "" if self.target is None else f", target={self.target!r}"
        return f"Sharding(({axes}), {self.partition_spec(len(self.spec))}{where})"

    def __reduce__(self) -> tuple:
        return Sharding.of, (
            self.device_ids, self.mesh_shape, self.axis_names, self.spec, self.memory, self.target
        )  # fmt: skip


def memory_of(chosen: jax.sharding.Sharding) -> str:
    """In which memory jax says that an array lies: what it calls a device's default is "device" everywhere."""
    device: Any = chosen._device_assignment[0]
    kind = chosen.memory_kind
    return DEVICE if kind is None or kind == device.default_memory().kind else kind


def _entries(spec: Spec) -> list[Any]:
    """A spec as jax writes it."""
    return [None if not axes else axes[0] if len(axes) == 1 else axes for axes in spec]


def _primes(number: int) -> list[int]:
    """The prime factors of a number, in order."""
    found, prime = [], 2
    while number > 1:
        while number % prime == 0:
            found.append(prime)
            number //= prime
        prime += 1
    return found


_program = threading.local()  # .order: the devices of the program that this thread traces, where several meshes meet


@contextlib.contextmanager
def program_devices(order: tuple[int, ...] | None) -> Iterator[None]:
    """What is traced inside runs on these devices in this order, and several meshes meet in it; None: one mesh."""
    before, _program.order = getattr(_program, "order", None), order
    try:
        yield
    finally:
        _program.order = before


@contextlib.contextmanager
def compiler_context() -> Iterator[None]:
    """What our own tracing needs, whatever is set for the user's own JAX code: 64-bit types, the chosen partitioner,
    operands of different ranks and dtypes."""
    is_shardy = config.partitioner == "shardy"
    if _SWITCH is None and not is_shardy:
        raise ValueError(f"config.partitioner: jax {jax.__version__} has no 'gspmd' any more; set it to 'shardy'")
    with (
        jax.enable_x64(True),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
        contextlib.nullcontext() if _SWITCH is None else _SWITCH(is_shardy),
    ):
        yield


# --- what the partitioner chose ---------------------------------------------------------------------------------------

_report_p = Primitive("spmd_report_sharding")
_report_p.def_impl(lambda value, *, tell: value)
_report_p.def_abstract_eval(lambda value, *, tell: value)


def report_sharding(value: jax.Array, tell: Callable[[Any], None]) -> jax.Array:
    """The value itself; while the program is compiled, the partitioner tells the `HloSharding` that it gave it.

    As `jax.debug.inspect_array_sharding`, which must name the layout by the axes of one mesh and has an effect at each
    run; this has neither.
    """
    return _report_p.bind(value, tell=tell)


def _lower_report(context: Any, value: Any, *, tell: Callable[[Any], None]) -> list[Any]:
    key = xla_client.encode_inspect_sharding_callback(tell)
    context.module_context.add_keepalive(tell)  # as long as the program, which has only its address
    hlo.CustomCallOp(
        [value.type],
        [value],
        call_target_name=ir.StringAttr.get("InspectSharding"),
        has_side_effect=ir.BoolAttr.get(True),
        api_version=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 1),
        called_computations=ir.ArrayAttr.get([]),
        backend_config=ir.StringAttr.get(key),
    )
    return [value]


mlir.register_lowering(_report_p, _lower_report)


def as_chosen(chosen: Any, mesh: Sharding) -> jax.sharding.Sharding:
    """What the partitioner reported of a value in a program over this mesh."""
    return GSPMDSharding(list(grid(mesh.device_ids, (len(mesh.device_ids),), mesh.target or stand_in())), chosen)

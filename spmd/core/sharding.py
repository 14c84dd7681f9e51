"""The Sharding value: how one array lies on a mesh. The only file that knows how GSPMD and Shardy are spelled."""

import contextlib
import math
from collections import OrderedDict
from collections.abc import Iterator

import jax
import numpy as np
from jax._src import config as jax_config  # the partitioner as a context: the public switch is process-wide
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .config import config

# None in a jax that knows one partitioner only, which is Shardy.
_SWITCH = getattr(jax_config, "use_shardy_partitioner", None)
if _SWITCH is None:
    config.partitioner = "shardy"

Spec = tuple[tuple[str, ...], ...]

_INTERNED: dict[tuple, "Sharding"] = {}


class Sharding:
    """How an array lies on a mesh: for each tensor dim the mesh axes it is split over, in order.

    Values are interned, so equal shardings are the same object: a spec of all None, a shorter spec and "replicated" are
    one value. Build them with `Sharding.of`.

    Attributes:
        device_ids: the mesh's devices, row-major; `mesh_shape` and `axis_names`: its shape and axes.
        spec: per tensor dim the tuple of axis names it is split over; trailing unsplit dims left out.
        jax: the same as a `jax.sharding.NamedSharding`.

    >>> from spmd.core.sharding import Sharding
    >>> Sharding.of((0,), (1,), ("x",), ((),)).text(2)
    '{replicated}'
    """

    __slots__ = ("_jax", "axis_names", "device_ids", "mesh_shape", "spec")

    def __init__(
        self, device_ids: tuple[int, ...], mesh_shape: tuple[int, ...], axis_names: tuple[str, ...], spec: Spec
    ):
        self.device_ids = device_ids
        self.mesh_shape = mesh_shape
        self.axis_names = axis_names
        self.spec = spec
        self._jax: NamedSharding | None = None

    @staticmethod
    def of(
        device_ids: tuple[int, ...], mesh_shape: tuple[int, ...], axis_names: tuple[str, ...], spec: Spec
    ) -> "Sharding":
        """The interned sharding of these parts; axes of size 1 and trailing unsplit dims do not make a difference."""
        size = dict(zip(axis_names, mesh_shape, strict=True))
        spec = tuple(tuple(axis for axis in axes if size[axis] > 1) for axes in spec)
        while spec and not spec[-1]:
            spec = spec[:-1]
        key = (device_ids, mesh_shape, axis_names, spec)
        found = _INTERNED.get(key)
        return found if found is not None else _INTERNED.setdefault(key, Sharding(*key))

    @staticmethod
    def single(device_id: int) -> "Sharding":
        """Whole on one device."""
        return Sharding.of((device_id,), (1,), ("device",), ())

    def replicated(self) -> "Sharding":
        """Whole on every device of the same mesh."""
        return Sharding.of(self.device_ids, self.mesh_shape, self.axis_names, ())

    @staticmethod
    def from_jax(chosen: jax.sharding.Sharding) -> "Sharding":
        """The value of a sharding that the compiler chose for a result."""
        if isinstance(chosen, NamedSharding):
            mesh = chosen.mesh
            ids = tuple(int(device.id) for device in mesh.devices.reshape(-1))
            axes = tuple(
                () if axis is None else (axis,) if isinstance(axis, str) else tuple(axis) for axis in chosen.spec
            )
            return Sharding.of(ids, tuple(mesh.devices.shape), tuple(mesh.axis_names), axes)
        if isinstance(chosen, jax.sharding.SingleDeviceSharding):
            (device,) = chosen.device_set
            return Sharding.single(device.id)  # type: ignore[attr-defined]  # jax has no type for devices
        raise NotImplementedError(f"a result came back with a sharding that has no mesh axes: {chosen}")

    @property
    def jax(self) -> NamedSharding:
        if self._jax is None:
            by_id = {device.id: device for device in jax.devices()}
            devices = np.array([by_id[i] for i in self.device_ids]).reshape(self.mesh_shape)
            mesh = jax.sharding.Mesh(devices, self.axis_names, axis_types=(AxisType.Auto,) * len(self.axis_names))
            entries = [None if not axes else axes[0] if len(axes) == 1 else axes for axes in self.spec]
            self._jax = NamedSharding(mesh, PartitionSpec(*entries))
        return self._jax

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
        used = [axis for axes in self.spec for axis in axes]
        if not used:
            return "{replicated}"
        position = {name: i for i, name in enumerate(self.axis_names)}
        rest = [i for i in range(len(self.axis_names)) if self.axis_names[i] not in used]
        copies = math.prod(self.mesh_shape[i] for i in rest)
        ids = np.array(self.device_ids).reshape(self.mesh_shape)
        groups = ids.transpose([position[axis] for axis in used] + rest).reshape(-1, copies)
        devices = ",".join(map(str, np.sort(groups, axis=1).reshape(-1)))
        tiles = [*self.tiles(rank), *([copies] if copies > 1 else [])]
        tail = " last_tile_dim_replicate" if copies > 1 else ""
        return f"{{devices=[{','.join(map(str, tiles))}]{devices}{tail}}}"

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh_axes().items())
        return f"Sharding(({axes}), {self.partition_spec(len(self.spec))})"

    def __reduce__(self) -> tuple:
        return Sharding.of, (self.device_ids, self.mesh_shape, self.axis_names, self.spec)


@contextlib.contextmanager
def compiler_context() -> Iterator[None]:
    """torch's 64-bit types and the chosen partitioner, for our tracing only: a user's JAX code keeps its settings."""
    is_shardy = config.partitioner == "shardy"
    if _SWITCH is None and not is_shardy:
        raise ValueError(f"config.partitioner: jax {jax.__version__} has no 'gspmd' any more; set it to 'shardy'")
    with jax.enable_x64(True), contextlib.nullcontext() if _SWITCH is None else _SWITCH(is_shardy):
        yield


def sharding_attributes(stablehlo: str) -> list[str]:
    """Every sharding written in a StableHLO text, in order, in whichever dialect it is spelled."""
    found = []
    for marker, end in (('mhlo.sharding = "', '"'), ("#sdy.sharding<", ">")):
        rest = stablehlo.split(marker)[1:]
        found += [piece.split(end, 1)[0] for piece in rest]
    return found

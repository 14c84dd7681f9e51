"""Mesh: devices arranged in a grid with named axes, and the check of a spec against it."""

import ast
import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Self

import jax
import numpy as np

from ..core import Dim, Sharding, Spec, ends_at_user_line, hardware, processes, specs, topology
from . import sharding_text
from .graph_constants import constant_of_graphs
from .hints import did_you_mean, listed
from .partition_spec import Axis, PartitionSpec
from .placements import Placement, are_placements, spec_of
from .rented import target_of

# the meshes of `with mesh:`
ENTERED: "ContextVar[tuple[Mesh, ...]]" = ContextVar("spmd_meshes", default=())


class MeshError(ValueError, AssertionError):
    """A mesh that does not fit its devices, or a spec that does not fit a mesh or a tensor.

    PyTorch/XLA checks these by assertions, so that scripts and tests written for it catch an
    AssertionError.
    """


class DeviceIds(tuple[int, ...]):
    """The ids of a mesh's devices: a tuple that has `tolist`, as numpy's array under this name in
    PyTorch/XLA."""

    __slots__ = ()

    def tolist(self) -> list[int]:
        """The ids as a list."""
        return list(self)


class Mesh:
    """Devices in a grid. Immutable, compared and hashed by value.

    Args:
        device_ids: ids of the devices (`spmd.device_ids`: 0 to n-1 over all processes), row-major,
            each at most once; any subset of the devices, with several processes all of them.
        mesh_shape: the size of each axis; their product is the number of ids.
        axis_names: a name per axis, all different; None: axes are addressed by index.
        target: devices that need not be present: a TPU slice such as "v5e:2x4", or "cpu:2048".
            Programs over such a mesh can be lowered and compiled; a run or an upload raises.

    Inside `with mesh:` it is the default mesh of calls without one. Subclasses may take other
    arguments.

    Raises ValueError for unknown or repeated device ids, a shape that does not fit their number, or
    repeated names (an AssertionError, too, as in PyTorch/XLA); TypeError for a single number or
    text instead of a sequence.
    Source: `torch_xla.distributed.spmd.Mesh`, `jax.sharding.Mesh`.

    >>> import spmd
    >>> mesh = spmd.Mesh([0], (1, 1), ("data", "model"))
    >>> dict(mesh.shape())
    {'data': 1, 'model': 1}
    """

    __slots__ = ("_shardings", "axes", "axis_names", "device_ids", "mesh_shape", "target")

    device_ids: DeviceIds
    mesh_shape: tuple[int, ...]
    # by which specs name the axes: of an unnamed mesh "0", "1", ...
    axes: tuple[str, ...]
    axis_names: tuple[str, ...] | None
    target: str | None
    # of every spec that was checked against this mesh
    _shardings: dict[tuple[PartitionSpec, int], Sharding]

    @ends_at_user_line
    def __init__(
        self,
        device_ids: Iterable[int] | np.ndarray,
        mesh_shape: Sequence[int] | None = None,
        axis_names: Sequence[str] | None = None,
        *,
        target: str | None = None,
    ):
        target = target_of(target, "Mesh")
        shape = _axis_sizes(device_ids, mesh_shape)
        ids = _device_ids(device_ids)
        if isinstance(axis_names, str):
            raise TypeError(
                f"Mesh: expected a tuple of axis names, got {axis_names!r}; one name is "
                f"({axis_names!r},)"
            )
        names = (
            tuple(axis_names)
            if axis_names is not None
            else tuple(str(i) for i in range(len(shape)))
        )
        if any(size < 1 for size in shape):
            raise MeshError(
                f"Mesh: the sizes of axes are at least 1, got mesh_shape {shape}; write the "
                f"number, which is not inferred: {tuple(_inferred(shape, len(ids)))}"
            )
        if math.prod(shape) != len(ids):
            raise MeshError(
                f"Mesh: mesh_shape {shape} holds {math.prod(shape)} devices, but {len(ids)} "
                "device ids were given"
            )
        if len(names) != len(shape):
            raise MeshError(
                f"Mesh: expected {len(shape)} axis names for mesh_shape {shape}, got "
                f"{len(names)}: {names}"
            )
        if len(set(names)) != len(names):
            raise MeshError(f"Mesh: axis names must differ, got {names}")
        repeated = sorted(i for i, count in Counter(ids).items() if count > 1)
        if repeated:
            raise MeshError(
                f"Mesh: each device may appear once, but {_few(repeated)} appear(s) more often"
            )
        count = len(hardware.devices()) if target is None else topology.num_devices(target)
        unknown = sorted(i for i in ids if not 0 <= i < count)
        if unknown and target is not None:
            raise MeshError(
                f"Mesh: there is no device {_few(unknown)}; {target!r} has {count}, from 0 on"
            )
        if unknown:
            raise MeshError(
                f"Mesh: there is no device {_few(unknown)}; this process sees {count} device(s), "
                f"ids {_few(range(count))}. On CPU, spmd.simulate({max(ids) + 1}) before the "
                "first tensor makes more."
            )
        if target is None and processes.several() and len(ids) < count:
            raise MeshError(
                f"Mesh: with several processes a mesh holds every device, but {len(ids)} of "
                f"{count} were given; spmd.device_ids() has them all"
            )
        values: tuple[object, ...] = (
            {},
            names,
            None if axis_names is None else names,
            DeviceIds(ids),
            shape,
            target,
        )
        for name, value in zip(Mesh.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in Mesh.__slots__:
            raise AttributeError("a Mesh is immutable; make a new one")
        super().__setattr__(name, value)  # of a subclass

    def __enter__(self) -> Self:
        ENTERED.set((*ENTERED.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        ENTERED.set(ENTERED.get()[:-1])

    def size(self) -> int:
        """The number of devices."""
        return len(self.device_ids)

    def shape(self) -> "OrderedDict[str | int, int]":
        """Axis name (or index, where the mesh has no names) -> size."""
        keys: Iterable[str | int] = self.axis_names or range(len(self.mesh_shape))
        return OrderedDict(zip(keys, self.mesh_shape, strict=True))

    def get_logical_mesh(self) -> np.ndarray:
        """The device ids as an array of the mesh's shape."""
        return np.array(self.device_ids).reshape(self.mesh_shape)

    def get_axis_name_idx(self, name: str) -> int | None:
        """The index of an axis, or None."""
        return self.axes.index(name) if name in self.axes else None

    def link(self, axis: str | int) -> str:
        """The kind of link between the devices along an axis: "ici" inside a slice, "dcn" between
        slices.

        An axis with both (see `HybridMesh`) is "dcn", the slower one. Raises ValueError for an axis
        that is not in the mesh.
        """
        name = axis if axis in self.axes else self._axis(axis, PartitionSpec(axis), "link")
        where = np.array(topology.slices(self.target))[self.get_logical_mesh()]
        rows = np.moveaxis(where, self.axes.index(name), 0)
        return "dcn" if (rows != rows[:1]).any() else "ici"

    def get_jax_mesh(self) -> jax.sharding.Mesh:
        """The same mesh as a `jax.sharding.Mesh`."""
        mesh = Sharding.of(self.device_ids, self.mesh_shape, self.axes, target=self.target).jax.mesh
        assert isinstance(mesh, jax.sharding.Mesh), "the mesh of a Sharding has devices"
        return mesh

    def get_op_sharding(self, partition_spec: Sequence[Any]) -> Sharding:
        """The Sharding of a tensor with as many dims as the spec has entries.

        Source: `torch_xla`'s method.
        """
        return self.sharding(partition_spec, len(partition_spec), "get_op_sharding")

    @staticmethod
    def from_str(mesh_str: str) -> "Mesh":
        """Parses the text of `str(mesh)`, or PyTorch/XLA's text: a dict of device_ids, mesh_shape
        and axis_names.

        Raises ValueError for another text.

        >>> import spmd
        >>> spmd.Mesh.from_str(str(spmd.Mesh([0], (1,), ("data",))))
        Mesh([0], (1,), ('data',))
        """
        try:
            values, named = _arguments(ast.parse(mesh_str.strip(), mode="eval").body)
            return Mesh(*values, **named)
        except (SyntaxError, TypeError) as error:
            raise ValueError(
                f"Mesh.from_str: expected the text of a mesh, got {mesh_str!r}: {error}"
            ) from error

    def sharding(
        self, partition_spec: Sequence[Any], rank: int, caller: str = "sharding"
    ) -> Sharding:
        """The Sharding of a tensor of `rank` dims under a spec on this mesh.

        A spec is one entry per dim (see `PartitionSpec`), or GSPMD text (`"{devices=[4,2]<=[8]}"`,
        devices by id), or DTensor's placements, one per mesh axis (`[Shard(0), Replicate()]`);
        every function that takes a spec takes these.

        Raises ValueError for a spec of another rank, an axis that is not in the mesh or that is
        used twice, and for text that does not parse or names other devices; TypeError for another
        type.

        >>> import spmd
        >>> spmd.Mesh([0], (1,), ("data",)).sharding("{replicated}", 2)
        Sharding((data=1), ())
        """
        if type(partition_spec) is PartitionSpec:
            spec = partition_spec
        elif isinstance(partition_spec, str) and partition_spec.lstrip().startswith("{"):
            return self._of_text(partition_spec, rank, caller)
        elif isinstance(partition_spec, Placement) or are_placements(partition_spec):
            # one alone is that of a mesh with one axis
            placements = (
                [partition_spec] if isinstance(partition_spec, Placement) else partition_spec
            )
            spec = spec_of(placements, rank, self.axes, self.mesh_shape, caller)
        else:
            spec = _spec(partition_spec, rank, caller, self.axes)
        sharding = self._shardings.get((spec, rank))
        if sharding is None:
            sharding = self._shardings[(spec, rank)] = self._checked(spec, rank, caller)
        return sharding

    def _of_text(self, spec: str, rank: int, caller: str) -> Sharding:
        whole = Sharding.of(self.device_ids, self.mesh_shape, self.axes, target=self.target)
        text, open_dims = sharding_text.open_dims(spec)
        if open_dims and max(open_dims) >= rank:
            raise ValueError(
                f"{caller}: {spec} leaves dim {max(open_dims)} open, but the tensor has {rank} dims"
            )
        sharding = Sharding.of_tiling(
            sharding_text.read(text, rank, self.device_ids, caller), (whole,), target=self.target
        )
        dims = [*sharding.spec.dims, *[specs.UNSHARDED] * (rank - len(sharding.spec.dims))]
        dims = [specs.OPEN if i in open_dims else dim for i, dim in enumerate(dims)]
        return sharding.with_spec(sharding.spec._replace(dims=tuple(dims)))

    def _checked(self, spec: PartitionSpec, rank: int, caller: str) -> Sharding:
        if len(spec) != rank:
            raise MeshError(
                f"{caller}: {spec!r} has {len(spec)} entries, but the tensor has {rank} dims; "
                "give one entry per dim, None where it is not split: "
                f"{PartitionSpec(*spec[:rank], *[None] * (rank - len(spec)))}"
            )
        used: dict[str, Axis] = {}
        dims = []
        for entry in spec:
            if entry is specs.UNCONSTRAINED:
                dims.append(specs.OPEN)
                continue
            axes = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
            names = tuple(self._axis(axis, spec, caller) for axis in axes)
            for name in names:
                if name in used:
                    raise MeshError(
                        (
                            f"{caller}: axis {name!r} is used twice in {spec!r}; a mesh axis can "
                            "split one dim only\n"
                        )
                        + _point_at(spec, name, last=True)
                    )
                used[name] = name
            dims.append(Dim(names))
        return Sharding.of(
            self.device_ids, self.mesh_shape, self.axes, Spec(tuple(dims)), target=self.target
        )

    def _axis(self, axis: Axis, spec: PartitionSpec, caller: str) -> str:
        if isinstance(axis, int):
            if 0 <= axis < len(self.axes):
                return self.axes[axis]
            raise ValueError(
                f"{caller}: axis {axis} of {spec!r} is not in the mesh, which has axes 0 to "
                f"{len(self.axes) - 1}\n" + _point_at(spec, axis)
            )
        if axis in self.axes:
            return axis
        raise ValueError(
            (
                f"{caller}: axis {axis!r} of {spec!r} is not in the mesh (axes: "
                f"{listed(self.axes)}).\n"
            )
            + _point_at(spec, axis)
            + did_you_mean(axis, self.axes, "  {}")
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mesh):
            return NotImplemented
        return self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def _parts(self) -> tuple[Any, ...]:
        return self.device_ids, self.mesh_shape, self.axes, self.target

    def __repr__(self) -> str:
        names = f", {self.axis_names}" if self.axis_names else ""
        target = "" if self.target is None else f", target={self.target!r}"
        return f"{type(self).__name__}({list(self.device_ids)}, {self.mesh_shape}{names}{target})"

    def __reduce__(self) -> tuple[Any, ...]:
        attributes = getattr(self, "__dict__", None)  # of a subclass
        return (
            _remade,
            (type(self), tuple(self.device_ids), self.mesh_shape, self.axis_names, self.target),
            attributes or None,
        )


constant_of_graphs(
    Mesh, "device_ids", "mesh_shape", "axes", "axis_names", "size", "shape", "sharding"
)


def _remade(kind: type[Mesh], ids: Any, shape: Any, names: Any, target: str | None) -> Mesh:
    """A mesh of a subclass whose `__init__` may take other arguments."""
    mesh = kind.__new__(kind)
    Mesh.__init__(mesh, ids, shape, names, target=target)
    return mesh


def _arguments(expression: ast.expr) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a mesh in its parsed text, a call or a dict.

    Raises TypeError for another expression.
    """
    try:
        if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name):
            named = {str(word.arg): ast.literal_eval(word.value) for word in expression.keywords}
            return [ast.literal_eval(argument) for argument in expression.args], named
        if isinstance(expression, ast.Dict):
            return [], ast.literal_eval(expression)
    except ValueError as error:
        raise TypeError(error) from error
    raise TypeError("it is neither a call nor a dict")


@ends_at_user_line
def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """Returns a mesh of all devices on one axis. Source: `torch_xla.distributed.spmd.get_1d_mesh`.

    >>> import spmd
    >>> spmd.torch_xla.get_1d_mesh("data").size() == len(spmd.device_ids())
    True
    """
    ids = range(len(hardware.devices()))
    return Mesh(ids, (len(ids),), None if axis_name is None else (axis_name,))


def _axis_sizes(device_ids: Any, mesh_shape: Any) -> tuple[int, ...]:
    """The sizes of the axes.

    Raises TypeError, where others are in their place with the call that was meant.
    """
    sizes = (
        tuple(mesh_shape)
        if isinstance(mesh_shape, Iterable) and not isinstance(mesh_shape, str)
        else None
    )
    if sizes is not None and all(isinstance(size, (int, np.integer)) for size in sizes):
        return tuple(map(int, sizes))
    if (
        mesh_shape is None and np.ndim(device_ids) > 1
    ):  # a grid of ids, as `jax.sharding.Mesh` takes
        return np.shape(device_ids)
    if isinstance(device_ids, Mapping):  # sizes by name
        device_ids, sizes = tuple(device_ids.values()), tuple(device_ids)
    if mesh_shape is None or (sizes is not None and all(isinstance(name, str) for name in sizes)):
        is_grid = np.ndim(device_ids) == len(sizes or ()) > 1
        shape = tuple(map(int, np.shape(device_ids) if is_grid else np.ravel(device_ids)))
        call = f"spmd.Mesh(range({math.prod(shape)}), {shape}, {sizes or '(names)'})"
        raise TypeError(
            f"Mesh: expected device_ids, mesh_shape, axis_names, in this order; write {call}"
        )
    raise TypeError(
        f"Mesh: expected the sizes of the axes as a tuple, got {mesh_shape!r}; one axis is (8,)"
    )


def _inferred(shape: Sequence[int], count: int) -> list[int]:
    """The shape with the size that the other sizes leave in place of those below 1."""
    product = math.prod(size for size in shape if size > 0)
    return [size if size > 0 else max(count // product, 1) for size in shape]


def _device_ids(ids: Any) -> tuple[int, ...]:
    if not isinstance(ids, Iterable) or isinstance(ids, str):
        hint = (
            f"the first {ids} devices are range({ids})"
            if isinstance(ids, int)
            else "all are range(8), say"
        )
        raise TypeError(f"Mesh: expected the ids of the devices, got {ids!r}; {hint}")
    array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids)).reshape(-1)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(
            f"Mesh: expected device ids, which are integers, got {array[0]!r}; of a jax.Device it "
            "is .id"
        )
    return tuple(array.tolist())


def _spec(entries: Any, rank: int, caller: str, names: Sequence[str]) -> PartitionSpec:
    """The PartitionSpec of another sequence.

    Raises TypeError for text, which Python would read as letters.
    """
    if isinstance(entries, (str, Mapping)) or not isinstance(entries, Iterable):
        parts = (
            [part.strip() for part in entries.split(",")] if isinstance(entries, str) else [entries]
        )
        parts = list(entries.values()) if isinstance(entries, Mapping) else parts
        axes = [
            repr(part) if part in names or isinstance(part, int) else "None" for part in parts
        ] + ["None"] * rank
        raise TypeError(
            f"{caller}: expected a spec with one entry per dim, got {entries!r}; write "
            f"P({', '.join(axes[:rank])}) (axes of the mesh: {listed(names)})"
        )
    if isinstance(entries, jax.sharding.PartitionSpec):
        # jax leaves further dims whole
        return PartitionSpec(*entries, *[None] * (rank - len(entries)))
    return PartitionSpec(*entries)


SHOWN = 8  # items of a long list in a message


def _few(items: Sequence[Any]) -> str:
    """The items as text; of a long list the first ones, the last and their number."""
    if len(items) <= SHOWN:
        return listed(items)
    return f"{listed(items[: SHOWN - 1])}, ... {items[-1]!r} ({len(items):,} of them)"


def _point_at(spec: PartitionSpec, axis: Axis, *, last: bool = False) -> str:
    """The spec with carets under one of its axes."""
    text, token = repr(spec), repr(axis)
    start = text.rfind(token) if last else text.find(token)
    return f"    {text}\n    {' ' * start}{'^' * len(token)}"

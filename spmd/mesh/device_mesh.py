"""DeviceMesh: a mesh, or some axes of one, with torch.distributed's interface; without process
groups."""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import jax
import numpy as np
import torch
from torch.distributed import device_mesh as theirs

from ..core import Dim, Patch, Sharding, ends_at_user_line, hardware, specs
from .graph_constants import constant_of_graphs
from .mesh import Mesh
from .placements import spec_of


def as_mesh(mesh: Any) -> Any:
    """The `Mesh` of jax's mesh or of all axes of a `DeviceMesh`; anything else unchanged."""
    if isinstance(mesh, jax.sharding.Mesh):
        ids = [hardware.devices().index(device) for device in mesh.devices.flat]
        return Mesh(ids, mesh.devices.shape, mesh.axis_names)
    return (
        DeviceMesh.of(mesh, "mesh").root
        if isinstance(mesh, DeviceMesh | theirs.DeviceMesh)
        else mesh
    )


@ends_at_user_line
class DeviceMesh(theirs.DeviceMesh):
    """Devices in a grid, each dim of which is one axis of a `Mesh`, or several axes as one.

    torch's own `init_device_mesh("xla", ...)` and `DeviceMesh("xla", ...)` return it, too.

    Args:
        device_type: "xla". mesh: the ids of the devices, in the shape of the grid, or a `Mesh`.
        mesh_dim_names: a name per dim. target: as in `Mesh`.

    `mesh["tp"]` is that dim alone, over the same devices: a tensor placed on it keeps its sharding
    over the other dims. `root` is the `Mesh` with all axes, `dims` the axes of the root for each
    dim.

    All devices run one program, so there is no rank with coordinates here, and no process group:
    `get_group` returns the names of axes, which the collectives inside `spmd.shard_map` take.

    Raises ValueError for another device type, as `Mesh` does, and for names that differ in number
    from the dims. Source: `torch.distributed.device_mesh.DeviceMesh`.

    >>> import torch
    >>> from spmd.dtensor import DeviceMesh
    >>> mesh = DeviceMesh("xla", torch.arange(8).view(2, 4), mesh_dim_names=("dp", "tp"))
    >>> mesh["tp"].shape, mesh["dp", "tp"]._flatten("all").size(), mesh.root
    ((4,), 8, Mesh([0, 1, 2, 3, 4, 5, 6, 7], (2, 4), ('dp', 'tp')))
    """

    root: Mesh
    dims: tuple[tuple[str, ...], ...]
    mesh_dim_names: tuple[str, ...] | None = None  # not torch's property

    def __init__(
        self,
        device_type: str,
        mesh: Any,
        *,
        mesh_dim_names: Sequence[str] | None = None,
        target: str | None = None,
    ):
        if device_type != "xla":
            raise ValueError(
                f"DeviceMesh: expected device_type 'xla', got {device_type!r}: one logical device "
                "stands for the cards or cores of any kind"
            )
        if not isinstance(mesh, Mesh):
            grid = np.asarray(mesh)
            mesh = Mesh(grid.reshape(-1), grid.shape, mesh_dim_names, target=target)
        self.root = mesh
        self.dims = tuple((axis,) for axis in mesh.axes)
        self.mesh_dim_names = mesh.axis_names
        # the names given by `_flatten`, of all views of one root
        self._flat: dict[str, tuple[str, ...]] = {}

    @staticmethod
    def of(mesh: Any, caller: str) -> "DeviceMesh":
        """The DeviceMesh of a `Mesh`, a `DeviceMesh`, or torch's own of type "xla", given to the
        function `caller`.

        Raises TypeError for anything else.
        """
        if isinstance(mesh, DeviceMesh):
            return mesh
        if isinstance(mesh, Mesh):
            return DeviceMesh("xla", mesh)
        if isinstance(mesh, theirs.DeviceMesh):
            return DeviceMesh(
                mesh.device_type, mesh.mesh.numpy(), mesh_dim_names=mesh.mesh_dim_names
            )
        raise TypeError(
            f"{caller}: expected a DeviceMesh or a spmd.Mesh, got {type(mesh).__name__}"
        )

    def _part(self, dims: Iterable[tuple[str, ...]], names: tuple[str, ...]) -> "DeviceMesh":
        result = object.__new__(DeviceMesh)
        result.root, result.dims, result.mesh_dim_names, result._flat = (
            self.root,
            tuple(dims),
            names,
            self._flat,
        )
        return result

    def __getitem__(self, names: str | tuple[str, ...]) -> "DeviceMesh":
        dim_names = (names,) if isinstance(names, str) else tuple(names)
        axes = dict(zip(self.mesh_dim_names or (), self.dims, strict=False)) | self._flat
        for name in dim_names:
            if name not in axes:
                raise KeyError(
                    f"DeviceMesh: there is no dim {name!r} (dims: {', '.join(map(repr, axes))})"
                )
        return self._part([axes[name] for name in dim_names], dim_names)

    def _flatten(self, mesh_dim_name: str | None = None) -> "DeviceMesh":  # type: ignore[override]
        """Returns all dims as one, the first the slowest, and registers it with the root under this
        name."""
        name = mesh_dim_name or "_".join(self.mesh_dim_names or map(str, range(self.ndim)))
        axes = tuple(axis for dim in self.dims for axis in dim)
        self._flat[name] = axes
        return self._part([axes], (name,))

    @property
    def device_type(self) -> str:
        """Always "xla"."""
        return "xla"

    @property
    def mesh(self) -> torch.Tensor:
        """The ids of the devices; for a view of some dims, the devices at index 0 of all the
        others."""
        axes = [axis for dim in self.dims for axis in dim]
        places = [self.root.axes.index(axis) for axis in axes]
        free_axes = [i for i in range(len(self.root.axes)) if i not in places]
        ids = self.root.get_logical_mesh().transpose(*places, *free_axes).reshape(*self.shape, -1)
        return torch.tensor(ids[..., 0])

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dim."""
        return tuple(map(self._size, self.dims))

    def _size(self, axes: Iterable[str]) -> int:
        return math.prod(self.root.mesh_shape[self.root.axes.index(axis)] for axis in axes)

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.dims)

    def size(self, mesh_dim: int | str | None = None) -> int:
        """The number of devices, or the size of a dim."""
        return math.prod(self.shape) if mesh_dim is None else self._size(self._axes(mesh_dim))

    def _axes(self, dim: int | str) -> tuple[str, ...]:
        """The axes of the root for a dim, by index or by name."""
        return self[dim].dims[0] if isinstance(dim, str) else self.dims[dim]

    def get_group(self, mesh_dim: int | str | None = None) -> str | tuple[str, ...]:  # type: ignore[override]
        """The axes of the root for a dim, which collectives inside `spmd.shard_map` take as a
        group.

        Raises RuntimeError where there are several dims and none is given.
        """
        if mesh_dim is None and self.ndim > 1:
            raise RuntimeError(f"get_group: {self!r} has {self.ndim} dims; name one")
        axes = self._axes(0 if mesh_dim is None else mesh_dim)
        return axes[0] if len(axes) == 1 else axes

    def get_all_groups(self) -> list[str | tuple[str, ...]]:  # type: ignore[override]
        """`get_group` of each dim."""
        return [self.get_group(dim) for dim in range(self.ndim)]

    def get_coordinate(self) -> list[int]:  # type: ignore[override]
        """Raises NotImplementedError: one program runs on all devices."""
        raise NotImplementedError(
            "DeviceMesh: one program runs on all devices, so there is no rank with a coordinate "
            "here; inside spmd.shard_map each shard has its own: spmd.manual.axis_index(axis). "
            "For processes, see spmd.process_index()"
        )

    get_rank = get_local_rank = get_coordinate  # type: ignore[assignment]

    def sharding(
        self,
        placements: Sequence[Any],
        rank: int,
        its_sharding: Sharding | None,
        caller: str,
        *,
        open_batch: bool = False,
    ) -> Sharding:
        """The sharding of a tensor of `rank` dims with these placements on these dims.

        its_sharding: the tensor's present sharding, kept over the other axes of the root.
        open_batch: leaves these axes to the partitioner in dim 0 instead, where no placement splits
        it.
        """
        spec = spec_of(placements, rank, [str(i) for i in range(self.ndim)], self.shape, caller)
        view_axes = {axis for dim in self.dims for axis in dim}
        present_dims = _dims_on(self.root, its_sharding, rank)
        is_partial = self.root.size() > self.size()
        dims = []
        for index, entry in enumerate(spec):
            numbers = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
            axes = tuple(axis for number in numbers for axis in self.dims[int(number)])
            if open_batch and index == 0 and not axes and is_partial:
                dims.append(specs.OPEN)
            else:
                dims.append(
                    Dim(
                        tuple(axis for axis in present_dims[index].axes if axis not in view_axes)
                        + axes
                    )
                )
        replicated = self.root.sharding((), 0, caller)
        return replicated.with_spec(replicated.spec._replace(dims=tuple(dims)))

    def __enter__(self) -> Self:
        self.root.__enter__()
        super().__enter__()  # torch's own stack: the default of its functions
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.root.__exit__()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        return (self.root, self.dims, self.mesh_dim_names) == (
            other.root,
            other.dims,
            other.mesh_dim_names,
        )

    def __hash__(self) -> int:
        return hash((self.root, self.dims, self.mesh_dim_names))

    def __repr__(self) -> str:
        names = self.mesh_dim_names or tuple(map(str, range(self.ndim)))
        return (
            "DeviceMesh("
            f"{', '.join(f'{name}={size}' for name, size in zip(names, self.shape, strict=True))})"
        )


def _dims_on(root: Mesh, sharding: Sharding | None, rank: int) -> list[Dim]:
    """The sharding of each dim, where it is given in axes of this mesh, else unsharded dims."""
    grid = root.axes, root.device_ids, root.mesh_shape
    is_ours = (
        sharding is not None
        and (sharding.axis_names, sharding.device_ids, sharding.mesh_shape) == grid
    )
    dims = sharding.closed().spec.dims if sharding is not None and is_ours else ()
    return [*dims, *[specs.UNSHARDED] * (rank - len(dims))]


@ends_at_user_line
def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    target: str | None = None,
) -> DeviceMesh:
    """Returns a `DeviceMesh` of this shape over the first devices, in order.

    Args: as of `DeviceMesh`. Source: `torch.distributed.device_mesh.init_device_mesh`.

    >>> from spmd.dtensor import init_device_mesh
    >>> init_device_mesh("xla", (2, 4), mesh_dim_names=("dp", "tp"))
    DeviceMesh(dp=2, tp=4)
    """
    ids = np.arange(math.prod(mesh_shape)).reshape(tuple(mesh_shape))
    return DeviceMesh(device_type, ids, mesh_dim_names=mesh_dim_names, target=target)


def _begin(
    original: Callable[..., None], self: Any, device_type: str, *args: Any, **kwargs: Any
) -> None:
    """torch's `DeviceMesh.__init__`, which `init_device_mesh` calls: no process group is needed on
    "xla"."""
    original(self, device_type, *args, **kwargs)
    if device_type == "xla":
        ids, names = self.mesh.numpy(), self.mesh_dim_names
        self.__class__ = DeviceMesh
        self.__init__(device_type, ids, mesh_dim_names=names)


PATCH = Patch(
    "`torch.distributed.device_mesh.DeviceMesh.__init__(self, device_type, mesh, ...)`",
    "its meshes of xla",
    None,
    (_begin,),
)
PATCH.apply()
# The metaclass of torch's class takes any arguments, for generators of this device.
DeviceMesh.__signature__ = inspect.signature(functools.partial(DeviceMesh.__init__, None))  # type: ignore
constant_of_graphs(DeviceMesh, "device_type", "mesh_dim_names", "ndim", "shape", "size")

"""HybridMesh: devices of several slices, with fast axes inside a slice and slow axes between
slices."""

import math
from collections.abc import Sequence

import numpy as np
from jax.experimental import mesh_utils

from ..core import ends_at_user_line, hardware, topology
from .mesh import Mesh


@ends_at_user_line
class HybridMesh(Mesh):
    """A mesh over slices: axis i has `dcn_mesh_shape[i] * ici_mesh_shape[i]` devices, with the
    slices the slower index.

    Args:
        ici_mesh_shape: the size of each axis inside a slice; their product is the number of devices
            of a slice.
        dcn_mesh_shape: the size of each axis across slices; their product is the number of slices.
            None: one slice.
        axis_names: a name per axis.
        target: as in `Mesh`; "2xv5e:2x4" is two TPU slices, "2xcpu:8" two simulated ones.

    A slice is a TPU slice (of any number of hosts), elsewhere the devices of one process;
    `spmd.simulate(8, slices=2)` or `config.num_slices` makes slices of any devices. Inside a TPU
    slice an axis follows the links of the chips.

    Raises ValueError where the shapes differ in length, or do not match the slices and their
    devices.
    Source: `torch_xla.distributed.spmd.HybridMesh`,
    `jax.experimental.mesh_utils.create_hybrid_device_mesh`.

    >>> import spmd
    >>> names = ("data", "fsdp")
    >>> mesh = spmd.HybridMesh(
    ...     ici_mesh_shape=(1, 4), dcn_mesh_shape=(2, 1), axis_names=names, target="2xcpu:4"
    ... )
    >>> mesh.get_logical_mesh().tolist(), mesh.link("data"), mesh.link("fsdp")
    ([[0, 1, 2, 3], [4, 5, 6, 7]], 'dcn', 'ici')
    """

    ici_mesh_shape: tuple[int, ...]
    dcn_mesh_shape: tuple[int, ...]

    def __init__(
        self,
        *,
        ici_mesh_shape: Sequence[int],
        dcn_mesh_shape: Sequence[int] | None = None,
        axis_names: Sequence[str] | None = None,
        target: str | None = None,
    ):
        fast = tuple(ici_mesh_shape)
        slow = (1,) * len(fast) if dcn_mesh_shape is None else tuple(dcn_mesh_shape)
        if len(fast) != len(slow):
            raise ValueError(
                f"HybridMesh: ici_mesh_shape {fast} and dcn_mesh_shape {slow} must have as many "
                "axes"
            )
        if target is None:
            hardware.prepare()
        grids = [
            _inside(members, fast, target) for members in _by_slice(slow, math.prod(fast), target)
        ]
        # (slow axes, fast axes) to one axis of each pair, the slow one first.
        pairs = [dim for axis in range(len(fast)) for dim in (axis, axis + len(fast))]
        ids = np.array(grids).reshape(*slow, *fast).transpose(pairs)
        shape = tuple(outer * inner for outer, inner in zip(slow, fast, strict=True))
        super().__init__(ids.reshape(shape), shape, axis_names, target=target)
        self.ici_mesh_shape, self.dcn_mesh_shape = fast, slow


def _by_slice(slow: tuple[int, ...], size: int, target: str | None) -> list[list[int]]:
    """The devices of each slice.

    Raises ValueError where the slices differ from the shape in number or size.
    """
    members: dict[int, list[int]] = {}
    for device, slice_index in enumerate(topology.slices(target)):
        members.setdefault(slice_index, []).append(device)
    if math.prod(slow) != len(members):
        hint = (
            ""
            if target is not None
            else "; spmd.simulate(8, slices=2) or config.num_slices makes some of any devices"
        )
        raise ValueError(
            f"HybridMesh: dcn_mesh_shape {slow} holds {math.prod(slow)} slice(s), and there are "
            f"{len(members)}{hint}"
        )
    wrong = next((group for group in members.values() if len(group) != size), None)
    if wrong is not None:
        raise ValueError(
            f"HybridMesh: ici_mesh_shape holds {size} device(s), and a slice has {len(wrong)}"
        )
    return list(members.values())


def _inside(members: list[int], shape: tuple[int, ...], target: str | None) -> np.ndarray:
    """The devices of one slice in a grid, along the links of the chips for a TPU."""
    devices = (
        [topology.all_devices(target)[i] for i in members]
        if target is None or not topology.is_simulated(target)
        else []
    )
    if not devices or devices[0].platform != "tpu":
        return np.array(members).reshape(shape)
    placed = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    return np.array([topology.ordinal(device, target) for device in placed.reshape(-1)]).reshape(
        shape
    )

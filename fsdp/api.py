"""Settings of a wrapped module: frozen values, checked when they are made."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import torch
from torch import nn

import spmd

# its door, spmd.dtensor, imports all of torch's DTensor
from spmd.mesh.device_mesh import DeviceMesh, as_mesh
from spmd.mesh.global_mesh import get_global_mesh
from spmd.mesh.notes import ends_at_user_line, say_once

from .plan import Placement

ShardOutput = Callable[[Any, spmd.Mesh], None]
# True: gathered parameters are freed after forward; False: kept; a number: kept sharded over so
# many devices; None: the default.
Reshard = bool | int | None


@ends_at_user_line
@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """The dtypes in which a wrapped module computes and communicates; its parameters are stored in
    their own dtype.

    Attributes:
        param_dtype: floating-point parameters are cast to it before their gather, so that the
            gather moves this dtype and `forward` reads it; gradients are computed in it and arrive
            in the parameter's own dtype, which is also the optimizer's. None: the parameter's own.
        reduce_dtype: the dtype in which gradients are summed over devices
            (`spmd.reduce_gradient_in`). None: the dtype that they are computed in.
        output_dtype: the dtype to which floating-point tensors of each unit's output are cast.
            None: no cast.
        cast_forward_inputs: cast floating-point inputs of each unit to `param_dtype`.
        buffer_dtype: the dtype to which floating-point buffers are cast, for good, when the module
            is wrapped. None: their own.
        gather_dtype: the eight-bit float, `torch.float8_e4m3fn` or `torch.float8_e5m2`, in which
            parameters of two dims or more are gathered: each shard is cast with scales (see
            `spmd.use_sharding`), and widened after the gather to `param_dtype`, in which forward
            computes; gradients flow as if nothing was rounded. None: no cast.

    Raises TypeError for another gather_dtype, and for another dtype that is not a floating-point
    one of 16 bits or more.
    Source: `torch.distributed.fsdp.MixedPrecisionPolicy`; `buffer_dtype` is
    `torch.distributed.fsdp.MixedPrecision`'s, `gather_dtype` torchao's float8 all-gather.

    >>> import torch, spmd, fsdp
    >>> policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    >>> mesh = spmd.Mesh([0], (1,), ("fsdp",))
    >>> model = fsdp.FullyShardedDataParallel(torch.nn.Linear(4, 2), mesh=mesh, mp_policy=policy)
    >>> model(torch.ones(3, 4, device="xla")).dtype, model.weight.dtype
    (torch.bfloat16, torch.float32)
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True
    buffer_dtype: torch.dtype | None = None
    gather_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if self.gather_dtype not in (None, torch.float8_e4m3fn, torch.float8_e5m2):
            raise TypeError(
                "MixedPrecisionPolicy: expected gather_dtype to be torch.float8_e4m3fn or "
                f"torch.float8_e5m2, got {self.gather_dtype!r}"
            )
        for name in ("param_dtype", "reduce_dtype", "output_dtype", "buffer_dtype"):
            dtype = getattr(self, name)
            is_float = dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point)
            if not is_float:
                raise TypeError(
                    f"MixedPrecisionPolicy: expected {name} to be a floating-point torch.dtype, "
                    f"got {dtype!r}"
                )
            if dtype is not None and dtype.itemsize < 2:
                raise TypeError(
                    f"MixedPrecisionPolicy: expected {name} of 16 bits or more, got {dtype!r}: a "
                    "cast to it has no scale, and small weights become 0; write "
                    f"{name}=torch.bfloat16; gather_dtype=torch.float8_e4m3fn gathers weights in "
                    "eight bits, torch._scaled_mm in the layers multiplies them"
                )


@dataclass(frozen=True)
class FullPrecision(MixedPrecisionPolicy):
    """The policy of a float32 unit among units of a lower precision: its inputs are cast to
    float32, its outputs to the dtype that the inputs had."""

    param_dtype: torch.dtype | None = torch.float32


@ends_at_user_line
@dataclass(frozen=True)
class OffloadPolicy:
    """Parameters stay in the devices' memory. Source: `torch.distributed.fsdp.OffloadPolicy`.

    >>> import torch, spmd, fsdp
    >>> mesh = spmd.Mesh([0], (1,), ("fsdp",))
    >>> layer = fsdp.fully_shard(
    ...     torch.nn.Linear(4, 2), mesh=mesh, offload_policy=fsdp.OffloadPolicy()
    ... )
    >>> spmd.get_sharding(layer.weight).memory
    'device'
    """


@ends_at_user_line
@dataclass(frozen=True)
class CPUOffloadPolicy(OffloadPolicy):
    """Parameters and their gradients are in the host's memory between uses; ops read them on the
    device.

    `spmd.offload_optimizer(optimizer)` moves the optimizer's state there. Devices read pinned
    memory alone: with `pin_memory=False` it is pinned all the same, and a line says so. Source:
    `torch.distributed.fsdp.CPUOffloadPolicy`.

    >>> import torch, spmd, fsdp
    >>> mesh = spmd.Mesh([0], (1,), ("fsdp",))
    >>> layer = fsdp.fully_shard(
    ...     torch.nn.Linear(4, 2), mesh=mesh, offload_policy=fsdp.CPUOffloadPolicy()
    ... )
    >>> spmd.get_sharding(layer.weight).memory
    'pinned_host'
    """

    pin_memory: bool = True

    def __post_init__(self) -> None:
        if not self.pin_memory:
            say_once(
                "CPUOffloadPolicy: pin_memory=False has no effect: devices read only pinned memory "
                "of the host"
            )


# Policies by class name: those of torch's FSDP2 have the same names and fields, and are accepted
# without an import of it.
_POLICIES = {
    kind.__name__: kind for kind in (MixedPrecisionPolicy, OffloadPolicy, CPUOffloadPolicy)
}


@dataclass(frozen=True)
class Settings:
    """The settings of a unit: the arguments of `fully_shard` and `FullyShardedDataParallel`.

    caller: the function or class that errors name. batch_axes: the mesh axes that inputs and
    outputs are sharded over. The others are the keywords of the same name.
    """

    caller: str
    mesh: spmd.Mesh
    shard_axis: str
    batch_axes: tuple[str, ...]
    reshard_after_forward: Reshard = None
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy()
    offload_policy: OffloadPolicy = OffloadPolicy()
    shard_placement_fn: Callable[[nn.Parameter], Placement] | None = None
    min_shard_numel: int = 0
    shard_output: ShardOutput | None = None

    def __post_init__(self) -> None:
        self._check("mp_policy", MixedPrecisionPolicy, "a fsdp.MixedPrecisionPolicy")
        self._check(
            "offload_policy", OffloadPolicy, "a fsdp.OffloadPolicy, such as fsdp.CPUOffloadPolicy()"
        )
        self.checked_reshard(self.reshard_after_forward)

    def _check(self, name: str, kind: type, expected: str) -> None:
        """Checks the type of a setting; a policy of torch's FSDP2 is replaced by ours of the same
        name."""
        value = getattr(self, name)
        if (
            type(value).__module__.startswith("torch.distributed.fsdp")
            and type(value).__name__ in _POLICIES
        ):
            policy = _POLICIES[type(value).__name__]
            # torch 2.15 has further fields, which are None by default.
            items = {
                key: field
                for key, field in vars(value).items()
                if field is not None or hasattr(policy, key)
            }
            value = policy(**items)
            object.__setattr__(self, name, value)
        if not isinstance(value, kind):
            raise TypeError(
                f"{self.caller}: expected {name} to be {expected}, got {type(value).__name__} "
                f"({value!r})"
            )

    def checked_reshard(self, value: object) -> Reshard:
        """Returns a user's `reshard_after_forward` unchanged; raises TypeError for a wrong type,
        ValueError for a number that does not divide the devices of the axis."""
        if value is None or isinstance(value, bool):
            return value
        size = self.mesh.shape()[self.shard_axis]
        if not isinstance(value, int):
            raise TypeError(
                f"{self.caller}: expected reshard_after_forward to be True, False, a number of "
                f"devices or None, got {type(value).__name__} ({value!r})"
            )
        if value < 1 or size % value:
            raise ValueError(
                f"{self.caller}: expected reshard_after_forward to divide the {size} devices of "
                f"axis {self.shard_axis!r}, got {value}"
            )
        return value

    def __deepcopy__(self, memo: object) -> "Settings":
        return self  # frozen; a copied model is sharded over the same mesh

    def overridden(self, overrides: dict[str, Any], unit: str) -> "Settings":
        """The settings of one unit that overrides some keywords. unit: its name, for errors."""
        unknown = overrides.keys() - OVERRIDABLE
        if unknown:
            raise TypeError(
                f"{self.caller}: a policy gave {unit} the keyword(s) "
                f"{', '.join(sorted(unknown))}; expected some of {', '.join(sorted(OVERRIDABLE))}"
            )
        return replace(self, **overrides) if overrides else self


OVERRIDABLE = {field.name for field in fields(Settings)} - {
    "caller",
    "mesh",
    "shard_axis",
    "batch_axes",
}


@functools.cache
def mesh_within(mesh: spmd.Mesh, axis: str, size: int) -> spmd.Mesh:
    """The mesh with one axis split into two: groups of `size` neighbours are along the axis of the
    old name."""
    # The axis of the old name is the inner one: neighbours, which a fast network connects, gather
    # among themselves.
    name = f"{axis}_copies"
    assert name not in mesh.axes, "a name of ours"
    dim = mesh.axes.index(axis)
    shape = (
        *mesh.mesh_shape[:dim],
        mesh.mesh_shape[dim] // size,
        size,
        *mesh.mesh_shape[dim + 1 :],
    )
    names = (*mesh.axes[:dim], name, *mesh.axes[dim:])
    return spmd.Mesh(mesh.device_ids, shape, names, target=mesh.target)


def axes_of(
    caller: str, mesh: spmd.Mesh | None, shard_axis: str | None, extra_data_axis: str | None
) -> tuple[spmd.Mesh, str, tuple[str, ...]]:
    """Returns the mesh, the axis that parameters are sharded over, and the axes of the batch.

    No mesh: the mesh of `with mesh:` or `set_global_mesh`, else all devices on one axis. A
    `DeviceMesh` has one dim, over which parameters are sharded, or two, of which the first holds
    replicas.

    Without a name the axis is `fsdp`, or the only one of a mesh of one axis, or the second of a
    mesh of two, of which the first holds replicas (hybrid sharding, as in FSDP2). An axis named
    `data` is always one of the batch's.
    """
    mesh = get_global_mesh() if mesh is None else mesh
    if mesh is None:  # as torch's FSDP2, which takes all ranks
        ids = spmd.device_ids()
        if len(ids) == 1:  # torch warns, too: "switching to NO_SHARD since the world size is 1"
            say_once(
                f"{caller}: without a mesh and with one device, nothing is sharded; to make eight "
                "of a CPU, call spmd.simulate(8) first"
            )
        mesh = spmd.Mesh(ids, (len(ids),), (shard_axis or "fsdp",))
    if isinstance(mesh, jax.sharding.Mesh):
        mesh = as_mesh(mesh)
    if isinstance(mesh, DeviceMesh | torch.distributed.DeviceMesh):
        view = DeviceMesh.of(mesh, caller)
        mesh, axes = view.root, _axes_of_dims(caller, view)
        if not mesh.axis_names:  # units look up sizes and dims by name
            axes = ["replicate", "fsdp"][-view.ndim :]
            mesh = spmd.Mesh(mesh.device_ids, mesh.mesh_shape, axes, target=mesh.target)
        *replicas, shard_axis = axes
        extra_data_axis = extra_data_axis or next(iter(replicas), None)
    if not isinstance(mesh, spmd.Mesh):
        kind = f"{type(mesh).__module__}.{type(mesh).__name__}".removeprefix("builtins.")
        raise TypeError(
            f"{caller}: expected mesh to be a spmd.Mesh, got {kind}; write "
            "mesh=spmd.Mesh(range(8), (8,), ...)"
        )
    # FSDP2's recipes name axes freely, such as "dp" or ("replicate", "shard"): the last one shards.
    if shard_axis is None and "fsdp" not in mesh.axes and mesh.axis_names and len(mesh.axes) <= 2:
        *replicas, shard_axis = mesh.axes
        extra_data_axis = extra_data_axis or next(iter(replicas), None)
    shard_axis = shard_axis or "fsdp"
    if extra_data_axis is None and shard_axis != "data" and "data" in mesh.axes:
        extra_data_axis = "data"
    if extra_data_axis == shard_axis:
        raise ValueError(
            f"{caller}: extra_data_axis must be another axis than shard_axis, got {shard_axis!r} "
            "twice"
        )
    # Devices with replicas of a shard compute on other rows, so that the batch is sharded over both
    # axes.
    batch_axes = {shard_axis} if extra_data_axis is None else {extra_data_axis, shard_axis}
    for axis in sorted(batch_axes):
        if axis not in mesh.axes:
            raise ValueError(
                f"{caller}: the mesh has no axis {axis!r} (axes: {', '.join(mesh.axes)}); "
                "name it by shard_axis"
            )
    # In the mesh's order, as a batch is marked over all of its axes: in another one devices would
    # swap their rows.
    return mesh, shard_axis, tuple(axis for axis in mesh.axes if axis in batch_axes)


def _axes_of_dims(caller: str, mesh: DeviceMesh) -> list[str]:
    """The mesh axes of a `DeviceMesh`'s dims: (shards,) or (replicas, shards)."""
    if mesh.ndim > 2 or any(len(dim) > 1 for dim in mesh.dims):
        raise ValueError(
            f"{caller}: expected a mesh of one dim, or of replicas and shards, each one axis of "
            "the root mesh, got "
            f'{mesh!r}; name them, as in mesh["dp"]'
        )
    return [axis for (axis,) in mesh.dims]

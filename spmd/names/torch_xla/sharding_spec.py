"""PyTorch/XLA's ShardingSpec, a sharding for tensors to come such as batches, and its
ShardingType."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch

from ...core import Sharding, ends_at_user_line
from ...mesh.mesh import Mesh
from ...tensors.annotate import mark_sharding
from ...tensors.launch import from_process_local


class ShardingType(IntEnum):
    """The kinds of shardings. Source: `torch_xla.distributed.spmd.ShardingType`,
    `xla::OpSharding::Type`.

    >>> import spmd
    >>> spmd.torch_xla.ShardingType(0).name
    'REPLICATED'
    """

    REPLICATED = 0
    MAXIMAL = 1
    TUPLE = 2
    TILED = 3
    MANUAL = 4
    PARTIAL = 5
    UNKNOWN = 6


def sharding_type(sharding: Sharding | None, rank: int) -> ShardingType:
    """The kind of a sharding of an array of `rank` dims; PARTIAL: split, with each shard on several
    devices."""
    if sharding is None or sharding.is_open:
        return ShardingType.UNKNOWN
    if sharding.is_replicated():
        return ShardingType.REPLICATED
    sums, copies = sharding.last_tiles()
    return ShardingType.PARTIAL if sums * copies > 1 else ShardingType.TILED


@ends_at_user_line
@dataclass(frozen=True)
class ShardingSpec:
    """A mesh and a spec, to be applied to tensors later.

    Attributes:
        mesh, partition_spec: as in `mark_sharding`.
        minibatch: each process gives its own part of the batch (see `spmd.from_process_local`), not
            the full batch.

    The constructor raises as `mark_sharding` does for an axis that is not in the mesh or is used
    twice.
    Source: `torch_xla.distributed.spmd.ShardingSpec`.

    >>> import torch, spmd
    >>> spec = spmd.torch_xla.ShardingSpec(spmd.Mesh([0], (1,), ("data",)), ("data", None))
    >>> spec.can_apply(torch.ones(4, 2)), spec.can_apply(torch.ones(4))
    (True, False)
    >>> spec.apply(torch.ones(4, 2)).device
    device(type='xla', index=0)
    """

    mesh: Mesh
    partition_spec: Sequence[Any]
    minibatch: bool = False

    def __post_init__(self) -> None:
        self.mesh.sharding(self.partition_spec, len(self.partition_spec), "ShardingSpec")

    def can_apply(self, t: torch.Tensor) -> bool:
        """True if the tensor has as many dims as the spec."""
        return t.dim() == len(self.partition_spec)

    def xla_spec(self, t: torch.Tensor) -> Sharding | None:
        """The sharding that `apply` gives this tensor; None where it has another number of dims."""
        return (
            self.mesh.sharding(self.partition_spec, t.dim(), "ShardingSpec")
            if self.can_apply(t)
            else None
        )

    def apply(self, t: torch.Tensor) -> torch.Tensor:
        """Shards the tensor and returns it: in place where it is on xla, else as a copy there.

        Raises ValueError for a tensor of another number of dims.
        """
        if self.minibatch and t.device.type == "cpu":
            return from_process_local(t, self.mesh, self.partition_spec)
        return mark_sharding(t.to("xla"), self.mesh, self.partition_spec)


def sent(value: Any, device: Any, spec: ShardingSpec | None) -> Any:
    """Moves a value to a device and returns it: a CPU tensor sharded by a spec where there is
    one."""
    if spec is None or not isinstance(value, torch.Tensor):
        return value.to(device)
    return spec.apply(value) if value.device.type == "cpu" else value

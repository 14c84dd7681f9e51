"""The placement of a model and its batches, plain PyTorch or the `xla` device over a mesh, and a
table of shardings.

Lives here: the device, batches and sizes of a recipe. Not here: the lines that shard a model, which
are in each recipe.
"""

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from math import prod

import torch
from rich import box
from rich.table import Table
from torch import Tensor, nn

import spmd


class Placement:
    """The placement of model and batch; this one is plain PyTorch on the CPU, so most of its
    methods do nothing."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.rows = 1  # the smallest batch of which every device has a shard

    def wrap(self, model: nn.Module) -> nn.Module:
        return model

    def put(self, tensor: Tensor) -> Tensor:
        """Moves a tensor of a batch to the device."""
        return tensor

    def load(self, batches: Iterable[tuple[Tensor, ...]]) -> Iterable[tuple[Tensor, ...]]:
        """Returns the batches on the device."""
        return batches

    def sync(self) -> None:
        """Runs the recorded graph; the host does not wait for it."""

    def compiles(self) -> int:
        return 0

    def loaded(self) -> int:
        """Returns the number of programs that a start before has compiled."""
        return 0

    def name(self) -> str:
        return "plain PyTorch"

    def table(self, model: nn.Module) -> Table | None:
        """Returns the table of the parameters' shardings and sizes."""

    def state_line(self, optimizer: torch.optim.Optimizer) -> str | None:
        """Returns the size of the optimizer's state."""


class MeshPlacement(Placement):
    """The `xla` device: a model sharded by `shard(model, mesh)`, batches over the mesh axes of
    `batch_axes`.

    devices: simulated ones, if more than the mesh needs.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        shard: Callable[[nn.Module, spmd.Mesh], nn.Module],
        *,
        devices: int | None = None,
        batch_axes: Sequence[str] = ("data", "fsdp"),
    ) -> None:
        # Before anything else touches the device: the number of devices is fixed when jax's backend
        # starts.
        spmd.simulate(devices or prod(args.mesh.values()))
        if args.partitioner:
            spmd.config.partitioner = args.partitioner
        self.device, self.shard = torch.device("xla"), shard
        self.mesh = spmd.Mesh(
            range(prod(args.mesh.values())), tuple(args.mesh.values()), tuple(args.mesh)
        )
        axes = tuple(axis for axis in args.mesh if axis in batch_axes)
        self.rows = prod(args.mesh[axis] for axis in axes)
        self.batch_spec = spmd.P(axes)

    def wrap(self, model: nn.Module) -> nn.Module:
        return self.shard(model, self.mesh)

    def put(self, tensor: Tensor) -> Tensor:
        spec = (*self.batch_spec, *(None,) * (tensor.dim() - 1))
        return spmd.mark_sharding(tensor.to(self.device), self.mesh, spec)

    def load(self, batches: Iterable[tuple[Tensor, ...]]) -> Iterable[tuple[Tensor, ...]]:
        # Each process uploads its part of the next batches while the step runs.
        count, index = spmd.process_count(), spmd.process_index()
        parts = (tuple(tensor.chunk(count)[index] for tensor in batch) for batch in batches)
        return spmd.DataLoader(parts, self.mesh, self.batch_spec)

    def sync(self) -> None:
        spmd.sync()

    def compiles(self) -> int:
        return spmd.metrics.num_compiles()

    def loaded(self) -> int:
        return spmd.metrics.num_loaded()

    def name(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.mesh.shape().items())

    def table(self, model: nn.Module) -> Table:
        spmd.sync()
        # Narrow enough for 80 columns, so that a log shows every name in full.
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        table.title, table.title_justify = (
            f"Parameters and their shardings: mesh {self.name()}",
            "left",
        )
        for heading in ("parameter", "shape", "spec"):
            table.add_column(heading, no_wrap=True)
        for heading in ("unsharded", "per device"):
            table.add_column(heading, justify="right", no_wrap=True)
        rows = dict[tuple[str, str, str], list[tuple[str, Tensor]]]()
        for name, parameter in model.named_parameters():
            pattern = re.sub(r"\.\d+\.", ".*.", name)
            rows.setdefault((pattern, *describe(parameter)), []).append((name, parameter))
        for (_, *description), members in rows.items():
            names, parameters = zip(*members, strict=True)
            table.add_row(join_names(names), *description, *sizes(parameters))
        table.add_section()
        parameters = list(model.parameters())
        table.add_row(
            f"{sum(p.numel() for p in parameters):,} parameters",
            "",
            "",
            *sizes(parameters),
            style="bold",
        )
        return table

    def state_line(self, optimizer: torch.optim.Optimizer) -> str:
        state = [
            value
            for values in optimizer.state.values()
            for value in values.values()
            if isinstance(value, Tensor) and value.device.type == "xla"
        ]
        return "optimizer state: {} unsharded, {} per device".format(*sizes(state))


def join_names(names: Sequence[str]) -> str:
    """Returns "blocks.0-3.norm.bias" for the same parameter of layers 0 to 3."""
    last = re.search(r"\.(\d+)\.", names[-1])
    return (
        names[0]
        if len(names) == 1 or last is None
        else re.sub(r"\.(\d+)\.", rf".\1-{last[1]}.", names[0], count=1)
    )


def describe(parameter: Tensor) -> tuple[str, str]:
    """Returns a parameter's shape and, for each dim, the mesh axis that it is split over."""
    sharding = spmd.get_sharding(parameter)
    shape = str(tuple(parameter.shape))
    if sharding is None or sharding.is_replicated():
        return shape, "replicated"
    return shape, ", ".join(map(str, sharding.partition_spec(parameter.dim())))


def sizes(tensors: Sequence[Tensor]) -> tuple[str, str]:
    """Returns the sizes of tensors unsharded and on the fullest device, counted from their real
    shards."""
    per_device: dict[object, int] = {}
    for tensor in tensors:
        for shard in spmd.local_shards(tensor):
            per_device[shard.device] = per_device.get(shard.device, 0) + shard.data.nbytes
    unsharded = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return show_bytes(unsharded), show_bytes(max(per_device.values(), default=0))


def show_bytes(count: int) -> str:
    if count < 2**10:
        return f"{count} B"
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"

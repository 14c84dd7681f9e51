"""Offload to the host's memory: optimizer state between steps, activations between forward and
backward.

    python recipes/offload.py                   # eight simulated devices: runs, and reads the
                                                # buffers' memories
    python recipes/offload.py --target v5e:2x4  # such steps as the TPU compiler plans them (pip
                                                # install libtpu)

It prints a table of MiB per device: parameters and optimizer state in the device's memory and in
the host's between steps, and the step's temporaries. XLA's CPU compiler has one memory inside a
program, so that there a policy that offloads activations has the figures of one that saves them,
and only state moves. For a target, where nothing is allocated and layers are larger, it prints a
chip's bytes, arguments and temporaries, and the host's.
"""

import argparse
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import fsdp
import spmd
from recipes.training import make_console

MIB = 2**20


class Layer(nn.Module):
    """A residual layer whose wide activation has a name."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        wide = spmd.checkpoint_name(self.up(x), "wide")
        return x + self.down(nn.functional.gelu(wide))


POLICIES = spmd.checkpoint_policies
OFFLOADED = POLICIES.save_and_offload_only_these_names(names_which_can_be_offloaded=["wide"])
# name: (the policy of a layer, True if the optimizer's state is offloaded, True if parameters are)
STEPS = {
    "plain": ("everything", False, False),
    "layers recomputed": ("nothing", False, False),
    "  and optimizer state offloaded": ("nothing", True, False),
    "  and parameters": ("nothing", True, True),
    "wide values saved": (POLICIES.save_only_these_names("wide"), False, False),
    "wide values offloaded": (OFFLOADED, False, False),
    "  and all state": (OFFLOADED, True, True),
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, help="default 6; of a target 16")
    parser.add_argument("--width", type=int, help="default 256; of a target 1024")
    parser.add_argument(
        "--batch", type=int, help="rows per step, over all devices; default 8192, of a target 64"
    )
    parser.add_argument("--target", help="a slice of 8 TPU chips to plan for, e.g. v5e:2x4")
    args = parser.parse_args(arguments)
    args.layers = args.layers or (16 if args.target else 6)
    args.width = args.width or (1024 if args.target else 256)
    args.batch = args.batch or (64 if args.target else 8192)
    return args


def step_of(
    args: argparse.Namespace, policy: Any, offloads_optimizer: bool, offloads_parameters: bool
) -> tuple[Any, list[Tensor]]:
    """Returns one training step, a function of a batch, and a list that it fills with the tensors
    of its state."""
    mesh = spmd.Mesh(range(8), (8,), ("fsdp",), target=args.target)
    torch.manual_seed(0)
    with torch.device("meta" if args.target else "cpu"):
        layers = (spmd.remat(Layer(args.width), policy=policy) for _ in range(args.layers))
        plain = nn.Sequential(nn.Linear(8, args.width), *layers, nn.Linear(args.width, 8))
    wrap = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Layer})
    where = fsdp.CPUOffloadPolicy() if offloads_parameters else fsdp.OffloadPolicy()
    model = fsdp.FullyShardedDataParallel(
        plain, mesh=mesh, auto_wrap_policy=wrap, offload_policy=where
    )
    optimizer = torch.optim.AdamW(model.parameters())
    if offloads_optimizer:
        spmd.offload_optimizer(optimizer)
    state: list[Tensor] = []

    def step(batch: Tensor) -> None:
        model(batch.to("xla")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        moments = [
            value for row in optimizer.state.values() for value in row.values() if value.dim()
        ]
        state[:] = [*model.parameters(), *moments]

    return step, state


def bytes_in(memory: str, tensors: list[Tensor]) -> int:
    """Returns the bytes of one device's shards of these tensors in a memory."""
    found = 0
    for tensor in tensors:
        sharding = spmd.get_sharding(tensor)
        if sharding is not None and sharding.memory == memory:
            found += math.prod(sharding.shard_shape(tensor.shape)) * tensor.element_size()
    return found


def ran(args: argparse.Namespace, kept: tuple[Any, bool, bool]) -> list[int]:
    """Returns the bytes of state on a device and on the host, and of temporaries, of a step that
    runs."""
    step, state = step_of(args, *kept)
    batch = torch.randn(args.batch, 8)
    for _ in range(2):
        step(batch)
        spmd.sync(wait=True)
    return [
        bytes_in("device", state),
        bytes_in("pinned_host", state),
        spmd.metrics.compiles()[-1].temp_bytes,
    ]


def planned(args: argparse.Namespace, kept: tuple[Any, bool, bool]) -> list[int]:
    """Returns the bytes of a chip and of the host in a step on the target."""
    step, _ = step_of(args, *kept)
    plan = spmd.plan(step, torch.empty(args.batch, 8, device="meta"), target=args.target)
    return [plan.arguments + plan.temporaries, plan.host]


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    spmd.simulate(8)
    try:
        spmd.Mesh(range(8), (8,), target=args.target)
    except ValueError as error:
        raise SystemExit(f"--target {args.target}: {error}") from None
    spmd.config.program_cache = False  # a program from the disk has no line in the compile log
    table = Table(
        title=f"{args.layers} layers of width {args.width}, batch {args.batch:,}: MiB per device"
    )
    headings = ["state: device", "host", "temporaries (CPU)"]
    for heading in ["step", *([f"{args.target}: chip", "host"] if args.target else headings)]:
        table.add_column(heading, justify="left" if heading == "step" else "right", no_wrap=True)
    for name, kept in STEPS.items():
        found = planned(args, kept) if args.target else ran(args, kept)
        table.add_row(name, *(f"{size / MIB:.1f}" for size in found))
    make_console().print(table)


if __name__ == "__main__":
    main()

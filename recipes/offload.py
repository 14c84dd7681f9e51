"""What the host's memory takes off a device: optimizer state between steps, activations between forward and backward.

    python recipes/offload.py                        # eight simulated devices: runs, and reads where the buffers lie
    python recipes/offload.py --topology v5e:2x4     # what the TPU compiler says of the same steps (pip install libtpu)

A table of MiB per device: what the step takes (parameters, optimizer state, batch) from the device's memory and from
the host's, and its temporaries. XLA's CPU compiler has one memory inside a program, so that there a policy that offloads
activations shows what one that saves them shows, and only state moves. Nothing here asserts.
"""

import argparse
import math
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import fsdp
import spmd
from recipes.benchmarks.memory import MIB, tpu_memory
from spmd.core.compile import cache, compiler
from spmd.core.ir.graph import Graph


class Layer(nn.Module):
    """A residual layer whose wide value has a name."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        wide = spmd.checkpoint_name(self.up(x), "wide")
        return x + self.down(nn.functional.gelu(wide))


POLICIES = spmd.checkpoint_policies
STEPS = {  # name: (what is kept of a layer, whether the optimizer's state is offloaded)
    "plain": ("everything", False),
    "optimizer state offloaded": ("everything", True),
    "layers recomputed": ("nothing", False),
    "wide values saved": (POLICIES.save_only_these_names("wide"), False),
    "wide values offloaded": (
        POLICIES.save_and_offload_only_these_names(names_which_can_be_offloaded=["wide"]),
        False,
    ),
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8192, help="rows per step, over all devices (default 8192)")
    parser.add_argument("--topology", help="of 8 TPU chips, e.g. v5e:2x4")
    return parser.parse_args(arguments)


def step_of(args: argparse.Namespace, policy: Any, offload: bool) -> tuple[Graph, int]:
    """Run two steps; return the graph of the second and the CPU compiler's temporary bytes."""
    mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
    torch.manual_seed(0)
    layers = nn.Sequential(*(spmd.remat(Layer(args.width), policy=policy) for _ in range(args.layers)))
    wrap = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Layer})
    model = fsdp.FullyShardedDataParallel(layers, mesh=mesh, auto_wrap_policy=wrap)
    optimizer = torch.optim.AdamW(model.parameters())
    if offload:
        spmd.offload_optimizer(optimizer)
    batch = torch.randn(args.batch, args.width).to("xla")
    spmd.sync(wait=True)
    with mock.patch.object(cache, "compile_graph", side_effect=compiler.compile_graph) as compiled:
        for _ in range(2):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            spmd.sync(wait=True)
    program = cache.last_program()
    assert program is not None and program.record is not None
    return compiled.call_args.args[0], program.record.temp_bytes


def argument_bytes(graph: Graph, memory: str) -> int:
    """Return what one device's share of the inputs takes that lie in a memory."""
    return sum(
        math.prod(lies.shard_shape(leaf.meta.shape)) * leaf.meta.struct.dtype.itemsize
        for leaf, lies in zip(graph.leaves, graph.lies, strict=True)
        if lies.memory == memory
    )


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    spmd.simulate(8)
    spmd.config.program_cache = False  # a program from the disk shows no graph
    title = f"{args.layers} layers of width {args.width}, batch {args.batch:,}: MiB per device"
    table = Table(title=title)
    headings = ["step", "arguments: device", "host", "temporaries (CPU)"]
    tpu_headings = [f"temporaries ({args.topology})", "of them on the host"]
    for heading in (*headings, *(tpu_headings if args.topology else ())):
        table.add_column(heading, justify="left" if heading == "step" else "right")
    for name, (policy, offload) in STEPS.items():
        graph, temporary = step_of(args, policy, offload)
        found = [argument_bytes(graph, "device"), argument_bytes(graph, "pinned_host"), temporary]
        if args.topology:
            memory = tpu_memory(graph, args.topology)
            found += [memory.temp_size_in_bytes, memory.host_temp_size_in_bytes]
        table.add_row(name, *(f"{size / MIB:.1f}" for size in found))
    Console().print(table)


if __name__ == "__main__":
    main()

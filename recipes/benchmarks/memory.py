"""What FSDP frees: temporary bytes per device of one GPT training step, by the compiler's own figures, against a bar.

    python recipes/benchmarks/memory.py                          # 101 million parameters, 8 simulated devices
    python recipes/benchmarks/memory.py --partitioner shardy --layers 4
    python recipes/benchmarks/memory.py --topology v5e:2x4       # by the TPU compiler, too (pip install libtpu)

The bar for a step without clipping is what autograd saves and the largest result of an op, plus two units' parameters
and two units' gradients, whole; with clipping the split gradients once more. Small gathers live in a TPU's own memory
and are not counted there. Nothing here asserts.
"""

import argparse
import gc
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

# isort: off
import spmd  # before jax: it sets what XLA reads from the environment when jax is imported
import jax
import numpy as np
from jax.experimental import topologies

# isort: on
import fsdp
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy
from spmd.core.compile import cache, compiler
from spmd.core.sharding import value

MIB = 2**20


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--sequence", type=int, default=32)
    parser.add_argument("--batch", type=int, default=8, help="sequences per step, over all devices (default 8)")
    parser.add_argument("--devices", type=int, default=8, help="simulated devices (default 8)")
    parser.add_argument("--partitioner", choices=("gspmd", "shardy"), default="gspmd")
    parser.add_argument("--topology", help="of TPUs, with as many chips as devices, e.g. v5e:2x4")
    return parser.parse_args(arguments)


def saved_bytes(model: nn.Module, tokens: Tensor) -> int:
    """Return what autograd saves of a forward pass, parameters left out, and the largest of it once more."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = cross_entropy(model(tokens), tokens)
    del loss
    return sum(saved.values()) + max(saved.values())


def step_of(config: GPTConfig, args: argparse.Namespace, *, reshard: bool, clip: bool) -> tuple[Any, int]:
    """Run one step; return its graph and the CPU compiler's temporary bytes."""
    mesh = spmd.Mesh(range(args.devices), (args.devices,), ("fsdp",))
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
    with torch.device("xla"):
        model = GPT(config)
    model = fsdp.FullyShardedDataParallel(model, mesh=mesh, auto_wrap_policy=policy, reshard_after_forward=reshard)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(config.vocabulary, (args.batch, args.sequence)).to("xla")
    spmd.sync(wait=True)
    with mock.patch.object(cache, "compile_graph", side_effect=compiler.compile_graph) as compiled:
        loss = cross_entropy(model(tokens), tokens)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        spmd.sync(wait=True)
    program = cache.last_program()
    assert program is not None and program.record is not None
    return compiled.call_args.args[0], program.record.temp_bytes


def tpu_memory(graph: Any, topology: str) -> Any:
    """Return the TPU compiler's `memory_analysis` of the same graph over the chips of a topology."""
    devices = np.array(topologies.get_topology_desc(topology_name=topology, platform="tpu").devices).reshape(-1)
    shardings = [found for found in gc.get_objects() if type(found) is value.Sharding]

    def forget() -> None:
        for sharding in shardings:
            sharding._jax = None
            sharding._over.clear()

    forget()
    with mock.patch.object(value, "grid", lambda ids, shape, target: devices[np.array(ids)].reshape(shape)):
        lowered = compiler.lower_graph(graph)
        with value.compiler_context():
            found = lowered.compile().memory_analysis()
    forget()
    return found


def main() -> None:
    args = parse()
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    spmd.simulate(args.devices)
    spmd.config.partitioner = args.partitioner
    spmd.config.program_cache = False  # a program from the disk shows no graph
    config = GPTConfig(layers=args.layers, width=args.width, sequence=args.sequence)
    plain = GPT(config)
    numel = sum(parameter.numel() for parameter in plain.parameters())
    units = [sum(parameter.numel() for parameter in block.parameters()) for block in plain.blocks]
    unit = max(*units, numel - sum(units))
    activations = saved_bytes(plain, torch.randint(config.vocabulary, (args.batch, args.sequence))) / args.devices
    table = Table(title=f"{numel / 1e6:.1f} million parameters, {jax.device_count()} devices: MiB per device")
    for heading in ("reshard_after_forward", "clipping", "bar", "CPU compiler", args.topology or "TPU compiler"):
        table.add_column(heading, justify="right")
    for reshard in (True, False):
        for clip in (False, True):
            bar = activations + 4 * unit * 4 + (numel * 4 / args.devices if clip else 0)
            graph, found = step_of(config, args, reshard=reshard, clip=clip)
            tpu = f"{tpu_memory(graph, args.topology).temp_size_in_bytes / MIB:.1f}" if args.topology else "not asked"
            table.add_row(str(reshard), str(clip), f"{bar / MIB:.1f}", f"{found / MIB:.1f}", tpu)
    Console().print(table)


if __name__ == "__main__":
    main()

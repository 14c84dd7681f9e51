"""Temporary bytes per device of one GPT training step under FSDP, by the compiler's own figures,
against a bar.

    python recipes/benchmarks/memory.py                   # 101 million parameters, 8 simulated
                                                          # devices
    python recipes/benchmarks/memory.py --partitioner shardy --layers 4
    python recipes/benchmarks/memory.py --target v5e:2x4  # by the TPU compiler, too (the extra
                                                          # `tpu`)

The bar for a step without clipping is the bytes that autograd saves and the largest result of an
op, plus two units' parameters and two units' gradients, unsharded; with clipping the sharded
gradients once more. Where all parameters stay gathered there is none. Small gathers are in a TPU's
on-chip memory and are not counted there. Nothing here asserts.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import fsdp
import spmd
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy

MIB = 2**20


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--sequence", type=int, default=32)
    parser.add_argument(
        "--batch", type=int, default=8, help="sequences per step, over all devices (default 8)"
    )
    parser.add_argument("--devices", type=int, default=8, help="simulated devices (default 8)")
    parser.add_argument("--partitioner", choices=("gspmd", "shardy"), default="gspmd")
    parser.add_argument("--target", help="a TPU slice with as many chips as devices, e.g. v5e:2x4")
    return parser.parse_args(arguments)


def saved_bytes(model: nn.Module, tokens: Tensor) -> int:
    """Returns the bytes that autograd saves of a forward pass, without parameters, with the largest
    value twice."""
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


def plan_of(
    config: GPTConfig, args: argparse.Namespace, target: str | None, *, reshard: bool, clip: bool
) -> spmd.Plan:
    """Returns the plan of one step; nothing runs."""
    mesh = spmd.Mesh(range(args.devices), (args.devices,), ("fsdp",))
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
    with torch.device("xla"):
        model = GPT(config)
    model = fsdp.FullyShardedDataParallel(
        model, mesh=mesh, auto_wrap_policy=policy, reshard_after_forward=reshard
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def step(tokens: Tensor) -> None:
        tokens = tokens.to("xla")
        cross_entropy(model(tokens), tokens).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return spmd.plan(
        step, torch.randint(config.vocabulary, (args.batch, args.sequence)), target=target
    )


def main() -> None:
    args = parse()
    spmd.simulate(args.devices)
    spmd.config.partitioner = args.partitioner
    config = GPTConfig(layers=args.layers, width=args.width, sequence=args.sequence)
    plain = GPT(config)
    numel = sum(parameter.numel() for parameter in plain.parameters())
    units = [sum(parameter.numel() for parameter in block.parameters()) for block in plain.blocks]
    unit = max(*units, numel - sum(units))
    activations = (
        saved_bytes(plain, torch.randint(config.vocabulary, (args.batch, args.sequence)))
        / args.devices
    )
    table = Table(
        title=f"{numel / 1e6:.1f} million parameters, {args.devices} devices: MiB per device"
    )
    for heading in (
        "reshard_after_forward",
        "clipping",
        "bar",
        "CPU compiler",
        args.target or "TPU compiler",
    ):
        table.add_column(heading, justify="right")
    for reshard in (True, False):
        for clip in (False, True):
            bar = activations + 4 * unit * 4 + (numel * 4 / args.devices if clip else 0)
            found = plan_of(config, args, None, reshard=reshard, clip=clip).temporaries
            tpu = "no target"
            if args.target:
                planned = plan_of(config, args, args.target, reshard=reshard, clip=clip).temporaries
                tpu = f"{planned / MIB:.1f}"
            table.add_row(
                str(reshard),
                str(clip),
                f"{bar / MIB:.1f}" if reshard else "-",
                f"{found / MIB:.1f}",
                tpu,
            )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

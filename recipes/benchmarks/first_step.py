"""Print the processor seconds of the first step of small models, by what they are for, and the time
of a later step.

    python recipes/benchmarks/first_step.py  # a stack of linear layers, a transformer, a UNet
    python recipes/benchmarks/first_step.py --models unet --devices 1
    XLA_FLAGS=--xla_backend_optimization_level=0 python recipes/benchmarks/first_step.py
                                             # without LLVM's passes

Each model is a process of its own, under FSDP where there are several devices, without the cache on
disk. Benchmarks report; nothing here asserts a time.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter, process_time

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import fsdp
import spmd


class Convolutions(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            layers += [
                nn.Conv2d(channels, outputs, 3, padding=1),
                nn.GroupNorm(4, outputs),
                nn.SiLU(),
            ]
        super().__init__(*layers)


class UNet(nn.Module):
    """A UNet of three levels on images [N, 3, H, W]."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.down1, self.down2 = Convolutions(3, width), Convolutions(width, 2 * width)
        self.middle = Convolutions(2 * width, 4 * width)
        self.up2, self.up1 = Convolutions(6 * width, 2 * width), Convolutions(3 * width, width)
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        first = self.down1(images)
        second = self.down2(F.max_pool2d(first, 2))
        middle = self.middle(F.max_pool2d(second, 2))
        second = self.up2(torch.cat([F.interpolate(middle, scale_factor=2.0), second], 1))
        return self.out(self.up1(torch.cat([F.interpolate(second, scale_factor=2.0), first], 1)))


def linear() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(
        *[layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.ReLU())]
    ), torch.randn(64, 128)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 4), torch.randn(8, 32, 64)


MODELS = {
    "linear": linear,
    "transformer": transformer,
    "unet": lambda: (UNet(), torch.randn(8, 3, 32, 32)),
}
COLUMNS = ("first step", "recorded", "lowered", "compiled by XLA", "later, wall ms")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--devices", type=int, default=8, help="simulated devices (default 8)")
    parser.add_argument("--steps", type=int, default=20, help="later steps (default 20)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def child(args: argparse.Namespace) -> None:
    """Train one model, and print its row."""
    spmd.simulate(args.devices)
    spmd.config.program_cache = False
    torch.manual_seed(0)
    module, batch = MODELS[args.models[0]]()
    model = module.to("xla")
    if args.devices > 1:
        model = fsdp.FullyShardedDataParallel(
            model, mesh=spmd.Mesh(range(args.devices), (args.devices,), ("fsdp",))
        )
    optimizer, inputs = torch.optim.AdamW(model.parameters()), batch.to("xla")
    spmd.sync(wait=True)

    def record() -> None:
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    spmd.metrics.clear()
    began = process_time()
    record()
    recorded = process_time() - began
    spmd.sync(wait=True)
    first, lowered = (
        process_time() - began,
        spmd.metrics.report().partition("lower: ")[2].partition(" s")[0],
    )
    start, spent = perf_counter(), process_time()
    for _ in range(args.steps):
        record()
        spmd.sync(wait=True)
    later, ran = (perf_counter() - start) / args.steps, (process_time() - spent) / args.steps
    compiled = first - float(lowered) - ran  # a later step records as much
    print(
        "\t".join(
            f"{value:.2f}" for value in (first, recorded, float(lowered), compiled, later * 1e3)
        )
    )


def main() -> None:
    args = parse()
    if args.child:
        child(args)
        return
    print(f"{'processor seconds':17}" + "".join(f"{name:>18}" for name in COLUMNS))
    for name in args.models:
        flags = [
            "--child",
            "--models",
            name,
            "--devices",
            str(args.devices),
            "--steps",
            str(args.steps),
        ]
        printed = subprocess.run(
            [sys.executable, __file__, *flags],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**os.environ, "SPMD_SLOW_COMPILE_SECONDS": "0"},
        ).stdout
        print(
            f"{name:17}" + "".join(f"{value:>18}" for value in printed.strip().split("\t")),
            flush=True,
        )


if __name__ == "__main__":
    main()

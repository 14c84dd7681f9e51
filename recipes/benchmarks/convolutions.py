"""Time a training step of small convolution nets on one device beside the same step in torch on the CPU.

    python recipes/benchmarks/convolutions.py                       # plain, depthwise and grouped blocks, a ConvNeXt
    python recipes/benchmarks/convolutions.py --nets grouped --batch 32

Forward, backward and SGD on random images; the median of the steps after the two that compile. Benchmarks report;
nothing here asserts a time.
"""

import argparse
import copy
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import spmd


def bottleneck(groups: int, width: int = 32, inner: int = 128) -> nn.Module:
    """A block of 1 x 1, 3 x 3 and 1 x 1 convolutions, the middle one in groups."""
    return nn.Sequential(
        nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
        nn.Conv2d(inner, inner, 3, padding=1, groups=groups, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
        nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width),
    )  # fmt: skip


def convnext(width: int = 32) -> nn.Module:
    """A block with a depthwise convolution of 7 x 7 (Liu et al. 2022, arXiv:2201.03545)."""
    return nn.Sequential(
        nn.Conv2d(width, width, 7, padding=3, groups=width), nn.GroupNorm(1, width),
        nn.Conv2d(width, 4 * width, 1), nn.GELU(), nn.Conv2d(4 * width, width, 1),
    )  # fmt: skip


NETS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: bottleneck(1),
    "depthwise": lambda: bottleneck(128),
    "grouped": lambda: bottleneck(32),
    "convnext": convnext,
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", choices=tuple(NETS), default=list(NETS))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=64, help="height and width of an image (default 64)")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=7, help="timed steps (default 7)")
    return parser.parse_args()


def seconds(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, steps: int) -> tuple[float, float]:
    """Returns the median seconds of a step, and the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    times, loss = [], 0.0
    for _ in range(steps + 2):
        start = perf_counter()
        optimizer.zero_grad()
        made = F.cross_entropy(model(images), labels)
        made.backward()
        optimizer.step()
        loss = made.item()
        times.append(perf_counter() - start)
    return statistics.median(times[2:]), loss


def main() -> None:
    args = parse()
    table = Table(title=f"{args.blocks} blocks, {args.batch} images of {args.size} x {args.size}, one device")
    for column in ("net", "torch ms", "xla ms", "xla / torch", "loss of both"):
        table.add_column(column, justify="left" if column == "net" else "right")
    for name in args.nets:
        torch.manual_seed(0)
        blocks = [NETS[name]() for _ in range(args.blocks)]
        stem, head = nn.Conv2d(3, 32, 3, 2, 1), [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
        model = nn.Sequential(stem, *blocks, *head)
        images, labels = torch.randn(args.batch, 3, args.size, args.size), torch.randint(0, 10, (args.batch,))
        theirs, expected = seconds(copy.deepcopy(model), images, labels, args.steps)
        ours, loss = seconds(model.to("xla"), images.to("xla"), labels.to("xla"), args.steps)
        times = f"{theirs * 1e3:.0f}", f"{ours * 1e3:.0f}", f"{ours / theirs:.2f}"
        table.add_row(name, *times, f"{expected:.4f} {loss:.4f}")
        spmd.sync()
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

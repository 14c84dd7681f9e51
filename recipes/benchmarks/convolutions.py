"""Time a training step of convolution nets on one device next to the same step in torch on the CPU.

    python recipes/benchmarks/convolutions.py                    # four kinds of blocks, ResNet-18,
                                                                 # EfficientNet-B0
    python recipes/benchmarks/convolutions.py --nets resnet18 efficientnet --dtype bfloat16
    OMP_NUM_THREADS=1 python recipes/benchmarks/convolutions.py  # a busy machine: torch's threads
                                                                 # wait busily

Forward, backward and SGD on random images; both alternate, step by step, after the two that
compile. A row has medians of wall and of processor time, all threads together. First losses that
differ end the program with an error; no time does.
"""

import argparse
import copy
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import spmd
from recipes.efficientnet import EfficientNet, EfficientNetConfig
from recipes.resnet import ResNet, ResNetConfig

BLOCKS = 3


def bottleneck(groups: int, width: int = 32, inner: int = 128) -> nn.Module:
    """A block of 1 x 1, 3 x 3 and 1 x 1 convolutions, the middle one in groups."""
    return nn.Sequential(
        nn.Conv2d(width, inner, 1, bias=False),
        nn.BatchNorm2d(inner),
        nn.ReLU(),
        nn.Conv2d(inner, inner, 3, padding=1, groups=groups, bias=False),
        nn.BatchNorm2d(inner),
        nn.ReLU(),
        nn.Conv2d(inner, width, 1, bias=False),
        nn.BatchNorm2d(width),
    )


def convnext(width: int = 32) -> nn.Module:
    """A block with a depthwise convolution of 7 x 7 (Liu et al. 2022, arXiv:2201.03545)."""
    return nn.Sequential(
        nn.Conv2d(width, width, 7, padding=3, groups=width),
        nn.GroupNorm(1, width),
        nn.Conv2d(width, 4 * width, 1),
        nn.GELU(),
        nn.Conv2d(4 * width, width, 1),
    )


def net(block: Callable[[], nn.Module]) -> nn.Module:
    """A stem that halves the image, three blocks, a mean over the pixels and a linear layer."""
    blocks = [block() for _ in range(BLOCKS)]
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
    )


NETS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: net(lambda: bottleneck(1)),
    "depthwise": lambda: net(lambda: bottleneck(128)),
    "grouped": lambda: net(lambda: bottleneck(32)),
    "convnext": lambda: net(convnext),
    "resnet18": lambda: ResNet(ResNetConfig(classes=10)),
    "efficientnet": lambda: EfficientNet(EfficientNetConfig(classes=10)),
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nets", nargs="+", choices=tuple(NETS), default=list(NETS))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument(
        "--size", type=int, default=64, help="height and width of an image (default 64)"
    )
    parser.add_argument("--steps", type=int, default=7, help="timed steps (default 7)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    return parser.parse_args()


class Side:
    """A model on one device: `step()` trains it once, and keeps seconds of wall and processor time
    and losses."""

    def __init__(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.model, self.images, self.labels = model, images, labels
        self.optimizer = torch.optim.SGD(model.parameters(), 0.1)
        self.wall: list[float] = []
        self.processor: list[float] = []
        self.losses: list[float] = []

    def step(self) -> None:
        start, used = perf_counter(), process_time()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(self.images).float(), self.labels)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.wall.append(perf_counter() - start)
        self.processor.append(process_time() - used)


def row(name: str, theirs: Side, ours: Side) -> list[str]:
    """Returns a row of the table: the steps after the first two, which compile."""
    texts, ratios = [name], []
    for side in (theirs, ours):
        wall, processor = (
            statistics.median(seconds[2:]) * 1e3 for seconds in (side.wall, side.processor)
        )
        texts.append(f"{wall:.0f} ({processor:.0f})")
    for kind in (statistics.median, min):
        wall = kind(ours.wall[2:]) / kind(theirs.wall[2:])
        processor = kind(ours.processor[2:]) / kind(theirs.processor[2:])
        ratios.append(f"{wall:.2f} ({processor:.2f})")
    return [*texts, *ratios, f"{theirs.losses[0]:.4f} {ours.losses[0]:.4f}"]


def compare_losses(name: str, theirs: Side, ours: Side) -> None:
    """Raises SystemExit where the first step's losses differ: the times would say nothing.

    Later ones drift apart.
    """
    first = theirs.losses[0], ours.losses[0]
    tolerance = 1e-3 if theirs.images.dtype == torch.float32 else 2e-2
    if not math.isclose(*first, rel_tol=tolerance):
        raise SystemExit(
            f"{name}: expected equal losses of the first step up to {tolerance:g}, got {first}"
        )


def main() -> None:
    args = parse()
    dtype = getattr(torch, args.dtype)
    images = f"{args.batch} images of {args.size} x {args.size}, {args.dtype}"
    table = Table(
        title=f"{images}; torch's threads: {torch.get_num_threads()}; in brackets: processor time"
    )
    for column in (
        "net",
        "torch ms",
        "torch-spmd ms",
        "torch-spmd / torch",
        "of the fastest steps",
        "first loss of both",
    ):
        table.add_column(column, justify="left" if column == "net" else "right")
    for name in args.nets:
        torch.manual_seed(0)
        model = NETS[name]().to(dtype)
        images = torch.randn(args.batch, 3, args.size, args.size, dtype=dtype)
        labels = torch.randint(0, 10, (args.batch,))
        theirs = Side(copy.deepcopy(model), images, labels)
        ours = Side(model.to("xla"), images.to("xla"), labels.to("xla"))
        for _ in range(args.steps + 2):
            theirs.step()
            ours.step()
        compare_losses(name, theirs, ours)
        table.add_row(*row(name, theirs, ours))
        spmd.sync()
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

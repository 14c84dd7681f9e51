"""Time the compilation of deeper models: the blocks of a GPT scanned by `spmd.scan_layers`, or one
after the other.

    python recipes/benchmarks/layers.py                          # 4 and 64 blocks, scanned
    python recipes/benchmarks/layers.py --plain --depths 4 8 12  # also a plain Python loop over the
                                                                 # blocks
    python recipes/benchmarks/layers.py --fsdp                   # over 8 simulated devices

One training step of forward, backward and SGD at the shapes of the 12-layer GPT of `step.py` (width
256, sequence 128, batch 16). Compile is from the end of recording to the executable, lowering
included; a step is the median of several.
"""

import argparse
import statistics
import sys
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import fsdp
import spmd
from recipes.gpt import Block, GPTConfig
from spmd.core.base.counters import now


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--depths", type=int, nargs="+", default=[4, 64])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument(
        "--policy",
        choices=("nothing", "dots"),
        help="values of a block that are saved (default: all)",
    )
    parser.add_argument("--plain", action="store_true", help="also without a scan")
    parser.add_argument(
        "--fsdp", action="store_true", help="parameters and batch split over 8 simulated devices"
    )
    return parser.parse_args(arguments)


class Stack(nn.Module):
    """Blocks alone."""

    def __init__(self, depth: int, options: argparse.Namespace, *, scanned: bool) -> None:
        super().__init__()
        config = GPTConfig(depth, options.width, 8, options.sequence, dropout=options.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(depth))
        self.scanned, self.policy = scanned, options.policy

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.scanned:
            return spmd.scan_layers(self.blocks, x, policy=self.policy)
        for block in self.blocks:
            x = block(x)
        return x


def measure(depth: int, options: argparse.Namespace, *, scanned: bool) -> list[str]:
    """Returns a line of the table."""
    torch.manual_seed(0)
    with torch.device("xla"):
        model: nn.Module = Stack(depth, options, scanned=scanned)
    if options.fsdp:
        policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
        model = fsdp.FullyShardedDataParallel(model, auto_wrap_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(options.batch, options.sequence, options.width).to("xla")
    spmd.sync(wait=True)
    spmd.metrics.clear()
    recorded, steps = [], []
    for _ in range(options.steps + 2):
        started = now()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        recorded.append(now() - started)
        spmd.sync(wait=True)
        steps.append(now() - started)
    programs = [program for program in spmd.metrics.compiles() if program.name == "step"]
    largest = max(programs, key=lambda program: program.flops)
    form = "scanned" if scanned else "plain"
    return [
        form,
        str(depth),
        f"{1e3 * statistics.median(recorded[2:]):.0f}",
        f"{largest.nodes:,}",
        f"{largest.seconds:.2f}",
        f"{largest.temp_bytes / 2**20:.1f}",
        f"{1e3 * statistics.median(steps[2:]):.0f}",
    ]


def main() -> None:
    options = parse()
    spmd.config.program_cache = False
    if options.fsdp:
        spmd.simulate(8)
    table = Table(
        "blocks are", "blocks", "record ms", "ops", "compile s", "temporaries MiB", "step ms"
    )
    for scanned in (True, False) if options.plain else (True,):
        for depth in options.depths:
            table.add_row(*measure(depth, options, scanned=scanned))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

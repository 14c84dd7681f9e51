"""Compare the bytes moved and the operations of torch's attention over several devices with
attention written plainly.

    python recipes/benchmarks/attention.py                   # eight simulated devices
    python recipes/benchmarks/attention.py --target v5e:2x4  # by the TPU's compiler; needs libtpu

The figures are the compiler's. nn.MultiheadAttention merges batch and heads (and has the sequence
first, without `batch_first`); written plainly, its projection is
`view(batch, sequence, 3, heads, width)`. Forward and backward, under FSDP and under tensor
parallelism (heads over four devices, the batch over two).
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import fsdp
import spmd

HEADS = 8
SPLIT = {
    "in_proj_weight": ("model", None),
    "in_proj_bias": ("model",),
    "out_proj.weight": (None, "model"),
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", help="eight devices, such as v5e:2x4 (default: simulated ones)")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--sequence", type=int, default=128)
    return parser.parse_args()


class Torchs(nn.Module):
    """nn.MultiheadAttention of one input."""

    def __init__(self, width: int, batch_first: bool):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, HEADS, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Plain(Torchs):
    """The same attention with separate dims for batch and sequence."""

    def forward(self, x: Tensor) -> Tensor:
        own, is_second = self.attention, not self.attention.batch_first
        x = x.transpose(0, 1) if is_second else x
        projected = F.linear(x, own.in_proj_weight, own.in_proj_bias).view(
            *x.shape[:2], 3, HEADS, -1
        )
        heads = F.scaled_dot_product_attention(*projected.permute(2, 0, 3, 1, 4))
        out = own.out_proj(heads.transpose(1, 2).reshape(x.shape))
        return out.transpose(0, 1) if is_second else out


def planned(
    made: Callable[[int, bool], nn.Module],
    batch_first: bool,
    is_split: bool,
    args: argparse.Namespace,
) -> spmd.Plan:
    """Returns the plan of a forward and a backward pass."""
    shape, axes = ((2, 4), ("fsdp", "model")) if is_split else ((8,), ("fsdp",))
    mesh = spmd.Mesh(range(8), shape, axes)
    with torch.device("xla"):
        model = made(args.width, batch_first)
    if is_split:
        for name, parameter in model.named_parameters():
            spec = next((spec for end, spec in SPLIT.items() if name.endswith(end)), None)
            if spec is not None:
                spmd.mark_sharding(parameter, mesh, spec)
    else:
        model = fsdp.FullyShardedDataParallel(model, mesh)
    sizes = (args.batch, args.sequence) if batch_first else (args.sequence, args.batch)
    spec = ("fsdp", None, None) if batch_first else (None, "fsdp", None)

    def step(x: Tensor) -> None:
        model(spmd.mark_sharding(x.to("xla"), mesh, spec)).square().mean().backward()

    return spmd.plan(step, torch.ones(*sizes, args.width), target=args.target)


def main() -> None:
    args = parse()
    spmd.simulate(8)
    table = Table(
        "layout",
        "batch",
        "moved, nn",
        "moved, plain",
        "ratio",
        "operations, ratio",
        "cycles, ratio",
    )
    for is_split in (False, True):
        for batch_first in (True, False):
            one, two = (planned(made, batch_first, is_split, args) for made in (Torchs, Plain))
            table.add_row(
                "tensor" if is_split else "FSDP",
                "first" if batch_first else "second",
                f"{one.moved_bytes:,}",
                f"{two.moved_bytes:,}",
                f"{one.moved_bytes / two.moved_bytes:.3f}",
                f"{one.flops / two.flops:.3f}",
                f"{one.cycles / two.cycles:.3f}" if two.cycles else "-",
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

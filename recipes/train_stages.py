"""Train a byte-level GPT whose layers are the stages of a pipeline, on eight simulated devices.

    python recipes/train_stages.py                           # 4 stages x FSDP 2, 8 micro-batches
    python recipes/train_stages.py --stages 8 --micro-batches 4
    python recipes/train_stages.py --stages 1                # FSDP alone: the same losses
    python recipes/train_stages.py --picture stages.png      # schedule, and memory against
                                                             # micro-batches; runs nothing

The model is plain PyTorch, and the loop is that of one device. One line of rules names the layers
and the axis. It prints the schedule as the plan has it, and the losses.

The picture's left side is the schedule of forward and backward: a row is a stage, a column a tick,
a number the micro-batch. Its right side has the peak of a device by `spmd.plan`, and the share of
ticks that are bubbles, by the number of micro-batches.
"""

import argparse
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from matplotlib import pyplot
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import fsdp  # noqa: F401  the units of the rules
import spmd
from recipes import text

DEVICES, MIB = 8, 2**20


class Layer(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.first(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, length: int, heads: int = 4):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.bytes(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    numbers = {
        "stages": 4, "micro_batches": 8, "layers": 8, "width": 64, "length": 64, "batch": 32,
        "steps": 20,
    }  # fmt: skip
    for name, default in numbers.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=default, help=f"default {default}")
    parser.add_argument("--picture", metavar="FILE", help="draw schedule and memory, run nothing")
    args = parser.parse_args(arguments)
    if args.stages < 1 or DEVICES % args.stages:
        parser.error(f"--stages {args.stages} does not divide {DEVICES} devices")
    return args


def build(args: argparse.Namespace, micro_batches: int) -> tuple[GPT, spmd.Mesh]:
    """Returns the model over stages and FSDP; one stage is FSDP alone."""
    mesh = spmd.Mesh(range(DEVICES), (args.stages, DEVICES // args.stages), ("stage", "fsdp"))
    model = GPT(args.layers, args.width, args.length).to("xla")
    if args.stages > 1:
        table = spmd.ShardingRules(units=["layers.*"], stages="stage", micro_batches=micro_batches)
    else:
        table = spmd.ShardingRules(units=["layers.*"])
    table.apply(model, mesh)
    return model, mesh


def on_devices(mesh: spmd.Mesh, *values: Tensor) -> list[Tensor]:
    """Returns values of the batch, its rows over all devices."""
    spec = spmd.P(("stage", "fsdp"), None)
    return [spmd.mark_sharding(value.to("xla"), mesh, spec) for value in values]


def train(args: argparse.Namespace) -> list[float]:
    torch.manual_seed(0)
    model, mesh = build(args, args.micro_batches)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=True)
    batches = text.batches(text.load().train, batch=args.batch, sequence=args.length, seed=0)
    losses = []
    for step, batch in enumerate(islice(batches, args.steps)):
        loss = model(*on_devices(mesh, *batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if not step:
            notes = [note for record in spmd.metrics.compiles() for note in record.passes]
            print(*dict.fromkeys(words for kind, words in notes if kind == "schedule"), sep="\n")
        print(f"step {step:3d}  loss {losses[-1]:.4f}")
    return losses


# --- pictures -------------------------------------------------------------------------------------


def peak(args: argparse.Namespace, micro_batches: int) -> float:
    """Returns the MiB of a device by a plan, of forward and backward."""
    model, mesh = build(args, micro_batches)

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = model(*on_devices(mesh, tokens, targets))
        loss.backward()
        return loss

    whole = torch.zeros(args.batch, args.length, dtype=torch.long)
    return spmd.plan(step, whole, whole).peak / MIB


def schedule(stages: int, micro_batches: int) -> np.ndarray:
    """Returns by stage and tick the micro-batch, from 1 on, below 0 in backward; 0: a bubble."""
    ticks = micro_batches + stages - 1
    numbers = np.arange(ticks) - np.arange(stages)[:, None] + 1
    forward = np.where((numbers > 0) & (numbers <= micro_batches), numbers, 0)
    return np.concatenate([forward, -forward[::-1]], 1)


def draw(args: argparse.Namespace) -> None:
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(13, 4), layout="constrained", width_ratios=(3, 2)
    )
    numbers = schedule(args.stages, args.micro_batches)
    most = args.micro_batches
    shown = np.ma.masked_equal(np.sign(numbers) * (most + np.abs(numbers)), 0)
    left.imshow(shown, cmap="coolwarm", vmin=-2.5 * most, vmax=2.5 * most, aspect="auto")
    for (stage, tick), number in np.ndenumerate(numbers):
        left.text(tick, stage, str(abs(number)) if number else "", ha="center", va="center")
    bubbles = (args.stages - 1) / (most + args.stages - 1)
    left.set(
        xlabel="tick (forward, backward)", ylabel="stage", yticks=range(args.stages),
        xticks=range(numbers.shape[1]),
        title=f"{args.stages} stages, {most} micro-batches: {bubbles:.0%} bubbles",
    )  # fmt: skip
    rows = args.batch * args.stages // DEVICES  # of a device
    counts = [count for count in (1, 2, 4, 8, 16, 32) if rows % count == 0]
    peaks = [peak(args, count) for count in counts]
    for count, mebibytes in zip(counts, peaks, strict=True):
        print(f"{count:3d} micro-batches  {mebibytes:7.2f} MiB a device")
    right.plot(counts, peaks, "o-", label="peak of a device, MiB")
    right.set_xscale("log", base=2)
    right.set(xlabel="micro-batches", xticks=counts, xticklabels=counts, ylim=0)
    share = right.twinx()
    shares = [(args.stages - 1) / (count + args.stages - 1) for count in counts]
    share.plot(counts, shares, "s--", color="tab:red", label="share of bubbles")
    share.set(ylim=(0, 1))
    figure.legend(loc="outside lower right", ncols=2)
    figure.savefig(args.picture, dpi=150)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> list[float]:
    args = parse(arguments)
    spmd.simulate(DEVICES)
    if args.picture:
        draw(args)
        return []
    return train(args)


if __name__ == "__main__":
    main()

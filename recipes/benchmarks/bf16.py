"""Compare losses of FSDP in bfloat16 over float32 parameters with float32, and float32 from other
seeds' weights.

    python recipes/benchmarks/bf16.py                  # 500 steps each: float32, bfloat16, float32
                                                       # from other weights
    python recipes/benchmarks/bf16.py --seeds 0 1 2 3  # more seeds, each pair of them compared
    python recipes/benchmarks/bf16.py --gather float8_e4m3fn --seeds 0 1 2
                                                       # gathers in eight bits against bfloat16,
                                                       # with each seed

A byte-level GPT on the text of `recipes/text.py`, AdamW with warm-up, cosine and clipping, over 8
simulated devices. `fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)` gathers and computes in
bfloat16; parameters, gradients and the optimizer's state stay float32. With `--gather` the same
policy without and with `gather_dtype` are compared. All runs read the same
batches. The gap of two runs is the mean of |difference| of their training losses, step by step, and
that of their held-out losses at the end.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, islice
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import fsdp
import spmd
from recipes import text
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy
from recipes.training import learning_rate_factor

BFLOAT16 = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
FLOAT32 = fsdp.MixedPrecisionPolicy()


class Run(NamedTuple):
    """The training loss of each step, and the held-out loss after the last, in nats per byte."""

    losses: list[float]
    heldout: float


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[0, 1],
        help="seeds of weights; bfloat16 has the first",
    )
    parser.add_argument(
        "--gather",
        choices=["float8_e4m3fn", "float8_e5m2"],
        help="the dtype of gathers, compared with bfloat16 for each seed",
    )
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    options = parser.parse_args(arguments)
    if len(set(options.seeds)) < 2:
        parser.error("--seeds needs two different ones to compare")
    return options


def train(
    policy: fsdp.MixedPrecisionPolicy, seed: int, options: argparse.Namespace, corpus: text.Text
) -> Run:
    """Trains from a seed's weights, and returns the losses."""
    torch.manual_seed(seed)
    mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
    config = GPTConfig(options.layers, options.width, 4, options.sequence)
    how = {"auto_wrap_policy": {Block}, "mp_policy": policy}
    model = fsdp.FullyShardedDataParallel(GPT(config), mesh, **how)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1
    )
    factor = partial(learning_rate_factor, warmup=min(30, options.steps // 4), steps=options.steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    sizes = {"batch": options.batch, "sequence": options.sequence}
    put = partial(move, mesh=mesh)
    losses = []
    for tokens, targets in islice(text.batches(corpus.train, **sizes, seed=0), options.steps):
        loss = loss_of(model, put(tokens), put(targets))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        spmd.sync()
        losses.append(loss.detach())
    with torch.no_grad():
        heldout = [
            loss_of(model, put(tokens), put(targets)).item()
            for tokens, targets in text.windows(corpus.heldout, **sizes)
        ]
    return Run([loss.item() for loss in losses], fmean(heldout))


def move(tokens: Tensor, mesh: spmd.Mesh) -> Tensor:
    return spmd.mark_sharding(tokens.to("xla"), mesh, ("fsdp", None))


def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(model(tokens).float(), targets)


def gap(one: Run, other: Run) -> tuple[float, float]:
    """Returns the gap of two runs: in training, on average over the steps, and on held-out text."""
    apart = fmean(abs(a - b) for a, b in zip(one.losses, other.losses, strict=True))
    return apart, abs(one.heldout - other.heldout)


def compare(
    options: argparse.Namespace, corpus: text.Text
) -> tuple[dict[str, Run], dict[str, tuple[float, float]]]:
    """Returns all runs and the gaps between them; the first gaps are those of the narrower
    policy."""
    wide, narrow, compared = ("float32", FLOAT32), ("bfloat16", BFLOAT16), options.seeds[:1]
    if options.gather:
        gathers = replace(BFLOAT16, gather_dtype=getattr(torch, options.gather))
        wide, narrow, compared = narrow, (options.gather, gathers), options.seeds
    runs = {
        f"{name}, seed {seed}": train(policy, seed, options, corpus)
        for (name, policy), seeds in ((narrow, compared), (wide, options.seeds))
        for seed in seeds
    }
    pairs = [(f"{narrow[0]}, seed {seed}", f"{wide[0]}, seed {seed}") for seed in compared]
    pairs += combinations([f"{wide[0]}, seed {seed}" for seed in options.seeds], 2)
    return runs, {f"{one} - {other}": gap(runs[one], runs[other]) for one, other in pairs}


def tables(runs: dict[str, Run], gaps: dict[str, tuple[float, float]]) -> Sequence[Table]:
    """Returns the tables of the losses and of the gaps."""
    measured = Table("run", "first step", "last 50 steps", "held-out")
    for name, run in runs.items():
        measured.add_row(
            name, f"{run.losses[0]:.4f}", f"{fmean(run.losses[-50:]):.4f}", f"{run.heldout:.4f}"
        )
    apart = Table("gap", "training, mean of steps", "held-out")
    for name, (training, heldout) in gaps.items():
        apart.add_row(name, f"{training:.4f}", f"{heldout:.4f}")
    return measured, apart


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    spmd.simulate(8)
    Console(width=140).print(*tables(*compare(options, text.load())))


if __name__ == "__main__":
    main()

"""Layouts that `spmd.suggest` finds for Llama on a TPU slice, ranked, next to the layout by hand of
`scale.py`.

    python -m recipes.benchmarks.suggest                          # 8 billion parameters on
                                                                  # v5p:2x2x2
    python -m recipes.benchmarks.suggest --row 70b --budget 1800  # 70 billion on v5p:4x8x8
    python -m recipes.benchmarks.suggest --save rules.toml        # keeps the best table of rules

No TPU is needed, but the package libtpu is (`pip install "jax[tpu]"`). Nothing is allocated.
Compiles take minutes each on two cores: the budget is in seconds, and a compile that runs when it
ends is finished.
"""

import argparse
import dataclasses
from collections.abc import Sequence

import torch
from rich.console import Console

import spmd
from recipes.benchmarks.scale import ROWS, ours
from recipes.llama import CONFIGS, PRECISION, Llama, cross_entropy


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--row",
        choices=("1b", "1b-small-slice", "8b", "70b"),
        default="8b",
        help="the step (default 8b)",
    )
    parser.add_argument("--layers", type=int, help="so many layers instead of the model's")
    parser.add_argument("--budget", type=float, default=600, help="seconds of search (default 600)")
    parser.add_argument(
        "--max-trials", type=int, default=24, help="layouts that are compiled, at most"
    )
    parser.add_argument("--save", help="write the best rules to this file")
    args = parser.parse_args(arguments)
    row = next(row for row in ROWS if row.name == args.row)
    config = dataclasses.replace(CONFIGS[row.model], checkpointed=False)
    config = dataclasses.replace(config, layers=args.layers or config.layers)
    with torch.device("meta"):
        model = Llama(config)
        tokens = torch.zeros(row.batch, row.sequence, dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss = cross_entropy(model(tokens), tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    console = Console(width=140)
    found = spmd.suggest(
        step,
        tokens,
        target=row.target,
        mp_policy=PRECISION,
        budget=args.budget,
        max_trials=args.max_trials,
    )
    console.print(found)
    console.print(f"best: {found.plan.cycles:,} cycles")
    for other in ROWS:
        if other.name in (row.name, f"{row.name}-kept"):  # with blocks checkpointed, and without
            console.print(
                f"by hand, {other.name} of scale.py: {ours(other, args.layers)['cycles']:,} cycles"
            )
    if args.save:
        found.rules.save(args.save)
        console.print(f"the rules are in {args.save}")


if __name__ == "__main__":
    main()

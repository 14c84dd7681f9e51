"""Time one GPT training step in three layouts, lazily and compiled, against hand-written JAX and
torch on the CPU.

    python recipes/benchmarks/step_table.py                        # 4 layers, 8 simulated devices,
                                                                   # minutes
    python recipes/benchmarks/step_table.py --layers 12 --pairs 8  # the GPT of step.py
    python recipes/benchmarks/step_table.py --layouts tensor --partitioner shardy

Rows are FSDP, data parallel and tensor parallel (`layouts.py`); columns are this library's step,
recorded by Python at each step, by `spmd.compile`, and with `torch.compile(model, backend="xla")`;
the JAX program of the same shardings (`jax_gpt.py`); plain torch, eager and by `torch.compile`, on
the CPU. All of a row start from equal weights, train on the same batches and alternate in one
process, backwards in every second round, so that other load of the machine falls on all. A step is
timed from the batch in host memory to the new state being ready. It prints ratios to JAX by hand
with the losses that they end with, and leaves OUT/step_table.png. Losses that differ end the
program with an error; no time does.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import matplotlib
import torch
from matplotlib import pyplot
from rich.console import Console
from rich.table import Table
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import spmd
from recipes import text
from recipes.benchmarks.layouts import LAYOUTS
from recipes.benchmarks.step import Side, jax_side, our_side, run_rounds, torch_side
from recipes.gpt import GPT, GPTConfig

LAZY, COMPILED, DYNAMO, JAX, EAGER, INDUCTOR = SIDES = (
    "lazy",
    "spmd.compile",
    "torch.compile",
    "JAX by hand",
    "torch eager, CPU",
    "torch.compile, CPU",
)
TITLES = {"fsdp": "FSDP", "data": "data parallel", "tensor": "tensor parallel"}
UNTIMED = 3  # rounds: compiles, and the two calls that spmd.compile records


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument(
        "--batch", type=int, default=16, help="sequences per step, over all devices (default 16)"
    )
    parser.add_argument(
        "--pairs", type=int, default=6, help=f"timed rounds (default 6), after {UNTIMED} untimed"
    )
    parser.add_argument("--devices", type=int, default=8, help="simulated devices (default 8)")
    parser.add_argument(
        "--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS, help="(default all)"
    )
    parser.add_argument(
        "--sides", nargs="+", choices=SIDES, default=SIDES, metavar="SIDE", help=", ".join(SIDES)
    )
    parser.add_argument("--partitioner", choices=("gspmd", "shardy"), default="gspmd")
    parser.add_argument(
        "--compiler-options",
        help="for ours and JAX, as in config.compiler_options (default: those of ours)",
    )
    parser.add_argument(
        "--jax-options", help='for JAX alone: NAME=VALUE, by spaces; "" for XLA\'s defaults'
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out"), metavar="DIR", help="for the picture (default out)"
    )
    args = parser.parse_args(arguments)
    if JAX not in args.sides:
        parser.error(f"--sides must hold {JAX!r}, which the others are compared with")
    if args.heads % args.devices and "tensor" in args.layouts:
        parser.error(
            f"--heads {args.heads} must be a multiple of --devices {args.devices}, which share them"
        )
    return args


def without_inductor() -> str | None:
    """Returns the reason why torch's own compiler cannot run here, or None."""
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        return (
            f"{INDUCTOR}: left out, torch's inductor needs a C++ compiler "
            f"({str(error).splitlines()[0]})"
        )
    return None


def make_side(
    name: str, layout: str, weights: dict[str, torch.Tensor], args: argparse.Namespace
) -> Side:
    """Returns one program of a row; its first step compiles it."""
    config = GPTConfig(
        layers=args.layers, width=args.width, heads=args.heads, sequence=args.sequence
    )
    if name == JAX:
        side, _ = jax_side(weights, args, layout)
    elif name in (EAGER, INDUCTOR):
        side, step = torch_side(weights, config, layout)
        if name == INDUCTOR:
            step.model = torch.compile(step.model)
    else:
        side, step = our_side(weights, config, args.devices, layout=layout)
        if name == DYNAMO:
            step.model = torch.compile(step.model, backend="xla")
        if name == COMPILED:
            step.update = spmd.compile(step.update)
    side.name = name
    return side


def run_row(
    layout: str, names: Sequence[str], args: argparse.Namespace, console: Console
) -> dict[str, Side]:
    """Runs the programs of a row alternately; returns them with their times and losses."""
    torch._dynamo.reset()  # the graphs of one layout are not those of another
    torch.manual_seed(0)
    weights = GPT(
        GPTConfig(layers=args.layers, width=args.width, heads=args.heads, sequence=args.sequence)
    ).state_dict()
    sides = [make_side(name, layout, weights, args) for name in names]
    batches = list(
        islice(
            text.batches(text.load().train, batch=args.batch, sequence=args.sequence, seed=0),
            UNTIMED + args.pairs,
        )
    )
    run_rounds(sides, iter(batches[:UNTIMED]), UNTIMED, console)
    for side in sides:
        side.seconds.clear()
    run_rounds(sides, iter(batches[UNTIMED:]), args.pairs, console)
    return {side.name: side for side in sides}


def compare_losses(losses: dict[str, float]) -> None:
    """Raises SystemExit where a program's loss is not that of the others: its time would say
    nothing."""
    if LAZY in losses and losses.get(COMPILED, losses[LAZY]) != losses[LAZY]:
        raise SystemExit(f"the losses {LAZY} and by {COMPILED} must be equal bit for bit: {losses}")
    if not all(math.isclose(loss, losses[JAX], rel_tol=1e-4) for loss in losses.values()):
        raise SystemExit(f"expected equal losses up to 1e-4, got {losses}")


def ratios(row: dict[str, Side], name: str) -> list[float]:
    """Returns the ratios of a side's timed steps to those of JAX in the same rounds."""
    return [one / other for one, other in zip(row[name].seconds, row[JAX].seconds, strict=True)]


def ratio_table(rows: dict[str, dict[str, Side]], names: Sequence[str]) -> Table:
    """Returns the table of the ratios' medians, with the least and the largest."""
    table = Table(
        "layout",
        title="One training step: time / JAX by hand, median (from to)",
        title_justify="left",
    )
    for name in names:
        table.add_column(name, justify="right")
    for layout, row in rows.items():
        values = []
        for name in names:
            found = ratios(row, name)
            shown = f"{statistics.median(found):.3f} ({min(found):.2f} to {max(found):.2f})"
            median = f"{1e3 * statistics.median(row[name].seconds):.0f} ms"
            values.append(median if name == JAX else shown)
        table.add_row(TITLES[layout], *values)
    return table


def loss_table(losses: dict[str, dict[str, float]], names: Sequence[str]) -> Table:
    table = Table("layout", *names, title="The loss of the last step", title_justify="left")
    for layout, found in losses.items():
        table.add_row(TITLES[layout], *(f"{found[name]:.7f}" for name in names))
    return table


def draw(rows: dict[str, dict[str, Side]], names: Sequence[str], *, title: str, path: Path) -> None:
    """Writes the picture: a group of bars for each layout, the medians of the ratios."""
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    shown = [name for name in names if name != JAX]
    width = 0.8 / len(shown)
    for place, name in enumerate(shown):
        medians = [statistics.median(ratios(row, name)) for row in rows.values()]
        at = [number + (place - (len(shown) - 1) / 2) * width for number in range(len(rows))]
        axes.bar_label(
            axes.bar(at, medians, 0.9 * width, label=name), fmt="{:.2f}", padding=2, size=8
        )
    axes.axhline(1.0, color="black", linewidth=1, linestyle="--", label=JAX)
    axes.set_xticks(range(len(rows)), [TITLES[layout] for layout in rows])
    axes.set(ylabel="time of a step / JAX by hand", title=title)
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Prints the tables and draws the picture; returns the losses by layout and side."""
    args = parse(arguments)
    console = Console(width=150)
    matplotlib.use("agg")  # writes files, needs no screen
    args.out.mkdir(parents=True, exist_ok=True)
    spmd.simulate(args.devices)
    spmd.config.partitioner = args.partitioner
    spmd.config.compiler_options = (
        "auto" if args.compiler_options is None else args.compiler_options
    )
    missing = without_inductor() if INDUCTOR in args.sides else None
    names = [name for name in SIDES if name in args.sides and not (name == INDUCTOR and missing)]
    rows: dict[str, dict[str, Side]] = {}
    losses: dict[str, dict[str, float]] = {}
    for layout in args.layouts:
        rows[layout] = run_row(layout, names, args, console)
        losses[layout] = {name: side.losses() for name, side in rows[layout].items()}
        compare_losses(losses[layout])
    size = f"{args.layers} layers, width {args.width}, {args.batch} x {args.sequence} tokens"
    console.print(
        f"GPT of {size}, {args.devices} simulated devices, {args.partitioner}", highlight=False
    )
    console.print(ratio_table(rows, names), loss_table(losses, names))
    if missing:
        console.print(missing, highlight=False)
    path = args.out / "step_table.png"
    draw(
        rows,
        names,
        title=f"A GPT's training step: {size}, {args.devices} simulated devices",
        path=path,
    )
    console.print(path, highlight=False)
    return losses


if __name__ == "__main__":
    main()

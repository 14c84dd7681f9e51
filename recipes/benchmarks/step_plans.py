"""Compile one GPT training step in three layouts by the compilers of real TPUs: ours next to JAX by
hand.

    TPU_SKIP_MDS_QUERY=1 python recipes/benchmarks/step_plans.py  # v5e:2x4 and v5p:2x2x2
    TPU_SKIP_MDS_QUERY=1 python recipes/benchmarks/step_plans.py --layouts fsdp --keep
                                                                  # gathered once
    python recipes/benchmarks/step_plans.py --targets cpu:8 --layers 2 --width 64
                                                                  # without cycles

No TPU is needed, but the package libtpu is (`pip install "jax[tpu]"`). Nothing is allocated. The
step is that of `step_table.py`: FSDP, data parallel and tensor parallel (`layouts.py`), float32,
clipping and AdamW, against the JAX program of the same shardings (`jax_gpt.py`), which keeps what
FSDP gathers until backward. Figures are of one chip; cycles and moved bytes are counted once per
iteration of a loop. Sequences are short enough for the scores to be one array on both sides: of
Pallas kernels the compiler estimates no cycles. It prints a table and leaves OUT/step_plans.png.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib import pyplot
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

# isort: off
import spmd  # before jax: it sets environment variables that XLA reads when jax is imported
import jax

# isort: on
from jax.experimental import topologies

from recipes.benchmarks import jax_gpt, layouts
from recipes.benchmarks.scale import read
from recipes.benchmarks.step import TorchStep
from recipes.benchmarks.step_table import TITLES
from recipes.gpt import GPTConfig
from spmd.core.programs.program import PLANNED, of_tpus

DEVICES = 8
# Name, heading, divisor.
FIGURES = (
    ("cycles", "M cycles", 1e6),
    ("peak", "peak MiB", 2**20),
    ("temporaries", "temporaries MiB", 2**20),
    ("moved", "moved MiB", 2**20),
    ("exchanges", "collectives", 1),
)
DRAWN = ("cycles", "peak", "temporaries", "moved")
Figures = dict[str, Any]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument(
        "--batch", type=int, default=16, help="sequences per step, over all chips (default 16)"
    )
    parser.add_argument(
        "--targets", nargs="+", default=["v5e:2x4", "v5p:2x2x2"], help=f"slices of {DEVICES} chips"
    )
    parser.add_argument("--layouts", nargs="+", choices=layouts.LAYOUTS, default=layouts.LAYOUTS)
    parser.add_argument(
        "--partitioner",
        choices=("gspmd", "shardy"),
        default="gspmd",
        help="of both (default gspmd)",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="FSDP keeps what it gathers until backward, as JAX's does",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out"), metavar="DIR", help="for the picture (default out)"
    )
    args = parser.parse_args(arguments)
    if args.sequence**2 >= 512 * 512:
        parser.error(
            f"--sequence {args.sequence} must be below 512: longer ones are a kernel, without "
            "cycles"
        )
    return args


def config_of(args: argparse.Namespace) -> GPTConfig:
    return GPTConfig(layers=args.layers, width=args.width, heads=args.heads, sequence=args.sequence)


def ours(target: str, layout: str, args: argparse.Namespace) -> Figures:
    """Returns the figures of the plan of a plain PyTorch step."""
    mesh = spmd.Mesh(range(DEVICES), (DEVICES,), (layout,), target=target)
    with torch.device("meta"):
        model = layouts.model_of(config_of(args), layout)
    wrapped = layouts.sharded(model.to_empty(device="xla"), layout, mesh, keep=args.keep)
    torch_step = TorchStep(wrapped, device="xla", end=lambda: None, shard=lambda values: values)

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        for values in (tokens, targets):
            spmd.mark_sharding(values, mesh, layouts.batch_spec(layout))
        return torch_step.update(tokens, targets)

    tokens = torch.zeros(args.batch, args.sequence, dtype=torch.int64, device="meta")
    plan = spmd.plan(step, tokens, tokens)
    if not plan.fits:
        raise SystemExit(
            f"{target}, {layout}: {plan.verdict or 'the step does not fit'}; make the model smaller"
        )
    return {
        "cycles": plan.cycles,
        "peak": plan.peak,
        "temporaries": plan.temporaries,
        "moved": plan.moved_bytes,
        "exchanges": sum(collective.count for collective in plan.collectives),
    }


def by_hand(target: str, layout: str, args: argparse.Namespace) -> Figures:
    """Returns the figures of the JAX program."""
    mesh = spmd.Mesh(range(DEVICES), (DEVICES,), (layout,), target=target)
    if target.startswith("cpu:"):
        devices = jax.devices()[:DEVICES]
    else:
        devices = topologies.get_topology_desc(topology_name=target, platform="tpu").devices
    with torch.device("meta"):
        shapes = {
            name: tuple(value.shape)
            for name, value in layouts.model_of(config_of(args), layout).state_dict().items()
        }
    program = jax_gpt.build(
        shapes,
        batch=args.batch,
        sequence=args.sequence,
        heads=args.heads,
        devices=devices,
        layout=layout,
        partitioner=args.partitioner,
        compiler_options={**of_tpus(devices[0].device_kind), **PLANNED}
        if devices[0].platform == "tpu"
        else {},
    )
    return read(program.step, mesh)


def ratio_of(pair: tuple[Figures, Figures], name: str) -> float:
    mine, theirs = (figures[name] for figures in pair)
    return mine / theirs if theirs else float("nan")


def table_of(found: dict[tuple[str, str], tuple[Figures, Figures]]) -> Table:
    """Returns the table: ours / JAX by hand = ratio."""
    shown = [
        row
        for row in FIGURES
        if any(figures[row[0]] for pair in found.values() for figures in pair)
    ]
    table = Table(
        "target",
        "layout",
        title="One training step, of one chip: ours / JAX by hand",
        title_justify="left",
    )
    for _, heading, _ in shown:
        table.add_column(heading, justify="right")
    for (target, layout), pair in found.items():
        values = []
        for name, _, unit in shown:
            digits = 0 if unit == 1 else 1
            mine, theirs = (f"{figures[name] / unit:,.{digits}f}" for figures in pair)
            ratio = ratio_of(pair, name)
            compared = (
                f" = [{'red' if ratio > 1.05 else 'green'}]{ratio:.3f}" if ratio == ratio else ""
            )
            values.append(f"{mine} / {theirs}{compared}")
        table.add_row(target, TITLES[layout], *values)
    return table


def draw(found: dict[tuple[str, str], tuple[Figures, Figures]], *, title: str, path: Path) -> None:
    """Writes the picture: a panel for each target, a group of bars for each layout."""
    targets = list(dict.fromkeys(target for target, _ in found))
    drawn = [name for name in DRAWN if all(theirs[name] for _, theirs in found.values())]
    figure, panels = pyplot.subplots(
        1, len(targets), sharey=True, squeeze=False, figsize=(10, 4.5), layout="constrained"
    )
    for axes, target in zip(panels[0], targets, strict=True):
        rows = {layout: pair for (of, layout), pair in found.items() if of == target}
        width = 0.8 / len(drawn)
        for place, name in enumerate(drawn):
            at = [number + (place - (len(drawn) - 1) / 2) * width for number in range(len(rows))]
            heights = [ratio_of(pair, name) for pair in rows.values()]
            bars = axes.bar(at, heights, 0.9 * width, label=name if target == targets[0] else None)
            axes.bar_label(bars, fmt="{:.2f}", padding=2, size=7)
        label = "JAX by hand" if target == targets[0] else None
        axes.axhline(1.0, color="black", linewidth=1, linestyle="--", label=label)
        axes.set_xticks(range(len(rows)), [TITLES[layout].replace(" ", "\n") for layout in rows])
        axes.set(title=target)
        axes.grid(axis="y", alpha=0.3)
    panels[0][0].set(ylabel="ours / JAX by hand")
    figure.suptitle(title)
    figure.legend(loc="outside lower center", ncols=len(drawn) + 1)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> dict[tuple[str, str], tuple[Figures, Figures]]:
    """Prints the table and draws the picture; returns the figures, ours and JAX's, by target and
    layout."""
    args = parse(arguments)
    console = Console(width=170)
    matplotlib.use("agg")  # writes files, needs no screen
    args.out.mkdir(parents=True, exist_ok=True)
    spmd.simulate(DEVICES)
    spmd.config.partitioner = args.partitioner
    spmd.config.program_cache = False
    found: dict[tuple[str, str], tuple[Figures, Figures]] = {}
    for target in args.targets:
        for layout in args.layouts:
            started = time.perf_counter()
            found[target, layout] = ours(target, layout, args), by_hand(target, layout, args)
            console.print(
                f"{target} {layout}: {time.perf_counter() - started:.0f} s", highlight=False
            )
    console.print(table_of(found))
    path = args.out / "step_plans.png"
    size = f"{args.layers} layers, width {args.width}, {args.batch} x {args.sequence} tokens"
    draw(found, title=f"A GPT's training step by its devices' compiler: {size}", path=path)
    console.print(path, highlight=False)
    return found


if __name__ == "__main__":
    main()

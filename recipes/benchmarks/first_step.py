"""Print the first training steps of ten models, taken apart: recording, lowering, XLA's passes, its
kernels, LLVM.

    python recipes/benchmarks/first_step.py  # ten small models of transformers and diffusers, FSDP
    python recipes/benchmarks/first_step.py --models unet --devices 1
    XLA_FLAGS=--xla_backend_optimization_level=0 python recipes/benchmarks/first_step.py
                                             # without LLVM's passes

Each model is a process of its own, under FSDP where there are several devices, without the cache on
disk. The first column is processor seconds of all threads. The parts of XLA are seconds of
`jax.profiler`'s events on the CPU: of kernels their sum over the threads that emit them side by
side, of LLVM the wall time. Benchmarks report; nothing here asserts a time.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import perf_counter, process_time

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

# isort: off
import spmd  # before jax: it sets environment variables that XLA reads when jax is imported
import jax

# isort: on
import fsdp
from tests.models.zoo import ZOO

MODELS = [name for name in ZOO if name != "mistral"]  # its layers are Llama's
# By column: the events of XLA's CPU compiler whose durations it sums.
EVENTS = {
    "XLA": "backend_compile_and_load",
    "HLO passes": "HLO passes",
    "kernels": "FusionCompiler::Compile",
    "LLVM": "JitCompiler::Compile",
}
COLUMNS = ("first step", "recorded", "lowered", *EVENTS, "programs", "later, wall ms")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--devices", type=int, default=8, help="simulated devices (default 8)")
    parser.add_argument("--steps", type=int, default=20, help="later steps (default 20)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def seconds_of_events(folder: str) -> list[float]:
    """Returns the seconds of each column of `EVENTS` in a trace."""
    (file,) = Path(folder).rglob("*.xplane.pb")
    seconds: Counter[str] = Counter()
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            for event in line.events:
                for column, prefix in EVENTS.items():
                    if event.name.startswith(prefix):
                        seconds[column] += event.duration_ns / 1e9  # type: ignore[assignment]
    return [seconds[column] for column in EVENTS]


def child(args: argparse.Namespace) -> None:
    """Train one model, and print its row."""
    spmd.simulate(args.devices)
    spmd.config.program_cache = False
    torch.manual_seed(0)
    case = ZOO[args.models[0]]
    model = case.build().to("xla")
    if args.devices > 1:
        mesh = spmd.Mesh(range(args.devices), (args.devices,), ("fsdp",))
        model = fsdp.FullyShardedDataParallel(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = {name: x.to("xla") for name, x in case.inputs().items()}
    spmd.sync(wait=True)

    def record() -> None:
        case.loss(model, inputs)[0].backward()
        optimizer.step()
        optimizer.zero_grad()

    spmd.metrics.clear()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            began = process_time()
            record()
            recorded = process_time() - began
            spmd.sync(wait=True)
            first = process_time() - began
        parts = seconds_of_events(folder)
    lowered = spmd.metrics.report().partition("lower: ")[2].partition(" s")[0]
    compiled = spmd.metrics.num_compiles()
    start = perf_counter()
    for _ in range(args.steps):
        record()
        spmd.sync(wait=True)
    later = (perf_counter() - start) / args.steps
    figures = (first, recorded, float(lowered), *parts)
    print("\t".join([*(f"{value:.2f}" for value in figures), str(compiled), f"{later * 1e3:.1f}"]))


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    if args.child:
        child(args)
        return
    table = Table(
        title=f"First steps of small models, {args.devices} device(s), in seconds",
        title_justify="left",
    )
    table.add_column("model")
    for heading in COLUMNS:
        table.add_column(heading, justify="right")
    sums = [0.0] * len(COLUMNS)
    for name in args.models:
        flags = ["--child", "--models", name, "--devices", str(args.devices)]
        printed = subprocess.run(
            [sys.executable, __file__, *flags, "--steps", str(args.steps)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**os.environ, "SPMD_SLOW_COMPILE_SECONDS": "0"},
        ).stdout.split()
        table.add_row(name, *printed)
        sums = [total + float(value) for total, value in zip(sums, printed, strict=True)]
    table.add_row("sum", *(f"{total:.2f}" for total in sums))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

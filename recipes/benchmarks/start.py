"""Time a cold and a warm start: fresh processes, from their first line to the end of the first and the second step.

    python recipes/benchmarks/start.py                                   # 12 layers, 8 simulated devices, FSDP
    python recipes/benchmarks/start.py --layers 2 --width 64 --warm 5
    python recipes/benchmarks/start.py --partitioner shardy

The cold process finds an empty cache of programs and fills it; the warm ones load the programs that it compiled. All
train the GPT of `train_gpt.py`, wrapped in FSDP. The cache is a folder of this run's own. Benchmarks report; nothing
here asserts a time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import time

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import fsdp
import spmd
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy

IMPORTED = time()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16, help="sequences per step, over all devices (default 16)")
    parser.add_argument("--devices", type=int, default=8, help="simulated devices (default 8)")
    parser.add_argument("--partitioner", choices=("gspmd", "shardy"), default="gspmd")
    parser.add_argument("--warm", type=int, default=3, help="warm starts, of which the median is shown (default 3)")
    parser.add_argument(
        "--started", type=float, help=argparse.SUPPRESS
    )  # the time at which another process began this one
    return parser.parse_args(arguments)


def start(args: argparse.Namespace) -> dict[str, float]:
    """Trains two steps in this process; returns the seconds of each part by name, and the numbers of compiled and
    loaded programs."""
    spmd.simulate(args.devices)
    spmd.config.partitioner = args.partitioner
    torch.manual_seed(0)
    mesh = spmd.Mesh(range(args.devices), (args.devices,), ("fsdp",))
    with torch.device("xla"):
        model = GPT(GPTConfig(layers=args.layers, width=args.width, sequence=args.sequence))
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
    model = fsdp.FullyShardedDataParallel(model, mesh=mesh, auto_wrap_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    built, ends, moments = own_time(), [], []
    for _ in range(2):
        tokens = torch.randint(256, (args.batch, args.sequence)).to("xla")
        tokens = spmd.mark_sharding(tokens, mesh, spmd.P("fsdp", None))
        loss = cross_entropy(model(tokens), tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        moments.append(own_time())
        spmd.sync(wait=True)
        moments.append(own_time())
        ends.append(time())
    metrics = spmd.metrics
    return {
        "interpreter and imports": IMPORTED - args.started,
        "model and optimizer": built - IMPORTED,
        "record the first step": moments[0] - built,
        "lower": metrics.timer("lower"),
        "compile": metrics.timer("compile") - metrics.timer("lower"),
        "load": metrics.timer("load"),
        "run the initial values and the first step": moments[1] - moments[0],
        "from the start to the first step's end": ends[0] - args.started,
        "the second step": ends[1] - ends[0],
        "backend compiles": metrics.num_compiles(),
        "programs loaded": metrics.counter("programs_loaded"),
        "loss": loss.item(),
    }


def own_time() -> float:
    """Returns the time without the seconds of compiling and loading programs so far."""
    return time() - spmd.metrics.timer("compile") - spmd.metrics.timer("load")


def elsewhere(arguments: list[str], folder: str) -> dict[str, float]:
    """Runs `start` in a process of its own."""
    kept = {"SPMD_PROGRAM_CACHE": "1", "SPMD_PROGRAM_CACHE_DIR": folder}
    command = [sys.executable, __file__, *arguments, "--started", str(time())]
    printed = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env={**os.environ, **kept}).stdout
    return json.loads(printed)


def main() -> None:
    args = parse()
    if args.started:
        print(json.dumps(start(args)))
        return
    console = Console(width=140)
    with tempfile.TemporaryDirectory() as parent, console.status("a cold start"):
        folder = Path(parent) / "programs"
        cold = elsewhere(sys.argv[1:], str(folder))
        sizes = [path.stat().st_size for path in folder.iterdir()]
        warm = [elsewhere(sys.argv[1:], str(folder)) for _ in range(args.warm)]
    table = Table("seconds", "cold", f"warm, median of {args.warm}", title="A start", title_justify="left")
    for name, value in cold.items():
        other = statistics.median(run[name] for run in warm)
        digits = 6 if name == "loss" else 0 if isinstance(value, int) else 2
        table.add_row(name, f"{value:.{digits}f}", f"{other:.{digits}f}")
    console.print(table)
    console.print(f"{len(sizes)} programs, {sum(sizes) / 1e6:.1f} MB on disk", highlight=False)


if __name__ == "__main__":
    main()

"""Time a cold and a warm start, ours and that of JAX by hand: fresh processes, to the end of the
first and second step.

    python recipes/benchmarks/start.py  # 12 layers, 8 simulated devices, FSDP
    python recipes/benchmarks/start.py --layers 2 --width 64 --warm 5
    python recipes/benchmarks/start.py --partitioner shardy

A cold process finds an empty cache and fills it; the warm ones load what it compiled: this
library's programs from its own cache, `jax.jit`'s from jax's persistent compilation cache. Ours
train the GPT of `train_gpt.py`, wrapped in FSDP; JAX's is that of `jax_gpt.py`. Warm starts
alternate, and medians are shown. "Beyond imports" begins when torch and jax are imported (in JAX's
process jax alone), so that the import of this library is in it, and what torch imports by itself in
the middle of a step; "without a step" leaves out the second step, which is the devices' work alone.
The caches are folders of this run's own; Python's bytecode is written, as an installed library has
it. Benchmarks report; nothing here asserts a time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from time import process_time, time
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

Figures = dict[str, float]
BEYOND, STEP = "beyond imports, to the first step's end", "the second step"
WHOLE = "from the process's start, to the first step's end"
HOST, PROCESSOR = "beyond imports, without a step", "the same in processor seconds"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument(
        "--batch", type=int, default=16, help="sequences per step, over all devices (default 16)"
    )
    parser.add_argument("--devices", type=int, default=8, help="simulated devices (default 8)")
    parser.add_argument("--partitioner", choices=("gspmd", "shardy"), default="gspmd")
    parser.add_argument(
        "--warm", type=int, default=3, help="warm starts, of which the median is shown (default 3)"
    )
    # a process that another one began at this time, with this cache of jax
    parser.add_argument("--child", choices=("ours", "jax"), help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


class Clock:
    """The seconds of the parts of a start, and the processor's."""

    def __init__(self, started: float) -> None:
        self.parts: Figures = {"interpreter and imports": time() - started}
        self.started = started
        self.imported = self.last = time()
        self.used = process_time()

    def part(self, name: str, less: float = 0.0) -> None:
        """Notes the time since the last part under a name, without `less` seconds that have rows of
        their own."""
        now = time()
        self.parts[name], self.last = now - self.last - less, now

    def first_step(self) -> Figures:
        """Returns the figures of all until now."""
        now = time()
        return {
            WHOLE: now - self.started,
            BEYOND: now - self.imported,
            PROCESSOR: process_time() - self.used,
        }


def ours(args: argparse.Namespace) -> Figures:
    """Trains two steps in this process; returns the seconds of each part by name, and the numbers
    of compiled and loaded programs."""
    torch = import_module("torch")  # not in JAX's process
    clock = Clock(args.started)
    spmd, fsdp, gpt = (import_module(name) for name in ("spmd", "fsdp", "recipes.gpt"))
    clock.part("import spmd and fsdp")
    metrics = spmd.metrics
    spmd.simulate(args.devices)
    spmd.config.partitioner = args.partitioner
    torch.manual_seed(0)
    mesh = spmd.Mesh(range(args.devices), (args.devices,), ("fsdp",))
    with torch.device("xla"):
        model = gpt.GPT(gpt.GPTConfig(layers=args.layers, width=args.width, sequence=args.sequence))
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={gpt.Block})
    model = fsdp.FullyShardedDataParallel(model, mesh=mesh, auto_wrap_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    clock.part("model and optimizer")

    def step() -> Any:
        tokens = torch.randint(256, (args.batch, args.sequence)).to("xla")
        tokens = spmd.mark_sharding(tokens, mesh, spmd.P("fsdp", None))
        loss = gpt.cross_entropy(model(tokens), tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    loss = step()
    clock.part("record or trace", metrics.timer("compile") + metrics.timer("load"))
    before = metrics.timer("compile"), metrics.timer("load")
    spmd.sync(wait=True)
    clock.part(
        "run the first step",
        metrics.timer("compile") - before[0] + metrics.timer("load") - before[1],
    )
    found = clock.first_step()
    loss = step()  # kept: a step whose result is dropped is another program
    spmd.sync(wait=True)
    clock.part(STEP)
    return {
        **clock.parts,
        "lower and compile": metrics.timer("compile"),
        "load": metrics.timer("load"),
        **found,
        "backend compiles": metrics.num_compiles(),
        "programs loaded": metrics.num_loaded(),
        "loss": loss.item(),
    }


def by_hand(args: argparse.Namespace) -> Figures:
    """The same of the program in JAX, with jax's persistent compilation cache."""
    clock = Clock(args.started)
    jax.config.update("jax_num_cpu_devices", args.devices)
    jax.config.update("jax_compilation_cache_dir", args.cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    counts = {"/jax/compilation_cache/cache_hits": 0, "/jax/compilation_cache/cache_misses": 0}

    def count(event: str, **_: Any) -> None:
        if event in counts:
            counts[event] += 1

    jax.monitoring.register_event_listener(count)
    jax_gpt = import_module("recipes.benchmarks.jax_gpt")
    heads, vocabulary = 8, 256
    shapes = shapes_of(args.layers, args.width, args.sequence, vocabulary)
    random = np.random.default_rng(0)
    values = {
        name: random.normal(0.0, 0.02, shape).astype(np.float32) for name, shape in shapes.items()
    }
    clock.part("model and optimizer")
    program = jax_gpt.build(
        shapes,
        batch=args.batch,
        sequence=args.sequence,
        heads=heads,
        devices=args.devices,
        partitioner=args.partitioner,
    )
    clock.part("trace, lower and compile or load")
    state = program.initialise(values)
    tokens = program.put_batch(random.integers(0, vocabulary, (args.batch, args.sequence)))

    def step(state: Any) -> tuple[Any, Any]:
        return jax.block_until_ready(program.step(state, tokens, tokens, np.float32(3e-4)))

    state, loss = step(state)
    clock.part("run the first step")
    found = clock.first_step()
    _, loss = step(state)
    clock.part(STEP)
    return {
        **clock.parts,
        **found,
        "backend compiles": counts["/jax/compilation_cache/cache_misses"],
        "programs loaded": counts["/jax/compilation_cache/cache_hits"],
        "loss": float(loss),
    }


def shapes_of(
    layers: int, width: int, sequence: int, vocabulary: int
) -> dict[str, tuple[int, ...]]:
    """The shapes of the GPT's parameters, by the names of its state_dict."""
    linear = {
        "attention.qkv": (3, 1),
        "attention.out": (1, 1),
        "mlp.up": (4, 1),
        "mlp.down": (1, 4),
    }
    found: dict[str, tuple[int, ...]] = {
        "tokens.weight": (vocabulary, width),
        "positions.weight": (sequence, width),
    }
    for layer in range(layers):
        for norm in ("norm1", "norm2"):
            found |= {f"blocks.{layer}.{norm}.{kind}": (width,) for kind in ("weight", "bias")}
        for name, (out, into) in linear.items():
            found[f"blocks.{layer}.{name}.weight"] = (out * width, into * width)
            found[f"blocks.{layer}.{name}.bias"] = (out * width,)
    return {
        **found,
        "norm.weight": (width,),
        "norm.bias": (width,),
        "head.weight": (vocabulary, width),
    }


CHILDREN: dict[str, Callable[[argparse.Namespace], Figures]] = {"ours": ours, "jax": by_hand}


def elsewhere(kind: str, folder: Path) -> Figures:
    """Runs one start in a process of its own, with its cache in a folder."""
    kept = {"SPMD_PROGRAM_CACHE": "1", "SPMD_PROGRAM_CACHE_DIR": str(folder)}
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    command = [sys.executable, __file__, *sys.argv[1:], "--child", kind, "--cache", str(folder)]
    command += ["--started", str(time())]
    done = subprocess.run(
        command, check=True, text=True, stdout=subprocess.PIPE, env={**environment, **kept}
    )
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return {**found, HOST: found[BEYOND] - found[STEP]}


def median(runs: list[Figures]) -> Figures:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def main() -> None:
    args = parse()
    if args.child:
        print(json.dumps(CHILDREN[args.child](args)))
        return
    console = Console(width=140)
    with tempfile.TemporaryDirectory() as parent, console.status("cold and warm starts"):
        folders = {kind: Path(parent) / kind for kind in CHILDREN}
        elsewhere("ours", Path(parent) / "bytecode")  # Python's bytecode is on disk then
        cold = {kind: elsewhere(kind, folder) for kind, folder in folders.items()}
        sizes = [path.stat().st_size for path in folders["ours"].iterdir()]
        runs = [
            {kind: elsewhere(kind, folder) for kind, folder in folders.items()}
            for _ in range(args.warm)
        ]
        warm = {kind: median([run[kind] for run in runs]) for kind in CHILDREN}
    columns = ("cold", f"warm, median of {args.warm}", "JAX by hand, cold", "warm")
    table = Table("seconds", *columns, title="A start", title_justify="left")
    for name in dict.fromkeys([*cold["ours"], *cold["jax"]]):
        digits = 6 if name == "loss" else 0 if isinstance(cold["ours"].get(name), int) else 2
        shown = [
            f"{side[kind][name]:.{digits}f}" if name in side[kind] else ""
            for kind in CHILDREN
            for side in (cold, warm)
        ]
        table.add_row(name, *shown)
    console.print(table)
    for words, name in (
        ("from the process's start", WHOLE),
        ("beyond imports", BEYOND),
        ("processor", PROCESSOR),
    ):
        every = [run["ours"][name] / run["jax"][name] for run in runs]
        ratio = warm["ours"][name] / warm["jax"][name]
        span = f"from {min(every):.2f} to {max(every):.2f}"
        console.print(f"warm, {words}: {ratio:.2f} of JAX by hand ({span})", highlight=False)
    console.print(f"{len(sizes)} programs, {sum(sizes) / 1e6:.1f} MB on disk", highlight=False)


if __name__ == "__main__":
    main()

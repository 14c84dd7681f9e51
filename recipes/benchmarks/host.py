"""Time the host's part of a sync whose program is known, and of reads of scalars, in processor time
of the thread.

    python recipes/benchmarks/host.py              # both, on one device
    python recipes/benchmarks/host.py --devices 8  # 8 simulated devices, the model under FSDP

syncs: a training step of a GPT (12 layers, width 64, AdamW), recorded anew each time. Its program
is replaced by one with the same arguments, donation and results that computes nothing. The launch
is PJRT's execute call; the rest of the sync is this library's. Eager torch runs the same step on
the CPU, its kernels included. reads: 1,000 scalars of one sync, one by one, and a loop of `(w *
2).sum().item()`, next to `float()` of jax arrays and `.item()` of CPU tensors. What is compared
alternates. Nothing here asserts a time.
"""

import argparse
import gc
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import thread_time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

# isort: off
import spmd  # before jax: it sets environment variables that XLA reads when jax is imported
import jax
import jax.numpy as jnp

# isort: on
import fsdp
from recipes.benchmarks.compiled_step import Trivial
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy
from spmd.core import held
from spmd.core.programs import cache
from spmd.core.sharding.partitioner import compiler_context

PARTS = ("syncs", "reads")
SCALARS, LOOP = 1_000, 50
Seconds = dict[str, list[float]]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="(default both)")
    parser.add_argument("--devices", type=int, default=1, help="simulated devices (default 1)")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds (default 15)")
    return parser.parse_args(arguments)


def timed(call: Callable[[], object]) -> float:
    """Returns the thread's processor seconds of a call, without a collection of Python's garbage in
    it."""
    gc.collect()
    gc.disable()
    started = thread_time()
    call()
    seconds = thread_time() - started
    gc.enable()
    return seconds


# -- A sync.


class Launch:
    """An executable whose calls are timed."""

    def __init__(self, executable: Any) -> None:
        self._call, self.seconds = executable, 0.0

    def __call__(self, *arguments: Any) -> Any:
        started = thread_time()
        result = self._call(*arguments)
        self.seconds = thread_time() - started
        return result


def training(args: argparse.Namespace, device: str) -> Callable[[], Tensor]:
    """Returns the step on "xla" or "cpu"."""
    torch.manual_seed(0)
    config = GPTConfig(layers=args.layers, width=64, heads=4, sequence=32)
    model: Any = GPT(config).to(device)
    tokens = torch.randint(config.vocabulary, (args.batch, config.sequence + 1))
    batch = [part.contiguous().to(device) for part in (tokens[:, :-1], tokens[:, 1:])]
    if device == "xla" and args.devices > 1:
        mesh = spmd.Mesh(range(args.devices), (args.devices,), ("fsdp",))
        policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
        model = fsdp.FullyShardedDataParallel(model, mesh=mesh, auto_wrap_policy=policy)
        batch = [spmd.mark_sharding(part, mesh, ("fsdp", None)) for part in batch]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)

    def step() -> Tensor:
        loss = cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def sync_seconds(args: argparse.Namespace) -> Seconds:
    """Returns the seconds of a step's parts by rounds."""
    ours, theirs = training(args, "xla"), training(args, "cpu")
    # The loss is alive at each sync, as in a script: it is a result of the program.
    kept: list[object] = []
    for _ in range(4):
        kept = [ours()]
        spmd.sync(wait=True)
    program = cache.last_program()
    assert program is not None
    with compiler_context():
        launch = Launch(Trivial(program).executable)
    seconds: Seconds = {"recording": [], "sync but the launch": [], "launch": [], "eager torch": []}
    with held(program, executable=launch):
        for number in range(args.rounds + 2):
            spmd.sync(wait=True)
            parts = [timed(lambda: kept.__setitem__(0, ours())), timed(spmd.sync)]
            parts[1:] = [parts[1] - launch.seconds, launch.seconds]
            assert cache.last_program() is program
            for name, part in zip(seconds, [*parts, timed(theirs)], strict=True):
                seconds[name] += [part] if number >= 2 else []
    return seconds


# -- Reads.


def one_by_one(device: str) -> Callable[[], float]:
    """Returns the seconds of reading the scalars of one sync."""

    def seconds() -> float:
        if device == "jax":
            weight = jnp.ones(8)
            arrays = jax.block_until_ready([(weight * i).sum() for i in range(SCALARS)])
            return timed(lambda: [float(array) for array in arrays])
        ones = torch.ones(8, device=device)
        tensors = [(ones * float(i)).sum() for i in range(SCALARS)]
        spmd.sync(wait=True)
        before = spmd.metrics.counter("runs")
        result = timed(lambda: [tensor.item() for tensor in tensors])
        assert spmd.metrics.counter("runs") == before
        return result

    return seconds


def in_loop(device: str) -> Callable[[], float]:
    """Returns the seconds of a loop that computes a scalar and reads it."""
    weight: Any = jnp.ones(8) if device == "jax" else torch.ones(8, device=device)

    def read() -> None:
        for _ in range(LOOP):
            float((weight * 2).sum())

    return partial(timed, read)


def read_seconds(args: argparse.Namespace) -> Seconds:
    """Returns the seconds of one read, by rounds, of each side."""
    calls = {
        f"{words}, {side}": (call(device), count)
        for words, call, count in (
            ("a scalar of one sync", one_by_one, SCALARS),
            ("(w * 2).sum().item()", in_loop, LOOP),
        )
        for side, device in (("spmd", "xla"), ("jax", "jax"), ("eager torch", "cpu"))
    }
    seconds: Seconds = {name: [] for name in calls}
    for number in range(args.rounds + 2):
        for name, (call, count) in calls.items():
            seconds[name] += [call() / count] if number >= 2 else []
    return seconds


def show(seconds: Seconds, title: str, unit: str, first: int) -> None:
    """Prints a table. first: the row, in each group of as many rows as it has sides, to which the
    others are compared."""
    scale = {"ms": 1e3, "us": 1e6}[unit]
    table = Table(title=title, title_justify="left")
    for heading in ("", f"median {unit}", f"fastest {unit}", f"to row {first + 1}"):
        table.add_column(heading, justify="right" if heading else "left")
    rows = list(seconds.items())
    for index, (name, times) in enumerate(rows):
        others = rows[index - index % 3 + first if unit == "us" else first][1]
        ratio = statistics.median(a / b for a, b in zip(times, others, strict=True))
        figures = (scale * statistics.median(times), scale * min(times), ratio)
        table.add_row(name, *(f"{figure:.2f}" for figure in figures))
    Console(width=140).print(table)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    spmd.simulate(args.devices)
    spmd.config.program_cache = False
    if "syncs" in args.parts:
        title = f"A step whose program is known, {args.layers} layers, {args.devices} device(s)"
        show(sync_seconds(args), title, "ms", 2)
    if "reads" in args.parts:
        show(read_seconds(args), "One read", "us", 1)


if __name__ == "__main__":
    main()

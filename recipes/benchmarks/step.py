"""Time one GPT training step: this library's, tracing included, against a hand-written JAX
program's.

    python recipes/benchmarks/step.py                        # 12 layers, 8 simulated devices, FSDP
    python recipes/benchmarks/step.py --partitioner shardy --pairs 20
    python recipes/benchmarks/step.py --torch                # one more line: plain torch on the CPU
    python recipes/benchmarks/step.py --jax-options ""       # JAX with XLA's defaults
    python recipes/benchmarks/step.py --only jax --layers 2  # one side alone

Both sides train the same model from the same weights on the same batches, with the same optimizer,
mesh and partitioner, and alternate in one process, each first in every second round, so that other
load of the machine falls on both. A step is timed from the batch in host memory to the new state
being ready. The compiler options of our programs of FSDP serve programs that free gathered weights;
JAX's keeps them, and gets the same options or those of `--jax-options`. Benchmarks report; nothing
here asserts a time.
"""

import argparse
import math
import statistics
import sys
import timeit
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

# isort: off
import spmd  # before jax: it sets environment variables that XLA reads when jax is imported
import jax

# isort: on
from recipes import text
from recipes.benchmarks import jax_gpt, layouts
from recipes.gpt import GPT, GPTConfig, cross_entropy
from spmd.core.programs.program import FREEING

LEARNING_RATE = 3e-4
HORIZON = 1000  # steps of the cosine schedule


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument(
        "--batch", type=int, default=16, help="sequences per step, over all devices (default 16)"
    )
    parser.add_argument(
        "--pairs", type=int, default=10, help="timed pairs (default 10), after two untimed"
    )
    parser.add_argument("--devices", type=int, default=8, help="simulated devices (default 8)")
    parser.add_argument("--partitioner", choices=("gspmd", "shardy"), default="gspmd")
    parser.add_argument(
        "--compiler-options",
        help="for both sides, as in config.compiler_options (default: those of ours)",
    )
    parser.add_argument(
        "--jax-options",
        help=(
            'for JAX alone: NAME=VALUE, by spaces; "" for XLA\'s defaults (default: those of both)'
        ),
    )
    parser.add_argument("--keep", action="store_true", help="reshard_after_forward=False")
    parser.add_argument("--only", choices=("ours", "jax"), help="run one side alone")
    parser.add_argument(
        "--target", help='plan our step for these devices instead ("v5e:2x4"); nothing is timed'
    )
    parser.add_argument(
        "--torch", action="store_true", help="one more side: plain torch on the CPU"
    )
    return parser.parse_args(arguments)


def schedule(step: int) -> float:
    """Returns the factor of a cosine decay to a tenth."""
    return 0.55 + 0.45 * math.cos(math.pi * min(step / HORIZON, 1))


@dataclass
class Side:
    """One of the compared programs: `step(tokens, targets)` runs a step to its end; `seconds` has
    the timed steps."""

    name: str
    step: Callable[[Tensor, Tensor], None]
    losses: Callable[[], float]
    seconds: list[float] = field(default_factory=list)


class TorchStep:
    """The usual step in PyTorch; `end` waits for the device's work."""

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        device: str,
        end: Callable[[], None],
        shard: Callable[[Tensor], Tensor],
        fused: bool | None = None,
    ) -> None:
        self.model, self.device, self.end, self.shard = model, device, end, shard
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=fused
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, schedule)
        self.traced: list[float] = []  # seconds of host time before the sync

    def __call__(self, tokens: Tensor, targets: Tensor) -> None:
        start = perf_counter()
        self.loss = self.update(
            *(self.shard(values.to(self.device)) for values in (tokens, targets))
        )
        self.traced.append(perf_counter() - start)
        self.end()

    def update(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Runs the step on a batch that is on the device; returns its loss."""
        loss = cross_entropy(self.model(tokens), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        return loss


class JaxStep:
    """The hand-written JAX program and its state."""

    def __init__(self, program: jax_gpt.Program, weights: Mapping[str, np.ndarray]) -> None:
        self.program, self.state, self.count = program, program.initialise(weights), 0

    def __call__(self, tokens: Tensor, targets: Tensor) -> None:
        batch = self.program.put_batch(tokens.numpy()), self.program.put_batch(targets.numpy())
        learning_rate = np.float32(LEARNING_RATE * schedule(self.count))
        self.state, self.loss = self.program.step(self.state, *batch, learning_rate)
        self.count += 1
        jax.block_until_ready(self.state)


def torch_side(
    weights: Mapping[str, Tensor], config: GPTConfig, layout: str = "fsdp"
) -> tuple[Side, TorchStep]:
    model = layouts.plain(weights, config, layout)
    step = TorchStep(model, device="cpu", end=lambda: None, shard=lambda values: values, fused=True)
    return Side("torch, eager, CPU", step, lambda: step.loss.item()), step


def our_side(
    weights: Mapping[str, Tensor],
    config: GPTConfig,
    devices: int,
    *,
    layout: str = "fsdp",
    keep: bool = False,
) -> tuple[Side, TorchStep]:
    mesh = spmd.Mesh(range(devices), (devices,), (layout,))
    model = layouts.sharded(
        layouts.plain(weights, config, layout).to("xla"), layout, mesh, keep=keep
    )
    step = TorchStep(
        model,
        device="xla",
        end=partial(spmd.sync, wait=True),
        shard=lambda values: spmd.mark_sharding(values, mesh, layouts.batch_spec(layout)),
    )
    return Side("torch-spmd", step, lambda: step.loss.item()), step


def jax_side(
    weights: Mapping[str, Tensor], args: argparse.Namespace, layout: str = "fsdp"
) -> tuple[Side, JaxStep]:
    arrays = {name: value.numpy() for name, value in layouts.weights_of(weights, layout).items()}
    program = jax_gpt.build(
        {name: value.shape for name, value in arrays.items()},
        batch=args.batch,
        sequence=args.sequence,
        heads=args.heads,
        devices=args.devices,
        layout=layout,
        partitioner=args.partitioner,
        compiler_options=options_of(
            args.compiler_options if args.jax_options is None else args.jax_options, layout
        ),
    )
    step = JaxStep(program, arrays)
    return Side("JAX by hand", step, lambda: float(step.loss)), step


def options_of(words: str | None, layout: str) -> dict[str, str]:
    """The compiler options of JAX's side: the given ones, else those that this library's program of
    the layout has."""
    if words is None:
        return {name: str(value) for name, value in FREEING.items()} if layout == "fsdp" else {}
    return dict(option.split("=", 1) for option in words.split())


def run_rounds(
    sides: list[Side], batches: Iterator[tuple[Tensor, Tensor]], rounds: int, console: Console
) -> None:
    """Runs every side once per round, one after the other, all on the same batch; every second
    round backwards."""
    with console.status("running") as status:
        for number in range(rounds):
            batch = next(batches)
            for side in sides[:: -1 if number % 2 else 1]:
                status.update(f"round {number + 1} of {rounds}: {side.name}")
                start = perf_counter()
                side.step(*batch)
                side.seconds.append(perf_counter() - start)


def step_record() -> "spmd.metrics.CompileRecord":
    """Returns the compile log's line for the training step: of all programs the one with most
    flops."""
    return max(spmd.metrics.compiles(), key=lambda record: record.flops)


def comparison(sides: list[Side], facts: Mapping[str, Mapping[str, str]]) -> Table:
    """Returns the table of all sides: times from their own seconds, the rest from `facts` by
    name."""
    table = Table(title="One training step", title_justify="left")
    for heading in ("", *(side.name for side in sides)):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row("median ms", *(f"{1e3 * statistics.median(side.seconds):.1f}" for side in sides))
    table.add_row("fastest ms", *(f"{1e3 * min(side.seconds):.1f}" for side in sides))
    table.add_row("loss after the last step", *(f"{side.losses():.6f}" for side in sides))
    for name in dict.fromkeys(name for values in facts.values() for name in values):
        table.add_row(name, *(facts.get(side.name, {}).get(name, "") for side in sides))
    return table


def program_facts(
    *, flops: float, temp_bytes: int, collectives: Mapping[str, int], compiles: int
) -> dict[str, str]:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(collectives.items()))
    return {
        "GFLOP per device": f"{flops / 1e9:.2f}",
        "temporary MB per device": f"{temp_bytes / 1e6:.1f}",
        "collectives": f"{sum(collectives.values())}",
        "of which": kinds.replace(", ", "\n"),
        "programs compiled": f"{compiles}",
    }


def ratios(sides: list[Side], console: Console) -> None:
    first, *others = sides
    for other in others:
        pairs = [ours / theirs for ours, theirs in zip(first.seconds, other.seconds, strict=True)]
        console.print(
            f"{first.name} / {other.name}: [bold]{statistics.median(pairs):.3f}[/bold] "
            f"(median of {len(pairs)} pairs, from {min(pairs):.3f} to {max(pairs):.3f})",
            highlight=False,
        )


def eager_add_seconds() -> float:
    """Returns the seconds that one eager `torch.add` of two one-element CPU tensors takes here and
    now."""
    one, number = torch.ones(1), 10_000
    return min(timeit.repeat(lambda: torch.add(one, one), number=number, repeat=7)) / number


@dataclass(frozen=True)
class HostClock:
    """The library's counters of host time at one moment; the difference of two is the time between
    them."""

    key: float
    dispatch: float
    recorded_ops: int

    @classmethod
    def read(cls) -> "HostClock":
        metrics = spmd.metrics
        return cls(metrics.timer("key"), metrics.timer("dispatch"), metrics.counter("recorded_ops"))


def hot_recording_seconds(args: argparse.Namespace, steps: int = 30) -> float:
    """Returns the seconds per op of recording the same step at tiny sizes: the same ops, and CPU
    caches that no device work has emptied since the step before, as for the `torch.add` that it is
    compared with."""
    config = GPTConfig(layers=args.layers, width=64, heads=args.heads, sequence=16)
    _, step = our_side(GPT(config).state_dict(), config, args.devices)
    tokens = torch.randint(config.vocabulary, (args.devices, config.sequence))
    for _ in range(steps):
        before = spmd.metrics.counter("recorded_ops")
        step(tokens, tokens)
        ops = spmd.metrics.counter("recorded_ops") - before
    return min(step.traced) / ops


def host_table(
    before: HostClock, after: HostClock, traced: list[float], args: argparse.Namespace
) -> Table:
    """Returns the table of the host's time in one of our steps."""
    steps = len(traced)
    trace = statistics.median(traced)
    key = (after.key - before.key) / steps
    dispatch = (after.dispatch - before.dispatch) / steps
    trivial = spmd.metrics.trivial_dispatch_seconds()
    # after the line above, which dispatches the program that ran last
    hot = hot_recording_seconds(args)
    ops = (after.recorded_ops - before.recorded_ops) / steps
    add = eager_add_seconds()
    table = Table(
        title="Host time of one step of torch-spmd", title_justify="left", show_header=False
    )
    table.add_column()
    table.add_column(justify="right")
    table.add_row("trace: the Python step up to its sync", f"{1e3 * trace:.2f} ms")
    table.add_row("key: from the graph to its program", f"{1e3 * key:.2f} ms")
    table.add_row("dispatch on a trivial program of the same signature", f"{1e3 * trivial:.2f} ms")
    table.add_row(
        "dispatch as timed in the loop (on CPU it holds device work)", f"{1e3 * dispatch:.2f} ms"
    )
    table.add_row("(key + trivial dispatch) / trace", f"{(key + trivial) / trace:.2f}")
    table.add_row("ops recorded", f"{ops:.0f}")
    table.add_row("recording one op", f"{1e6 * trace / ops:.2f} us")
    table.add_row("one eager torch.add of two one-element CPU tensors", f"{1e6 * add:.2f} us")
    table.add_row(
        "recording one op / one eager add, between device steps", f"{trace / ops / add:.1f}"
    )
    table.add_row("recording one op / one eager add, both hot", f"{hot / add:.1f}")
    return table


def main() -> None:
    args = parse()
    console = Console(width=140)
    spmd.simulate(args.devices)
    spmd.config.program_cache = False  # compiles are counted
    spmd.config.partitioner = args.partitioner
    spmd.config.compiler_options = (
        "auto" if args.compiler_options is None else args.compiler_options
    )
    config = GPTConfig(
        layers=args.layers, width=args.width, heads=args.heads, sequence=args.sequence
    )
    torch.manual_seed(0)
    weights = GPT(config).state_dict()
    console.print(
        f"{sum(value.numel() for value in weights.values()):,} parameters, {args.batch} x "
        f"{args.sequence} tokens, {args.devices} devices, {args.partitioner}",
        highlight=False,
    )
    if args.target:
        _, step = our_side(weights, config, args.devices, keep=args.keep)
        batch = torch.zeros(args.batch, args.sequence, dtype=torch.long)
        console.print(spmd.plan(step, batch, batch, target=args.target))
        return
    sides: list[Side] = []
    facts: dict[str, dict[str, str]] = {}
    ours, compiled_by_jax = None, 0
    if args.only != "jax":
        side, ours = our_side(weights, config, args.devices, keep=args.keep)
        sides.append(side)
    if args.only != "ours":
        # it counts every compile of the process
        start, before = perf_counter(), spmd.metrics.num_compiles()
        side, theirs = jax_side(weights, args)
        compiled_by_jax = spmd.metrics.num_compiles() - before
        console.print(f"{side.name}: compiled in {perf_counter() - start:.1f} s", highlight=False)
        sides.append(side)
        program = theirs.program
        facts[side.name] = program_facts(
            flops=program.flops,
            temp_bytes=program.temp_bytes,
            collectives=program.collectives,
            compiles=compiled_by_jax,
        )
    if args.torch:
        sides.append(torch_side(weights, config)[0])

    batches = text.batches(text.load().train, batch=args.batch, sequence=args.sequence, seed=0)
    run_rounds(sides, batches, 2, console)
    for side in sides:
        side.seconds.clear()
    if ours:
        ours.traced.clear()
        before = HostClock.read()
    run_rounds(sides, batches, args.pairs, console)
    if ours:
        after = HostClock.read()
        record = step_record()
        facts["torch-spmd"] = program_facts(
            flops=record.flops,
            temp_bytes=record.temp_bytes,
            collectives=record.collectives,
            compiles=spmd.metrics.num_compiles() - compiled_by_jax,
        )
    console.print(comparison(sides, facts))
    ratios(sides, console)
    if ours:
        console.print(host_table(before, after, ours.traced, args))


if __name__ == "__main__":
    main()

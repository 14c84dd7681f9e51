"""Time the host's part of a training step: recorded by Python, played as it is
(`config.replay_steps`), compiled by `spmd.compile`, and a call of `jax.jit`.

    python recipes/benchmarks/compiled_step.py  # 12 layers, 8 simulated devices, FSDP, AdamW
    python recipes/benchmarks/compiled_step.py --layers 2 --pairs 5

The step is compiled twice: with the layers' weights in stacks, as this library does unasked, and
with an argument for each tensor of the state (`config.scan_layers = "never"`). Its program is
replaced by one with the same arguments, donation and results that computes nothing, as the time of
a call on a CPU would hold device work otherwise. `jax.jit` is called with the same arrays, as a
list, and its results replace them, which frees the old ones. All are timed one after the other, so
that other load of the machine falls on all. A check is a call of the compiled step that runs as
Python and is compared with the recording. Nothing here asserts a time.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

# isort: off
import spmd  # before jax: it sets environment variables that XLA reads when jax is imported
import jax
import jax.numpy as jnp

# isort: on
import fsdp
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy
from spmd.core.programs import cache
from spmd.core.sharding.partitioner import compiler_context


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument(
        "--width", type=int, default=64, help="of the model, which is not run (default 64)"
    )
    parser.add_argument("--devices", type=int, default=8, help="simulated devices (default 8)")
    parser.add_argument("--pairs", type=int, default=15, help="timed rounds (default 15)")
    return parser.parse_args(arguments)


def training(args: argparse.Namespace) -> tuple[Callable[..., Any], Sequence[torch.Tensor]]:
    """Returns the step and its batch."""
    mesh = spmd.Mesh(range(args.devices), (args.devices,), ("fsdp",))
    config = GPTConfig(layers=args.layers, width=args.width, heads=4, sequence=32)
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
    model: Any = fsdp.FullyShardedDataParallel(
        GPT(config).to("xla"), mesh=mesh, auto_wrap_policy=policy
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = cross_entropy(model(tokens), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        return loss

    tokens = torch.randint(config.vocabulary, (args.devices, config.sequence + 1))
    batch = [tokens[:, :-1], tokens[:, 1:]]
    return step, [spmd.mark_sharding(part.to("xla"), mesh, ("fsdp", None)) for part in batch]


class Trivial:
    """A program with the arguments, donation and results of another one that computes nothing.
    calls: its function under `jax.jit`. executable: the same, compiled ahead, as this library calls
    programs."""

    def __init__(self, program: Any) -> None:
        arguments = [
            jax.ShapeDtypeStruct(
                port.sharding.padded_shape(port.meta.shape),
                port.meta.struct.dtype,
                sharding=port.sharding.jax,
            )
            for port in program.inputs
        ]
        donated = [i for i, port in enumerate(program.inputs) if port.is_donated]
        results = [
            (s.padded_shape(port.meta.shape), port.meta.struct.dtype, s.jax)
            for port in program.outputs
            for s in [program._sharding(port)]
        ]
        free = {i: (arguments[i].shape, arguments[i].dtype, arguments[i].sharding) for i in donated}
        taken: list[int | None] = []
        for result in results:
            place = next((i for i, one in free.items() if one == result), None)
            taken.append(place)
            free.pop(place, None)  # type: ignore[arg-type]  # None is no key

        def nothing(*arrays: jax.Array) -> tuple[jax.Array, ...]:
            return tuple(
                jnp.zeros(shape, dtype) if place is None else _changed(arrays[place])
                for (shape, dtype, _), place in zip(results, taken, strict=True)
            )

        self.calls = jax.jit(
            nothing,
            donate_argnums=donated,
            keep_unused=True,
            out_shardings=tuple(sharding for *_, sharding in results),
        )
        floats, integers = (sum(op.numbers.count(kind) for op in program.entries) for kind in "fi")
        vectors = [
            jax.ShapeDtypeStruct((floats,), np.float64),
            jax.ShapeDtypeStruct((integers,), np.int64),
        ]
        self.vectors = [np.zeros(floats), np.zeros(integers, np.int64)]
        self.executable = self.calls.lower(*arguments, *vectors).compile()
        self.state = [
            jax.device_put(np.zeros(one.shape, one.dtype), one.sharding) for one in arguments
        ]
        self._into = {place: i for i, place in enumerate(taken) if place is not None}

    def call(self) -> float:
        """Calls the function under `jax.jit` with the results of the last call, which the new ones
        replace; returns the seconds."""
        jax.block_until_ready(self.state)
        with jax.enable_x64(True):
            started = perf_counter()
            made = self.calls(*self.state, *self.vectors)
            self.state = [
                made[self._into[i]] if i in self._into else one for i, one in enumerate(self.state)
            ]
            return perf_counter() - started


def _changed(array: jax.Array) -> jax.Array:
    return array ^ True if array.dtype == bool else array + 1


def timed(step: Callable[..., Any], batch: Sequence[torch.Tensor]) -> float:
    """Returns the seconds of a step's call and its sync, with nothing of an earlier step still
    running."""
    spmd.sync(wait=True)
    started = perf_counter()
    loss = step(*batch)  # held, as what a loop prints: a result of the program
    spmd.sync()
    seconds = perf_counter() - started
    del loss
    return seconds


class Side(NamedTuple):
    """One row of the table."""

    name: str
    num_arguments: int
    call: Callable[[], float]
    jit: str  # the row of `jax.jit` with the same arguments
    seconds: list[float]


def sides(args: argparse.Namespace, scan: str, words: str) -> list[Side]:
    """Returns the step as it is recorded, compiled, and `jax.jit`, for one way to pass the
    state."""
    spmd.config.scan_layers = scan
    torch.manual_seed(0)
    step, batch = training(args)

    def played() -> float:
        spmd.config.replay_steps = True
        seconds = timed(step, batch)
        spmd.config.replay_steps = False
        return seconds

    for _ in range(8):
        played()
    compiled = spmd.compile(step)
    for _ in range(4):
        compiled(*batch)
    spmd.sync(wait=True)
    program = cache.last_program()
    assert program is not None and compiled.num_replayed
    (kind,) = compiled._kinds.values()
    schedule = kind.entries[0].schedule
    schedule._count, schedule._cost = 64, math.inf  # no check but those requested below
    with compiler_context():
        trivial = Trivial(program)
    program.executable = trivial.executable

    def checked() -> float:
        schedule.since = spmd.config.check_replays  # the next call is a check
        seconds = timed(compiled, batch)
        schedule._cost = math.inf
        return seconds

    calls = {
        "recorded at each step": lambda: timed(step, batch),
        "as it is, played": played,
        "spmd.compile": lambda: timed(compiled, batch),
        "spmd.compile, a check": checked,
        "jax.jit": trivial.call,
    }

    def called(call: Callable[[], float]) -> float:
        spmd.config.scan_layers = scan  # a guard of the compiled step
        call()  # A loop calls one step. The call after another row's binds the state anew.
        seconds = call()
        assert call is trivial.call or cache.last_program() is program, "another one computes"
        return seconds

    return [
        Side(
            f"{name}, {words}", len(program.inputs), partial(called, call), f"jax.jit, {words}", []
        )
        for name, call in calls.items()
    ]


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    spmd.simulate(args.devices)
    every = [*sides(args, "auto", "stacks"), *sides(args, "never", "each tensor")]
    for number in range(args.pairs + 2):
        for side in every:
            seconds = side.call()
            if number >= 2:
                side.seconds.append(seconds)
    by_name = {side.name: side for side in every}
    table = Table(
        title="The host's time of one step, on a program that computes nothing",
        title_justify="left",
    )
    for heading in ("", "arguments", "median ms", "fastest ms", "to jax.jit of the same"):
        table.add_column(heading, justify="right" if heading else "left")
    for side in every:
        pairs = zip(side.seconds, by_name[side.jit].seconds, strict=True)
        ratio = statistics.median(one / other for one, other in pairs)
        times = (1e3 * statistics.median(side.seconds), 1e3 * min(side.seconds))
        table.add_row(
            side.name, str(side.num_arguments), *(f"{value:.2f}" for value in (*times, ratio))
        )
    Console(width=140).print(table)
    for words in ("stacks", "each tensor"):
        check, replay = (
            statistics.median(by_name[f"{name}, {words}"].seconds)
            for name in ("spmd.compile, a check", "spmd.compile")
        )
        share = 100 * (check / replay - 1) / spmd.config.check_replays
        print(
            f"{words}: a check takes {check / replay:.1f} replays: {share:.1f} % where each "
            "1,000th call is one"
        )


if __name__ == "__main__":
    main()

"""Measure the host's part of the work: recording an op, a sync of a known program, and a step on
many devices.

    python recipes/benchmarks/host_cost.py                                  # all three, minutes
    python recipes/benchmarks/host_cost.py --parts ops syncs                # some of them
    python recipes/benchmarks/host_cost.py --parts devices --devices 1 8    # fewer devices

ops: the time to record one op, next to torch's eager op on the CPU with tensors of one element.
syncs: the time of a sync whose program is known, without the device's work, for models of 100,
1,000 and 10,000 nodes: from the graph to its program (key), and the call of an empty program with
the same arguments (dispatch). devices: the host's time of one training step of a tiny GPT under
FSDP (trace, key, dispatch), in a process for each number of simulated devices. What is compared
alternates. It leaves OUT/host_cost.png. Nothing here asserts a time.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import matplotlib
import torch
from matplotlib import pyplot
from rich.console import Console
from rich.table import Table
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import spmd
from recipes.benchmarks.step import our_side
from recipes.gpt import GPT, GPTConfig

PARTS = ("ops", "syncs", "devices")
REPEAT = 100  # ops between two syncs
LAYER = 20  # ops of a layer
TRACE, KEY, DISPATCH = "trace", "key", "dispatch"
Costs = dict[str, float]  # milliseconds


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="(default all)")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds of each (default 9)")
    parser.add_argument(
        "--nodes", type=int, nargs="+", default=[100, 1_000, 10_000], help="sizes of the programs"
    )
    parser.add_argument(
        "--devices",
        type=int,
        nargs="+",
        default=[1, 8, 64, 256],
        help="numbers of simulated devices",
    )
    parser.add_argument(
        "--layers", type=int, default=1, help="of the GPT that the devices train (default 1)"
    )
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--out", type=Path, default=Path("out"), metavar="DIR", help="for the picture (default out)"
    )
    return parser.parse_args(arguments)


def seconds_of(run: Callable[[], object]) -> float:
    """Returns the seconds of a call, without a collection of Python's garbage in it."""
    gc.collect()
    gc.disable()
    started = perf_counter()
    run()
    seconds = perf_counter() - started
    gc.enable()
    return seconds


# -- One op.


def cases(device: str) -> dict[str, Callable[[], object]]:
    """Returns the ops by name, on tensors of one element of this device."""
    one, other = (torch.ones(1, device=device) for _ in range(2))
    weight = torch.ones(1, 1, device=device).requires_grad_()
    x = torch.ones(1, 1, device=device)
    many = [torch.ones(1, device=device) for _ in range(148)]
    return {
        "torch.add": lambda: torch.add(one, other),
        "mul_": lambda: one.mul_(other),
        "a view": lambda: one.view(1, 1),
        "a factory": lambda: torch.ones(1, device=device),
        "a linear layer, no gradient": lambda: torch.nn.functional.linear(x, x),
        "a linear layer and its backward": lambda: torch.autograd.grad(
            torch.nn.functional.linear(x, weight), weight, x
        ),
        "_foreach_add_ of 148, each": lambda: torch._foreach_add_(many, 1.0),
    }


def op_costs(args: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Returns the microseconds of each op, recorded and on the CPU, by rounds, alternating."""
    ours, theirs = cases("xla"), cases("cpu")
    spmd.sync()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ours}
    for number in range(args.rounds + 1):
        for name in ours:
            count = 1e6 / (148 if "148" in name else 1) / REPEAT
            pair = tuple(
                count * seconds_of(partial(_repeat, side[name])) for side in (ours, theirs)
            )
            spmd.sync(wait=True)
            if number:  # the first of each compiles
                found[name].append(pair)
    return found


def _repeat(call: Callable[[], object]) -> None:
    for _ in range(REPEAT):
        call()


def ops_table(found: dict[str, list[tuple[float, float]]]) -> Table:
    table = Table(
        "op", title="Recording one op (microseconds; tensors of one element)", title_justify="left"
    )
    for heading in ("recorded", "eager on the CPU", "ratio", "from", "to"):
        table.add_column(heading, justify="right")
    for name, pairs in found.items():
        ratios = [mine / theirs for mine, theirs in pairs]
        times = (statistics.median(side) for side in zip(*pairs, strict=True))
        shown = (statistics.median(ratios), min(ratios), max(ratios))
        table.add_row(
            name, *(f"{time:.2f}" for time in times), *(f"{ratio:.1f}" for ratio in shown)
        )
    return table


# -- A sync.


def deep(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Returns a value of layers of `LAYER` ops, each with a weight of its own; deep ones run as a
    loop over layers."""
    for weight in weights:
        x = x * weight
        for number in range(LAYER - 1):
            x = (torch.sin, torch.neg, torch.tanh, torch.abs)[number % 4](x)
    return x


def host_costs(step: Callable[[], object], rounds: int) -> Costs:
    """Returns the medians of a step's costs whose program is known: recording it, its key, and
    dispatch of an empty program with the same arguments."""
    traced, keyed = [], []
    for number in range(rounds + 2):
        spmd.sync(wait=True)
        kept: list[object] = []
        seconds = seconds_of(lambda kept=kept: kept.append(step()))
        before = spmd.metrics.timer("key")
        spmd.sync(wait=True)
        if number >= 2:  # the first compile
            traced.append(seconds)
            keyed.append(spmd.metrics.timer("key") - before)
    dispatch = spmd.metrics.trivial_dispatch_seconds()
    return {
        TRACE: 1e3 * statistics.median(traced),
        KEY: 1e3 * statistics.median(keyed),
        DISPATCH: 1e3 * dispatch,
    }


def sync_costs(args: argparse.Namespace) -> dict[int, Costs]:
    found = {}
    for nodes in args.nodes:
        x, *weights = (torch.ones(4, device="xla") for _ in range(1 + nodes // LAYER))
        spmd.sync()
        found[nodes] = host_costs(partial(deep, x, weights), args.rounds)
    return found


def costs_table(found: dict[int, Costs], what: str, title: str) -> Table:
    table = Table(what, title=title, title_justify="left")
    for heading in (
        "trace ms",
        "key ms",
        "dispatch ms",
        "a sync: key + dispatch, ms",
        "to the first row",
    ):
        table.add_column(heading, justify="right")
    syncs = [costs[KEY] + costs[DISPATCH] for costs in found.values()]
    for (size, costs), sync in zip(found.items(), syncs, strict=True):
        parts = (f"{costs[name]:.2f}" for name in (TRACE, KEY, DISPATCH))
        table.add_row(f"{size:,}", *parts, f"{sync:.2f}", f"{sync / syncs[0]:.1f}")
    return table


# -- Many devices.


def device_costs(args: argparse.Namespace) -> dict[int, Costs]:
    """Returns the costs by the number of devices; each has a process of its own."""
    found = {}
    for devices in args.devices:
        command = [sys.executable, "-W", "ignore", __file__, "--child", str(devices)]
        command += ["--layers", str(args.layers), "--rounds", str(args.rounds)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=dict(os.environ), check=False
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("COSTS ")]
        if not lines:
            raise SystemExit(f"{devices} devices: {done.stderr[-2000:]}")
        found[devices] = json.loads(lines[0].removeprefix("COSTS "))
    return found


def child(devices: int, args: argparse.Namespace) -> None:
    """Prints the costs of one training step on so many devices as a line of JSON."""
    spmd.simulate(devices)
    spmd.config.program_cache = False
    torch.manual_seed(0)
    config = GPTConfig(layers=args.layers, width=64, heads=4, sequence=8)
    _, step = our_side(GPT(config).state_dict(), config, devices)
    step.end = lambda: None  # host_costs syncs
    tokens = torch.randint(config.vocabulary, (devices, config.sequence))
    print("COSTS " + json.dumps(host_costs(partial(step, tokens, tokens), args.rounds)))


# -- The picture.


def draw(found: dict[str, Any], path: Path) -> None:
    """Writes the picture: a panel for each part that was measured."""
    figure, panels = pyplot.subplots(
        1, len(found), squeeze=False, figsize=(4.2 * len(found), 4), layout="constrained"
    )
    for axes, (part, costs) in zip(panels[0], found.items(), strict=True):
        if part == "ops":
            ratios = {
                name: statistics.median(mine / theirs for mine, theirs in pairs)
                for name, pairs in costs.items()
            }
            bars = axes.barh(list(ratios), list(ratios.values()), color="tab:blue")
            axes.bar_label(bars, fmt="{:.1f}", padding=3, size=8)
            axes.invert_yaxis()
            axes.set(
                title="recording an op / eager on the CPU", xlim=(0, 1.2 * max(ratios.values()))
            )
            axes.tick_params(axis="y", labelsize=8)
            continue
        for name in (TRACE, KEY, DISPATCH):
            axes.plot(list(costs), [each[name] for each in costs.values()], "o-", label=name)
        what = "nodes of a program" if part == "syncs" else "simulated devices"
        axes.set(
            xscale="log", yscale="log", xlabel=what, ylabel="ms of the host", title=f"by {what}"
        )
        axes.set_xticks(list(costs), [f"{size:,}" for size in costs])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Prints the tables and draws the picture; returns the figures by part."""
    args = parse(arguments)
    if args.child:
        child(args.child, args)
        return {}
    console = Console(width=140)
    matplotlib.use("agg")  # writes files, needs no screen
    args.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    if "ops" in args.parts:
        found["ops"] = op_costs(args)
        console.print(ops_table(found["ops"]))
    if "syncs" in args.parts:
        found["syncs"] = sync_costs(args)
        console.print(costs_table(found["syncs"], "nodes", "A sync of a known program"))
    if "devices" in args.parts:
        found["devices"] = device_costs(args)
        title = f"The host's part of a GPT's training step, {args.layers} layers, FSDP"
        console.print(costs_table(found["devices"], "devices", title))
    path = args.out / "host_cost.png"
    draw(found, path)
    console.print(path, highlight=False)
    return found


if __name__ == "__main__":
    main()

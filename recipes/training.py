"""Shared parts of the recipes: flags, the plan, schedule, the loop, evaluation, sampling, progress
and the picture.

The functions here know neither meshes nor models: they take functions. Not here: data (`text.py`),
any training step.
"""

import argparse
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib import pyplot
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

import spmd
from recipes import text

matplotlib.use("agg")  # writes files, needs no screen

IN_A_PIPE = 200  # columns
READ_EVERY = 10  # steps between two readings of the loss; in between nothing waits for the device


# -- Flags.


def parse_mesh(written: str, *, others: tuple[str, ...], needed: str = "fsdp") -> dict[str, int]:
    """Returns {"data": 2, "fsdp": 4} for "data=2,fsdp=4": the axis `needed`, and optionally axes of
    `others`."""
    if not re.fullmatch(r"\w+=[1-9]\d*(,\w+=[1-9]\d*)*", written):
        raise argparse.ArgumentTypeError(
            f"expected axes like {others[0]}=2,{needed}=4, got {written!r}"
        )
    sizes = [axis.split("=") for axis in written.split(",")]
    mesh = {name: int(size) for name, size in sizes}
    if len(mesh) != len(sizes) or needed not in mesh or not mesh.keys() <= {needed, *others}:
        wanted = " and ".join(others)
        raise argparse.ArgumentTypeError(
            f"the axes are {needed} and, if wanted, {wanted}, each once; got {written!r}"
        )
    return mesh


def add_place_flags(parser: argparse._ArgumentGroup) -> None:
    """Adds the flags of the partitioner and of the target to those of the mesh."""
    parser.add_argument(
        "--partitioner",
        choices=("gspmd", "shardy"),
        help="XLA's partitioner (default: the library's)",
    )
    parser.add_argument(
        "--target",
        metavar="SLICE",
        help=(
            'plan the step for these devices ("v5e:2x4", "cpu:8") into OUT/plan.html; nothing is '
            "trained"
        ),
    )


def add_device_flag(parser: argparse._ActionsContainer) -> None:
    """Adds the choice between the mesh and plain PyTorch."""
    parser.add_argument(
        "--device",
        choices=("xla", "cpu"),
        default="xla",
        help="cpu: plain PyTorch without any mesh (default xla)",
    )


def fault(
    args: argparse.Namespace, *, batch_axes: tuple[str, ...] = ("data", "fsdp")
) -> str | None:
    """Returns the error of flags that contradict each other, or None; `batch_axes` share the
    batch."""
    shares = prod(size for axis, size in args.mesh.items() if axis in batch_axes)
    if args.device == "xla" and args.batch % shares:
        return f"--batch {args.batch} must be a multiple of the {shares} devices that share it"
    if args.target and args.device != "xla":
        return "--target plans for devices of xla; leave --device out"
    if args.compile and args.device != "xla":
        return "--compile is of steps on xla; leave --device out"
    return None if args.steps > 0 else f"--steps must be at least 1, got {args.steps}"


def add_compile_flag(parser: argparse._ActionsContainer) -> None:
    """Adds the flag of `compiled`."""
    parser.add_argument(
        "--compile",
        action="store_true",
        help="run the step by spmd.compile: recorded once, replayed",
    )


def add_model_flags(
    parser: argparse.ArgumentParser, *, layers: int = 4, width: int = 256, heads: int = 8
) -> argparse._ArgumentGroup:
    """Adds the sizes that every transformer has; returns their group, for the sizes of one
    model."""
    model = parser.add_argument_group("the model")
    model.add_argument(
        "--layers",
        type=int,
        default=layers,
        metavar="N",
        help="transformer blocks (default %(default)s)",
    )
    model.add_argument(
        "--width",
        type=int,
        default=width,
        metavar="N",
        help="features per token (default %(default)s)",
    )
    model.add_argument(
        "--heads",
        type=int,
        default=heads,
        metavar="N",
        help="attention heads (default %(default)s)",
    )
    model.add_argument(
        "--sequence",
        type=int,
        default=128,
        metavar="N",
        help="bytes of context (default %(default)s)",
    )
    return model


def add_training_flags(
    parser: argparse.ArgumentParser,
    *,
    steps: int,
    eval_every: int,
    batch: int = 16,
    of: str = "sequences",
) -> argparse._ArgumentGroup:
    """Adds the flags of a training loop and of its report; returns the group of training, for those
    of one recipe.

    of: the items of a batch; a sample of text is written by models of sequences only.
    """
    training = parser.add_argument_group("training")
    training.add_argument(
        "--steps",
        type=int,
        default=steps,
        metavar="N",
        help="optimizer steps (default %(default)s)",
    )
    training.add_argument(
        "--batch",
        type=int,
        default=batch,
        metavar="N",
        help=f"{of} per step, over all devices (default %(default)s)",
    )
    training.add_argument(
        "--lr", type=float, default=2e-3, help="peak learning rate (default %(default)s)"
    )
    training.add_argument(
        "--warmup",
        type=int,
        default=30,
        metavar="N",
        help="steps up to the peak, then cosine (default 30)",
    )
    training.add_argument(
        "--clip", type=float, default=1.0, metavar="NORM", help="largest gradient norm (default 1)"
    )
    training.add_argument(
        "--seed", type=int, default=0, help="seed of weights, batches and sample (default 0)"
    )
    add_compile_flag(training)
    report = parser.add_argument_group("report")
    report.add_argument(
        "--eval-every",
        type=int,
        default=eval_every,
        metavar="N",
        help="steps between two (default %(default)s)",
    )
    if of == "sequences":
        report.add_argument(
            "--sample",
            type=int,
            default=200,
            metavar="BYTES",
            help="bytes written at the end (default 200)",
        )
        report.add_argument(
            "--temperature",
            type=float,
            default=0.7,
            metavar="T",
            help="of the sample; 0: greedy (default 0.7)",
        )
    report.add_argument(
        "--out",
        type=Path,
        default=Path("out"),
        metavar="DIR",
        help="folder of the results (default out)",
    )
    return training


# -- Planning.


def plan_step(step: Callable[..., Any], *args: Any, target: str | None, **kwargs: Any) -> spmd.Plan:
    """Returns the plan of a step; a target that is unknown, or of another size, ends the program
    with one sentence."""
    try:
        return spmd.plan(step, *args, target=target, **kwargs)
    except ValueError as error:
        if target is None or not str(error).startswith(("plan: ", "Mesh: ")):
            raise
        raise SystemExit(f"--target {target}: {error}") from None


# -- Training.


def compiled(step: Callable[..., Any], args: argparse.Namespace) -> Callable[..., Any]:
    """Returns a step as it is, or with --compile by `spmd.compile`."""
    return spmd.compile(step) if args.compile else step


def say_compiled(step: Callable[..., Any], args: argparse.Namespace, console: Console) -> None:
    """Prints the number of calls of such a step that were recorded and replayed."""
    if args.compile:
        console.print(str(step), markup=False, highlight=False)


def make_optimizer(
    of: nn.Module | Iterable[nn.Parameter], args: argparse.Namespace
) -> torch.optim.AdamW:
    """Returns AdamW with the settings of the flags."""
    parameters = of.parameters() if isinstance(of, nn.Module) else of
    return torch.optim.AdamW(parameters, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)


def learning_rate_factor(step: int, *, warmup: int, steps: int) -> float:
    """Returns the share of the peak learning rate at a step: linear warm-up, then a cosine down to
    a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.55 + 0.45 * math.cos(math.pi * (step - warmup) / max(1, steps - warmup))


def make_schedule(
    optimizer: torch.optim.Optimizer, args: argparse.Namespace
) -> torch.optim.lr_scheduler.LambdaLR:
    """Returns the schedule of the flags, to be stepped after each step of the optimizer."""
    factor = partial(learning_rate_factor, warmup=args.warmup, steps=args.steps)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def make_console() -> Console:
    """Returns a console as wide as the terminal; in a pipe or a file so wide that no table breaks a
    word."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=IN_A_PIPE)


@dataclass
class History:
    """The losses of a run: (step, mean loss of an item)."""

    train: list[tuple[int, float]] = field(default_factory=list)
    heldout: list[tuple[int, float]] = field(default_factory=list)


class Reporter:
    """Reports progress: a moving bar on a terminal, a line per reading in a log."""

    def __init__(
        self, console: Console, steps: int, compiles: Callable[[], int], *, of: str = "tokens"
    ) -> None:
        self.console, self.compiles, self.of = console, compiles, of
        self.replays = spmd.metrics.counter("replays")
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
        )
        self.progress = Progress(
            *columns, console=console, disable=not console.is_terminal, transient=True
        )
        self.task = self.progress.add_task("compiling the first step", total=steps)

    def reading(self, step: int, *, loss: float, rate: float) -> None:
        earlier, self.replays = self.replays, spmd.metrics.counter("replays")
        line = f"loss {loss:.4f}   {rate:,.0f} {self.of}/s   {self.compiles()} compiles"
        line += "   played" * (self.replays > earlier)
        self.progress.update(self.task, completed=step, description=line)
        if not self.console.is_terminal:
            self.say(f"step {step:5d}   {line}")

    def say(self, line: str) -> None:
        self.progress.console.print(line, highlight=False)


@dataclass(frozen=True)
class Loop:
    """A training run.

    bigram: the held-out loss of a bigram table, of text only. step: runs a step on the tensors of a
    batch, of which the last has an element an item, and returns its loss. evaluate: returns the
    held-out loss. after: called with the number of each step that is done; True ends the run.
    """

    args: argparse.Namespace
    reporter: Reporter
    bigram: float | None
    step: Callable[..., Tensor]
    evaluate: Callable[[], float]
    after: Callable[[int], bool | None]

    def run(
        self, batches: Iterable[tuple[Tensor, ...]], history: History, *, done: int = 0
    ) -> None:
        """Runs the steps after the first `done`, whose batches are skipped, and appends the losses
        to `history`."""
        spmd.config.replay_steps = True
        args, counted, clock = self.args, done, time.perf_counter()
        with self.reporter.progress:
            for step, batch in enumerate(islice(batches, done, args.steps), start=done + 1):
                loss = self.step(*batch)
                if step == 1 or step % READ_EVERY == 0 or step == args.steps:
                    history.train.append((step, loss.item()))
                    now = time.perf_counter()
                    rate = (step - counted) * batch[-1].numel() / (now - clock)
                    self.reporter.reading(step, loss=history.train[-1][1], rate=rate)
                    clock, counted = now, step
                if step % args.eval_every == 0 or step == args.steps:
                    self.look(step, history)
                    clock = time.perf_counter()
                if self.after(step):
                    return

    def look(self, step: int, history: History) -> None:
        """Appends the held-out loss to `history`."""
        history.heldout.append((step, self.evaluate()))
        held = f"held-out {history.heldout[-1][1]:.4f}"
        if self.bigram is not None:
            held += f"   (bigram table {self.bigram:.4f})"
        self.reporter.say(f"step {step:5d}   {held}")


@torch.no_grad()
def evaluate(
    model: nn.Module, loss: Callable[..., Tensor], batches: Sequence[tuple[Tensor, ...]]
) -> float:
    """Returns the mean loss over fixed batches; one program, whatever the training step is."""
    model.eval()
    total = sum(loss(*batch).item() for batch in batches)
    model.train()
    return total / len(batches)


# -- The results.


@torch.no_grad()
def write(
    model: nn.Module, logits: Callable[[Tensor], Tensor], prompts: Tensor, args: argparse.Namespace
) -> Tensor:
    """Returns `args.sample` more bytes for each prompt (rows, sequence).

    The window slides and has one length, so that one program writes them all.
    """
    model.eval()
    generator = torch.Generator().manual_seed(args.seed)
    window, written = prompts, []
    for _ in range(args.sample):
        last = logits(window)[:, -1].float().cpu()
        if args.temperature:
            token = torch.multinomial(
                torch.softmax(last / args.temperature, dim=-1), 1, generator=generator
            )
        else:
            token = last.argmax(-1, keepdim=True)
        written.append(token)
        window = torch.cat([window[:, 1:], token], dim=1)
    model.train()
    return torch.cat([prompts[:, :0], *written], dim=1)


def show_sample(
    model: nn.Module,
    logits: Callable[[Tensor], Tensor],
    heldout: Tensor,
    args: argparse.Namespace,
    console: Console,
    *,
    rows: int,
) -> None:
    """Lets the model continue `rows` rows of held-out text, of which the first is printed."""
    prompts = heldout[: rows * args.sequence].view(rows, args.sequence).long()
    written = write(model, logits, prompts, args)
    console.print("\n[bold]A sample[/bold] (dim: held-out text that it continues)")
    console.print(text.decode(prompts[0]), style="dim", end="", markup=False, highlight=False)
    console.print(text.decode(written[0]), markup=False, highlight=False)


def draw(
    history: History,
    *,
    bigram: float | None = None,
    title: str,
    path: Path,
    of: str = "text",
    unit: str = "nats per byte",
) -> None:
    """Writes the picture of a run."""
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    axes.plot(
        *zip(*history.train, strict=True), color="tab:blue", alpha=0.8, label="training batch"
    )
    axes.plot(*zip(*history.heldout, strict=True), "o-", color="tab:orange", label=f"held-out {of}")
    if bigram is not None:
        axes.axhline(
            bigram, color="tab:gray", linestyle="--", label=f"bigram table, held-out ({bigram:.2f})"
        )
    last = history.heldout[-1]
    axes.annotate(
        f"{last[1]:.2f}",
        last,
        xytext=(0, -16),
        textcoords="offset points",
        ha="center",
        color="tab:orange",
    )
    axes.set(xlabel="step", ylabel=f"loss ({unit})", title=title, xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)

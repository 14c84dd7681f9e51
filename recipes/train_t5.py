"""Train Hugging Face's T5, an encoder and a decoder, to spell numbers, under FSDP over eight
simulated devices.

    python recipes/train_t5.py                       # T5ForConditionalGeneration, fsdp=8
    python recipes/train_t5.py --mesh data=2,fsdp=4  # two replicas of a four-way FSDP
    python recipes/train_t5.py --compile             # the step recorded once per shape and replayed
    python recipes/train_t5.py --device cpu          # the same file in plain PyTorch, for
                                                     # comparison
    python recipes/train_t5.py --target v5e:2x4      # plan the step for a TPU slice; nothing is
                                                     # trained

The model reads 417 digit by digit and writes "four hundred seventeen". It is made from a
configuration; nothing is downloaded. The two lines that make it distributed are in `wrap` and
`load`. Batches have several lengths: each is padded to the next of a few, so that a few programs
run them all. A tenth of all numbers is never trained on: of these the recipe counts how many
`generate` spells without a mistake, by a static cache, and prints some. It writes OUT/model, which
`from_pretrained` reads, and the curves OUT/loss.png.
"""

import argparse
import re
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Block
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import fsdp
import spmd
from recipes import spelling, training
from recipes.training import History, Reporter

Batch = dict[str, Tensor]

LENGTHS = (4, 8, 12)  # tokens, the end included; the longest number of six digits has ten words
PADDING = {"input_ids": spelling.PAD, "attention_mask": 0, "labels": spelling.IGNORED}
HELDOUT = 2  # batches that are generated in an evaluation
SHOWN = 6  # numbers in the table at the end


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "--mesh",
        type=partial(training.parse_mesh, others=("data",)),
        default={"fsdp": 8},
        metavar="AXIS=SIZE,...",
        help="mesh axes in order: fsdp and data (default fsdp=8)",
    )
    training.add_device_flag(where)
    training.add_place_flags(where)
    model = parser.add_argument_group("the model")
    model.add_argument(
        "--layers", type=int, default=2, metavar="N", help="of encoder and decoder each (default 2)"
    )
    model.add_argument(
        "--width",
        type=int,
        default=128,
        metavar="N",
        help="features per token (default %(default)s)",
    )
    model.add_argument(
        "--heads", type=int, default=4, metavar="N", help="attention heads (default %(default)s)"
    )
    more = parser.add_argument_group("training")
    more.add_argument(
        "--steps", type=int, default=300, metavar="N", help="optimizer steps (default %(default)s)"
    )
    more.add_argument(
        "--batch", type=int, default=64, metavar="N", help="numbers per step (default %(default)s)"
    )
    more.add_argument(
        "--lr", type=float, default=2e-3, help="peak learning rate (default %(default)s)"
    )
    more.add_argument(
        "--warmup", type=int, default=30, metavar="N", help="steps up to the peak, then cosine"
    )
    more.add_argument(
        "--clip", type=float, default=1.0, metavar="NORM", help="largest gradient norm (default 1)"
    )
    more.add_argument(
        "--eval-every", type=int, default=100, metavar="N", help="steps between two (default 100)"
    )
    more.add_argument("--seed", type=int, default=0, help="seed of weights and batches (default 0)")
    more.add_argument(
        "--out", type=Path, default=Path("out"), metavar="DIR", help="folder of the results"
    )
    training.add_compile_flag(more)
    args = parser.parse_args(arguments)
    if args.width % args.heads:
        parser.error(f"--width {args.width} must be a multiple of --heads {args.heads}")
    if wrong := training.fault(args):
        parser.error(wrong)
    return args


def configure(args: argparse.Namespace) -> T5Config:
    """Returns a configuration over the tokens of `spelling.py`, without dropout."""
    return T5Config(
        vocab_size=len(spelling.TOKENS),
        d_model=args.width,
        d_kv=args.width // args.heads,
        d_ff=2 * args.width,
        num_layers=args.layers,
        num_decoder_layers=args.layers,
        num_heads=args.heads,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        pad_token_id=spelling.PAD,
        eos_token_id=spelling.END,
        decoder_start_token_id=spelling.PAD,
        relative_attention_num_buckets=16,
        relative_attention_max_distance=16,
    )


def wrap(model: nn.Module, mesh: spmd.Mesh | None) -> nn.Module:
    """Returns the model with each block of encoder and decoder a unit of FSDP; without a mesh, as
    it is."""
    if mesh is None:
        return model
    data = "data" if "data" in mesh.axis_names else None
    return fsdp.FullyShardedDataParallel(
        model, mesh, auto_wrap_policy={T5Block}, extra_data_axis=data
    )


def load(batches: Iterable[Batch], mesh: spmd.Mesh | None) -> Iterator[Batch]:
    """Yields the batches on the devices, sharded, each as long as the next of LENGTHS; without a
    mesh, as they are."""
    if mesh is None:
        return iter(batches)
    return iter(
        spmd.DataLoader(batches, mesh, spmd.P(mesh.axis_names), lengths=LENGTHS, padding=PADDING)
    )


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, *, clip: float
) -> Tensor:
    """Runs one step, written as for one device; returns the loss that the model computes."""
    loss: Tensor = model(**batch).loss
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def plan(model: nn.Module, args: argparse.Namespace) -> spmd.Plan:
    """Returns the plan of a step on the longest batches, on the devices of --target; nothing is
    allocated for it."""
    batch = {
        name: torch.ones(args.batch, LENGTHS[-1], dtype=torch.long).to("xla") for name in PADDING
    }
    optimizer = training.make_optimizer(model, args)
    return training.plan_step(
        train_step, model, optimizer, batch, clip=args.clip, target=args.target
    )


def generate(
    model: Any, heldout: list[Batch], mesh: spmd.Mesh | None
) -> list[tuple[str, str, str]]:
    """Returns (digits, words, words of the model) of each held-out number; every batch runs the
    same programs."""
    model.eval()
    found = []
    for given, batch in zip(heldout, load(heldout, mesh), strict=True):
        made = model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=LENGTHS[-1],
            do_sample=False,
            cache_implementation="static",
        )
        digits = [
            "".join(re.findall(r"(\d)@", tokens)) for tokens in spelling.decoded(given["input_ids"])
        ]
        found += list(
            zip(
                digits,
                spelling.decoded(given["labels"]),
                spelling.decoded(made.cpu()[:, 1:]),
                strict=True,
            )
        )
    model.train()
    return found


def exact(found: list[tuple[str, str, str]]) -> float:
    """Returns the share of numbers that are spelled without a mistake."""
    return sum(expected == made for _, expected, made in found) / len(found)


def train(
    model: nn.Module, mesh: spmd.Mesh | None, args: argparse.Namespace, console: Console
) -> History:
    """Runs the training loop, written as for one device; `heldout` of the history are shares of
    exact spellings."""
    spmd.config.replay_steps = True
    optimizer = training.make_optimizer(model, args)
    schedule = training.make_schedule(optimizer, args)
    heldout = spelling.heldout(batch=args.batch, count=HELDOUT)
    history, reporter = History(), Reporter(console, args.steps, spmd.metrics.num_compiles)

    def update(batch: Batch) -> Tensor:
        loss = train_step(model, optimizer, batch, clip=args.clip)
        schedule.step()
        return loss

    update = training.compiled(update, args)
    batches = load(spelling.batches(batch=args.batch, seed=args.seed), mesh)
    counted, clock = 0, time.perf_counter()
    with reporter.progress:
        for step, batch in enumerate(islice(batches, args.steps), start=1):
            loss = update(batch)
            if mesh is not None:
                spmd.sync()
            counted += batch["input_ids"].numel() + batch["labels"].numel()
            if step == 1 or step % training.READ_EVERY == 0 or step == args.steps:
                history.train.append((step, loss.item()))
                rate = counted / (time.perf_counter() - clock)
                reporter.reading(step, loss=history.train[-1][1], rate=rate)
                counted, clock = 0, time.perf_counter()
            if step % args.eval_every == 0 or step == args.steps:
                history.heldout.append((step, exact(generate(model, heldout, mesh))))
                reporter.say(
                    f"step {step:5d}   held-out numbers spelled exactly: "
                    f"{history.heldout[-1][1]:.1%}"
                )
                clock = time.perf_counter()
    training.say_compiled(update, args, console)
    return history


def spellings(found: list[tuple[str, str, str]]) -> Table:
    """Returns the table of a few numbers, mistakes first."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0), title_justify="left")
    table.title = "Held-out numbers, mistakes first"
    for heading in ("number", "the model writes", "it is"):
        table.add_column(heading, justify="right" if heading == "number" else "left")
    for digits, expected, made in sorted(found, key=lambda each: each[1] == each[2])[:SHOWN]:
        table.add_row(digits, made, "right" if made == expected else expected)
    return table


def draw(history: History, *, title: str, path: Path) -> None:
    """Writes the picture of a run: the loss, and the share of exact spellings."""
    figure, (upper, lower) = pyplot.subplots(2, sharex=True, figsize=(8, 6), layout="constrained")
    upper.plot(*zip(*history.train, strict=True), color="tab:blue", label="training batch")
    upper.set(ylabel="loss (nats per word)", yscale="log", title=title)
    lower.plot(
        *zip(*history.heldout, strict=True), "o-", color="tab:orange", label="held-out numbers"
    )
    last = history.heldout[-1]
    lower.annotate(f"{last[1]:.1%}", last, xytext=(0, -16), textcoords="offset points", ha="center")
    lower.set(xlabel="step", ylabel="spelled exactly", ylim=(0, 1.05), xlim=(0, None))
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    started, console = time.perf_counter(), training.make_console()
    logging.disable_progress_bar()  # the bar of loading, which takes no time
    mesh = None
    if args.device == "xla":
        # Before anything else touches the device: the number of devices is fixed when jax's backend
        # starts.
        spmd.simulate(prod(args.mesh.values()))
        mesh = spmd.Mesh(
            range(prod(args.mesh.values())), tuple(args.mesh.values()), tuple(args.mesh)
        )
    if args.partitioner:
        spmd.config.partitioner = args.partitioner
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)

    with torch.device(args.device):
        model = T5ForConditionalGeneration(configure(args))
    model = wrap(model, mesh)
    if mesh is not None:
        console.print(str(fsdp.show(model)), markup=False, highlight=False, soft_wrap=True)
    if args.target:
        planned = plan(model, args)
        planned.save(args.out / "plan.html")
        console.print(planned)
        return
    history = train(model, mesh, args, console)

    heldout = spelling.heldout(batch=args.batch, count=HELDOUT)
    console.print(spellings(generate(model, heldout, mesh)))
    model.save_pretrained(args.out / "model")
    loaded = T5ForConditionalGeneration.from_pretrained(args.out / "model")
    plain = exact(generate(loaded, heldout, None))
    where = (
        "plain PyTorch"
        if mesh is None
        else ", ".join(f"{name}={size}" for name, size in args.mesh.items())
    )
    size = sum(parameter.numel() for parameter in model.parameters())
    draw(
        history,
        title=f"A {size / 1e6:.1f}M-parameter T5 spells numbers ({where})",
        path=args.out / "loss.png",
    )
    console.print(
        f"\n[bold]{history.heldout[-1][1]:.1%}[/bold] of {len(heldout) * args.batch} held-out "
        f"numbers spelled exactly; [bold]{plain:.1%}[/bold] by the model that from_pretrained "
        "reads, on the CPU\n"
        f"{spmd.metrics.num_compiles()} compiles, {spmd.metrics.num_loaded()} from disk, "
        f"{time.perf_counter() - started:.0f} s\n"
        f"{args.out / 'loss.png'}, {args.out / 'model'}",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()

"""Train a byte-level GPT on real English text, FSDP over eight simulated devices, in a few minutes
on a laptop.

    python recipes/train_gpt.py                               # the main job: 8 devices, FSDP
    python recipes/train_gpt.py --mesh data=2,fsdp=4          # two replicas of a four-way FSDP
    python recipes/train_gpt.py --devices 1                   # the same program on one device
    python recipes/train_gpt.py --partitioner shardy          # by XLA's newer partitioner
    python recipes/train_gpt.py --compile                     # the step recorded once and replayed,
                                                              # by spmd.compile
    python recipes/train_gpt.py --device cpu                  # the same file in plain PyTorch, for
                                                              # comparison
    python -m spmd launch --processes 2 recipes/train_gpt.py  # two processes with four of the
                                                              # devices each
    python recipes/train_gpt.py --target v5e:2x4              # plan the step for a TPU slice;
                                                              # nothing is trained

It prints the shardings, trains, evaluates on text that it never trains on, and leaves OUT/loss.png
and a sample of the model's text. The text is Python's own documentation (`pydoc_data.topics`),
which every machine already has. The same seed gives the same batches and the same initial weights
on any mesh.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from math import prod
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import fsdp
import spmd
from recipes import text, training
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy
from recipes.placement import MeshPlacement, Placement
from recipes.training import History, Loop, Reporter


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "--devices", type=int, metavar="N", help="simulated devices (default 8, or as --mesh needs)"
    )
    where.add_argument(
        "--mesh",
        type=partial(training.parse_mesh, others=("data",)),
        metavar="AXIS=SIZE,...",
        help=(
            "mesh axes in order: fsdp shards parameters and batch, data only the batch (default "
            "fsdp=DEVICES)"
        ),
    )
    training.add_device_flag(where)
    training.add_place_flags(where)
    model = training.add_model_flags(parser)
    model.add_argument(
        "--dropout", type=float, default=0.0, metavar="P", help="dropout (default %(default)s)"
    )
    group = training.add_training_flags(parser, steps=200, eval_every=50)
    group.add_argument(
        "--optimizer",
        choices=("adamw", "muon"),
        default="adamw",
        help="muon: of the matrices of the blocks, AdamW of the rest (default %(default)s)",
    )
    args = parser.parse_args(arguments)
    try:
        args.mesh = choose_mesh(args.mesh, args.devices)
    except ValueError as error:
        parser.error(str(error))
    if wrong := training.fault(args):
        parser.error(wrong)
    return args


def choose_mesh(mesh: dict[str, int] | None, devices: int | None) -> dict[str, int]:
    """Returns the mesh of --mesh and --devices together."""
    if mesh is None:
        return {"fsdp": 8 if devices is None else devices}
    if devices is not None and prod(mesh.values()) > devices:
        raise ValueError(f"--mesh needs {prod(mesh.values())} devices, --devices gives {devices}")
    return mesh


def shard(model: nn.Module, mesh: spmd.Mesh) -> nn.Module:
    """Returns the model under FSDP, a unit a block; the batch is sharded over all of the mesh's
    axes."""
    return fsdp.FullyShardedDataParallel(
        model,
        mesh=mesh,
        auto_wrap_policy=partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        extra_data_axis="data" if "data" in mesh.shape() else None,
    )


def make_optimizers(model: nn.Module, args: argparse.Namespace) -> Sequence[torch.optim.Optimizer]:
    """Returns AdamW; with --optimizer muon, Muon for the matrices of the blocks, at AdamW's rate
    (arXiv:2502.16982), and AdamW for what is left."""
    if args.optimizer == "adamw":
        return [training.make_optimizer(model, args)]
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    matrices = [x for block in blocks for x in block.parameters() if x.dim() == 2]
    ids = set(map(id, matrices))
    rest = [parameter for parameter in model.parameters() if id(parameter) not in ids]
    muon = torch.optim.Muon(matrices, lr=args.lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    return [muon, training.make_optimizer(rest, args)]


def train_step(
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    tokens: Tensor,
    targets: Tensor,
    *,
    clip: float,
) -> Tensor:
    """Runs one step, written as for one device; returns its loss."""
    loss = cross_entropy(model(tokens), targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return loss


def plan(model: nn.Module, place: Placement, args: argparse.Namespace) -> spmd.Plan:
    """Returns the plan of a step on other devices; nothing is allocated for it."""
    optimizers = make_optimizers(model, args)
    tokens, targets = (
        place.put(torch.zeros(args.batch, args.sequence, dtype=torch.long)) for _ in range(2)
    )
    return training.plan_step(
        train_step, model, optimizers, tokens, targets, clip=args.clip, target=args.target
    )


def train(
    model: nn.Module,
    place: Placement,
    corpus: text.Text,
    args: argparse.Namespace,
    console: Console,
    *,
    bigram: float,
) -> History:
    """Runs the training loop, written as for one device."""
    optimizers = make_optimizers(model, args)
    schedules = [training.make_schedule(optimizer, args) for optimizer in optimizers]
    heldout = text.windows(corpus.heldout, batch=args.batch, sequence=args.sequence)
    batches = text.batches(corpus.train, batch=args.batch, sequence=args.sequence, seed=args.seed)
    history, reporter = History(), Reporter(console, args.steps, place.compiles)

    def update(tokens: Tensor, targets: Tensor) -> Tensor:
        loss = train_step(model, optimizers, tokens, targets, clip=args.clip)
        for schedule in schedules:
            schedule.step()
        return loss

    update = training.compiled(update, args)

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        loss = update(tokens, targets)
        place.sync()
        return loss

    def loss_of(tokens: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(model(place.put(tokens)), place.put(targets))

    def after(step: int) -> None:
        if step == 1 and (line := place.state_line(optimizers[0])):
            reporter.say(line)

    evaluate = partial(training.evaluate, model, loss_of, heldout)
    Loop(args, reporter, bigram, step, evaluate, after).run(place.load(batches), history)
    training.say_compiled(update, args, console)
    return history


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    started, console = time.perf_counter(), training.make_console()
    place = (
        MeshPlacement(args, shard, devices=args.devices) if args.device == "xla" else Placement()
    )
    torch.manual_seed(args.seed)
    config = GPTConfig(
        layers=args.layers,
        width=args.width,
        heads=args.heads,
        sequence=args.sequence,
        dropout=args.dropout,
    )
    with place.device:
        model = GPT(config)
    model = place.wrap(model)
    if args.target:
        args.out.mkdir(parents=True, exist_ok=True)
        planned = plan(model, place, args)
        planned.save(args.out / "plan.html")
        console.print(planned)
        return
    if table := place.table(model):
        console.print(table)

    corpus = text.load()
    bigram = text.bigram_loss(corpus)
    console.print(
        f"{len(corpus.train):,} bytes to train on, {len(corpus.heldout):,} held out",
        highlight=False,
    )
    history = train(model, place, corpus, args, console, bigram=bigram)

    args.out.mkdir(parents=True, exist_ok=True)
    size = sum(parameter.numel() for parameter in model.parameters())
    title = f"A {size / 1e6:.1f}M-parameter GPT on Python's documentation ({place.name()})"
    if spmd.process_index() == 0:
        training.draw(history, bigram=bigram, title=title, path=args.out / "loss.png")
    if args.sample:
        training.show_sample(
            model,
            lambda tokens: model(place.put(tokens)),
            corpus.heldout,
            args,
            console,
            rows=place.rows,
        )
    heldout = history.heldout[-1][1]
    console.print(
        f"\nheld-out loss [bold]{heldout:.4f}[/bold] nats per byte, bigram table "
        f"[bold]{bigram:.4f}[/bold]; {place.compiles()} compiles, {place.loaded()} from disk, "
        f"{time.perf_counter() - started:.0f} s\n{args.out / 'loss.png'}",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()

"""Train a vision transformer on handwritten digits over eight simulated devices, by torch.compile,
in minutes.

    python recipes/train_vit.py                         # FSDP; the model by torch.compile
    python recipes/train_vit.py --mesh fsdp=4,tensor=2  # FSDP x tensor parallel: heads and hidden
                                                        # units split
    python recipes/train_vit.py --mesh data=8,fsdp=1    # data parallel: the batch split, parameters
                                                        # replicated
    python recipes/train_vit.py --compile               # the step recorded once and replayed, by
                                                        # spmd.compile
    TORCHDYNAMO_DISABLE=1 python recipes/train_vit.py   # the model op by op, for comparison
    python recipes/train_vit.py --device cpu            # the same file in plain PyTorch
    python recipes/train_vit.py --target v5e:2x4        # plan the step for a TPU slice; nothing is
                                                        # trained

The model (`vit.py`) is plain PyTorch; its layout is a table of rules apart from it. It trains on
the digits of scikit-learn with label smoothing and a cosine schedule, prints the shardings, losses
and the share of held-out digits that it recognises, and leaves OUT/loss.png. The same seed gives
the same batches and weights on any mesh.
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import fsdp  # noqa: F401  carries out the units of the rules
import spmd
from recipes import images, training
from recipes.placement import MeshPlacement, Placement
from recipes.training import History, Loop, Reporter
from recipes.vit import ViT, ViTConfig
from spmd import P

# Tensor parallel: a block's first products are split by their outputs, the second ones by their
# inputs.
TENSOR = {
    "blocks.*.{attention.query,attention.key,attention.value,up}.weight": P("tensor", None),
    "blocks.*.{attention.query,attention.key,attention.value,up}.bias": P("tensor"),
    "blocks.*.{attention.out,down}.weight": P(None, "tensor"),
}


def shard(model: nn.Module, mesh: spmd.Mesh) -> nn.Module:
    """Returns the model sharded: a unit of FSDP a block, and over the axis tensor if the mesh has
    it."""
    axes = mesh.shape()
    rules = spmd.ShardingRules(
        TENSOR if "tensor" in axes else {},
        units=["blocks.*"],
        extra_data_axis="data" if "data" in axes else None,
    )
    rules.apply(model, mesh)
    return model


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "--mesh",
        type=partial(training.parse_mesh, others=("data", "tensor")),
        default={"fsdp": 8},
        metavar="AXIS=SIZE,...",
        help="mesh axes in order: fsdp, data and tensor (default fsdp=8)",
    )
    training.add_device_flag(where)
    training.add_place_flags(where)
    model = parser.add_argument_group("the model")
    model.add_argument(
        "--layers", type=int, default=4, metavar="N", help="blocks (default %(default)s)"
    )
    model.add_argument(
        "--width",
        type=int,
        default=64,
        metavar="N",
        help="features of a patch (default %(default)s)",
    )
    model.add_argument(
        "--heads", type=int, default=4, metavar="N", help="attention heads (default %(default)s)"
    )
    model.add_argument(
        "--size", type=int, default=16, metavar="N", help="pixels of a side (default %(default)s)"
    )
    model.add_argument(
        "--patch", type=int, default=4, metavar="N", help="pixels of a patch's side (default 4)"
    )
    model.add_argument(
        "--dropout", type=float, default=0.0, metavar="P", help="dropout (default %(default)s)"
    )
    more = training.add_training_flags(parser, steps=400, eval_every=100, batch=64, of="images")
    more.add_argument(
        "--smoothing", type=float, default=0.1, metavar="P", help="of labels (default %(default)s)"
    )
    args = parser.parse_args(arguments)
    if wrong := fault(args):
        parser.error(wrong)
    return args


def fault(args: argparse.Namespace) -> str | None:
    """Returns the error of flags that contradict each other, or None."""
    tensor = args.mesh.get("tensor", 1)
    for flag, by in (("size", args.patch), ("width", args.heads), ("heads", tensor)):
        if getattr(args, flag) % by:
            return f"--{flag} {getattr(args, flag)} must be a multiple of {by}"
    return training.fault(args)


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    pictures: Tensor,
    labels: Tensor,
    *,
    clip: float,
    smoothing: float,
) -> Tensor:
    """Runs one step, written as for one device; returns its loss."""
    loss = F.cross_entropy(model(pictures), labels, label_smoothing=smoothing)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def train(
    model: nn.Module,
    place: Placement,
    data: images.Images,
    args: argparse.Namespace,
    console: Console,
) -> tuple[History, list[float]]:
    """Runs the training loop; returns the losses, and the share of held-out digits recognised at
    each evaluation."""
    optimizer = training.make_optimizer(model, args)
    schedule = training.make_schedule(optimizer, args)
    history, reporter, shares = (
        History(),
        Reporter(console, args.steps, place.compiles, of="images"),
        list[float](),
    )

    def update(pictures: Tensor, labels: Tensor) -> Tensor:
        loss = train_step(
            model, optimizer, pictures, labels, clip=args.clip, smoothing=args.smoothing
        )
        schedule.step()
        return loss

    update = training.compiled(update, args)

    def step(pictures: Tensor, labels: Tensor) -> Tensor:
        loss = update(pictures, labels)
        place.sync()
        return loss

    def evaluate() -> float:
        loss, share = heldout(model, place, data)
        shares.append(share)
        reporter.say(f"            {share:.1%} of the held-out digits are recognised")
        return loss

    def after(step: int) -> None:
        if step == 1 and (line := place.state_line(optimizer)):
            reporter.say(line)

    batches = images.endless(*data.train, batch=args.batch, seed=args.seed)
    Loop(args, reporter, None, step, evaluate, after).run(place.load(batches), history)
    training.say_compiled(update, args, console)
    return history, shares


@torch.no_grad()
def heldout(model: nn.Module, place: Placement, data: images.Images) -> tuple[float, float]:
    """Returns loss and share of recognised digits, of the held-out digits as one batch that fills
    all devices."""
    kept = len(data.heldout[0]) // place.rows * place.rows
    pictures, labels = (place.put(tensor[:kept]) for tensor in data.heldout)
    model.eval()
    logits = model(pictures)
    model.train()
    share = (logits.argmax(-1) == labels).float().mean()
    return F.cross_entropy(logits, labels).item(), share.item()


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    started, console = time.perf_counter(), training.make_console()
    place = MeshPlacement(args, shard) if args.device == "xla" else Placement()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    config = ViTConfig(
        size=args.size,
        patch=args.patch,
        layers=args.layers,
        width=args.width,
        heads=args.heads,
        dropout=args.dropout,
    )
    with place.device:
        model = ViT(config)
    model = place.wrap(model)
    if args.target:
        pictures, labels = (
            torch.zeros(args.batch, 1, args.size, args.size),
            torch.zeros(args.batch, dtype=torch.long),
        )
        given = model, training.make_optimizer(model, args), place.put(pictures), place.put(labels)
        step = partial(train_step, clip=args.clip, smoothing=args.smoothing)
        planned = training.plan_step(step, *given, target=args.target)
        planned.save(args.out / "plan.html")
        console.print(planned)
        return
    if table := place.table(model):
        console.print(table)
    # spmd.compile needs no graphs: it records the whole step once
    if args.device == "xla" and not args.compile:
        model = torch.compile(model, backend="openxla")

    data = images.digits(size=args.size)
    console.print(
        f"{len(data.train[0]):,} digits to train on, {len(data.heldout[0])} held out",
        highlight=False,
    )
    history, shares = train(model, place, data, args, console)
    size = sum(parameter.numel() for parameter in model.parameters())
    title = f"A {size / 1e6:.2f}M-parameter ViT on scikit-learn's digits ({place.name()})"
    training.draw(history, title=title, path=args.out / "loss.png", of="digits", unit="nats")
    console.print(
        f"\n[bold]{shares[-1]:.1%}[/bold] of the held-out digits are recognised, held-out loss "
        f"[bold]{history.heldout[-1][1]:.4f}[/bold]; {place.compiles()} compiles, "
        f"{place.loaded()} from disk, {time.perf_counter() - started:.0f} s\n"
        f"{args.out / 'loss.png'}",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()

"""Train a diffusion model on handwritten digits over eight simulated devices and draw new ones, in
minutes on a laptop.

    python recipes/train_diffusion.py                       # a UNet under FSDP, eight devices
    python recipes/train_diffusion.py --mesh data=8,fsdp=1  # data parallel: the batch split,
                                                            # parameters replicated
    python recipes/train_diffusion.py --compile             # the step recorded once and replayed,
                                                            # by spmd.compile
    python recipes/train_diffusion.py --device cpu          # the same file in plain PyTorch, for
                                                            # comparison
    python recipes/train_diffusion.py --target v5e:2x4      # plan the step for a TPU slice; nothing
                                                            # is trained

The UNet (`unet.py`) learns the noise in noisy images (DDPM, arXiv:2006.11239) of the digits of
scikit-learn. A moving average of its weights draws eight of each digit in 50 steps (DDIM,
arXiv:2010.02502): one program runs 50 times. It prints the plan of a step, the losses, and the
share of drawn digits whose nearest image in the data is of the same class; it leaves OUT/loss.png
and OUT/digits.png. `shard` and `put` are all that is not plain PyTorch, and the same seed gives the
same weights, batches and noise on any mesh.
"""

import argparse
import copy
import math
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import torch
from matplotlib import pyplot
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import fsdp
import spmd
from recipes import images, training
from recipes.placement import MeshPlacement, Placement
from recipes.training import History, Loop, Reporter
from recipes.unet import Attention, ResidualBlock, UNet, UNetConfig

LEVELS = 1000  # of noise


def shard(model: nn.Module, mesh: spmd.Mesh) -> nn.Module:
    """Returns the model under FSDP, a unit a residual block."""
    policy = partial(
        fsdp.transformer_auto_wrap_policy, transformer_layer_cls={ResidualBlock, Attention}
    )
    extra = "data" if "data" in mesh.shape() else None
    return fsdp.FullyShardedDataParallel(
        model, mesh, auto_wrap_policy=policy, extra_data_axis=extra
    )


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
        help=(
            "mesh axes in order: fsdp shards parameters and batch, data only the batch (default "
            "fsdp=8)"
        ),
    )
    training.add_device_flag(where)
    training.add_place_flags(where)
    model = parser.add_argument_group("the model")
    model.add_argument(
        "--size", type=int, default=8, metavar="N", help="pixels of a side (default %(default)s)"
    )
    model.add_argument(
        "--width", type=int, default=32, metavar="N", help="channels at this size (default 32)"
    )
    more = training.add_training_flags(parser, steps=600, eval_every=200, batch=64, of="images")
    more.add_argument(
        "--decay",
        type=float,
        default=0.99,
        help="of the average of the weights (default %(default)s)",
    )
    report = parser.add_argument_group("drawing")
    report.add_argument(
        "--sampling-steps", type=int, default=50, metavar="N", help="(default %(default)s)"
    )
    report.add_argument(
        "--rows", type=int, default=8, metavar="N", help="of ten digits each (default %(default)s)"
    )
    args = parser.parse_args(arguments)
    if args.size % 2:
        parser.error(f"--size must be even, got {args.size}")
    if wrong := training.fault(args):
        parser.error(wrong)
    return args


# -- Noise.


def signal() -> Tensor:
    """Returns the share of the image in the variance of a noisy one at each level
    (arXiv:2102.09672, the cosine)."""
    angles = (torch.arange(LEVELS + 1) / LEVELS + 0.008) / 1.008 * math.pi / 2
    share = angles.cos() ** 2
    return (share[1:] / share[0]).clamp(min=1e-4)


def noisy(pictures: Tensor, noise: Tensor, share: Tensor) -> Tensor:
    share = share.view(-1, 1, 1, 1)
    return share.sqrt() * pictures + (1 - share).sqrt() * noise


def batches(
    pairs: Iterable[tuple[Tensor, Tensor]], *, seed: int
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yields (noisy pictures, noise, level, label) for pairs of pictures and labels."""
    generator, shares = torch.Generator().manual_seed(seed), signal()
    for pictures, labels in pairs:
        noise = torch.randn(pictures.shape, generator=generator)
        level = torch.randint(LEVELS, labels.shape, generator=generator)
        yield noisy(pictures, noise, shares[level]), noise, level, labels


# -- Training, written as for one device.


def loss_of(
    model: nn.Module, pictures: Tensor, noise: Tensor, level: Tensor, labels: Tensor
) -> Tensor:
    return (model(pictures, level, labels) - noise).square().mean()


def train_step(
    model: nn.Module,
    average: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: tuple[Tensor, ...],
    *,
    clip: float,
    decay: float,
) -> Tensor:
    """Runs one step and moves the average towards the new weights; returns the loss."""
    loss = loss_of(model, *batch)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for mean, value in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(value, 1 - decay)
    return loss


def plan(
    model: nn.Module, average: nn.Module, place: Placement, args: argparse.Namespace
) -> spmd.Plan:
    """Returns the plan of a step, here or on the devices of --target; nothing is allocated for
    it."""
    given = [torch.zeros(args.batch, 1, args.size, args.size)] * 2 + [
        torch.zeros(args.batch, dtype=torch.long)
    ] * 2
    step = partial(train_step, clip=args.clip, decay=args.decay)
    optimizer, batch = training.make_optimizer(model, args), tuple(map(place.put, given))
    return training.plan_step(step, model, average, optimizer, batch, target=args.target)


def train(
    model: nn.Module,
    average: nn.Module,
    place: Placement,
    data: images.Images,
    args: argparse.Namespace,
    console: Console,
) -> History:
    """Runs the training loop; held-out losses are those of the average."""
    optimizer = training.make_optimizer(model, args)
    schedule = training.make_schedule(optimizer, args)
    history, reporter = History(), Reporter(console, args.steps, place.compiles, of="images")

    def update(*batch: Tensor) -> Tensor:
        loss = train_step(model, average, optimizer, batch, clip=args.clip, decay=args.decay)
        schedule.step()
        return loss

    update = training.compiled(update, args)

    def step(*batch: Tensor) -> Tensor:
        loss = update(*batch)
        place.sync()
        return loss

    def after(step: int) -> None:
        if step == 1 and (line := place.state_line(optimizer)):
            reporter.say(line)

    heldout = list(batches(images.batches(*data.heldout, batch=args.batch, seed=0), seed=1))
    evaluate = partial(
        training.evaluate, average, lambda *batch: loss_of(average, *map(place.put, batch)), heldout
    )
    epochs = images.endless(*data.train, batch=args.batch, seed=args.seed)
    Loop(args, reporter, None, step, evaluate, after).run(
        place.load(batches(epochs, seed=args.seed)), history
    )
    training.say_compiled(update, args, console)
    return history


# -- Drawing.


@torch.no_grad()
def draw_images(
    model: nn.Module,
    place: Placement,
    noise: Tensor,
    labels: Tensor,
    *,
    steps: int,
    limits: tuple[float, float],
) -> Tensor:
    """Returns images (n, channels, height, width) of these labels, made of noise in so many steps
    (DDIM).

    limits: the least and the greatest value of a pixel. A step reads the image of the step before,
    the level and two shares, which are data: all steps are one program.
    """
    levels = torch.linspace(LEVELS - 1, 0, steps).round().long()
    shares = torch.cat([signal()[levels], torch.ones(1)])
    x, labels = place.put(noise), place.put(labels)
    for step, level in enumerate(levels):
        share, to = shares[step].item(), shares[step + 1].item()
        predicted = model(x, place.put(level.expand(len(noise))), labels)
        clean = ((x - (1 - share) ** 0.5 * predicted) / share**0.5).clamp(*limits)
        predicted = (x - share**0.5 * clean) / (1 - share) ** 0.5
        x = to**0.5 * clean + (1 - to) ** 0.5 * predicted
        place.sync()
    return x.cpu()


def recognised(pictures: Tensor, labels: Tensor, data: images.Images) -> float:
    """Returns the share of pictures whose nearest image of the data has their label."""
    known, classes = (torch.cat(pair) for pair in zip(data.train, data.heldout, strict=True))
    nearest = torch.cdist(pictures.flatten(1), known.flatten(1)).argmin(1)
    return (classes[nearest] == labels).float().mean().item()


def draw_grid(pictures: Tensor, path: Path, *, title: str) -> None:
    """Writes the pictures in rows of ten, with a pixel of background around each."""
    framed = F.pad(pictures, (1, 1, 1, 1), value=pictures.min().item())
    rows = framed.view(-1, 10, *framed.shape[2:])
    grid = rows.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)
    figure, axes = pyplot.subplots(figsize=(8, 8 * len(rows) / 10 + 0.5), layout="constrained")
    axes.imshow(grid.numpy(), cmap="gray", interpolation="bicubic")
    axes.set(title=title, xticks=(), yticks=())
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    started, console = time.perf_counter(), training.make_console()
    place = MeshPlacement(args, shard) if args.device == "xla" else Placement()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    with place.device:
        model = UNet(UNetConfig(width=args.width))
    model = place.wrap(model)
    average = copy.deepcopy(model).requires_grad_(False)
    if args.device == "xla":
        planned = plan(model, average, place, args)
        console.print(planned)
        if args.target:
            planned.save(args.out / "plan.html")
            return

    data = images.digits(size=args.size)
    console.print(
        f"{len(data.train[0]):,} digits to train on, {len(data.heldout[0])} held out",
        highlight=False,
    )
    history = train(model, average, place, data, args, console)
    what = (
        f"a UNet of {sum(parameter.numel() for parameter in model.parameters()) / 1e6:.2f}M "
        "parameters"
    )
    title = f"The noise in digits, {what} ({place.name()})"
    training.draw(history, title=title, path=args.out / "loss.png", of="digits", unit="mean square")

    compiled, clock = place.compiles(), time.perf_counter()
    labels = torch.arange(10).repeat(args.rows)
    noise = torch.randn(
        len(labels), 1, args.size, args.size, generator=torch.Generator().manual_seed(args.seed)
    )
    limits = data.train[0].min().item(), data.train[0].max().item()
    made = draw_images(average, place, noise, labels, steps=args.sampling_steps, limits=limits)
    draw_grid(made, args.out / "digits.png", title=f"Digits by {what}, {args.sampling_steps} steps")
    console.print(
        f"\n{len(made)} digits in {args.sampling_steps} steps, {time.perf_counter() - clock:.1f} "
        f"s and {place.compiles() - compiled} compiles; "
        f"[bold]{recognised(made, labels, data):.1%}[/bold] are nearest to an image of their "
        f"class\nheld-out loss [bold]{history.heldout[-1][1]:.4f}[/bold]; {place.compiles()} "
        f"compiles, {place.loaded()} from disk, {time.perf_counter() - started:.0f} s\n"
        f"{args.out / 'loss.png'}, {args.out / 'digits.png'}",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()

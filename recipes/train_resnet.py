"""Train a ResNet with batch norm over eight simulated devices, in one of three layouts, in minutes
on a laptop.

    python recipes/train_resnet.py                                   # FSDP: parameters and batch
                                                                     # split, units chosen by size
    python recipes/train_resnet.py --layout data                     # data parallel: the batch
                                                                     # split, parameters replicated
    python recipes/train_resnet.py --layout spatial                  # each image's rows split; the
                                                                     # compiler exchanges halos
    python recipes/train_resnet.py --fake-data --batch 16 --steps 4  # ResNet-18 at ImageNet's
                                                                     # shapes
    python recipes/train_resnet.py --chart 4 16 64                   # chart the bytes of each
                                                                     # layout, too: six plans more
    python recipes/train_resnet.py --compile                         # the step recorded once and
                                                                     # replayed, by spmd.compile
    python recipes/train_resnet.py --device cpu                      # the same file in plain
                                                                     # PyTorch, for comparison
    python recipes/train_resnet.py --target v5e:2x4                  # plan the step for a TPU
                                                                     # slice; nothing is trained

It prints the plan of a step, trains on the digits of scikit-learn, tests on digits that it never
trains on, and writes OUT/loss.png; with --chart also OUT/bytes.png: the bytes that a device needs
at several batch sizes, in each layout. Batch norm is of the whole batch in every layout, so that
losses are those of one device.
"""

import argparse
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import ceil
from pathlib import Path

import matplotlib
import torch
from matplotlib import pyplot
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import fsdp
import spmd
from recipes import images
from recipes.resnet import ResNet, ResNetConfig
from recipes.training import (
    Reporter,
    add_compile_flag,
    compiled,
    learning_rate_factor,
    make_console,
    plan_step,
    say_compiled,
)

AXES = {"data": "data", "fsdp": "fsdp", "spatial": "height"}  # the mesh axis of each layout
UNIT = 20_000  # the least number of parameters of a unit


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "--layout",
        choices=tuple(AXES),
        default="fsdp",
        help="how it is sharded (default %(default)s)",
    )
    where.add_argument(
        "--devices",
        type=int,
        default=8,
        metavar="N",
        help="simulated devices (default %(default)s)",
    )
    where.add_argument(
        "--partitioner",
        choices=("gspmd", "shardy"),
        help="XLA's partitioner (default: the library's)",
    )
    where.add_argument(
        "--device", choices=("xla", "cpu"), default="xla", help="cpu: plain PyTorch (default xla)"
    )
    where.add_argument(
        "--target",
        metavar="SLICE",
        help=(
            'plan the step for these devices ("v5e:2x4", "cpu:8") into OUT/plan.html; nothing is '
            "trained"
        ),
    )
    training = parser.add_argument_group("training")
    training.add_argument(
        "--fake-data",
        "--fake_data",
        action="store_true",
        help="random images of 3 x 224 x 224, 1,000 classes",
    )
    training.add_argument(
        "--fake-images",
        "--fake_images",
        type=int,
        default=64,
        metavar="N",
        help="of an epoch (default %(default)s)",
    )
    training.add_argument(
        "--batch",
        "--batch_size",
        type=int,
        metavar="N",
        help="images a step (default 64, fake ones 16)",
    )
    length = training.add_mutually_exclusive_group()
    length.add_argument(
        "--steps", type=int, metavar="N", help="optimizer steps (default: those of the epochs)"
    )
    length.add_argument(
        "--epochs", "--num_epochs", type=int, metavar="N", help="(default 6, of fake images 1)"
    )
    training.add_argument(
        "--width", type=int, metavar="N", help="channels of the first stage (default 16, fake 64)"
    )
    training.add_argument(
        "--lr", type=float, default=5e-3, help="peak learning rate (default %(default)s)"
    )
    training.add_argument("--seed", type=int, default=0, help="of weights and batches (default 0)")
    add_compile_flag(training)
    report = parser.add_argument_group("report")
    report.add_argument(
        "--chart",
        type=int,
        nargs="+",
        default=(),
        metavar="N",
        help="plan every layout at these batch sizes, too, into OUT/bytes.png (default: none)",
    )
    report.add_argument(
        "--out", type=Path, default=Path("out"), metavar="DIR", help="for pictures (default out)"
    )
    args = parser.parse_args(arguments)
    defaults = {"batch": 16, "epochs": 1, "width": 64} if args.fake_data else {}
    for name, value in ({"batch": 64, "epochs": 6, "width": 16} | defaults).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.device == "xla" and not splits(args.layout, args.batch, args.devices):
        parser.error(
            f"--batch {args.batch} must be a multiple of the {args.devices} devices that share it"
        )
    if args.target and args.device != "xla":
        parser.error("--target plans for devices of xla; leave --device out")
    if args.compile and args.device != "xla":
        parser.error("--compile is of steps on xla; leave --device out")
    if args.steps is not None and args.steps < 1:
        parser.error(f"--steps must be at least 1, got {args.steps}")
    if args.epochs < 1 or (args.fake_data and args.fake_images < args.batch):
        parser.error("there must be at least one epoch of at least one batch")
    return args


def splits(layout: str, batch: int, devices: int) -> bool:
    """Returns True if a layout can shard a batch of this size; spatial shards images, whatever
    their number."""
    return layout == "spatial" or batch % devices == 0


class Placement:
    """The placement of model and batch; this one is plain PyTorch on the CPU, so its methods do
    nothing."""

    device = torch.device("cpu")

    def wrap(self, model: nn.Module) -> nn.Module:
        return model

    def put(self, pictures: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Moves a batch to the device."""
        return pictures, labels

    def sync(self) -> None:
        """Runs the recorded graph; the host does not wait for it."""


class MeshPlacement(Placement):
    """The `xla` device: all devices on the one axis of a layout."""

    device = torch.device("xla")

    def __init__(self, layout: str, devices: int) -> None:
        self.layout, axis = layout, AXES[layout]
        self.mesh = spmd.Mesh(range(devices), (devices,), (axis,))
        batch, rows = (None, axis) if layout == "spatial" else (axis, None)
        self.specs = spmd.P(batch, None, rows, None), spmd.P(batch)

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.layout == "fsdp":
            policy = partial(fsdp.size_based_auto_wrap_policy, min_num_params=UNIT)
            return fsdp.FullyShardedDataParallel(model, self.mesh, auto_wrap_policy=policy)
        for tensor in (*model.parameters(), *model.buffers()):
            spmd.mark_sharding(tensor, self.mesh, (None,) * tensor.dim())
        return model

    def put(self, pictures: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.specs
        moved = spmd.mark_sharding(pictures.to(self.device), self.mesh, first)
        return moved, spmd.mark_sharding(labels.to(self.device), self.mesh, second)

    def sync(self) -> None:
        spmd.sync()


def make(
    place: Placement, args: argparse.Namespace, classes: int
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Returns a placed model and its optimizer.

    AdamW has all of its state before the first step, so that the first step is the same program as
    the others.
    """
    if args.fake_data:
        config = ResNetConfig(width=args.width, classes=classes)
    else:
        config = ResNetConfig(
            channels=1, classes=classes, width=args.width, stages=(1, 1, 1), stem="small"
        )
    torch.manual_seed(args.seed)
    with place.device:
        model = ResNet(config)
    model = place.wrap(model)
    return model, torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, pictures: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Runs one step, written as for one device; returns its loss and the share of recognised
    images."""
    logits = model(pictures)
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach(), accuracy(logits, labels)


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.detach().argmax(-1) == labels).float().mean()


@torch.no_grad()
def evaluate(model: nn.Module, place: Placement, data: images.Images, devices: int) -> float:
    """Returns the share of held-out images that are recognised, as one batch without the rest that
    fills no device."""
    kept = len(data.heldout[0]) // devices * devices
    pictures, labels = place.put(*(tensor[:kept] for tensor in data.heldout))
    model.eval()
    share = accuracy(model(pictures), labels).item()
    model.train()
    return share


def plan(place: Placement, args: argparse.Namespace, batch: int, data: images.Images) -> spmd.Plan:
    """Returns the plan of a step of this batch size; nothing is allocated for it."""
    model, optimizer = make(place, args, data.classes)
    pictures = torch.zeros(batch, *data.train[0].shape[1:])
    moved = place.put(pictures, torch.zeros(batch, dtype=torch.int64))
    return plan_step(train_step, model, optimizer, *moved, target=args.target)


@dataclass
class History:
    """The readings of a run: (step, value)."""

    loss: list[tuple[int, float]] = field(default_factory=list)
    train: list[tuple[int, float]] = field(default_factory=list)
    heldout: list[tuple[int, float]] = field(default_factory=list)


def train(
    place: Placement, args: argparse.Namespace, data: images.Images, console: Console
) -> History:
    """Runs the training loop, written as for one device.

    Values are read after each epoch, so no step waits for one.
    """
    spmd.config.replay_steps = True
    model, optimizer = make(place, args, data.classes)
    steps = len(data.train[0]) // args.batch
    total = args.steps or args.epochs * steps
    factor = partial(learning_rate_factor, warmup=max(1, total // 10), steps=total)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    history, reporter = History(), Reporter(console, total, spmd.metrics.num_compiles)

    def update(pictures: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        readings = train_step(model, optimizer, pictures, labels)
        scheduler.step()
        return readings

    update = compiled(update, args)
    with reporter.progress:
        for epoch in range(ceil(total / steps)):
            started, found = time.perf_counter(), []
            batches = images.batches(*data.train, batch=args.batch, seed=args.seed + epoch)
            for number, batch in enumerate(
                islice(batches, total - epoch * steps), start=epoch * steps + 1
            ):
                found.append((number, *update(*place.put(*batch))))
                place.sync()
                reporter.progress.update(
                    reporter.task, completed=number, description=f"epoch {epoch + 1}"
                )
            history.loss += [(number, loss.item()) for number, loss, _ in found]
            history.train += [(number, share.item()) for number, _, share in found]
            rate = len(found) * args.batch / (time.perf_counter() - started)
            line = f"epoch {epoch + 1}   loss {mean(history.loss[-len(found) :]):.4f}   "
            line += f"training {mean(history.train[-len(found) :]):.1%}   {rate:,.0f} images/s"
            if len(data.heldout[0]):
                history.heldout.append((number, evaluate(model, place, data, args.devices)))
                line += f"   held-out {history.heldout[-1][1]:.1%}"
            reporter.say(line)
    say_compiled(update, args, console)
    return history


def mean(readings: list[tuple[int, float]]) -> float:
    return sum(value for _, value in readings) / len(readings)


def draw_curves(history: History, *, title: str, path: Path) -> None:
    """Writes the picture of a run."""
    figure, (upper, lower) = pyplot.subplots(2, sharex=True, figsize=(8, 6), layout="constrained")
    upper.plot(*zip(*history.loss, strict=True), color="tab:blue", label="training batch")
    upper.set(ylabel="loss (nats)", title=title, ylim=(0, None))
    lower.plot(
        *zip(*history.train, strict=True), color="tab:blue", alpha=0.8, label="training batch"
    )
    if history.heldout:
        lower.plot(
            *zip(*history.heldout, strict=True), "o-", color="tab:orange", label="held-out images"
        )
        last = history.heldout[-1]
        lower.annotate(
            f"{last[1]:.1%}", last, xytext=(0, -16), textcoords="offset points", ha="center"
        )
    lower.set(xlabel="step", ylabel="recognised", ylim=(0, 1.05))
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def bytes_by_layout(
    args: argparse.Namespace, data: images.Images
) -> dict[str, list[tuple[int, spmd.Plan]]]:
    """Returns each layout's plans by batch size, for the sizes that it can shard."""
    return {
        layout: [
            (batch, plan(MeshPlacement(layout, args.devices), args, batch, data))
            for batch in args.chart
            if splits(layout, batch, args.devices)
        ]
        for layout in AXES
    }


def bytes_table(found: dict[str, list[tuple[int, spmd.Plan]]]) -> Table:
    """Returns the figures of the chart."""
    table = Table(
        "layout", "images", "state MiB", "peak MiB", title="A step, per device", box=box.SIMPLE_HEAD
    )
    for layout, plans in found.items():
        for batch, planned in plans:
            table.add_row(
                layout, str(batch), f"{planned.state / 2**20:.2f}", f"{planned.peak / 2**20:.2f}"
            )
    return table


def draw_bytes(found: dict[str, list[tuple[int, spmd.Plan]]], *, title: str, path: Path) -> None:
    """Writes the chart of bytes per device against batch size: the peak of a step, and the state
    between steps."""
    figure, axes = pyplot.subplots(figsize=(8, 6), layout="constrained")
    styles = zip(("tab:blue", "tab:orange", "tab:green"), (4, 1.5, 1.5), strict=True)
    for (layout, plans), (color, width) in zip(found.items(), styles, strict=True):
        sizes = [batch for batch, _ in plans]
        axes.plot(
            sizes,
            [each.peak / 2**20 for _, each in plans],
            "o-",
            color=color,
            label=f"{layout}: peak of a step",
        )
        # Data parallel and spatial keep the same state: the wide line is visible under the narrow
        # one.
        state = [each.state / 2**20 for _, each in plans]
        axes.plot(sizes, state, ":", color=color, linewidth=width, label=f"{layout}: state")
    axes.set(xscale="log", yscale="log", title=title)
    axes.set(
        xlabel="images in a batch, over all devices",
        ylabel="MiB per device (state: parameters, moments)",
    )
    ticks = sorted({batch for plans in found.values() for batch, _ in plans})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.yaxis.set_major_formatter("{x:g}")
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    started, console = time.perf_counter(), make_console()
    matplotlib.use("agg")  # writes files, needs no screen
    args.out.mkdir(parents=True, exist_ok=True)
    if args.device == "xla":
        spmd.simulate(args.devices)  # before anything else touches the device
    if args.partitioner:
        spmd.config.partitioner = args.partitioner
    data = images.fake(args.fake_images, args.seed) if args.fake_data else images.digits()
    what = "random images of ImageNet's shapes" if args.fake_data else "scikit-learn's digits"
    place = MeshPlacement(args.layout, args.devices) if args.device == "xla" else Placement()
    if args.device == "xla":
        planned = plan(place, args, args.batch, data)
        console.print(planned)
        if args.target:
            planned.save(args.out / "plan.html")
            return
    shown = f"{args.layout}, {args.devices} devices" if args.device == "xla" else "plain PyTorch"
    history = train(place, args, data, console)
    draw_curves(history, title=f"A ResNet on {what} ({shown})", path=args.out / "loss.png")
    made = [args.out / "loss.png"]
    if args.device == "xla" and args.chart:
        made.append(args.out / "bytes.png")
        title = f"A training step of a ResNet on {what}, {args.devices} devices"
        found = bytes_by_layout(args, data)
        console.print(bytes_table(found))
        draw_bytes(found, title=title, path=made[-1])
    console.print(*made, f"{time.perf_counter() - started:.0f} s", sep="\n", highlight=False)


if __name__ == "__main__":
    main()

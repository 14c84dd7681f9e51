"""Train a byte-level GPT on real English text, FSDP over eight simulated devices, in a few minutes on a laptop.

    python recipes/train_gpt.py                                # the main job: 8 devices, FSDP
    python recipes/train_gpt.py --mesh data=2,fsdp=4           # two replicas of a four-way FSDP
    python recipes/train_gpt.py --devices 1                    # the same program on one device
    python recipes/train_gpt.py --partitioner shardy           # let XLA's newer partitioner cut it
    python recipes/train_gpt.py --device cpu                   # the same file in plain PyTorch, for comparison
    python recipes/train_gpt.py --target v5e:2x4               # plan the step for a TPU slice; nothing is trained

It prints what lives where, trains, evaluates on text that it never trains on, and leaves OUT/loss.png and a sample of
what the model writes. The text is Python's own documentation (`pydoc_data.topics`), which every machine already has.
The same seed gives the same batches and the same initial weights on any mesh.
"""

import argparse
import math
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import prod
from pathlib import Path

import matplotlib
import torch
from matplotlib import pyplot
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import fsdp
import spmd
from recipes import text
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy

READ_EVERY = 10  # steps between two readings of the loss; in between nothing waits for the device


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_argument_group("where it runs")
    where.add_argument("--devices", type=int, metavar="N", help="simulated devices (default 8, or as --mesh needs)")
    where.add_argument(
        "--mesh",
        type=parse_mesh,
        metavar="AXIS=SIZE,...",
        help="mesh axes in order: fsdp cuts parameters and batch, data only the batch (default fsdp=DEVICES)",
    )
    where.add_argument("--partitioner", choices=("gspmd", "shardy"), help="XLA's partitioner (default: the library's)")
    where.add_argument(
        "--device", choices=("xla", "cpu"), default="xla", help="cpu: plain PyTorch without mesh or FSDP (default xla)"
    )
    where.add_argument(
        "--target",
        metavar="SLICE",
        help='plan the step for these devices ("v5e:2x4", "cpu:8") into OUT/plan.html; nothing is trained',
    )
    model = parser.add_argument_group("the model")
    model.add_argument("--layers", type=int, default=4, metavar="N", help="transformer blocks (default %(default)s)")
    model.add_argument("--width", type=int, default=256, metavar="N", help="features per token (default %(default)s)")
    model.add_argument("--heads", type=int, default=8, metavar="N", help="attention heads (default %(default)s)")
    model.add_argument("--sequence", type=int, default=128, metavar="N", help="bytes of context (default %(default)s)")
    model.add_argument("--dropout", type=float, default=0.0, metavar="P", help="dropout (default %(default)s)")
    training = parser.add_argument_group("training")
    training.add_argument("--steps", type=int, default=400, metavar="N", help="optimizer steps (default %(default)s)")
    training.add_argument(
        "--batch", type=int, default=16, metavar="N", help="sequences per step, over all devices (default %(default)s)"
    )
    training.add_argument("--lr", type=float, default=2e-3, help="peak learning rate (default %(default)s)")
    training.add_argument(
        "--warmup", type=int, default=30, metavar="N", help="steps up to the peak, then cosine (default 30)"
    )
    training.add_argument("--clip", type=float, default=1.0, metavar="NORM", help="largest gradient norm (default 1)")
    training.add_argument("--seed", type=int, default=0, help="seed of weights, batches and sample (default 0)")
    report = parser.add_argument_group("what it reports")
    report.add_argument("--eval-every", type=int, default=100, metavar="N", help="steps between two (default 100)")
    report.add_argument(
        "--sample", type=int, default=200, metavar="BYTES", help="bytes written at the end (default 200)"
    )
    report.add_argument(
        "--temperature", type=float, default=0.7, metavar="T", help="of the sample; 0: greedy (default 0.7)"
    )
    report.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="for loss.png (default out)")
    args = parser.parse_args(arguments)
    try:
        args.mesh = choose_mesh(args.mesh, args.devices)
    except ValueError as error:
        parser.error(str(error))
    if args.device == "xla" and args.batch % prod(args.mesh.values()):
        parser.error(f"--batch {args.batch} must be a multiple of the {prod(args.mesh.values())} devices that share it")
    if args.target and args.device != "xla":
        parser.error("--target plans for devices of xla; leave --device out")
    if args.steps < 1:
        parser.error(f"--steps must be at least 1, got {args.steps}")
    return args


def parse_mesh(written: str) -> dict[str, int]:
    """Return {"data": 2, "fsdp": 4} for "data=2,fsdp=4"."""
    if not re.fullmatch(r"\w+=[1-9]\d*(,\w+=[1-9]\d*)*", written):
        raise argparse.ArgumentTypeError(f"expected axes like data=2,fsdp=4, got {written!r}")
    sizes = [axis.split("=") for axis in written.split(",")]
    mesh = {name: int(size) for name, size in sizes}
    if len(mesh) != len(sizes) or "fsdp" not in mesh or not mesh.keys() <= {"data", "fsdp"}:
        raise argparse.ArgumentTypeError(f"the axes are fsdp and, if wanted, data, each once; got {written!r}")
    return mesh


def choose_mesh(mesh: dict[str, int] | None, devices: int | None) -> dict[str, int]:
    """Return the mesh that --mesh and --devices together ask for."""
    if mesh is None:
        return {"fsdp": 8 if devices is None else devices}
    if devices is not None and prod(mesh.values()) > devices:
        raise ValueError(f"--mesh needs {prod(mesh.values())} devices, --devices gives {devices}")
    return mesh


class Placement:
    """Where the job runs; this one is plain PyTorch on the CPU, so most of it does nothing."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.device = torch.device("cpu")
        self.rows = 1  # the smallest batch that every device has a part of

    def wrap(self, model: nn.Module) -> nn.Module:
        return model

    def put(self, tokens: Tensor) -> Tensor:
        """Move a batch to the device."""
        return tokens

    def barrier(self) -> None:
        """Run what is recorded; the host does not wait for it."""

    def compiles(self) -> int:
        return 0

    def table(self, model: nn.Module) -> Table | None:
        """Return what lives where."""

    def state_line(self, optimizer: torch.optim.Optimizer) -> str | None:
        """Return what the optimizer's state takes."""


class MeshPlacement(Placement):
    """The `xla` device: FSDP over a mesh, the batch cut over all of its axes."""

    def __init__(self, args: argparse.Namespace) -> None:
        # Before anything else touches the device: the number of devices is fixed when jax's backend starts.
        spmd.simulate(args.devices or prod(args.mesh.values()))
        if args.partitioner:
            spmd.config.partitioner = args.partitioner
        self.device = torch.device("xla")
        self.rows = prod(args.mesh.values())
        self.mesh = spmd.Mesh(range(self.rows), tuple(args.mesh.values()), tuple(args.mesh))
        self.batch_spec = spmd.P(tuple(args.mesh), None)

    def wrap(self, model: nn.Module) -> nn.Module:
        return fsdp.FullyShardedDataParallel(
            model,
            mesh=self.mesh,
            auto_wrap_policy=partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block}),
            extra_data_axis="data" if "data" in self.mesh.shape() else None,
        )

    def put(self, tokens: Tensor) -> Tensor:
        return spmd.mark_sharding(tokens.to(self.device), self.mesh, self.batch_spec)

    def barrier(self) -> None:
        spmd.sync()

    def compiles(self) -> int:
        return spmd.metrics.num_compiles()

    def table(self, model: nn.Module) -> Table:
        spmd.sync()
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh.shape().items())
        # Narrow enough for 80 columns, so that a log shows every name in full.
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        table.title, table.title_justify = f"What lives where: mesh {axes}", "left"
        for heading in ("parameter", "shape", "spec"):
            table.add_column(heading, no_wrap=True)
        for heading in ("whole", "per device"):
            table.add_column(heading, justify="right", no_wrap=True)
        rows = dict[tuple[str, str, str], list[tuple[str, Tensor]]]()
        for name, parameter in model.named_parameters():
            pattern = re.sub(r"\.\d+\.", ".*.", name)
            rows.setdefault((pattern, *describe(parameter)), []).append((name, parameter))
        for (_, *description), members in rows.items():
            names, parameters = zip(*members, strict=True)
            table.add_row(join_names(names), *description, *sizes(parameters))
        table.add_section()
        parameters = list(model.parameters())
        table.add_row(f"{sum(p.numel() for p in parameters):,} parameters", "", "", *sizes(parameters), style="bold")
        return table

    def state_line(self, optimizer: torch.optim.Optimizer) -> str:
        state = [
            value
            for values in optimizer.state.values()
            for value in values.values()
            if isinstance(value, Tensor) and value.device.type == "xla"
        ]
        return "optimizer state: {} whole, {} per device".format(*sizes(state))


def join_names(names: Sequence[str]) -> str:
    """Return "blocks.0-3.norm.bias" for the same parameter of layers 0 to 3."""
    last = re.search(r"\.(\d+)\.", names[-1])
    return names[0] if len(names) == 1 or last is None else re.sub(r"\.(\d+)\.", rf".\1-{last[1]}.", names[0], count=1)


def describe(parameter: Tensor) -> tuple[str, str]:
    """Return a parameter's shape and, for each dim, the mesh axis that it is split over."""
    sharding = spmd.get_sharding(parameter)
    shape = str(tuple(parameter.shape))
    if sharding is None or sharding.is_replicated():
        return shape, "replicated"
    return shape, ", ".join(map(str, sharding.partition_spec(parameter.dim())))


def sizes(tensors: Sequence[Tensor]) -> tuple[str, str]:
    """Return what tensors take as a whole and on the fullest device, counted from their real shards."""
    per_device: dict[object, int] = {}
    for tensor in tensors:
        for shard in spmd.local_shards(tensor):
            per_device[shard.device] = per_device.get(shard.device, 0) + shard.data.nbytes
    whole = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return show_bytes(whole), show_bytes(max(per_device.values(), default=0))


def show_bytes(count: int) -> str:
    if count < 2**10:
        return f"{count} B"
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


@dataclass
class History:
    """What was measured: (step, nats per byte)."""

    train: list[tuple[int, float]] = field(default_factory=list)
    heldout: list[tuple[int, float]] = field(default_factory=list)


def learning_rate_factor(step: int, *, warmup: int, steps: int) -> float:
    """Return the share of the peak learning rate at a step: linear warm-up, then a cosine down to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.55 + 0.45 * math.cos(math.pi * (step - warmup) / max(1, steps - warmup))


@torch.no_grad()
def evaluate(model: nn.Module, batches: list[tuple[Tensor, Tensor]], place: Placement) -> float:
    """Return the mean loss over fixed batches, in nats per byte; one program, whatever the training step is."""
    model.eval()
    total = 0.0
    for tokens, targets in batches:
        total += cross_entropy(model(place.put(tokens)), place.put(targets)).item()
    model.train()
    return total / len(batches)


@torch.no_grad()
def write(model: nn.Module, prompts: Tensor, place: Placement, *, length: int, temperature: float, seed: int) -> Tensor:
    """Return `length` more bytes for each prompt (rows, sequence).

    The window slides and never grows, so that one program writes them all.
    """
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    window, written = prompts, []
    for _ in range(length):
        logits = model(place.put(window))[:, -1].cpu()
        if temperature:
            token = torch.multinomial(torch.softmax(logits / temperature, dim=-1), 1, generator=generator)
        else:
            token = logits.argmax(-1, keepdim=True)
        written.append(token)
        window = torch.cat([window[:, 1:], token], dim=1)
    model.train()
    return torch.cat([prompts[:, :0], *written], dim=1)


class Reporter:
    """Shows progress: a bar that moves on a terminal, a line per reading in a log."""

    def __init__(self, console: Console, steps: int) -> None:
        self.console, self.line = console, ""
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self.task = self.progress.add_task("compiling the first step", total=steps)

    def reading(self, step: int, *, loss: float, tokens_per_second: float, compiles: int) -> None:
        line = f"loss {loss:.4f}   {tokens_per_second:,.0f} tokens/s   {compiles} compiles"
        self.progress.update(self.task, completed=step, description=line)
        if not self.console.is_terminal:
            self.say(f"step {step:5d}   {line}")

    def say(self, line: str) -> None:
        self.progress.console.print(line, highlight=False)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, targets: Tensor, *, clip: float
) -> Tensor:
    """Do one step, written as for one device; return its loss."""
    loss = cross_entropy(model(tokens), targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def plan(model: nn.Module, place: Placement, args: argparse.Namespace) -> spmd.Plan:
    """Return what a step takes on other devices; nothing is allocated for it."""
    optimizer = make_optimizer(model, args)
    tokens, targets = (place.put(torch.zeros(args.batch, args.sequence, dtype=torch.long)) for _ in range(2))
    return spmd.plan(train_step, model, optimizer, tokens, targets, clip=args.clip, target=args.target)


def make_optimizer(model: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    """Return AdamW with the settings of the flags."""
    return torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)


def train(
    model: nn.Module, place: Placement, corpus: text.Text, args: argparse.Namespace, console: Console, *, bigram: float
) -> History:
    """Run the training loop, written as for one device."""
    optimizer = make_optimizer(model, args)
    factor = partial(learning_rate_factor, warmup=args.warmup, steps=args.steps)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    heldout = text.windows(corpus.heldout, batch=args.batch, sequence=args.sequence)
    batches = text.batches(corpus.train, batch=args.batch, sequence=args.sequence, seed=args.seed)
    history, reporter = History(), Reporter(console, args.steps)
    clock, counted = time.perf_counter(), 0
    with reporter.progress:
        for step, (tokens, targets) in enumerate(islice(batches, args.steps), start=1):
            loss = train_step(model, optimizer, place.put(tokens), place.put(targets), clip=args.clip)
            scheduler.step()
            place.barrier()

            if step == 1 or step % READ_EVERY == 0 or step == args.steps:
                history.train.append((step, loss.item()))
                now = time.perf_counter()
                rate = (step - counted) * args.batch * args.sequence / (now - clock)
                reporter.reading(step, loss=history.train[-1][1], tokens_per_second=rate, compiles=place.compiles())
                clock, counted = now, step
            if step == 1 and (line := place.state_line(optimizer)):
                reporter.say(line)
            if step % args.eval_every == 0 or step == args.steps:
                history.heldout.append((step, evaluate(model, heldout, place)))
                reporter.say(f"step {step:5d}   held-out {history.heldout[-1][1]:.4f}   (bigram table {bigram:.4f})")
                clock = time.perf_counter()
    return history


def draw(history: History, *, bigram: float, title: str, path: Path) -> None:
    """Write the picture of a run."""
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    axes.plot(*zip(*history.train, strict=True), color="tab:blue", alpha=0.8, label="training batch")
    axes.plot(*zip(*history.heldout, strict=True), "o-", color="tab:orange", label="held-out text")
    axes.axhline(bigram, color="tab:gray", linestyle="--", label=f"bigram table, held-out ({bigram:.2f})")
    last = history.heldout[-1]
    axes.annotate(f"{last[1]:.2f}", last, xytext=(0, -16), textcoords="offset points", ha="center", color="tab:orange")
    axes.set(xlabel="step", ylabel="loss (nats per byte)", title=title, xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def show_sample(
    model: nn.Module, place: Placement, corpus: text.Text, args: argparse.Namespace, console: Console
) -> None:
    """Let the model go on from held-out text; every device writes one sample, the first is shown."""
    prompts = corpus.heldout[: place.rows * args.sequence].view(place.rows, args.sequence).long()
    written = write(model, prompts, place, length=args.sample, temperature=args.temperature, seed=args.seed)
    console.print("\n[bold]A sample[/bold] (dim: held-out text that it goes on from)")
    console.print(text.decode(prompts[0]), style="dim", end="", markup=False, highlight=False)
    console.print(text.decode(written[0]), markup=False, highlight=False)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    started, console = time.perf_counter(), Console()
    matplotlib.use("agg")  # writes files, needs no screen
    place = MeshPlacement(args) if args.device == "xla" else Placement(args)
    torch.manual_seed(args.seed)
    config = GPTConfig(
        layers=args.layers, width=args.width, heads=args.heads, sequence=args.sequence, dropout=args.dropout
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
    console.print(f"{len(corpus.train):,} bytes to train on, {len(corpus.heldout):,} held out", highlight=False)
    history = train(model, place, corpus, args, console, bigram=bigram)

    args.out.mkdir(parents=True, exist_ok=True)
    where = "plain PyTorch" if args.device == "cpu" else ", ".join(f"{name}={size}" for name, size in args.mesh.items())
    size = sum(parameter.numel() for parameter in model.parameters())
    title = f"A {size / 1e6:.1f}M-parameter GPT on Python's documentation ({where})"
    draw(history, bigram=bigram, title=title, path=args.out / "loss.png")
    if args.sample:
        show_sample(model, place, corpus, args, console)
    heldout = history.heldout[-1][1]
    console.print(
        f"\nheld-out loss [bold]{heldout:.4f}[/bold] nats per byte, bigram table [bold]{bigram:.4f}[/bold]; "
        f"{place.compiles()} compiles, {time.perf_counter() - started:.0f} s\n{args.out / 'loss.png'}",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()

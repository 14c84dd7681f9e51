"""Train a byte-level GPT on real English text, FSDP over eight simulated devices, in a few minutes on a laptop.

    python recipes/train_gpt.py                                # the main job: 8 devices, FSDP
    python recipes/train_gpt.py --mesh data=2,fsdp=4           # two replicas of a four-way FSDP
    python recipes/train_gpt.py --devices 1                    # the same program on one device
    python recipes/train_gpt.py --partitioner shardy           # by XLA's newer partitioner
    python recipes/train_gpt.py --compile                      # the step recorded once and replayed, by spmd.compile
    python recipes/train_gpt.py --device cpu                   # the same file in plain PyTorch, for comparison
    python -m spmd launch --processes 2 recipes/train_gpt.py   # two processes with four of the devices each
    python recipes/train_gpt.py --target v5e:2x4               # plan the step for a TPU slice; nothing is trained

It prints the shardings, trains, evaluates on text that it never trains on, and leaves OUT/loss.png and a sample of the
model's text. The text is Python's own documentation (`pydoc_data.topics`), which every machine already has. The same
seed gives the same batches and the same initial weights on any mesh.
"""

import argparse
import re
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from math import prod
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import fsdp
import spmd
from recipes import text, training
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy
from recipes.training import History, Loop, Reporter


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_argument_group("where it runs")
    where.add_argument("--devices", type=int, metavar="N", help="simulated devices (default 8, or as --mesh needs)")
    where.add_argument(
        "--mesh",
        type=partial(training.parse_mesh, others=("data",)),
        metavar="AXIS=SIZE,...",
        help="mesh axes in order: fsdp shards parameters and batch, data only the batch (default fsdp=DEVICES)",
    )
    where.add_argument(
        "--device", choices=("xla", "cpu"), default="xla", help="cpu: plain PyTorch without mesh or FSDP (default xla)"
    )
    training.add_place_flags(where)
    model = training.add_model_flags(parser)
    model.add_argument("--dropout", type=float, default=0.0, metavar="P", help="dropout (default %(default)s)")
    training.add_training_flags(parser, steps=400, eval_every=100)
    args = parser.parse_args(arguments)
    try:
        args.mesh = choose_mesh(args.mesh, args.devices)
    except ValueError as error:
        parser.error(str(error))
    if args.device == "xla" and args.batch % prod(args.mesh.values()):
        parser.error(f"--batch {args.batch} must be a multiple of the {prod(args.mesh.values())} devices that share it")
    if args.target and args.device != "xla":
        parser.error("--target plans for devices of xla; leave --device out")
    if args.compile and args.device != "xla":
        parser.error("--compile is of steps on xla; leave --device out")
    if args.steps < 1:
        parser.error(f"--steps must be at least 1, got {args.steps}")
    return args


def choose_mesh(mesh: dict[str, int] | None, devices: int | None) -> dict[str, int]:
    """Returns the mesh of --mesh and --devices together."""
    if mesh is None:
        return {"fsdp": 8 if devices is None else devices}
    if devices is not None and prod(mesh.values()) > devices:
        raise ValueError(f"--mesh needs {prod(mesh.values())} devices, --devices gives {devices}")
    return mesh


class Placement:
    """The placement of model and batch; this one is plain PyTorch on the CPU, so most of its methods do nothing."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.device = torch.device("cpu")
        self.rows = 1  # the smallest batch of which every device has a shard

    def wrap(self, model: nn.Module) -> nn.Module:
        return model

    def put(self, tokens: Tensor) -> Tensor:
        """Moves a batch to the device."""
        return tokens

    def load(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterable[tuple[Tensor, Tensor]]:
        """Returns the batches on the device."""
        return batches

    def sync(self) -> None:
        """Runs the recorded graph; the host does not wait for it."""

    def compiles(self) -> int:
        return 0

    def loaded(self) -> int:
        """Returns the number of programs that a start before has compiled."""
        return 0

    def table(self, model: nn.Module) -> Table | None:
        """Returns the table of the parameters' shardings and sizes."""

    def state_line(self, optimizer: torch.optim.Optimizer) -> str | None:
        """Returns the size of the optimizer's state."""


class MeshPlacement(Placement):
    """The `xla` device: FSDP over a mesh, the batch sharded over all of its axes."""

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

    def load(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterable[tuple[Tensor, Tensor]]:
        # Each process uploads its part of the next batches while the step runs.
        count, index = spmd.process_count(), spmd.process_index()
        parts = ((x.chunk(count)[index], y.chunk(count)[index]) for x, y in batches)
        return spmd.DataLoader(parts, self.mesh, self.batch_spec)

    def sync(self) -> None:
        spmd.sync()

    def compiles(self) -> int:
        return spmd.metrics.num_compiles()

    def loaded(self) -> int:
        return spmd.metrics.num_loaded()

    def table(self, model: nn.Module) -> Table:
        spmd.sync()
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh.shape().items())
        # Narrow enough for 80 columns, so that a log shows every name in full.
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        table.title, table.title_justify = f"Parameters and their shardings: mesh {axes}", "left"
        for heading in ("parameter", "shape", "spec"):
            table.add_column(heading, no_wrap=True)
        for heading in ("unsharded", "per device"):
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
        return "optimizer state: {} unsharded, {} per device".format(*sizes(state))


def join_names(names: Sequence[str]) -> str:
    """Returns "blocks.0-3.norm.bias" for the same parameter of layers 0 to 3."""
    last = re.search(r"\.(\d+)\.", names[-1])
    return names[0] if len(names) == 1 or last is None else re.sub(r"\.(\d+)\.", rf".\1-{last[1]}.", names[0], count=1)


def describe(parameter: Tensor) -> tuple[str, str]:
    """Returns a parameter's shape and, for each dim, the mesh axis that it is split over."""
    sharding = spmd.get_sharding(parameter)
    shape = str(tuple(parameter.shape))
    if sharding is None or sharding.is_replicated():
        return shape, "replicated"
    return shape, ", ".join(map(str, sharding.partition_spec(parameter.dim())))


def sizes(tensors: Sequence[Tensor]) -> tuple[str, str]:
    """Returns the sizes of tensors unsharded and on the fullest device, counted from their real shards."""
    per_device: dict[object, int] = {}
    for tensor in tensors:
        for shard in spmd.local_shards(tensor):
            per_device[shard.device] = per_device.get(shard.device, 0) + shard.data.nbytes
    unsharded = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return show_bytes(unsharded), show_bytes(max(per_device.values(), default=0))


def show_bytes(count: int) -> str:
    if count < 2**10:
        return f"{count} B"
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, targets: Tensor, *, clip: float
) -> Tensor:
    """Runs one step, written as for one device; returns its loss."""
    loss = cross_entropy(model(tokens), targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def plan(model: nn.Module, place: Placement, args: argparse.Namespace) -> spmd.Plan:
    """Returns the plan of a step on other devices; nothing is allocated for it."""
    optimizer = training.make_optimizer(model, args)
    tokens, targets = (place.put(torch.zeros(args.batch, args.sequence, dtype=torch.long)) for _ in range(2))
    return training.plan_step(train_step, model, optimizer, tokens, targets, clip=args.clip, target=args.target)


def train(
    model: nn.Module, place: Placement, corpus: text.Text, args: argparse.Namespace, console: Console, *, bigram: float
) -> History:
    """Runs the training loop, written as for one device."""
    optimizer = training.make_optimizer(model, args)
    schedule = training.make_schedule(optimizer, args)
    heldout = text.windows(corpus.heldout, batch=args.batch, sequence=args.sequence)
    batches = text.batches(corpus.train, batch=args.batch, sequence=args.sequence, seed=args.seed)
    history, reporter = History(), Reporter(console, args.steps, place.compiles)

    def update(tokens: Tensor, targets: Tensor) -> Tensor:
        loss = train_step(model, optimizer, tokens, targets, clip=args.clip)
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
        if step == 1 and (line := place.state_line(optimizer)):
            reporter.say(line)

    evaluate = partial(training.evaluate, model, loss_of, heldout)
    Loop(args, reporter, bigram, step, evaluate, after).run(place.load(batches), history)
    training.say_compiled(update, args, console)
    return history


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    started, console = time.perf_counter(), training.make_console()
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
    if spmd.process_index() == 0:
        training.draw(history, bigram=bigram, title=title, path=args.out / "loss.png")
    if args.sample:
        training.show_sample(
            model, lambda tokens: model(place.put(tokens)), corpus.heldout, args, console, rows=place.rows
        )
    heldout = history.heldout[-1][1]
    console.print(
        f"\nheld-out loss [bold]{heldout:.4f}[/bold] nats per byte, bigram table [bold]{bigram:.4f}[/bold]; "
        f"{place.compiles()} compiles, {place.loaded()} from disk, "
        f"{time.perf_counter() - started:.0f} s\n{args.out / 'loss.png'}",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()

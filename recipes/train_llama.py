"""Train a Llama on real English text: FSDP x tensor x sequence parallel on one mesh of eight
simulated devices.

    python recipes/train_llama.py                                # fsdp=4, tensor=2; bfloat16 over
                                                                 # float32 masters
    python recipes/train_llama.py --mesh data=2,fsdp=2,tensor=2  # two replicas of it
    python recipes/train_llama.py --mesh fsdp=8 --accumulate 1   # FSDP alone, the whole batch at
                                                                 # once
    python recipes/train_llama.py --compile                      # the step recorded once and
                                                                 # replayed
    python recipes/train_llama.py --save-every 100               # OUT/checkpoints/100, .../200, ...
    python recipes/train_llama.py --resume out/checkpoints/100   # continues from there, bit for bit
    python recipes/train_llama.py --target v5e:2x4               # plan the step for a TPU slice;
                                                                 # nothing is trained

The model (RMSNorm, rotary positions, SwiGLU, grouped-query attention: `llama.py`) is plain PyTorch.
Parameters, gradients and optimizer state are sharded over fsdp; heads, hidden units and vocabulary
over tensor, and between them residuals along the sequence; the batch over data and fsdp. Blocks are
recomputed in backward, and a step adds up the gradients of micro-batches. It prints its units, its
plan, the held-out loss before and after and a sample, and leaves OUT/loss.png. The same seed gives
the same batches and the same initial weights on any mesh.
"""

import argparse
import sys
import time
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import fsdp
import spmd
from recipes import llama, text, training
from recipes.llama import Llama, LlamaConfig, cross_entropy
from recipes.training import History, Loop, Reporter


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "--mesh",
        type=partial(training.parse_mesh, others=("data", "tensor")),
        default={"fsdp": 4, "tensor": 2},
        metavar="AXIS=SIZE,...",
        help="mesh axes in order: fsdp, data and tensor (default fsdp=4,tensor=2)",
    )
    training.add_place_flags(where)
    model = training.add_model_flags(parser)
    model.add_argument(
        "--kv-heads", type=int, default=4, metavar="N", help="heads of keys and values (default 4)"
    )
    model.add_argument(
        "--hidden",
        type=int,
        metavar="N",
        help="hidden units of a SwiGLU (default: 8/3 of the width)",
    )
    model.add_argument(
        "--no-checkpoint", action="store_true", help="keep the activations of blocks for backward"
    )
    more = training.add_training_flags(parser, steps=150, eval_every=50)
    more.add_argument(
        "--accumulate", type=int, default=2, metavar="N", help="micro-batches of a step (default 2)"
    )
    more.add_argument(
        "--save-every",
        type=int,
        metavar="N",
        help="steps between two checkpoints (default: at the end)",
    )
    more.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        help="a checkpoint to continue from, with the other flags as they were",
    )
    args = parser.parse_args(arguments)
    if wrong := fault(args):
        parser.error(wrong)
    return args


def fault(args: argparse.Namespace) -> str | None:
    """Returns the error of flags that contradict each other, or None."""
    tensor, sharing = (
        args.mesh.get("tensor", 1),
        prod(args.mesh.values()) // args.mesh.get("tensor", 1),
    )
    if args.width % args.heads or args.heads % args.kv_heads:
        return (
            f"--width {args.width}, --heads {args.heads}, --kv-heads {args.kv_heads}: each must "
            "divide the one before"
        )
    if args.batch % (args.accumulate * sharing):
        return (
            f"--batch {args.batch} must be a multiple of {args.accumulate * sharing}: "
            f"{args.accumulate} micro-batches (--accumulate) over {sharing} shares (data x fsdp)"
        )
    if args.resume and not (
        args.resume.name.isdecimal() and (args.resume / "manifest.json").is_file()
    ):
        return (
            f"--resume {args.resume} is no checkpoint: expected a folder that a run has saved, "
            "OUT/checkpoints/STEP"
        )
    for flag in ("kv_heads", "sequence"):
        if getattr(args, flag) % tensor:
            return (
                f"--{flag.replace('_', '-')} {getattr(args, flag)} must be a multiple of the "
                f"mesh's tensor={tensor}"
            )
    return None if args.steps > 0 else f"--steps must be at least 1, got {args.steps}"


def build(args: argparse.Namespace, mesh: spmd.Mesh) -> nn.Module:
    """Returns the wrapped model; no device ever holds all of it."""
    hidden = args.hidden or -(-args.width * 8 // 3 // 64) * 64
    config = LlamaConfig(
        layers=args.layers,
        width=args.width,
        heads=args.heads,
        kv_heads=args.kv_heads,
        hidden=hidden,
        sequence=args.sequence,
        checkpointed=not args.no_checkpoint,
    )
    with torch.device("xla"):
        model = Llama(config)
    return llama.fully_sharded(model, mesh)


def put(tokens: Tensor, mesh: spmd.Mesh) -> Tensor:
    """Shards a batch over the devices."""
    return spmd.mark_sharding(tokens.to("xla"), mesh, (llama.batch_axes(mesh), None))


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: list[tuple[Tensor, Tensor]],
    *,
    clip: float,
) -> Tensor:
    """Runs one step on micro-batches of one size, written as for one device; returns their mean
    loss."""
    losses = []
    for tokens, targets in batches:
        loss = cross_entropy(model(tokens), targets) / len(batches)
        loss.backward()
        losses.append(loss.detach())
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    return torch.stack(losses).sum()


class Run:
    """A model with its optimizer and schedule, and the checkpoints of the three."""

    def __init__(self, args: argparse.Namespace, mesh: spmd.Mesh) -> None:
        self.args, self.mesh = args, mesh
        self.model = build(args, mesh)
        self.optimizer = training.make_optimizer(self.model, args)
        self.schedule = training.make_schedule(self.optimizer, args)
        self.history = History()
        self.update = training.compiled(self.train_step, args)
        self.manager = spmd.CheckpointManager(
            args.out / "checkpoints", args.save_every or args.steps
        )
        # Not called state, a name that optimizers read: what changes in it would be a guard of the
        # compiled step.
        self.saved: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "history": vars(self.history),
            "done": 0,
        }

    def micro_batches(self, tokens: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
        parts = zip(
            tokens.chunk(self.args.accumulate), targets.chunk(self.args.accumulate), strict=True
        )
        return [(put(inputs, self.mesh), put(labels, self.mesh)) for inputs, labels in parts]

    def train_step(self, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
        loss = train_step(self.model, self.optimizer, batches, clip=self.args.clip)
        self.schedule.step()
        return loss

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        loss = self.update(self.micro_batches(tokens, targets))
        spmd.sync()
        return loss

    def plan(self) -> spmd.Plan:
        """Returns the plan of a step, here or on the devices of --target; nothing is allocated for
        it."""
        batch = torch.zeros(self.args.batch, self.args.sequence, dtype=torch.long)
        parts = self.micro_batches(batch, batch)
        given = self.model, self.optimizer, parts
        return training.plan_step(train_step, *given, clip=self.args.clip, target=self.args.target)

    def logits(self, tokens: Tensor) -> Tensor:
        return self.model(put(tokens, self.mesh))

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(self.logits(tokens), put(targets, self.mesh))

    def save(self, done: int) -> bool:
        """Writes OUT/checkpoints/DONE at each interval, at the end and before a preemption; returns
        True for the last."""
        self.saved["done"] = done
        self.manager.save(done, self.saved, force=done == self.args.steps)
        return self.manager.reached_preemption(done)

    def load(self, folder: Path) -> None:
        """Loads a checkpoint to continue from it; it may have been saved on another mesh."""
        spmd.CheckpointManager(folder.parent).restore(self.saved, int(folder.name))
        self.history = History(**self.saved["history"])
        self.saved["history"] = vars(self.history)


def train(
    run: Run, corpus: text.Text, args: argparse.Namespace, console: Console, *, bigram: float
) -> None:
    heldout = text.windows(corpus.heldout, batch=args.batch, sequence=args.sequence)
    batches = text.batches(corpus.train, batch=args.batch, sequence=args.sequence, seed=args.seed)
    evaluate = partial(training.evaluate, run.model, run.loss, heldout)

    loop = Loop(
        args,
        Reporter(console, args.steps, spmd.metrics.num_compiles),
        bigram,
        run.step,
        evaluate,
        run.save,
    )
    if run.saved["done"] == 0:
        loop.look(0, run.history)
    loop.run(batches, run.history, done=run.saved["done"])
    training.say_compiled(run.update, args, console)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    started, console = time.perf_counter(), training.make_console()
    # Before anything else touches the device: the number of devices is fixed when jax's backend
    # starts.
    spmd.simulate(prod(args.mesh.values()))
    if args.partitioner:
        spmd.config.partitioner = args.partitioner
    torch.manual_seed(args.seed)
    mesh = spmd.Mesh(range(prod(args.mesh.values())), tuple(args.mesh.values()), tuple(args.mesh))
    args.out.mkdir(parents=True, exist_ok=True)

    run = Run(args, mesh)
    console.print(str(fsdp.show(run.model)), markup=False, highlight=False, soft_wrap=True)
    planned = run.plan()
    planned.save(args.out / "plan.html")
    console.print(planned)
    if args.target:
        return
    if args.resume:
        run.load(args.resume)
        console.print(f"continues after step {run.saved['done']} of {args.resume}", highlight=False)

    corpus = text.load()
    bigram = text.bigram_loss(corpus)
    console.print(
        f"{len(corpus.train):,} bytes to train on, {len(corpus.heldout):,} held out",
        highlight=False,
    )
    train(run, corpus, args, console, bigram=bigram)
    if run.saved["done"] < args.steps:
        folder = run.manager.folder / str(run.saved["done"])
        console.print(
            f"preempted: --resume {folder} goes on from here", highlight=False, soft_wrap=True
        )
        return

    where = ", ".join(f"{name}={size}" for name, size in args.mesh.items())
    size = sum(parameter.numel() for parameter in run.model.parameters())
    title = f"A {size / 1e6:.1f}M-parameter Llama on Python's documentation ({where})"
    training.draw(run.history, bigram=bigram, title=title, path=args.out / "loss.png")
    if args.sample:
        rows = prod(args.mesh[name] for name in llama.batch_axes(mesh))
        training.show_sample(run.model, run.logits, corpus.heldout, args, console, rows=rows)
    (_, before), *_, (_, after) = run.history.heldout
    console.print(
        f"\nheld-out loss [bold]{before:.4f}[/bold] nats per byte before, "
        f"[bold]{after:.4f}[/bold] after; bigram table {bigram:.4f}; "
        f"{spmd.metrics.num_compiles()} compiles, {spmd.metrics.num_loaded()} from disk, "
        f"{time.perf_counter() - started:.0f} s\n"
        f"{args.out / 'loss.png'}",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()

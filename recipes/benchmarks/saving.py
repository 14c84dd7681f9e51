"""Time a training step while `spmd.CheckpointManager` saves the state in a thread.

    python recipes/benchmarks/saving.py                   # a GPT of 12 layers, width 256, over 8
                                                          # simulated devices
    python recipes/benchmarks/saving.py --compile         # the step by spmd.compile
    python recipes/benchmarks/saving.py --device-bytes 0  # no copies on the devices: steps wait
                                                          # instead
    python recipes/benchmarks/saving.py --sync            # `save`, which returns when the step is
                                                          # committed

"Blocked" is the time for which the call keeps the main thread, "copying" and "waited" the times for
which the following steps copy what they overwrite and wait for room for it. The writer's processor
time is its own: on simulated devices it and the copies share the cores with the step, on an
accelerator's host they do not. Steps read their loss, so that a step's time is that of its program.
"""

import argparse
import functools
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import fsdp
import spmd
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument(
        "--devices", type=int, default=8, help="simulated devices; 0: those that are here"
    )
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument(
        "--steps", type=int, default=6, help="steps between two saves (default %(default)s)"
    )
    parser.add_argument(
        "--device-bytes", type=int, help="room for copies (default: half of the free memory)"
    )
    parser.add_argument("--compile", action="store_true", help="the step by spmd.compile")
    parser.add_argument("--sync", action="store_true", help="save, and not save_async")
    parser.add_argument("--folder", type=Path, help="of the checkpoints (default: a temporary one)")
    return parser.parse_args(arguments)


class Training:
    """A GPT under FSDP, whose steps and saves are timed."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        mesh = spmd.Mesh(spmd.device_ids(), (len(spmd.device_ids()),), ("fsdp",))
        policy = functools.partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
        config = GPTConfig(layers=args.layers, width=args.width, heads=max(args.width // 64, 1))
        model = fsdp.FullyShardedDataParallel(GPT(config), mesh, auto_wrap_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens = torch.randint(config.vocabulary, (args.batch, config.sequence + 1))
        self.inputs, self.targets = (
            spmd.mark_sharding(half.contiguous().to("xla"), mesh, ("fsdp", None))
            for half in (tokens[:, :-1], tokens[:, 1:])
        )
        self.state = {
            "model": model,
            "optimizer": optimizer,
            "random": spmd.checkpoint.RandomState(),
            "step": 0,
        }

        def update(inputs: Tensor, targets: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            return loss.detach()

        self.update = spmd.compile(update) if args.compile else update

    def step(self) -> float:
        """Runs a step; returns its seconds."""
        begin = time.perf_counter()
        loss = self.update(self.inputs, self.targets)
        spmd.sync()
        loss.item()
        return time.perf_counter() - begin


def main() -> None:
    args = parse()
    if args.devices:
        spmd.simulate(args.devices)
    folder = Path(args.folder or tempfile.mkdtemp())
    training, console = Training(args), Console()
    manager = spmd.CheckpointManager(folder, keep=1, device_bytes=args.device_bytes)
    for _ in range(4):
        training.step()
    manager.save(0, training.state)  # the first one starts the thread's functions
    free = [training.step() for _ in range(args.steps)]
    table = Table(
        title=f"{args.layers} layers, width {args.width}, {len(spmd.device_ids())} devices; seconds"
    )
    for name in (
        "save",
        "blocked",
        "copying",
        "waited",
        "committed after",
        "writer's processor",
        "MB",
        "steps meanwhile",
    ):
        table.add_column(name, justify="right")
    blocked, longer = [], []
    for number in range(1, args.saves + 1):
        (manager.save if args.sync else manager.save_async)(number, training.state)
        report = manager.last_save
        assert report is not None
        during = []
        while report.path is None:
            during.append(training.step())
        manager.wait()
        blocked.append(report.seconds_blocked + report.seconds_copying + report.seconds_waited)
        longer.append((report.seconds_blocked, during))
        seconds = [
            f"{each:.4f}"
            for each in (report.seconds_blocked, report.seconds_copying, report.seconds_waited)
        ]
        meanwhile = " ".join(f"{each:.3f}" for each in during[:6])
        writer = (
            f"{report.seconds:.2f}",
            f"{report.processor_seconds:.3f}",
            f"{report.num_bytes / 1e6:.0f}",
        )
        table.add_row(str(number), *seconds, *writer, meanwhile)
        free += [training.step() for _ in range(args.steps)]
    console.print(table)
    share = median(blocked) / median(free)
    console.print(
        f"a step: {median(free):.4f} s; blocked, copying and waited: {median(blocked):.4f} s, "
        f"{share:.1%} of a step"
    )
    extra = [before + sum(during) - len(during) * median(free) for before, during in longer]
    console.print(
        f"a save: steps and its call take {median(extra):.4f} s longer, "
        f"{median(extra) / median(free):.1%} of a step"
    )
    if args.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

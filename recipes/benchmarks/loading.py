"""Time a training step that a loader feeds: a loop with `.to("xla")` against `spmd.DataLoader`.

    python recipes/benchmarks/loading.py                             # a source that takes half the
                                                                     # step's time, batches of 17 MB
    python recipes/benchmarks/loading.py --delay 0                   # a source that is ready at
                                                                     # once: the upload alone
    python recipes/benchmarks/loading.py --width 16384 --hidden 128  # batches of 67 MB, a small
                                                                     # model

The source waits (`--delay`, a part of the step's own time, which is measured first) as for a disk,
and fills one buffer again and again. The two loops alternate in one process, and read the loss
after each step (`--no-read`: at the end alone, so that the host runs ahead of the devices by
itself). "Waited" is the time in which the loop has no batch: in the source and, in the plain loop,
in `.to("xla")` and `mark_sharding`; each pass waits for its first batch.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import spmd


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--delay",
        type=float,
        default=0.5,
        metavar="STEPS",
        help="the source's wait (default half a step)",
    )
    parser.add_argument(
        "--rows", type=int, default=1024, help="rows of a batch (default %(default)s)"
    )
    parser.add_argument(
        "--width", type=int, default=4096, help="floats in a row (default %(default)s)"
    )
    parser.add_argument(
        "--hidden", type=int, default=512, help="width of the model (default %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=12, help="steps of a pass (default %(default)s)"
    )
    parser.add_argument(
        "--pairs", type=int, default=5, help="passes of each loop (default %(default)s)"
    )
    parser.add_argument(
        "--devices", type=int, default=8, help="simulated devices (default %(default)s)"
    )
    parser.add_argument(
        "--prefetch", type=int, default=2, help="batches uploaded ahead (default %(default)s)"
    )
    parser.add_argument(
        "--read", action=argparse.BooleanOptionalAction, default=True, help="read each step's loss"
    )
    return parser.parse_args(arguments)


class Source:
    """Batches of one buffer, each after a wait."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.steps, self.delay = args.steps, 0.0
        self.buffer = torch.randn(args.rows, args.width)

    def __iter__(self) -> Iterator[Tensor]:
        for step in range(self.steps):
            time.sleep(self.delay)
            self.buffer[:, 0] = step
            yield self.buffer


def make_step(args: argparse.Namespace) -> Callable[[Tensor], Tensor]:
    """Returns a training step; the loss is on the device."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(args.width, args.hidden), nn.GELU(), nn.Linear(args.hidden, 1)
    ).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(batch: Tensor) -> Tensor:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        spmd.sync()
        return loss.detach()

    return step


def timed(
    batches: Iterator[Tensor], step: Callable[[Tensor], Tensor], *, read: bool
) -> tuple[float, float, int]:
    """Returns the seconds of a pass, those that it waited for data, and its steps."""
    start, waited, count, loss = time.perf_counter(), 0.0, 0, None
    while True:
        before = time.perf_counter()
        batch = next(batches, None)
        waited += time.perf_counter() - before
        if batch is None:
            break
        loss, count = step(batch), count + 1
        if read:
            loss.item()
    if loss is not None:
        loss.item()
    return time.perf_counter() - start, waited, count


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    spmd.simulate(args.devices)
    mesh = spmd.Mesh(range(args.devices), (args.devices,), ("data",))
    source, spec = Source(args), spmd.P("data", None)
    loader = spmd.DataLoader(source, mesh, spec, prefetch=args.prefetch)
    step = make_step(args)

    def plain() -> Iterator[Tensor]:
        for batch in source:
            yield spmd.mark_sharding(batch.to("xla"), mesh, spec)

    loops = {'.to("xla")': plain, "spmd.DataLoader": lambda: iter(loader)}
    for make in loops.values():
        timed(make(), step, read=True)  # compiles
    programs = spmd.metrics.num_compiles()
    alone = timed(plain(), step, read=True)[0] / args.steps
    source.delay = args.delay * alone
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in loops}
    for _ in range(args.pairs):
        for name, make in loops.items():
            seconds, waited, count = timed(make(), step, read=args.read)
            found[name].append((seconds / count * 1e3, waited / count * 1e3))
    report(args, alone * 1e3, source.delay * 1e3, found)
    Console(width=140).print(
        f"{spmd.metrics.num_compiles() - programs} programs compiled while it was timed"
    )


def report(
    args: argparse.Namespace,
    alone: float,
    delay: float,
    found: dict[str, list[tuple[float, float]]],
) -> None:
    size = args.rows * args.width * 4 / 1e6
    table = Table(title_justify="left")
    table.title = (
        f"{size:.1f} MB a batch; the step alone {alone:.0f} ms, the source's wait {delay:.0f} ms"
    )
    for heading in ("loop", "ms a step", "waited for data, ms", "step against the first"):
        table.add_column(heading, justify="left" if heading == "loop" else "right")
    first = next(iter(found.values()))
    for name, passes in found.items():
        ratios = [mine[0] / other[0] for mine, other in zip(passes, first, strict=True)]
        ratio = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        table.add_row(name, *(f"{median(each):.1f}" for each in zip(*passes, strict=True)), ratio)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

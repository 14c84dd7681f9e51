"""A long run of one training step: memory, objects, programs, threads and open files after step
500, and its pace.

    python tests/soak.py                    # every kind, 3,000 steps each, in a process of its own
    python tests/soak.py fsdp --steps 1500  # one of them

Kinds: a loop recorded lazily, one by `spmd.compile`, one under FSDP over eight simulated devices,
and one whose batches have other numbers of rows. Fails where a thousand steps after step 500
allocate more than 1 MiB that is not freed, or ten objects, programs, threads or descriptors, or
where the last 40 steps took more than 1.1 of the processor time of steps 160 to 200. Resident is
what the process has of the system, with malloc's free blocks between its own: these grow by some
MiB until the buffers of all sizes have found their places, and on a machine with other load.
"""

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

KINDS = ("lazy", "compiled", "fsdp", "sizes")
SETTLED = 500
# The most of each figure; None: reported only.
MOST = {
    "MiB": 1.0,
    "resident MiB": None,
    "objects": 10.0,
    "arrays": 0.0,
    "programs": 0.0,
    "threads": 0.0,
    "descriptors": 0.0,
    "pace": 1.1,
}
ROWS = (8, 16, 24, 12, 20)  # of the batches of other sizes
Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)} (default: each)"
    )
    parser.add_argument("--steps", type=int, default=3000, help="at least 1,200 (default 3000)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := {*options.kinds} - {*KINDS}:
        parser.error(f"unknown kinds: {', '.join(sorted(unknown))}")
    if options.steps < 1200:
        parser.error("a soak has at least 1,200 steps")
    if options.inside:
        print(json.dumps(soak(options.kinds[0], options.steps)))
        return
    table = Table("kind", *MOST)
    faults = list[str]()
    for kind in options.kinds or KINDS:
        lines = subprocess.run(
            [sys.executable, __file__, kind, "--steps", str(options.steps), "--inside"],
            env=os.environ | {"PYTHONMALLOC": "malloc"},  # one count of all that is allocated
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
        figures: Figures = json.loads(lines.splitlines()[-1])
        table.add_row(kind, *(f"{figures[name]:.2f}" for name in MOST))
        faults += [
            f"{kind}: {figures[name]:.2f} {name}, at most {most}"
            for name, most in MOST.items()
            if most is not None and figures[name] > most
        ]
    Console(width=120).print(table)
    sys.exit("\n".join(faults) or None)


def soak(kind: str, steps: int) -> Figures:
    """The growth in 1,000 steps after step 500, and the pace of the last 40 steps."""
    step, seconds, first = step_of(kind), list[float](), Figures()
    for number in range(steps):
        if number == SETTLED:
            first = held()
        began = time.process_time()
        step(number)
        seconds.append(time.process_time() - began)
    thousands = (steps - SETTLED) / 1000
    growth = {name: (value - first[name]) / thousands for name, value in held().items()}
    pace = statistics.median(seconds[-40:]) / statistics.median(seconds[160:200])
    return {**growth, "pace": pace}


class _Malloc(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def held() -> Figures:
    """What the process holds, after a collection."""
    import jax

    import spmd
    from spmd.core.base import in_flight

    spmd.sync(wait=True)
    in_flight.wait()
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    libc.mallinfo2.restype = _Malloc
    malloc = libc.mallinfo2()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "MiB": (malloc.uordblks + malloc.hblkhd) / (1 << 20),
        "resident MiB": pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20),
        "objects": len(gc.get_objects()),
        "arrays": len(jax.live_arrays()),
        "programs": len(spmd.metrics.compiles()),
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def step_of(kind: str) -> Callable[[int], None]:
    """A training step of a small transformer, by its number."""
    import torch
    from torch import nn

    import fsdp
    import spmd

    if kind == "fsdp":
        spmd.simulate(8)
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(32, 2, 64, 0.1, batch_first=True) for _ in range(2)]
    model: nn.Module = nn.Sequential(nn.Embedding(64, 32), *layers, nn.Linear(32, 64)).to("xla")
    if kind == "fsdp":
        mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
        model = fsdp.FullyShardedDataParallel(
            model, mesh=mesh, auto_wrap_policy=fsdp.always_wrap_policy
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.01 * step))

    def train(ids: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        return loss

    play = spmd.compile(train) if kind == "compiled" else train
    generator = torch.Generator().manual_seed(0)

    def step(number: int) -> None:
        rows = ROWS[number % len(ROWS)] if kind == "sizes" else 8
        ids = torch.randint(0, 64, (rows, 17), generator=generator).to("xla")
        loss = play(ids)
        spmd.sync()
        if number % 10 == 0:
            loss.item()

    return step


if __name__ == "__main__":
    main()

"""Time `spmd.verify` of a training step on eight simulated devices against the first run of that
step.

    python recipes/benchmarks/verify.py             # encoder layers of torch.nn with AdamW: 2 and 4
                                                    # of them
    python recipes/benchmarks/verify.py --layers 8  # others

A step of one layer runs first, so that neither has to import modules or to start thread pools.
Seconds of the clock are those of a machine with nothing else to do; seconds of the processors are
the same under other load.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import spmd

WIDTH, ROWS, LENGTH = 64, 16, 12


class Seconds(NamedTuple):
    """The seconds of one call, by the clock and of the processors."""

    clock: float
    processors: float


def training(layers: int) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True),
        layers,
        enable_nested_tensor=False,
    )
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: Tensor) -> Tensor:
        loss: Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return model, step


def timed(function: Callable[[], Any]) -> Seconds:
    started, used = time.monotonic(), time.process_time()
    function()
    return Seconds(time.monotonic() - started, time.process_time() - used)


def first_run(layers: int, mesh: spmd.Mesh) -> None:
    """The first run of the step over the mesh: recorded, compiled, run."""
    model, step = training(layers)
    model.to("xla")
    step(spmd.mark_sharding(torch.randn(ROWS, LENGTH, WIDTH).to("xla"), mesh, ("data", None, None)))
    spmd.sync(wait=True)


def verification(layers: int, mesh: spmd.Mesh) -> None:
    _, step = training(layers)
    spmd.verify(
        step, torch.randn(ROWS, LENGTH, WIDTH), meshes=[mesh], progress=False
    ).raise_on_difference()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4])
    arguments = parser.parse_args()
    spmd.config.program_cache = False  # programs from the disk would not be compiled
    mesh = spmd.Mesh(range(8), (8,), ("data",))
    first_run(1, mesh)
    verification(1, mesh)
    for layers in arguments.layers:
        one, all_of_them = (
            timed(partial(each, layers, mesh)) for each in (first_run, verification)
        )
        print(
            f"{layers} layers: first run {one.clock:.1f} s, verify {all_of_them.clock:.1f} s, "
            f"{all_of_them.clock / one.clock:.2f} times as long; of the processors "
            f"{one.processors:.1f} s and {all_of_them.processors:.1f} s, "
            f"{all_of_them.processors / one.processors:.2f} times"
        )


if __name__ == "__main__":
    spmd.simulate(8)
    main()

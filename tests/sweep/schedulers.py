"""Every scheduler of torch.optim.lr_scheduler on optimizers on `xla` against CPU, without a program
for each new rate.

python tests/sweep/schedulers.py --ways SGD,Adam,tensor_lr,fused
"""

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sweep import cases
from sweep.cases import Outcome, Pair
from sweep.command import UNTRIED, Result, Sweep, main

import spmd

SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], o
    ),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=2),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 4),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3, mode="triangular2"),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=5),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 4]),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 6, power=2.0),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=0.9),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
}
NAMES = tuple(SCHEDULERS)

# (name, way) -> reason.
EXPECTED: dict[tuple[str, str], str] = {}


def _rate(device: str) -> torch.Tensor:
    return torch.tensor(0.05, device=device)


OPTIMIZERS: dict[str, Callable[[Any, str], Optimizer]] = {
    "SGD": lambda p, device: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "Adam": lambda p, device: torch.optim.Adam(p, lr=0.05),
    "tensor_lr": lambda p, device: torch.optim.Adam(
        p, lr=_rate(device), capturable=device == "xla", foreach=False
    ),
    "fused": lambda p, device: torch.optim.AdamW(p, lr=0.05, fused=True),
}

STEPS = 8


def train(name: str, way: str, counts: list[int], device: str, wide: bool = False) -> list[Any]:
    """Parameters and rates after steps of one optimizer under one scheduler, whose state is
    reloaded in between."""
    dtype = torch.float64 if wide else torch.float32
    values = [torch.linspace(0.5, 1.5, 6).view(2, 3), torch.linspace(1.0, 2.0, 4)]
    parameters = [nn.Parameter(value.to(device, dtype)) for value in values]
    optimizer = OPTIMIZERS[way](parameters, device)
    scheduler = SCHEDULERS[name](optimizer)
    counts.clear()
    rates = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = torch.stack([parameter.square().sum() for parameter in parameters]).sum()
        loss.backward()
        optimizer.step()
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            scheduler.step(1.0)
        else:
            scheduler.step()
        if step == STEPS // 2:
            state = scheduler.state_dict()
            scheduler.load_state_dict(state)
        rate = optimizer.param_groups[0]["lr"]
        rates.append(rate.clone() if isinstance(rate, torch.Tensor) else rate)
        spmd.sync()
        counts.append(spmd.metrics.num_compiles())
    return [*(parameter.detach() for parameter in parameters), *rates]


def tried(name: str, way: str, outcome: Outcome) -> None:
    """One scheduler with one optimizer."""
    counts: list[int] = []
    on = functools.partial(train, name, way, counts)
    found = outcome.both(name, on)
    if found is not None:
        # A rate that is a tensor is computed in the program, by another formula where the scheduler
        # has another phase.
        steady = STEPS - 3 if way == "tensor_lr" else 2
        outcome.same(f"programs after step {steady + 1}", counts[-1], counts[steady])
        outcome.check([Pair(name, *found, functools.partial(on, "cpu", wide=True))])


def run_named(name: str, way: str, count: int = 0) -> Result:
    """One scheduler with one optimizer, by their names; there is one sample."""
    if name == "CyclicLR" and way != "SGD":
        return Result(name, way, UNTRIED)  # cycles a momentum, which only SGD has
    return cases.run(name, way, functools.partial(tried, name, way))[0]


def is_expected(name: str, way: str) -> bool:
    """True for a scheduler that is known to fail with an optimizer."""
    return (name, way) in EXPECTED


def all_schedulers() -> set[str]:
    """The classes that torch has."""
    return {
        name
        for name, kind in inspect.getmembers(lr_scheduler, inspect.isclass)
        if issubclass(kind, lr_scheduler.LRScheduler)
        and name not in ("LRScheduler", "_LRScheduler")
    }


if __name__ == "__main__":
    title = "schedulers of torch.optim.lr_scheduler, xla against CPU"
    main(
        Sweep(__file__, title, __doc__, NAMES, "ways", ",".join(OPTIMIZERS), run_named, is_expected)
    )

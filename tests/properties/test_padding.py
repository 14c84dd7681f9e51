"""Chains of ops over a dim whose length only the run knows: the numbers of that length, whatever
stands behind it."""

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import spmd

CAPACITY, WIDTH, CHAINS = 16, 4, 12
# From (n, 4) to (n, 4): what keeps the length; each is differentiable.
KEEPING: list[Callable[[Tensor], Tensor]] = [
    torch.tanh,
    lambda x: x * 2 + 1,
    lambda x: x.softmax(0),
    lambda x: x.softmax(1),
    lambda x: x.cumsum(0) * 0.1,
    lambda x: torch.where(x > 0, x, x.exp()),
    lambda x: x.t().contiguous().t(),
    lambda x: x.view(-1, 2, 2).transpose(1, 2).reshape(-1, 4),
    lambda x: x @ torch.linspace(-1, 1, 16).view(4, 4).to(x.device),
    lambda x: torch.cat([x[:, 2:], x[:, :2]], 1),
    lambda x: x - x.mean(0, keepdim=True),
    lambda x: x / (1 + x.abs().amax(0)),
    lambda x: x * x[-1] - x[0],
    lambda x: torch.stack([x, x * 2], 1).sum(1),
    lambda x: x.log_softmax(1),
    lambda x: (x @ x.t()).tril() @ x * 0.1,
]
# From (n, 4) to a shape of its own.
ENDING: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.sum(0), lambda x: x.mean(), lambda x: x.amax(0), lambda x: x.amin(),
    lambda x: x.norm(), lambda x: x.argmax(0), lambda x: (x > 0).sum(), lambda x: x.logsumexp(0),
    lambda x: x[-1] * 2, lambda x: x.t() @ x, lambda x: (x > -9).all(),
    lambda x: torch.cat([x, x[:2]]).sum(0), lambda x: x.tanh().prod(0),
    lambda x: torch.zeros(5, 4, device=x.device).index_put(((x[:, 0] > 0).long() + 1,), x, True),
]  # fmt: skip


def chain(seed: int) -> Callable[[Tensor], Tensor]:
    draw = random.Random(seed)
    ops = [*draw.sample(KEEPING, draw.randrange(1, 4)), draw.choice(ENDING)]

    def run(x: Tensor) -> Tensor:
        for op in ops:
            x = op(x)
        return x

    return run


@pytest.fixture(autouse=True)
def quiet() -> None:
    """Nothing of another test is pending."""
    spmd.sync()


@pytest.mark.parametrize("seed", range(2))
def test_any_length(seed: int) -> None:
    chains = [chain(CHAINS * seed + index) for index in range(CHAINS)]
    torch.manual_seed(seed)
    data = torch.randn(2 * CAPACITY, WIDTH)
    data[CAPACITY:] = math.nan
    there = data.to("xla")
    lengths = [3, 4, *random.Random(seed).sample(range(5, CAPACITY), 4)]
    before = spmd.metrics.num_compiles()
    for length in lengths:
        made = [run(there[:length]) for run in chains]
        spmd.sync()
        for index, (run, actual) in enumerate(zip(chains, made, strict=True)):
            torch.testing.assert_close(
                actual.cpu(),
                run(data[:length]),
                rtol=1e-4,
                atol=1e-5,
                msg=lambda text, index=index, length=length: (
                    f"chain {index} at length {length}: {text}"
                ),
            )
    assert spmd.metrics.num_compiles() - before < len(lengths), (
        "each length was a program of its own"
    )

"""Rows of experts in parts, by the kernels of TPUs, of no expert; and what plans count of them."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor, nn

import spmd
from spmd.core.programs import cache
from spmd.core.programs.hlo import Module
from spmd.ops.kernels import grouped
from spmd.parallel import expert_choice

from . import moe
from .moe import EXCHANGES, Case, layout

pytestmark = pytest.mark.partitioned("rows of experts")

BOTH = layout(("fsdp", "expert"), fsdp=2, expert=4)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    spmd.metrics.clear()
    yield
    cache.clear_cache()


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("most", [1, 4096])
def test_parts(exchange: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that take too much memory are computed in parts: two in a row, or more in a loop."""
    monkeypatch.setattr(spmd.config, "parallel", exchange)
    monkeypatch.setattr(expert_choice, "MOST_ROWS", most)
    monkeypatch.setattr(expert_choice, "BLOCK", 8)
    moe.as_on_one_device(Case(routing="skewed"), BOTH)
    moe.check_fused(exchange)


@pytest.mark.parametrize("most", [1 << 30, 4096])
def test_kernels(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The TPU's kernels, interpreted: transposed weights, sums that are added to those of parts
    before."""
    case = Case(routing="skewed", dtype=torch.float32)
    expected = moe.on_one_device(case)
    monkeypatch.setattr(spmd.config, "parallel", "all-to-all")
    monkeypatch.setattr(grouped, "INTERPRET", True)
    monkeypatch.setattr(expert_choice, "MOST_ROWS", most)
    monkeypatch.setattr(expert_choice, "BLOCK", 8)
    moe.close(case.results(over=BOTH), expected, 1e-5)
    moe.check_fused("all-to-all")


class OfCapacity(nn.Module):
    """A router whose choices beyond an expert's capacity are of no expert, and have no weight."""

    def __init__(self, router: nn.Module, experts: int, capacity: float) -> None:
        super().__init__()
        self.router, self.experts, self.capacity = router, experts, capacity

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, weights, choices = self.router(x)
        flat, size = choices.reshape(-1), int(self.capacity * choices.numel() / self.experts)
        ranks = (
            nn.functional.one_hot(flat, self.experts)
            .cumsum(0)
            .gather(1, flat[:, None])
            .reshape(choices.shape)
        )
        return (
            logits,
            weights.masked_fill(ranks > size, 0.0),
            choices.where(ranks <= size, self.experts),
        )


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("name", ["mixtral", "gpt-oss"])
def test_choices_of_no_expert(name: str, exchange: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with a capacity: its dropped choices add nothing, and have no gradient."""
    monkeypatch.setattr(spmd.config, "parallel", exchange)
    case = Case(name, routing="one")

    def results(device: str, form: str, **over: Any) -> moe.Tensors:
        block = case.block()
        place = "router" if hasattr(block, "router") else "gate"
        setattr(block, place, OfCapacity(getattr(block, place), case.experts, 0.5))
        block.experts._is_expert_parallel, block.experts.config._experts_implementation = True, form
        with moe.Doubles():
            return moe.results(block.to(device), case.inputs().to(device), **over)

    ours = results("xla", "grouped_mm", over=BOTH)
    moe.close(ours, results("cpu", "batched_mm"), 1e-12)
    moe.check_fused(exchange)


def test_iterations_that_a_scope_expects() -> None:
    """Figures count a loop that ends by its data as often as its scope says."""

    def run(x: jax.Array, expected: int) -> jax.Array:
        with jax.named_scope(f"iterations={expected}"):
            return jax.lax.while_loop(lambda x: jnp.sum(x) < 100, lambda x: x @ x, x)

    for expected in (0, 3):
        module = Module(
            jax.jit(partial(run, expected=expected)).lower(jnp.ones((8, 8))).compile().as_text()
        )
        assert len(module.unknown) == 1
        bodies = {
            line.called[-1][1]
            for each in module.computations.values()
            for line in each.lines
            if line.opcode == "while"
        }
        assert {module.computations[name].count for name in bodies} == {expected}

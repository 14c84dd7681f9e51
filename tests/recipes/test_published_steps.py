"""recipes/benchmarks/published_steps.py: rows are as their sources say, and what they keep is what
their plans keep."""

from typing import Any

import pytest
import torch
from support import ROOT
from torch import nn

import spmd
from recipes.benchmarks import published_models
from recipes.benchmarks.published_models import AdamW, name_values, policy_of
from recipes.benchmarks.published_rows import (
    CONTEXT,
    INPUT,
    KEY,
    LATER,
    MLP_OUT,
    OUT,
    QUERY,
    ROWS,
    VALUE,
    Recompute,
    Row,
)
from recipes.benchmarks.published_steps import held_out
from recipes.llama import Block, LlamaConfig
from spmd.core.programs import cache


class TestRows:
    """A row has one published figure, and is in one half or in none."""

    @pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
    def test_figures(self, row: Row) -> None:
        assert bool(row.rate) is not bool(row.seconds)
        assert 0.1 < row.published < 400
        policy_of(row.recompute)  # none is both kept and offloaded

    def test_a_chip_of_two_devices(self) -> None:
        row = Row("", "", "tpu7x:2x2x1", 8, 2, 1024, "", rate=512)
        assert row.published == 8  # both devices compute two sequences

    def test_halves(self) -> None:
        names, told = held_out(ROWS), {row.name for row in ROWS if row.unknown}
        assert (
            len(names - LATER) == (len(ROWS) - len(told) - len(LATER)) // 2
            and names - told >= LATER
        )
        assert names == held_out(tuple(reversed(ROWS))) != held_out(ROWS, seed=1)


def step(recompute: Recompute) -> tuple[Any, list[torch.Tensor]]:
    """The record of the program of two layers, and their gradients."""
    torch.manual_seed(0)
    layers = nn.ModuleList(Block(LlamaConfig()) for _ in range(2))
    published_models._recompute(layers, recompute)
    layers.to("xla")
    x = torch.randn(2, 256, 64).to("xla").requires_grad_()
    angles = torch.zeros(256, 8).to("xla")
    hidden = x
    for layer in layers:
        hidden = layer(hidden, angles.cos(), angles.sin())
    hidden.sum().backward()
    spmd.sync()
    program = cache.last_program()
    assert program is not None
    return program.record, [
        x.grad.cpu(),
        *(parameter.grad.cpu() for parameter in layers.parameters()),
    ]


class TestRecompute:
    """Values by MaxText's names are kept: less is computed again, and gradients stay."""

    def test_less_is_computed_again(self) -> None:
        most, expected = step(Recompute())
        policies = {
            "projections": Recompute(kept=(QUERY, KEY, VALUE)),
            "projections and attention": Recompute(kept=(QUERY, KEY, VALUE, CONTEXT)),
            "all but the MLP": Recompute(kept=(QUERY, KEY, VALUE, CONTEXT, OUT, MLP_OUT)),
            "nothing": Recompute(layers="none"),
        }
        flops = [most.flops]
        for recompute in policies.values():
            record, grads = step(recompute)
            flops.append(record.flops)
            for actual, grad in zip(grads, expected, strict=True):
                torch.testing.assert_close(actual, grad, rtol=1e-5, atol=1e-5)
        assert flops == sorted(flops, reverse=True) and len({*flops}) == len(flops)

    def test_alternate_layers(self) -> None:
        flops = [step(Recompute(layers=layers))[0].flops for layers in ("all", "alternate", "none")]
        assert flops[0] > flops[1] > flops[2]

    def test_ops(self) -> None:
        assert step(Recompute())[0].flops > step(Recompute(ops=True))[0].flops

    def test_names(self) -> None:
        decide = policy_of(Recompute(kept=(KEY,), offloaded=(INPUT, CONTEXT))).decide
        assert (
            decide("spmd.checkpoint_name", KEY) == "save"
            and decide("spmd.checkpoint_name", INPUT) == "offload"
        )
        assert decide("aten._scaled_dot_product_fused_attention_overrideable.default") == "offload"
        with pytest.raises(ValueError, match="Linear has no module for 'key_proj'"):
            name_values(nn.Linear(2, 2), [KEY])


def test_moments() -> None:
    """The first moment is bfloat16 between steps; an update is torch's within its rounding."""
    parameters = [nn.Parameter(torch.ones(64)) for _ in range(2)]
    ours, theirs = AdamW([parameters[0]], lr=0.1), torch.optim.AdamW([parameters[1]], lr=0.1)
    ours.moment = torch.bfloat16
    for scale in (1.0, -0.3):
        for parameter, optimizer in zip(parameters, (ours, theirs), strict=True):
            parameter.grad = torch.linspace(-1, 1, 64) * scale
            optimizer.step()
    assert ours.state[parameters[0]]["exp_avg"].dtype == torch.bfloat16
    torch.testing.assert_close(*parameters, rtol=0, atol=2e-3)


def test_rows_of_pytorch_xla_stand_in_the_page() -> None:
    page = " ".join((ROOT / "docs/planning.md").read_text().split())
    for name, time in (
        ("gpt2-16b-v4-32", "7.333 s, 39 % of the peak"),
        ("mixtral-8x7b-xla-v5p-128", "280.6 s"),
    ):
        row = next(row for row in ROWS if row.name == name)
        assert f"{row.published:.4g} s" == time.partition(",")[0] and row.unknown
        assert f"{row.batch} x {row.sequence:,}" in page and f"| {time}" in page
    assert (
        "Batch, length and recomputation are not known" in page
        and "The time of one step is not known" in page
    )

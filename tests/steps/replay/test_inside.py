"""`spmd.compile` of steps whose model annotates, maps over shards, scans, recomputes, calls JAX and
offloads."""

from typing import Any

import jax
import pytest
import torch
from compiled_steps import Training, both
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import spmd
from spmd import P

pytestmark = [
    # torch's own lines, at the import of inductor and in its trace of a tensor with a history
    pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning"),
    pytest.mark.filterwarnings(
        "ignore:.*grad attribute of a Tensor that is not a leaf:UserWarning"
    ),
]

MESH = spmd.Mesh(range(8), (4, 2), ("data", "model"))


class Inside(nn.Module):
    """A model with all of it: 4 features in, 3 classes out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.cell, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.product = spmd.shard_map(
            self.of_shard, MESH, (P("data", "model"), P("model", None)), P("data")
        )

    @staticmethod
    def of_shard(x: Tensor, weight: Tensor) -> Tensor:
        return spmd.manual.all_reduce(x @ weight, "sum", "model")

    def block(self, x: Tensor) -> Tensor:
        return spmd.mark_sharding(
            self.cell(nn.functional.dropout(x, 0.2)).exp(), MESH, P("data", "model")
        ).sin()

    def forward(self, x: Tensor) -> Tensor:
        x = spmd.mark_sharding(self.first(x), MESH, P("data", "model"))
        x = checkpoint(self.block, x, use_reentrant=False)
        x = spmd.call_jax(jax.nn.silu, x)
        with torch.autograd.graph.save_on_cpu():
            x = torch.tanh(x)
        _, x = spmd.scan(
            lambda total, row: (total + row, torch.tanh(self.cell(total + row))), x[0] * 0, x
        )
        return self.product(x, self.last.weight.t()) + self.last.bias


def training(wrap: Any) -> Training:
    torch.manual_seed(0)
    model = Inside().to("xla")
    for parameter in model.parameters():
        spmd.mark_sharding(parameter, MESH, (None,) * parameter.dim())
    return Training(wrap(model), torch.optim.AdamW(model.parameters(), lr=0.05))


class TestInside:
    """Losses and parameters are those of the plain step, bit for bit; all but the first calls are
    replayed."""

    def test_plain_model(self) -> None:
        compiled = both(lambda: training(lambda model: model))
        assert compiled.num_recorded <= 3, compiled.explain()

    def test_compiled_model(self) -> None:
        torch._dynamo.reset()
        compiled = both(
            lambda: training(lambda model: torch.compile(model, backend="xla", fullgraph=True))
        )
        assert compiled.num_recorded <= 3, compiled.explain()
        torch._dynamo.reset()

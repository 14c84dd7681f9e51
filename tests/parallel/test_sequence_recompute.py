"""Dropout in the ring whose layers are computed again in backward: the same probabilities are
dropped."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import spmd
from spmd.core.programs import cache

from .decoder import Layer, close, decoder, marked, next_token_loss, results, sharded, tokens

pytestmark = pytest.mark.partitioned("recomputation over a sharded sequence")

Run = Callable[[nn.Module, Tensor], Tensor]
RUNS: dict[str, Run] = {
    "torch": partial(checkpoint, use_reentrant=False),
    "reentrant": partial(checkpoint, use_reentrant=True),
    "products are kept": lambda layer, x: spmd.remat(layer, policy="dots")(x),
}


def kept(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)


def step(run: Run, mesh: spmd.Mesh | None) -> list[Tensor]:
    """The loss and gradients of a seed's dropout; mesh None: on one device."""
    model, ids = decoder(0.3, run), tokens(2, 32)
    model = model.to("xla") if mesh is None else sharded(model, Layer, mesh)
    torch.manual_seed(5)
    return results(
        next_token_loss(model, ids.to("xla") if mesh is None else marked(ids, mesh)), model
    )


@pytest.mark.parametrize(
    "name", ["torch", *(pytest.param(name, marks=pytest.mark.long) for name in [*RUNS][1:])]
)
def test_dropout(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spmd.config, "parallel", "ring")
    mesh = spmd.Mesh(range(8), (2, 4), ("fsdp", "context"))
    cache.clear_cache()
    spmd.metrics.clear()
    recomputed = step(RUNS[name], mesh)
    (record,) = spmd.metrics.compiles()
    assert any("attention over context: ring" in words for _, words in record.passes)
    close(recomputed, step(kept, mesh))
    close(recomputed, step(kept, None))
    # without dropout
    assert (recomputed[0] - next_token_loss(decoder(), tokens(2, 32))).abs() > 1e-4
    # the ring is computed once more in backward
    assert (
        record.collectives["collective-permute"]
        > spmd.metrics.compiles()[1].collectives["collective-permute"]
    )

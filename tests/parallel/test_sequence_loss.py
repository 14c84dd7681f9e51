"""The loss over a large vocabulary of a sharded sequence: values and gradients of one device, no
hidden state moves."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import spmd
from spmd import P
from spmd.core.programs import cache
from spmd.ops import linear_cross_entropy as ops

from .decoder import Decoder, close, decoder, results, tokens

pytestmark = pytest.mark.partitioned("loss over a sharded sequence")

BATCH, LENGTH, WIDTH, CLASSES = 4, 64, 32, 48


@pytest.fixture(autouse=True)
def chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Eight classes are a chunk."""
    cache.clear_cache()
    spmd.metrics.clear()
    monkeypatch.setattr(ops, "FEWEST", 8)
    monkeypatch.setattr(ops, "WIDTH", 8)
    yield
    cache.clear_cache()


@pytest.fixture
def mesh() -> spmd.Mesh:
    return spmd.Mesh(range(8), (2, 4), ("data", "context"))


def shifted(ids: Tensor) -> Tensor:
    """The token after each; the last has none."""
    return F.pad(ids[:, 1:], (0, 1), value=-100)


def chunked(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return spmd.linear_cross_entropy(hidden, weight, shifted(ids), max_bytes=1)


def plain(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """As scripts have it: the last logits are cut off."""
    return F.cross_entropy(F.linear(hidden, weight)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def flat(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """As transformers has it, which merges batch and rows; the head becomes chunks."""
    return F.cross_entropy(F.linear(hidden, weight).view(-1, CLASSES), shifted(ids).view(-1))


def transposed(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Classes are the second dim, as `F.cross_entropy` has them; no dims are merged."""
    return F.cross_entropy(F.linear(hidden, weight).transpose(1, 2), shifted(ids))


def moved_over_context() -> list[str]:
    """The collectives over the sequence but for sums, and the exchange of a token with a
    neighbour."""
    rows = [
        row for record in spmd.metrics.compiles() for row in record.traffic if "context" in row.axes
    ]
    is_halo = lambda row: row.kind == "collective-permute" and row.bytes <= BATCH * 8  # noqa: E731
    return [str(row) for row in rows if row.kind != "all-reduce" and not is_halo(row)]


def of_head(
    loss: Callable[..., Tensor], mesh: spmd.Mesh | None, by_class: str | None = None
) -> list[Tensor]:
    """A loss, and the gradients of hidden states and of the head's weight."""
    torch.manual_seed(0)
    device, ids = "cpu" if mesh is None else "xla", tokens(BATCH, LENGTH)
    hidden, weight = (
        torch.randn(s, dtype=torch.float64) for s in ((BATCH, LENGTH, WIDTH), (CLASSES, WIDTH))
    )
    hidden, weight, ids = hidden.to(device), weight.to(device), ids.to(device)
    if mesh is not None:
        spmd.mark_sharding(hidden, mesh, P("data", "context", None))
        spmd.mark_sharding(ids, mesh, P("data", "context"))
        spmd.mark_sharding(weight, mesh, P(by_class, None))
    found = loss(hidden.requires_grad_(), weight.requires_grad_(), ids)
    return [x.detach().cpu() for x in (found, *torch.autograd.grad(found, [hidden, weight]))]


@pytest.mark.parametrize("loss", [chunked, flat, transposed])
def test_head(
    loss: Callable[..., Tensor], mesh: spmd.Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spmd.config, "max_logits_bytes", 1 if loss is flat else 1 << 30)
    close(of_head(loss, mesh), of_head(plain, None))
    assert moved_over_context() == []


@pytest.mark.parametrize("by_class", [None, "data"])
def test_numbers_of_shifted_logits(
    by_class: str | None, mesh: spmd.Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of plain code, of which the head becomes chunks."""
    monkeypatch.setattr(spmd.config, "max_logits_bytes", 1)
    close(of_head(plain, mesh, by_class), of_head(plain, None))


@pytest.mark.parametrize("batch", [2, 4])
def test_decoder(batch: int, mesh: spmd.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """Embedding, norms, rotary positions, MLP, head and loss stay with their rows; only keys and
    values travel."""
    monkeypatch.setattr(spmd.config, "parallel", "ring")

    def step(model: Decoder, ids: Tensor) -> list[Tensor]:
        return results(chunked(model.hidden(ids), model.head.weight, ids), model)

    ids = tokens(batch, LENGTH)
    found = step(decoder().to("xla"), spmd.mark_sharding(ids.to("xla"), mesh, P("data", "context")))
    close(found, step(decoder(), ids))
    moved = moved_over_context()
    assert moved and all("collective-permute" in row and "attention" in row for row in moved), moved

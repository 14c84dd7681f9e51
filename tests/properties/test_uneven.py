"""Programs over dims that a mesh does not divide, drawn by a seed, agree with the CPU; so do a last
short batch's step, and the comparison finds what is put wrong."""

import pytest
import torch
from support import check
from torch import nn
from torch.nn import functional as F
from uneven import FAMILIES, differences

import spmd
from spmd import Mesh, P
from spmd.core.programs import cache, compiler

PROGRAMS = 12  # of one case; they share a sync


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("share", range(4))
def test_drawn(share: int, partitioner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spmd.config, "partitioner", partitioner)
    first = 1_000_000 + PROGRAMS * share
    wrong = differences(range(first, first + PROGRAMS))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_last_batch(partitioner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss and the gradients of each batch of 16 and of the last one of 13, over one axis of
    two."""
    monkeypatch.setattr(spmd.config, "partitioner", partitioner)
    mesh = Mesh(range(8), (4, 2), ("data", "model"))
    ids, targets = torch.randint(9, (29, 7)), torch.randint(5, (29,))
    ends = torch.randint(7, (29,))

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(9, 6), nn.Linear(6, 5)

        def forward(self, ids: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            hidden = self.table(ids).cumsum(1)
            return self.head(hidden[torch.arange(len(ids), device=ids.device), ends].tanh())

    model = Classifier()
    copy = Classifier().to("xla")
    copy.load_state_dict(model.state_dict())
    spmd.mark_sharding(copy.table.weight, mesh, P(None, "model"))
    parts = [slice(0, 16), slice(16, 29)]
    batches = [{"ids": ids[part], "ends": ends[part], "targets": targets[part]} for part in parts]
    loader = spmd.DataLoader(
        batches, mesh, {"ids": P("data", None)}, default=P("data"), last="keep"
    )
    for part, batch in zip(parts, loader, strict=True):
        expected = F.cross_entropy(model(ids[part], ends[part]), targets[part])
        loss = F.cross_entropy(copy(batch["ids"], batch["ends"]), batch["targets"])
        wanted = torch.autograd.grad(expected, list(model.parameters()))
        grads = torch.autograd.grad(loss, list(copy.parameters()))
        for one, other in zip((loss, *grads), (expected, *wanted), strict=True):
            check(one, other)


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_lowering_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the padding of scatters the same seeds disagree."""
    monkeypatch.setattr(compiler, "pad_scatters", lambda module, num_devices: None)
    cache.clear_cache()
    monkeypatch.setattr("uneven.FAMILIES", {"reads": FAMILIES["reads"]})
    assert differences(range(6))
    cache.clear_cache()

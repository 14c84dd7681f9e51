"""Losses against torch on CPU, under every reduction."""

import pytest
import torch
from support import Batch
from torch.nn import functional as F

REDUCTIONS = ["none", "mean", "sum"]


def losses(batch: Batch, dtype: torch.dtype) -> None:
    logits, weight = torch.randn(8, 5).to(dtype), torch.rand(5).to(dtype) + 0.5
    target = torch.tensor([0, 4, -100, 2, 1, -100, 3, 0])
    x, y = torch.randn(8, 3).to(dtype), torch.randn(8, 3).to(dtype)
    p, q = torch.rand(8, 3).to(dtype) * 0.8 + 0.1, torch.rand(8, 3).to(dtype)
    for r in REDUCTIONS:
        batch.case(f"cross_entropy {r}", lambda x, t, r=r: F.cross_entropy(x, t, reduction=r), logits, target)
        batch.case(
            f"cross_entropy weight {r}",
            lambda x, t, w, r=r: F.cross_entropy(x, t, w.detach(), reduction=r),
            logits,
            target,
            weight,
        )
        batch.case(f"mse {r}", lambda x, y, r=r: F.mse_loss(x, y, reduction=r), x, y)
        batch.case(f"l1 {r}", lambda x, y, r=r: F.l1_loss(x, y, reduction=r), x, y)
        batch.case(f"smooth_l1 {r}", lambda x, y, r=r: F.smooth_l1_loss(x, y, reduction=r, beta=0.7), x, y)
        batch.case(f"huber {r}", lambda x, y, r=r: F.huber_loss(x, y, reduction=r, delta=0.7), x, y)
        batch.case(f"bce {r}", lambda p, q, r=r: F.binary_cross_entropy(p, q.detach(), reduction=r), p, q)
        batch.case(f"bce logits {r}", lambda x, q, r=r: F.binary_cross_entropy_with_logits(x, q, reduction=r), x, q)
    batch.case("smoothing", lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), logits, target)
    batch.case("ignore_index", lambda x, t: F.cross_entropy(x, t, ignore_index=0), logits, target.clamp(min=0))
    images, pixels = torch.randn(8, 5, 2, 3).to(dtype), torch.randint(0, 5, (8, 2, 3))
    batch.case("nll 2d", lambda x, t: F.nll_loss(F.log_softmax(x, 1), t), images, pixels)
    batch.case("kl_div", lambda x, y: F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="sum"), x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
class TestLosses:
    """Values and gradients."""

    def test_against_cpu(self, dtype):
        batch = Batch()
        losses(batch, dtype)
        batch.check()


class TestEdges:
    """Every target ignored: mean is NaN, sum is 0. A sample without a batch. Confident mistakes stay finite in bce."""

    def test_edges(self):
        batch = Batch()
        ignored = torch.full((3,), -100)
        for r in REDUCTIONS:
            batch.case(f"ignored {r}", lambda x, t, r=r: F.cross_entropy(x, t, reduction=r), torch.randn(3, 4), ignored)
        batch.case("one sample", F.cross_entropy, torch.randn(4), torch.tensor(2))
        batch.case("bce", F.binary_cross_entropy, torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]), gradient=False)
        batch.check()


class TestSharded:
    """Losses of a sharded batch."""

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        losses(batch, torch.float32)
        batch.check()

"""Losses against torch on CPU, under every reduction."""

import pytest
import torch
from support import DEVICE, Batch, check
from torch.nn import functional as F

import spmd
from spmd.core.programs import cache

REDUCTIONS = ["none", "mean", "sum"]


def losses(batch: Batch, dtype: torch.dtype) -> None:
    logits, weight = torch.randn(8, 5).to(dtype), torch.rand(5).to(dtype) + 0.5
    target = torch.tensor([0, 4, -100, 2, 1, -100, 3, 0])
    x, y = torch.randn(8, 3).to(dtype), torch.randn(8, 3).to(dtype)
    p, q = torch.rand(8, 3).to(dtype) * 0.8 + 0.1, torch.rand(8, 3).to(dtype)
    for r in REDUCTIONS:
        batch.case(
            f"cross_entropy {r}",
            lambda x, t, r=r: F.cross_entropy(x, t, reduction=r),
            logits,
            target,
        )
        batch.case(
            f"cross_entropy weight {r}",
            lambda x, t, w, r=r: F.cross_entropy(x, t, w.detach(), reduction=r),
            logits,
            target,
            weight,
        )
        batch.case(f"mse {r}", lambda x, y, r=r: F.mse_loss(x, y, reduction=r), x, y)
        batch.case(f"l1 {r}", lambda x, y, r=r: F.l1_loss(x, y, reduction=r), x, y)
        batch.case(
            f"smooth_l1 {r}", lambda x, y, r=r: F.smooth_l1_loss(x, y, reduction=r, beta=0.7), x, y
        )
        batch.case(f"huber {r}", lambda x, y, r=r: F.huber_loss(x, y, reduction=r, delta=0.7), x, y)
        batch.case(
            f"bce {r}", lambda p, q, r=r: F.binary_cross_entropy(p, q.detach(), reduction=r), p, q
        )
        batch.case(
            f"bce logits {r}",
            lambda x, q, r=r: F.binary_cross_entropy_with_logits(x, q, reduction=r),
            x,
            q,
        )
    batch.case("smoothing", lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), logits, target)
    batch.case(
        "ignore_index",
        lambda x, t: F.cross_entropy(x, t, ignore_index=0),
        logits,
        target.clamp(min=0),
    )
    images, pixels = torch.randn(8, 5, 2, 3).to(dtype), torch.randint(0, 5, (8, 2, 3))
    batch.case("nll 2d", lambda x, t: F.nll_loss(F.log_softmax(x, 1), t), images, pixels)
    batch.case(
        "kl_div",
        lambda x, y: F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="sum"),
        x,
        y,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
class TestLosses:
    """Values and gradients."""

    def test_against_cpu(self, dtype):
        batch = Batch()
        losses(batch, dtype)
        batch.check()


class TestEdges:
    """Every target ignored: mean is NaN, sum is 0.

    A sample without a batch. Confident mistakes stay finite in bce.
    """

    def test_edges(self):
        batch = Batch()
        ignored = torch.full((3,), -100)
        for r in REDUCTIONS:
            batch.case(
                f"ignored {r}",
                lambda x, t, r=r: F.cross_entropy(x, t, reduction=r),
                torch.randn(3, 4),
                ignored,
            )
        batch.case("one sample", F.cross_entropy, torch.randn(4), torch.tensor(2))
        batch.case(
            "bce",
            F.binary_cross_entropy,
            torch.tensor([0.0, 1.0]),
            torch.tensor([1.0, 0.0]),
            gradient=False,
        )
        batch.check()


def entropies(batch: Batch, dtype: torch.dtype) -> None:
    """Every form of cross entropy: classes along dim 1 of any rank, weights, smoothing, targets
    that are ignored."""
    for shape in ((5,), (8, 5), (8, 5, 3), (8, 5, 2, 3)):
        logits, weight = (3 * torch.randn(shape)).to(dtype), torch.rand(5).to(dtype) + 0.5
        target = torch.randint(0, 5, shape[:1] + shape[2:] if len(shape) > 1 else ())
        ignoring = torch.where(target == 2, -100, target)
        for reduction in REDUCTIONS:
            for smoothing, is_weighted in ((0.0, False), (0.0, True), (0.1, False), (0.1, True)):
                if len(shape) != 2 and is_weighted != (smoothing > 0):
                    continue  # both or neither will do for the other ranks
                batch.case(
                    f"{shape} {reduction} {smoothing} weights={is_weighted}",
                    lambda x, t, w, r=reduction, e=smoothing: F.cross_entropy(
                        x, t, w if w is None else w.detach(), reduction=r, label_smoothing=e
                    ),
                    *(logits, ignoring, weight if is_weighted else None),
                )
        if len(shape) <= 2:  # torch has no others
            batch.case(f"{shape} bytes", F.cross_entropy, logits, target.byte())
        batch.case(
            f"{shape} ignore_index",
            lambda x, t: F.cross_entropy(x, t, ignore_index=3),
            logits,
            target,
        )
        batch.case(
            f"{shape} probabilities",
            lambda x, p: F.cross_entropy(x, p, label_smoothing=0.1),
            *(logits, torch.rand(shape).to(dtype)),
        )
    many = torch.randn(8, 300).to(dtype)
    batch.case("more classes than a byte counts", F.cross_entropy, many, torch.arange(8).byte())


class TestCrossEntropy:
    """One op with its own gradient: as torch's composition of log_softmax and nll_loss."""

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
    def test_against_cpu(self, dtype):
        batch = Batch()
        entropies(batch, dtype)
        batch.check()

    def test_infinite_logits(self):
        """A class that is masked, a row of masked classes, infinity and NaN; an ignored row hides
        its own."""
        inf = torch.inf
        logits = torch.tensor(
            [[1, -inf, 2], [-inf, -inf, -inf], [1, inf, 2], [1, torch.nan, 2], [0, 1, 2]]
        )
        batch = Batch()
        for target in ([0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [-100, -100, -100, -100, 1], [-100] * 5):
            for r in REDUCTIONS:
                for smoothing in (0.0, 0.1):
                    keywords = {"reduction": r, "label_smoothing": smoothing}
                    batch.case(
                        f"{target} {keywords}",
                        lambda x, t, k=keywords: F.cross_entropy(x, t, **k),
                        *(logits, torch.tensor(target)),
                    )
        batch.case(
            "weight 0",
            lambda x, t, w: F.cross_entropy(x, t, w.detach(), reduction="none"),
            logits,
            torch.ones(5, dtype=torch.int64),
            torch.tensor([1.0, 0.0, 1.0]),
        )
        batch.check()

    def test_nothing(self):
        batch = Batch()
        for r in REDUCTIONS:
            batch.case(
                r,
                lambda x, t, r=r: F.cross_entropy(x, t, reduction=r).reshape(-1).sum(),
                torch.randn(0, 5),
                torch.zeros(0, dtype=torch.int64),
            )
        batch.check()

    @pytest.mark.parametrize(
        ("logits", "target", "keywords", "error", "message"),
        [
            ((4, 5), torch.zeros(3, dtype=torch.int64), {}, ValueError, "batch_size"),
            (
                (4, 5), torch.zeros(4, 1, dtype=torch.int64), {}, (RuntimeError, AssertionError),
                "multi-target",
            ),
            (
                (2, 5, 3, 3), torch.zeros(2, 3, 2, dtype=torch.int64), {}, RuntimeError,
                "size mismatch",
            ),
            ((4, 5), torch.zeros(4, dtype=torch.bool), {}, RuntimeError, "expected target dtype"),
            (
                (4, 5), torch.zeros(4, dtype=torch.int64), {"label_smoothing": 1.5}, RuntimeError,
                "between 0.0 and 1.0",
            ),
            (
                (4, 5), torch.zeros(4).long(), {"weight": torch.ones(4)},
                (RuntimeError, AssertionError), "weight",
            ),
            (
                (4, 5), torch.zeros(4, dtype=torch.int64), {"weight": torch.ones(5).double()},
                RuntimeError, "weight",
            ),
        ],
    )  # fmt: skip
    def test_errors(self, logits, target, keywords, error, message):
        moved = {
            name: value.to(DEVICE) if name == "weight" else value
            for name, value in keywords.items()
        }
        with pytest.raises(error, match=message):
            F.cross_entropy(torch.ones(logits).to(DEVICE), target.to(DEVICE), **moved)

    def test_integer_logits(self):
        with pytest.raises(NotImplementedError, match="floating-point logits"):
            F.cross_entropy(
                torch.ones(4, 5, dtype=torch.int64).to(DEVICE),
                torch.zeros(4, dtype=torch.int64).to(DEVICE),
            )

    @pytest.mark.parametrize("dim", [0, 1], ids=["batch", "classes"])
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_sharded_logits(self, mesh8, dim, smoothing, weighted):
        """Each device keeps its rows, or its classes: sums travel, logits do not."""
        logits, target, weight = (
            torch.randn(64, 512),
            torch.randint(0, 512, (64,)),
            torch.rand(512) + 0.5,
        )
        target[::5] = -100
        results = []
        for device in ("cpu", DEVICE):
            x, t, w = (value.to(device) for value in (logits, target, weight))
            if device == DEVICE:
                spmd.mark_sharding(x, mesh8, ("fsdp", None) if dim == 0 else (None, "fsdp"))
                spmd.mark_sharding(t, mesh8, ("fsdp",) if dim == 0 else (None,))
                spmd.mark_sharding(w, mesh8, (None,) if dim == 0 else ("fsdp",))
            x.requires_grad_()
            loss = F.cross_entropy(x, t, w if weighted else None, label_smoothing=smoothing)
            results.append((loss, torch.autograd.grad(loss, x)[0]))
        spmd.sync()
        for one, other in zip(results[1], results[0], strict=True):
            check(one, other)

    @pytest.mark.parametrize("dim", [0, 1], ids=["batch", "classes"])
    def test_collectives_and_memory(self, mesh8, dim):
        logits = torch.randn(64, 512).to(DEVICE)
        target = torch.randint(0, 512, (64,)).to(DEVICE)
        spmd.mark_sharding(logits, mesh8, ("fsdp", None) if dim == 0 else (None, "fsdp"))
        spmd.mark_sharding(target, mesh8, ("fsdp",) if dim == 0 else (None,))
        spmd.sync()
        logits.requires_grad_()
        loss = F.cross_entropy(logits, target)
        (gradient,) = torch.autograd.grad(loss, logits)
        spmd.sync()
        collectives = spmd.metrics.compiles()[-1].collectives
        assert collectives.keys() == {"all-reduce"}
        assert sum(collectives.values()) <= (2 if dim == 0 else 3)
        memory = cache.last_program().executable.memory_analysis()
        assert memory.temp_size_in_bytes < 64 * 512 * 4 // 8  # a device's share of the logits
        assert loss.shape == () and gradient.shape == logits.shape


class TestMultilabelMargin:
    """The goals of a row end at its first -1; what stands after it says nothing."""

    def test_against_cpu(self) -> None:
        batch = Batch()
        rows = ([1, 0, -1, 2, 2], [3, -1, -1, -1, -1], [-1, 0, 1, 2, 3], [4, 3, 2, 1, 0])
        goals, logits = torch.tensor(rows), torch.randn(4, 5)
        for reduction in ("none", "mean", "sum"):
            batch.case(
                reduction,
                lambda x, y, r=reduction: F.multilabel_margin_loss(x, y, reduction=r),
                logits,
                goals,
            )
        batch.case("one row", F.multilabel_margin_loss, logits[0], goals[0])
        batch.case("double", F.multilabel_margin_loss, logits.double(), goals)
        batch.check()


class TestSharded:
    """Losses of a sharded batch."""

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        losses(batch, torch.float32)
        batch.check()

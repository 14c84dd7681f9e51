"""Layer, RMS, group and batch normalization against torch on CPU."""

import pytest
import torch
from support import Batch, check
from torch.nn import functional as F


def normalizations(batch: Batch, dtype: torch.dtype) -> None:
    x, weight, bias = (
        torch.randn(8, 6, 4).to(dtype),
        torch.rand(4).to(dtype) + 0.5,
        torch.randn(4).to(dtype),
    )
    batch.case("layer_norm", lambda x, w, b: F.layer_norm(x, (4,), w, b), x, weight, bias)
    batch.case("layer_norm plain", lambda x: F.layer_norm(x, (4,)), x)
    batch.case("layer_norm no bias", lambda x, w: F.layer_norm(x, (4,), w), x, weight)
    wide = torch.rand(6, 4).to(dtype) + 0.5
    batch.case("layer_norm 2 dims", lambda x, w: F.layer_norm(x, (6, 4), w), x, wide)
    batch.case("rms_norm", lambda x, w: F.rms_norm(x, (4,), w, 1e-5), x, weight)
    batch.case("rms_norm plain", lambda x: F.rms_norm(x, (4,)), x)
    channel, shift = torch.rand(6).to(dtype) + 0.5, torch.randn(6).to(dtype)
    batch.case("group_norm", lambda x, w, b: F.group_norm(x, 3, w, b), x, channel, shift)
    batch.case("group_norm plain", lambda x: F.group_norm(x, 2), x)
    mean, variance = torch.randn(6).to(dtype), torch.rand(6).to(dtype) + 0.5
    batch.case(
        "batch_norm eval",
        lambda x, w, b: F.batch_norm(x, mean.to(x.device), variance.to(x.device), w, b),
        x,
        channel,
        shift,
    )
    batch.case(
        "batch_norm train",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        x,
        channel,
        shift,
    )
    batch.case(
        "batch_norm of data",
        lambda x, w: F.batch_norm(x.detach(), None, None, w, training=True),
        x,
        channel,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
class TestNormalizations:
    """Values and gradients of input, weight and bias."""

    def test_against_cpu(self, dtype):
        batch = Batch()
        normalizations(batch, dtype)
        batch.check()


class TestRms:
    """One op with its own gradient: of any rank and dtype, and of numbers whose squares are almost
    nothing."""

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
    def test_against_cpu(self, dtype):
        batch = Batch()
        x = torch.randn(8, 6, 4).to(dtype)
        for shape in ((4,), (6, 4)):
            weight = torch.rand(shape).to(dtype) + 0.5
            for eps in (None, 1e-3):
                batch.case(
                    f"{shape} {eps}", lambda x, w, s=shape, e=eps: F.rms_norm(x, s, w, e), x, weight
                )
                batch.case(
                    f"{shape} {eps} plain", lambda x, s=shape, e=eps: F.rms_norm(x, s, eps=e), x
                )
        batch.case(
            "transposed", lambda x, w: F.rms_norm(x.mT, (6,), w), x, torch.rand(6).to(dtype) + 0.5
        )
        batch.case(
            "nothing", lambda x, w: F.rms_norm(x, (4,), w), x[:0], torch.rand(4).to(dtype) + 0.5
        )
        batch.check()

    def test_small_numbers(self):
        """The cube of the reciprocal deviation would be infinite in float32."""
        gradients = []
        direction, cotangent = torch.randn(2, 8), torch.randn(2, 8)
        for device, dtype in (("cpu", torch.float64), ("xla", torch.float32)):
            x = (1e-14 * direction.double()).to(device, dtype).requires_grad_()
            F.rms_norm(x, (8,), eps=1e-32).backward(cotangent.to(device, dtype))
            gradients.append(x.grad)
        check((gradients[1] * 1e-14), (gradients[0] * 1e-14).float())


class TestRunningStatistics:
    """A batch norm in training writes its running mean and variance."""

    def test_written_in_place(self):
        def step(x):
            mean, variance = torch.zeros(6, device=x.device), torch.ones(6, device=x.device)
            return F.batch_norm(x, mean, variance, training=True, momentum=0.3), mean, variance

        batch = Batch()
        batch.case("batch_norm", step, torch.randn(8, 6, 4))
        batch.check()


class TestSharded:
    """Statistics over the sharded dim (batch norm) and within a shard (the others)."""

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        normalizations(batch, torch.float32)
        batch.check()

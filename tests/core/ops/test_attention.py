"""Scaled dot-product attention against torch on CPU."""

import pytest
import torch
from support import Batch
from torch.nn import functional as F


def attentions(batch: Batch, dtype: torch.dtype) -> None:
    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(dtype)

    q, k, v = make(8, 4, 5, 8), make(8, 4, 7, 8), make(8, 4, 7, 8)
    sdpa = F.scaled_dot_product_attention
    batch.case("plain", sdpa, q, k, v)
    batch.case("causal", lambda q, k, v: sdpa(q, k, v, is_causal=True), q, k, v)
    batch.case("scale", lambda q, k, v: sdpa(q, k, v, scale=0.3), q, k, v)
    for shape in ((8, 4, 5, 7), (1, 1, 5, 7), (5, 7), (8, 1, 1, 7)):
        batch.case(f"bias {shape}", sdpa, q, k, v, make(*shape))
    mask = torch.rand(5, 7) > 0.4
    mask[:, 0] = True
    batch.case("mask", sdpa, q, k, v, mask)
    for kv_heads in (1, 2):
        k, v = make(8, kv_heads, 7, 8), make(8, kv_heads, 7, 8)
        batch.case(f"grouped {kv_heads}", lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True), q, k, v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
class TestAttention:
    """Causal, scaled, biased, masked and grouped attention, with gradients of every input."""

    def test_against_cpu(self, dtype):
        batch = Batch()
        attentions(batch, dtype)
        batch.check()


class TestDropout:
    """Dropout keeps the expectation, and the backward drops what the forward dropped."""

    def test_gradient_matches_mask(self):
        # With v the identity the output is the dropped probabilities themselves; the gradient of v shows the same mask.
        q, k = torch.randn(1, 1, 16, 16), torch.randn(1, 1, 16, 16)
        v = torch.eye(16)[None, None].to("xla").requires_grad_()
        out = F.scaled_dot_product_attention(q.to("xla"), k.to("xla"), v, dropout_p=0.5)
        cotangent = torch.eye(16)[None, None].to("xla")
        (grad,) = torch.autograd.grad(out, v, cotangent)
        dropped = out.detach().cpu()[0, 0]
        torch.testing.assert_close(grad.cpu()[0, 0], dropped.T)
        assert 0.3 < (dropped == 0).float().mean() < 0.7


class TestSharded:
    """The batch over eight devices."""

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        attentions(batch, torch.float32)
        batch.check()

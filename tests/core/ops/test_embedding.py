"""Embedding against torch on CPU."""

import pytest
import torch
from support import Batch
from torch.nn import functional as F


def embeddings(batch: Batch, dtype: torch.dtype) -> None:
    weight, indices = torch.randn(16, 4).to(dtype), torch.randint(0, 16, (8, 3))
    batch.case("embedding", F.embedding, indices, weight)
    batch.case("padding", lambda i, w: F.embedding(i, w, padding_idx=2), indices.clamp(max=4), weight)
    batch.case("by frequency", lambda i, w: F.embedding(i, w, scale_grad_by_freq=True), indices.clamp(max=4), weight)
    batch.case("one", F.embedding, torch.tensor(3), weight)
    batch.case("repeated", F.embedding, torch.full((8, 5), 3), weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
class TestEmbedding:
    """Rows, and the gradient that sums what a row received."""

    def test_against_cpu(self, dtype):
        batch = Batch()
        embeddings(batch, dtype)
        batch.check()


class TestSharded:
    """Table and indices both sharded."""

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        embeddings(batch, torch.float32)
        batch.check()

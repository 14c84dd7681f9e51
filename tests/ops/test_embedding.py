"""Embedding against torch on CPU."""

import pytest
import torch
from support import Batch
from torch.nn import functional as F


def embeddings(batch: Batch, dtype: torch.dtype) -> None:
    weight, indices = torch.randn(16, 4).to(dtype), torch.randint(0, 16, (8, 3))
    batch.case("embedding", F.embedding, indices, weight)
    batch.case(
        "padding", lambda i, w: F.embedding(i, w, padding_idx=2), indices.clamp(max=4), weight
    )
    batch.case(
        "by frequency",
        lambda i, w: F.embedding(i, w, scale_grad_by_freq=True),
        indices.clamp(max=4),
        weight,
    )
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


class TestMaxNorm:
    """Rows that are looked up are made shorter in place, the others stay."""

    def test_against_cpu(self):
        batch = Batch()
        indices = torch.tensor([[1, 2], [2, 2]])

        def look_up(weight, indices, norm_type):
            table = weight.detach().clone()
            return F.embedding(indices, table, max_norm=0.5, norm_type=norm_type), table

        for norm_type in (2.0, 1.0):
            batch.case(
                f"norm {norm_type}", look_up, torch.randn(8, 4), indices, norm_type, gradient=False
            )
        batch.check()

"""segment_reduce against torch on CPU: runs of rows, empty ones among them."""

import pytest
import torch
from support import Batch


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod", "amax", "amin"])
def test_segments(reduce: str) -> None:
    batch = Batch()
    data = torch.randn(7, 3)
    data[1, 1] = 0
    lengths, offsets = torch.tensor([2, 0, 4, 1]), torch.tensor([0, 2, 2, 6, 7])
    for initial in (None, 0.5):
        batch.case(
            f"lengths {initial}",
            lambda x, n, i=initial: torch.segment_reduce(x, reduce, lengths=n, initial=i),
            data,
            lengths,
        )
    batch.case("offsets", lambda x, n: torch.segment_reduce(x, reduce, offsets=n, initial=1.0), data, offsets)
    batch.check()


def test_a_product_beside_nan() -> None:
    """Of a NaN or a zero the gradient is the product of the others; of the others it is as the product."""
    batch = Batch()
    data = torch.tensor([1.0, torch.nan, 3.0, 4.0, 0.0, torch.nan, 0.0, 0.0, 2.0, torch.nan, torch.nan, 0.0, 5.0])
    for initial in (None, 2.0):
        batch.case(
            f"{initial}",
            lambda x, n, i=initial: torch.segment_reduce(x, "prod", lengths=n, initial=i),
            data,
            torch.tensor([2, 2, 2, 3, 2, 2]),
        )
    batch.check()

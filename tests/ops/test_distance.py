"""cdist and pdist against torch on CPU, on one device and sharded."""

import math

import pytest
import torch
from support import Batch

import spmd


def distances(batch: Batch) -> None:
    x, y = torch.randn(8, 5, 3), torch.randn(8, 4, 3)
    for p in (0.0, 1.0, 1.5, 2.0, 3.0, math.inf):
        batch.case(f"cdist {p}", lambda x, y, p=p: torch.cdist(x, y, p), x, y)
        batch.case(f"pdist {p}", lambda x, p=p: torch.nn.functional.pdist(x, p), x[0])
    batch.case("cdist of equal rows", lambda x: torch.cdist(x, x), torch.ones(2, 3))
    for shape1, shape2 in (
        ((4, 5), (0, 3, 5)),
        ((0, 4, 5), (3, 5)),
        ((0, 5), (2, 3, 5)),
        ((2, 4, 0), (3, 0)),
    ):
        batch.case(
            f"cdist of {shape1} {shape2}",
            lambda x, y: torch.cdist(x, y),
            torch.ones(shape1),
            torch.ones(shape2),
        )
    batch.case(
        "cdist by a product",
        lambda x, y: torch.cdist(x, y),
        torch.randn(8, 30, 3),
        torch.randn(8, 4, 3),
    )


@pytest.mark.parametrize("sharded", [False, True])
def test_distances(sharded: bool, mesh8: spmd.Mesh) -> None:
    batch = Batch(mesh=mesh8, axis="fsdp") if sharded else Batch()
    distances(batch)
    batch.check()

"""`recipes.benchmarks.sequence_work`: equal work under a causal mask, and less of packed
documents."""

from pathlib import Path

import numpy as np
import pytest

from recipes.benchmarks import sequence_work
from spmd.parallel.orders import HalfOfHeads, Order, ZigzagRows


@pytest.mark.parametrize("count", [2, 4, 8, 16])
@pytest.mark.parametrize("kind", [HalfOfHeads, ZigzagRows])
def test_equal_parts(kind: type[Order], count: int) -> None:
    chunks = count if kind is HalfOfHeads else 2 * count
    order = kind(("context",), count, 64 // chunks)
    assert sequence_work.work(order, np.zeros(64, int)) == pytest.approx((1, 1, 1))
    mean, most, most_of_steps = sequence_work.work(order, np.arange(64) // 2)
    assert mean <= most <= most_of_steps <= 1 and (count == 2 or mean < 0.6)


def test_picture(tmp_path: Path) -> None:
    sequence_work.draw(tmp_path / "pairs.png", length=1024)
    assert (tmp_path / "pairs.png").read_bytes().startswith(b"\x89PNG")

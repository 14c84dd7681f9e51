"""Sources that give no batches: an iterator at its end, a map-style dataset of rows."""

from collections.abc import Iterator

import pytest
import torch
from torch.utils import data

import spmd
from spmd import Mesh, P

ROWS = P("fsdp")


def stream(count: int) -> Iterator[torch.Tensor]:
    return (torch.full((8,), float(i)) for i in range(count))


class TestIterators:
    """A generator is one pass; a second one without a batch raises, at the loop."""

    def test_a_second_pass(self, mesh8: Mesh) -> None:
        loader = spmd.DataLoader(stream(3), mesh8, ROWS)
        assert len(list(loader)) == 3
        with pytest.raises(
            ValueError, match=r"the source, a generator, is at its end .* can be iterated once"
        ) as raised:
            for _ in loader:
                pass
        assert raised.traceback[-1].path.name == "test_sources.py"

    def test_the_rest_of_a_pass(self, mesh8: Mesh) -> None:
        loader = spmd.DataLoader(stream(8), mesh8, ROWS, prefetch=1)
        for batch in loader:
            assert batch[0].item() == 0
            break
        assert list(loader)

    def test_a_position_at_the_end(self, mesh8: Mesh) -> None:
        loader = spmd.DataLoader(stream(2), mesh8, ROWS)
        batches = iter(loader)
        for _ in range(2):
            next(batches)
        resumed = spmd.DataLoader(stream(2), mesh8, ROWS)
        resumed.load_state_dict(loader.state_dict())
        assert list(resumed) == []

    def test_empty_lists(self, mesh8: Mesh) -> None:
        assert list(spmd.DataLoader([], mesh8, ROWS)) == []


class TestDatasets:
    """A map-style dataset of torch has rows."""

    def test_refused(self, mesh8: Mesh) -> None:
        rows = data.TensorDataset(torch.randn(16, 8), torch.arange(16))
        for dataset in (rows, data.Subset(rows, range(8))):
            with pytest.raises(
                TypeError, match=rf"{type(dataset).__name__} has rows; write spmd.DataLoader\(torch"
            ):
                spmd.DataLoader(dataset, mesh8, ROWS)
        batches = list(spmd.DataLoader(data.DataLoader(rows, batch_size=8), mesh8, ROWS))
        assert [len(labels) for _, labels in batches] == [8, 8]

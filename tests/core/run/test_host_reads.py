"""Reads of rows of a store: the first brings a small store to the host, others read that copy."""

from collections.abc import Iterator

import pytest
import torch
from support import check

import spmd
from spmd import P
from spmd.core import storage_of
from spmd.core.run import host_reads


@pytest.fixture(autouse=True)
def stacked() -> Iterator[None]:
    before = spmd.config.scan_layers
    spmd.config.scan_layers = "always"
    yield
    spmd.config.scan_layers = before


def rows(device: str, shape: tuple[int, ...] = (8, 3)) -> list[torch.Tensor]:
    numel = torch.Size(shape).numel()
    values = torch.linspace(-1, 1, numel).reshape(shape)
    return [(values * (number + 1)).to(device) for number in range(5)]


def update(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.copy_(torch.tanh(tensor) * 0.5 + 1)


class TestRowsOfStores:
    """Values are those of torch on the CPU, without a program for a row."""

    def test_scalars(self) -> None:
        weight = torch.ones(8, device="xla")
        scalars = [(weight * float(number)).sum() for number in range(1000)]
        spmd.sync(wait=True)
        stores = {storage_of(scalar).value.store for scalar in scalars}
        assert None not in stores
        before = spmd.metrics.counter("runs"), spmd.metrics.counter("host_reads")
        assert [scalar.item() for scalar in scalars] == [8.0 * number for number in range(1000)]
        assert spmd.metrics.counter("runs") == before[0]
        assert spmd.metrics.counter("host_reads") == before[1] + len(stores)

    @pytest.mark.parametrize("spec", [None, P("fsdp", None), P(None, "fsdp")])
    def test_written_between_reads(self, spec: P | None, mesh8: spmd.Mesh) -> None:
        ours, theirs = rows("xla"), rows("cpu")
        if spec is not None:  # the last one splits 3 over 8 devices
            ours = [spmd.mark_sharding(row, mesh8, spec) for row in ours]
        for number in range(5):
            update(ours)
            update(theirs)
            spmd.sync()
            for place in (number, 0, 4):
                check(ours[place], theirs[place])
        assert storage_of(ours[0]).value.store is not None
        # One row alone, which leaves the store and comes back.
        ours[2].add_(1)
        theirs[2].add_(1)
        check(ours[2], theirs[2])
        check(ours[3], theirs[3])
        update(ours)
        update(theirs)
        for mine, expected in zip(ours, theirs, strict=True):
            check(mine, expected)

    def test_a_reader_that_ends_late(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A reader of the buffer before sets its copy while another one looks at the store's."""
        ours, theirs = rows("xla"), rows("cpu")
        copies = []
        for _ in range(4):
            update(ours)
            update(theirs)
            check(ours[1], theirs[1])
            copies.append(storage_of(ours[1]).value.store.host)
        rows_store = storage_of(ours[1]).value.store
        assert copies[-1] is not None is not copies[-2] and rows_store.host is copies[-1]

        looks = iter([copies[-1], copies[-1], *[copies[-2]] * 9])
        monkeypatch.setattr(type(rows_store), "host", property(lambda _: next(looks)))
        check(torch.from_numpy(rows_store.on_host(1)), theirs[1])

    def test_a_large_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(host_reads, "_SMALL", 100)
        ours, theirs = rows("xla"), rows("cpu")
        for _ in range(3):
            update(ours)
            update(theirs)
            spmd.sync()
        store = storage_of(ours[0]).value.store
        check(ours[1], theirs[1])
        assert store.host is None

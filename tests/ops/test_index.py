"""Gathers, scatters and advanced indexing against torch on CPU."""

import re

import pytest
import torch
from support import Batch, check, distinct

import spmd
from spmd import config
from spmd.core.programs import cache

DTYPES = [torch.float32, torch.bfloat16, torch.int64]


def indexing(batch: Batch, dtype: torch.dtype) -> None:
    x, y = distinct(8, 6, 4, dtype=dtype), distinct(8, 6, 4, dtype=dtype)
    permutation = torch.argsort(torch.rand(8, 6, 4), dim=1)
    small = torch.randint(0, 6, (4, 5, 3))
    batch.case("gather", lambda x, i: torch.gather(x, 1, i), x, small)
    batch.case("scatter", lambda x, i, y: torch.scatter(x, 1, i, y), x, permutation, y)
    batch.case("scatter value", lambda x, i: torch.scatter(x, 1, i, 2), x, small)
    batch.case(
        "scatter_add", lambda x, i, y: torch.scatter_add(x, 1, i, y), x, small, y[:4, :5, :3]
    )
    for r in ("sum", "mean", "amax", "amin"):
        for include in (True, False):
            batch.case(
                f"scatter_reduce {r} {include}",
                lambda x, i, y, r=r, n=include: torch.scatter_reduce(
                    x, 1, i, y, reduce=r, include_self=n
                ),
                x,
                small,
                y,
                gradient=False,
            )
    index = torch.tensor([3, 0, 1])
    for dim in (0, 1, -1):
        slices = distinct(*(3 if d == dim % 3 else s for d, s in enumerate(x.shape)), dtype=dtype)
        batch.case(
            f"index_select {dim}",
            lambda x, i, d=dim: torch.index_select(x, d, i),
            x,
            torch.tensor([0, 2, 2]),
        )
        batch.case(
            f"index_add {dim}",
            lambda x, i, s, d=dim: torch.index_add(x, d, i, s, alpha=2),
            x,
            index,
            slices,
        )
        batch.case(
            f"index_copy {dim}",
            lambda x, i, s, d=dim: torch.index_copy(x, d, i, s),
            x,
            index,
            slices,
        )
        batch.case(f"index_fill {dim}", lambda x, i, d=dim: torch.index_fill(x, d, i, 3), x, index)
    rows, columns = torch.tensor([0, -1, 2]), torch.tensor([[1], [-2]])
    batch.case("x[i]", lambda x, i: x[i], x, rows)
    batch.case("x[:, i]", lambda x, i: x[:, i], x, rows)
    batch.case("x[i, :, i]", lambda x, i: x[i, :, i], x, rows)
    batch.case("x[j, i]", lambda x, i, j: x[j, i], x, rows, columns)
    batch.case("x[:, j, i]", lambda x, i, j: x[:, j, i], x, rows, columns)
    batch.case("index_put", lambda x, i, v: x.index_put((i,), v), x, rows, y[:3])
    batch.case(
        "index_put add",
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        x,
        torch.tensor([1, 1, -7]),
        y[:3],
    )
    batch.case(
        "mask",
        lambda x: torch.index_put(x, (x > 1,), torch.zeros((), dtype=x.dtype, device=x.device)),
        x,
    )
    batch.case("tril triu", lambda x: (x.tril(1), x.triu(-1)), x)
    batch.case("take", lambda x, j: torch.take(x, j), x, columns)


@pytest.mark.parametrize("dtype", DTYPES)
class TestIndexing:
    """Values and gradients."""

    def test_against_cpu(self, dtype):
        batch = Batch()
        indexing(batch, dtype)
        batch.check()


class TestMasks:
    """A mask selects as many elements as it has True: the host finds them, and the visit is
    counted."""

    @pytest.mark.parametrize(
        "select",
        [lambda x, m: x[m], torch.masked_select, lambda x, m: m.nonzero(), lambda x, m: x[:, m[0]]],
    )
    def test_shape_from_data(self, select):
        x, mask = torch.randn(4, 6), torch.rand(4, 6) > 0.5
        before = spmd.metrics.counter("host_ops")
        check(select(x.to("xla"), mask.to("xla")), select(x, mask))
        assert spmd.metrics.counter("host_ops") == before + 1

    def test_masked_scatter(self):
        batch = Batch()
        mask = torch.rand(5, 6) > 0.5
        batch.case("masked_scatter", torch.masked_scatter, torch.randn(5, 6), mask, torch.randn(30))
        batch.check()


class TestSearch:
    """searchsorted and bucketize from both sides."""

    def test_sides(self):
        batch = Batch()
        edges, x = (
            torch.tensor([-1.0, 0.0, 0.5, 0.5, 2.0]),
            torch.tensor([-3.0, 0.0, 0.5, 1.0, 9.0]),
        )
        for right in (False, True):
            batch.case(
                f"bucketize {right}", lambda x, e, r=right: torch.bucketize(x, e, right=r), x, edges
            )
            batch.case(
                f"number {right}", lambda e, r=right: torch.bucketize(0.5, e, right=r), edges
            )
            batch.case(
                f"number in {right}", lambda e, r=right: torch.searchsorted(e, 0.5, right=r), edges
            )
        batch.case(
            "number, sorted by",
            lambda e, s: torch.searchsorted(e, 1, sorter=s),
            edges,
            torch.arange(5),
        )
        batch.check()


class TestEmpty:
    """An empty index has any number of dims; of an array without elements nothing is found."""

    def test_against_cpu(self):
        batch = Batch()
        batch.case(
            "gather",
            lambda x, i: x.gather(0, i),
            torch.randn(5),
            torch.ones(2, 0, dtype=torch.int64),
        )
        nowhere = torch.zeros(1, 1, dtype=torch.bool)
        batch.case("masked_scatter", torch.masked_scatter, torch.ones(1, 1), nowhere, torch.ones(0))
        batch.case(
            "nonzero_static",
            lambda x: torch.nonzero_static(x, size=2),
            torch.ones(5, 0, 5, dtype=torch.bool),
        )
        x = torch.ones(0, 3)
        batch.case(
            "nonzero_static, filled", lambda x: torch.nonzero_static(x, size=1, fill_value=7), x
        )
        batch.check()


class TestSharded:
    """Indexed dims sharded and whole."""

    @pytest.mark.parametrize("num_rows", [1, 3])
    def test_fewer_rows_than_devices_are_written(self, num_rows: int, mesh8: spmd.Mesh) -> None:
        """Their positions are padded, which XLA's partitioner can in 32 bits alone: in 64 the
        process aborted."""
        data, written = torch.randn(8, 8), torch.randn(8, 8)
        index = torch.rand(8, 8).argsort(0)[:num_rows]
        for method in ("scatter", "scatter_add"):
            expected = getattr(data, method)(0, index, written[:num_rows])
            rows = spmd.mark_sharding(written.to("xla"), mesh8, ("fsdp", None))
            whole = spmd.mark_sharding(data.to("xla"), mesh8, (None, None))
            torch.testing.assert_close(
                getattr(whole, method)(0, index.to("xla"), rows[:num_rows]).cpu(),
                expected,
                rtol=0,
                atol=0,
            )

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        indexing(batch, torch.float32)
        batch.check()

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    @pytest.mark.parametrize("reduce", [None, "sum", "prod", "amax", "amin"])
    def test_rows_apart(self, partitioner, reduce, mesh8, monkeypatch):
        """A write along a row stays on the device that has the row."""
        monkeypatch.setattr(config, "partitioner", partitioner)
        x, values = distinct(64, 6), distinct(64, 2)
        places = (
            torch.rand(64, 6).argsort(1)[:, :2] if reduce is None else torch.randint(6, (64, 2))
        )

        def write(x: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            return (
                x.scatter(1, places, values)
                if reduce is None
                else x.scatter_reduce(1, places, values, reduce)
            )

        moved = [tensor.to("xla") for tensor in (x, places, values)]
        for tensor in moved:
            spmd.mark_sharding(tensor, mesh8, ("fsdp", None))
        written = write(*moved)
        check(written, write(x, places, values))
        program = cache.last_program()
        assert program is not None
        assert not re.search(r" (all|collective)-[\w-]+\(", program.executable.as_text())

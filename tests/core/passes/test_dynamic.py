"""A position or a length that changes from run to run is no new program each time; numbers stay
CPU's."""

from collections.abc import Callable, Iterator
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor

import spmd
from spmd.core.sharding.partitioner import compiler_context
from spmd.ops.random import integers

STEPS = 7


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nothing of another test is pending."""
    spmd.sync()
    yield
    spmd.sync()


def on_both(step: Callable[[int, str], Tensor]) -> list[int]:
    """Runs the steps, a barrier each, on the device and on the CPU, compares them, counts the
    programs of each step."""
    counts = []
    for i in range(STEPS):
        before = spmd.metrics.num_compiles()
        made = step(i, "xla").cpu()
        counts.append(spmd.metrics.num_compiles() - before)
        torch.testing.assert_close(made, step(i, "cpu"), rtol=1e-5, atol=1e-5)
    return counts


TABLE = {
    device: torch.arange(1.0, 61.0).reshape(STEPS + 3, 6).to(device) for device in ("cpu", "xla")
}


class TestPositions:
    """The index of a select, a slice, their gradients and their writes, and where a range
    begins."""

    STEPS: ClassVar[dict[str, Callable[[int, Tensor], Tensor]]] = {
        "select": lambda i, t: t[i] * 2,
        "select from behind": lambda i, t: t[-1 - i] * 2,
        "of a later dim": lambda i, t: t[:, i % 6] * 2,
        "slice": lambda i, t: t[i : i + 3] * 2,
        "slice with a step": lambda i, t: t[i : i + 3 : 2] * 2,
        "chain of views": lambda i, t: t[i : i + 3].t()[1:3].reshape(-1) * 2,
        "chunk by number": lambda i, t: (
            t.flatten().narrow(0, 6 * i, 6).view(2, 3) @ torch.ones(3, 2).to(t.device)
        ),
        "write to a row": lambda i, t: (
            t.clone().index_fill_(0, torch.tensor([0]).to(t.device), 0.0)[i].mul_(2)
        ),
        "write through a slice": lambda i, t: write_slice(i, t.clone()),
        "write through a select": lambda i, t: write_select(i, t.clone()),
        "write with a step": lambda i, t: write_step(i, t.clone()),
        "gradient of a select": lambda i, t: gradient(lambda x: x[i].square().sum(), t),
        "gradient of a slice": lambda i, t: gradient(lambda x: x[i : i + 2].square().sum(), t),
        "select_scatter": lambda i, t: t.select_scatter(t[0] * 2, 0, i),
        "slice_scatter": lambda i, t: t.slice_scatter(t[:2] * 2, 0, i, i + 2),
        "arange": lambda i, t: torch.arange(i, i + 4, device=t.device) * 2,
    }

    @pytest.mark.parametrize("name", STEPS)
    def test_bounded(self, name: str) -> None:
        counts = on_both(lambda i, device: self.STEPS[name](i, TABLE[device]))
        assert sum(counts) <= 2 and not any(counts[2:]), (counts, spmd.metrics.report())

    @pytest.mark.parametrize(
        "name", ["select", "slice", "write through a slice", "gradient of a select"]
    )
    def test_sharded(self, name: str, mesh8: spmd.Mesh) -> None:
        table = torch.arange(16.0 * 8).reshape(16, 8)
        for split in (table.to("xla"), torch.nn.Parameter(table.to("xla"), requires_grad=False)):
            spmd.mark_sharding(split, mesh8, ("fsdp", None))
            counts = on_both(
                lambda i, device, split=split: self.STEPS[name](
                    i, split if device == "xla" else table
                )
            )
            assert not any(counts[2:]), (counts, spmd.metrics.report())

    def test_the_ledger_says_so(self) -> None:
        table = torch.ones(5, 11).to("xla")
        for i in range(3):
            (table[i] * 3).cpu()
        assert "is an operand from now on" in spmd.metrics.compiles()[-1].cause


def write_slice(i: int, t: Tensor) -> Tensor:
    t[i : i + 2] = 0.5
    return t


def write_select(i: int, t: Tensor) -> Tensor:
    t[i].mul_(t[i + 1])
    return t


def write_step(i: int, t: Tensor) -> Tensor:
    t[i : i + 3 : 2] += t[-1]
    return t


def gradient(function: Callable[[Tensor], Tensor], t: Tensor) -> Tensor:
    leaf = t.detach().clone().requires_grad_()
    function(leaf).backward()
    assert leaf.grad is not None
    return leaf.grad


class TestRandomIntegers:
    """Indices into a buffer that grows (a replay buffer): where they end is no part of the
    program."""

    def draws(self, device: str, low: int) -> tuple[list[list[int]], list[int]]:
        torch.manual_seed(5)
        drawn, counts = [], []
        for i in range(STEPS):
            before = spmd.metrics.num_compiles()
            drawn.append((torch.randint(low, 10 + i, (6,), device=device) * 1).tolist())
            counts.append(spmd.metrics.num_compiles() - before)
        return drawn, counts

    @pytest.mark.parametrize("low", [0, 3])
    def test_bounded(self, low: int) -> None:
        drawn, counts = self.draws("xla", low)
        assert sum(counts) <= 2 and counts[2:] == [0] * (STEPS - 2)
        assert all(low <= number < 10 + i for i, step in enumerate(drawn) for number in step)

    @pytest.mark.parametrize(
        ("low", "high"), [(0, 1), (-3, 4), (5, 2**31), (-(2**40), 2**32 - 1 - 2**40)]
    )
    def test_the_numbers_are_the_same(self, low: int, high: int) -> None:
        with compiler_context():
            draw = (jnp.int64(7), jnp.int64(1))
            fixed = integers(draw, (1000,), low, high, np.dtype(np.int64))
            assert np.array_equal(
                fixed, integers(draw, (1000,), low, jnp.int64(high), np.dtype(np.int64))
            )

    def test_a_bad_range_is_still_refused(self) -> None:
        self.draws("xla", 0)
        with pytest.raises(RuntimeError, match="from"):
            torch.randint(7, 7, (6,), device="xla")


class TestGrowingValues:
    """A list of integers that grows by one each time, which hand-written and library generation
    loops keep."""

    def loop(self, device: str, mesh: spmd.Mesh | None = None) -> tuple[list[int], Tensor]:
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(16, 16, generator=generator).to(device)
        ids = torch.randint(16, (8, 3), generator=generator).to(device)
        mask = torch.ones(8, 3, dtype=torch.bool).to(device)
        if mesh is not None:
            spmd.mark_sharding(ids, mesh, ("fsdp", None))
        counts = []
        for _ in range(10):
            before = spmd.metrics.num_compiles()
            mask = torch.cat([mask, mask.new_ones(8, 1)], dim=1)
            whole = torch.nn.functional.pad(mask, (0, 20 - mask.shape[1]))
            hidden = (
                torch.nn.functional.embedding(ids[:, -1:], weight) * whole.sum(1)[:, None, None]
            )
            ids = torch.cat([ids, (hidden @ weight).argmax(-1)], dim=1)
            assert not bool(ids[:, -1].max() < 0)
            counts.append(spmd.metrics.num_compiles() - before)
        return counts, ids

    def test_bounded(self) -> None:
        before = spmd.metrics.counter("host_ops")
        counts, ids = self.loop("xla")
        assert not any(counts[4:]), (counts, spmd.metrics.report())
        # the report tells of what the host computed
        assert spmd.metrics.counter("host_ops") > before
        assert torch.equal(ids.cpu(), self.loop("cpu")[1])

    def test_sharded(self, mesh8: spmd.Mesh) -> None:
        counts, ids = self.loop("xla", mesh8)
        assert not any(counts[5:]), (counts, spmd.metrics.report())
        assert torch.equal(ids.cpu(), self.loop("cpu")[1])

    def test_another_batch_size_is_not_taken_to_the_host(self) -> None:
        weight = torch.randn(16, 4).to("xla")
        for size in (4, 5, 6, 7):
            ids = torch.arange(size).to("xla")
            before = spmd.metrics.num_compiles()
            made = (torch.nn.functional.embedding(ids + 1, weight) * 2).cpu()
            assert spmd.metrics.num_compiles() == before + 1
            torch.testing.assert_close(made, weight.cpu()[1 : size + 1] * 2)


class TestNumbersThatTheHostKnows:
    """A read of a number that a few small exact ops make of data waits for no program; any other
    read does."""

    def reads(self, number: Callable[[Tensor], Tensor]) -> tuple[float | int | bool, int]:
        """The result of the read while a product is pending, and the number of programs that ran
        for it."""
        times = torch.tensor([981, 961, 941]).to("xla")
        work = torch.ones(4, 4, device="xla") @ torch.ones(4, 4, device="xla")
        before = spmd.metrics.counter("runs")
        made = number(times).item()
        ran = spmd.metrics.counter("runs") - before
        assert work.tolist() == [[4.0] * 4] * 4
        return made, ran

    def test_a_number_of_data(self) -> None:
        assert self.reads(lambda times: times[1] - 20) == (941, 0)
        assert self.reads(lambda times: (times[1] - 20 >= 0) & (times[2] != 7)) == (True, 0)
        assert self.reads(lambda times: times[1:].max() // torch.tensor(7, device="xla")) == (
            137,
            0,
        )

    def test_what_depends_on_floats_runs(self) -> None:
        assert self.reads(lambda times: (times.float().exp() > 1).all()) == (True, 1)

    def test_many_ops_run(self) -> None:
        def many(times: Tensor) -> Tensor:
            for i in range(20):
                times = times + i
            return times[0]

        assert self.reads(many) == (981 + 190, 1)

    def test_a_counter_stays_short(self) -> None:
        """A value that was read is data from then on: a counter that a loop asks about is never
        long."""
        spmd.sync()  # what others have recorded before counts for the search for loops, too
        count, state = (
            torch.zeros((), dtype=torch.int64, device="xla"),
            torch.zeros(3, device="xla"),
        )
        before = spmd.metrics.counter("runs")
        for i in range(40):
            count += 1
            state += count
            assert int(count) == i + 1
        assert spmd.metrics.counter("runs") == before
        assert state.tolist() == [820.0] * 3

    def test_alone_it_needs_no_program_either(self) -> None:
        times = torch.tensor([981, 961]).to("xla")
        before = spmd.metrics.counter("runs")
        assert (times[0] - 20).item() == 961
        assert spmd.metrics.counter("runs") == before

    def test_forbidden_as_any_read(self) -> None:
        times = torch.tensor([981, 961]).to("xla")
        with spmd.no_host_transfer(), pytest.raises(RuntimeError, match="item"):
            (times[0] - 20).item()


class TestFloatsOnTheHost:
    """A read of what only compares and moves floats of data waits for no program that is
    pending."""

    def test_conditions(self, mesh8: spmd.Mesh) -> None:
        plain = torch.tensor(
            [[1.5, -2.0, float("nan"), 1e-40], [0.0, -0.0, float("inf"), 3.0]], dtype=torch.float64
        )
        for data in (
            plain.to("xla"),
            spmd.mark_sharding(plain.to("xla"), mesh8, (("fsdp",), None))[:, :],
        ):
            data.cpu()
            pending = data.exp()
            runs, programs = spmd.metrics.counter("runs"), spmd.metrics.num_compiles()
            for read in (
                lambda x: bool((x > 1).any()),
                lambda x: bool(x.isnan().any()),
                lambda x: bool(x.isfinite().all()),
                lambda x: x.max().item(),
                lambda x: x[1].min().item(),
                lambda x: (x[0, 3] > 0).item(),
                lambda x: bool((x[1].abs() <= 3).all()),
                lambda x: bool(x[0, 0] == -x[0, 1]),
            ):
                found, expected = read(data), read(plain)
                assert found == expected or (found != found and expected != expected)
            assert (spmd.metrics.counter("runs"), spmd.metrics.num_compiles()) == (runs, programs)
            torch.testing.assert_close(pending.cpu(), plain.exp(), equal_nan=True)

    def test_sums_round_and_run(self) -> None:
        data = torch.tensor([0.1, 0.2, 0.3]).to("xla")
        pending = data.exp()
        runs = spmd.metrics.counter("runs")
        assert (data.sum() > 0.5).item()
        assert spmd.metrics.counter("runs") == runs + 1
        torch.testing.assert_close(pending.cpu(), torch.tensor([0.1, 0.2, 0.3]).exp())

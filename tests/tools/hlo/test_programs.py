"""Programs of a TPU's compiler, kept as text: their collectives with and without the SparseCore,
and the times of each.

`programs/record.py` has made them: two blocks under FSDP, v5p:2x2x2, libtpu 0.0.42.
"""

import itertools
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from spmd import Mesh
from spmd.core.programs.hlo import Module
from spmd.tools.hlo.hlo_collectives import collectives, key_of, start_of
from spmd.tools.hlo.program_facts import exchanges, line_cycles
from spmd.tools.planning.clock import CHIPS, WAITING
from spmd.tools.planning.tpu_clock import EXPECTED, TpuClock

FOLDER = Path(__file__).parent / "programs"
V5P = CHIPS["TPU v5"]
MESH = Mesh(range(8), (8,), ("fsdp",))
ASYNC_KINDS = {"all-gather": 5, "reduce-scatter": 4}  # backward gathers one weight again
MIB = 1 << 20


def graph() -> Any:
    """The parts of a graph that the table asks for."""
    return types.SimpleNamespace(meshes=lambda: [MESH.sharding((), 0)], nodes=[])


def clock_of(module: Module) -> TpuClock:
    places = list(itertools.product(range(2), repeat=3))
    return TpuClock(module, V5P, (0,) * 8, places, EXPECTED)


@pytest.fixture(params=["sparsecore", "tensorcore"])
def module(request: pytest.FixtureRequest) -> Module:
    return Module((FOLDER / f"{request.param}.hlo").read_text())


class TestReading:
    """The collectives, and the cores that run them."""

    def test_sparse_core(self) -> None:
        """The weights' gathers and their gradients' reductions, which is all, are asynchronous
        calls."""
        module = Module((FOLDER / "sparsecore.hlo").read_text())
        rows = [each.row for each in collectives(module, graph())]
        assert Counter(row.kind for row in rows if row.core == "sparsecore") == ASYNC_KINDS
        assert {(row.core, row.bytes, row.devices, row.count) for row in rows} == {
            ("sparsecore", 8 * MIB, 8, 1)
        }

    def test_tensor_core(self) -> None:
        """Nothing is beside computation, and gradients are all-reduced."""
        module = Module((FOLDER / "tensorcore.hlo").read_text())
        rows = [each.row for each in collectives(module, graph())]
        assert not any(row.core or row.is_async for row in rows)
        assert {row.kind for row in rows} == {"all-gather", "all-reduce"}


class TestTimes:
    """Waiting and hidden seconds add up to those of the transfers, per collective and together."""

    def test_sums(self, module: Module) -> None:
        clock = clock_of(module)
        spent = clock.run()
        rows = [row for row, _ in exchanges(collectives(module, graph()), graph(), clock.times)]
        assert all(0 <= row.waiting <= row.seconds * (1 + 1e-9) and row.seconds > 0 for row in rows)
        assert sum(row.waiting for row in rows) == pytest.approx(spent[WAITING["ici"]])

    def test_nothing_is_hidden_on_the_tensor_core(self) -> None:
        module = Module((FOLDER / "tensorcore.hlo").read_text())
        clock = clock_of(module)
        clock.run()
        assert all(seconds == pytest.approx(waiting) for seconds, waiting in clock.times.values())

    def test_what_a_call_covers(self) -> None:
        """The first gather waits for what the cycles between its start and its end leave of it."""
        module = Module((FOLDER / "sparsecore.hlo").read_text())
        clock = clock_of(module)
        clock.run()
        entry = module.computations[module.entry]
        found = [each for each in collectives(module, graph()) if each.row.core]
        starts = {
            start_of(each.computation, each.line)[1].name: key_of(each.computation, each.line)
            for each in found
        }
        first = next(line for line in entry.lines if line.name in starts)
        begin = entry.lines.index(first)
        end = next(
            i
            for i, one in enumerate(entry.lines)
            if one.opcode == "call-done" and first.name in one.operands
        )
        covered = sum(map(line_cycles, entry.lines[begin:end])) / V5P.clock
        seconds, waiting = clock.times[starts[first.name]]
        assert (
            waiting == pytest.approx(max(0.0, seconds - covered))
            and seconds > 8 * MIB * 7 / 8 / V5P.link_bytes
        )

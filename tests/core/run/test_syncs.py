"""The barrier among threads: while one compiles, others record; what they read and write then comes
out right."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import check, run_script

import spmd
from spmd.core.programs import cache


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], list[Any]]:
    """Has another thread do something in the midst of the next compile, which waits for it; returns
    what that made."""

    def arrange(act: Callable[[], Any]) -> list[Any]:
        made: list[Any] = []
        compile_graph = cache.compile_graph

        def interrupted(*args: Any, **kwargs: Any) -> Any:
            monkeypatch.setattr(cache, "compile_graph", compile_graph)
            thread = threading.Thread(target=lambda: made.append(act()))
            thread.start()
            thread.join(60)
            assert not thread.is_alive(), "a thread that records waits for a compile"
            return compile_graph(*args, **kwargs)

        monkeypatch.setattr(cache, "compile_graph", interrupted)
        return made

    return arrange


def state(size: int) -> torch.Tensor:
    """Data on the device, which a run may overwrite."""
    x = torch.arange(float(size)).to("xla") + 0
    spmd.sync()
    return x


class TestRecordingWhileOneCompiles:
    """A thread that records does not wait for another's compile, and neither sees half of the
    other's work."""

    def test_reads_what_is_being_computed(self, meanwhile: Any) -> None:
        x = state(11)
        x.add_(1)
        made = meanwhile(lambda: x * 2)
        spmd.sync()
        check(made[0], (torch.arange(11.0) + 1) * 2)
        check(x, torch.arange(11.0) + 1)

    def test_writes_what_is_being_computed(self, meanwhile: Any) -> None:
        x = state(12)
        x.add_(1)
        meanwhile(lambda: x.mul_(3))
        spmd.sync()
        check(x, (torch.arange(12.0) + 1) * 3)
        x.sub_(1)
        check(x, (torch.arange(12.0) + 1) * 3 - 1)

    def test_reads_inside_a_program_whose_inputs_are_donated(self, meanwhile: Any) -> None:
        """A view's value, read before, is no result of the program: it is computed again from what
        is kept for it."""
        x = state(13)
        x.add_(1)
        view = x[2:5]
        other = view + 1
        x.data  # noqa: B018
        made = meanwhile(lambda: view * 10)
        spmd.sync()
        check(made[0], (torch.arange(13.0) + 1)[2:5] * 10)
        check(other, (torch.arange(13.0) + 1)[2:5] + 1)
        check(x, torch.arange(13.0) + 1)

    def test_ops_that_only_others_need_stay_recorded(self, meanwhile: Any) -> None:
        x = state(14)
        x.add_(1)

        def record() -> torch.Tensor:
            made = torch.ones(14, device="xla")
            for _ in range(200):
                made = made + x
            return made

        made = meanwhile(record)
        runs = spmd.metrics.counter("runs")
        spmd.sync()
        assert spmd.metrics.counter("runs") - runs == 1 and spmd.get_stablehlo()
        check(made[0], 1 + 200 * (torch.arange(14.0) + 1))

    def test_annotates_what_is_being_computed(self, meanwhile: Any, mesh8: spmd.Mesh) -> None:
        x = state(16)
        y = spmd.mark_sharding(x * 3, mesh8, (None,))
        meanwhile(lambda: spmd.mark_sharding(y, mesh8, ("fsdp",)))
        spmd.sync()
        check(y, torch.arange(16.0) * 3)
        assert spmd.local_shards(y)[0].data.shape == (2,)

    def test_lays_out_what_is_read(self, meanwhile: Any, mesh8: spmd.Mesh) -> None:
        x = spmd.mark_sharding(state(24), mesh8, (None,))
        x.add_(1)
        y = x + 1
        meanwhile(lambda: spmd.mark_sharding(x, mesh8, ("fsdp",)))
        spmd.sync()
        check(x, torch.arange(24.0) + 1)
        check(y, torch.arange(24.0) + 2)
        assert spmd.local_shards(x)[0].data.shape == (3,)

    def test_takes_an_annotation_back(self, meanwhile: Any, mesh8: spmd.Mesh) -> None:
        y = spmd.mark_sharding(state(32) * 3, mesh8, ("fsdp",))
        meanwhile(lambda: spmd.clear_sharding(y))
        spmd.sync()
        check(y, torch.arange(32.0) * 3)

    def test_a_read_waits_for_the_barrier(self, meanwhile: Any) -> None:
        x = state(15)
        x.add_(1)
        found: list[list[float]] = []
        reader = threading.Thread(target=lambda: found.append(x.tolist()))
        meanwhile(reader.start)
        spmd.sync()
        reader.join(60)
        assert found == [(torch.arange(15.0) + 1).tolist()]

    def test_one_program_where_nothing_was_touched(self, meanwhile: Any) -> None:
        x = state(17)
        x.add_(1)
        made = meanwhile(lambda: torch.ones(17, device="xla") * 2)
        compiles = spmd.metrics.num_compiles()
        spmd.sync()
        assert spmd.metrics.num_compiles() - compiles == 1
        assert spmd.metrics.compiles()[-1].alias_bytes == 17 * 4
        check(made[0], torch.full((17,), 2.0))

    def test_a_compile_that_fails(self, meanwhile: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        x = state(18)
        x.add_(1)

        def act() -> torch.Tensor:
            monkeypatch.setattr(cache, "_cause", broken)
            return x * 2

        def broken(*args: Any) -> str:
            raise KeyError("of the test")

        cause = cache._cause
        made = meanwhile(act)
        with pytest.raises(KeyError, match="of the test"):
            spmd.sync()
            spmd.sync()
        monkeypatch.setattr(cache, "_cause", cause)
        check(made[0], (torch.arange(18.0) + 1) * 2)
        check(x, torch.arange(18.0) + 1)


class TestProgramsAtOnce:
    """Programs with collectives that do not wait for each other's results, started one behind the
    other."""

    def test_all_end(self) -> None:
        """Two at once took all of XLA's threads, each part waiting for one that got none."""
        printed = run_script(
            """
            import torch, spmd

            spmd.simulate(8)
            mesh = spmd.Mesh(range(8), (8,), ("x",))
            rows = [
                spmd.mark_sharding(torch.zeros(512, 512).to("xla"), mesh, ("x", None))
                for _ in range(6)
            ]
            spmd.sync()
            for turn in range(80):
                for row in rows:
                    total = (row @ row.t()).sum() + turn + torch.ones(64, 64).to("xla").sum()
                    spmd.sync()
            print(total.item())
            """,
            timeout=280,
        )
        assert float(printed) == 79 + 64 * 64

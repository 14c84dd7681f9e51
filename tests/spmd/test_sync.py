"""Around a barrier: where a tensor is before and after it, who is told of it, what waits for its
end."""

import threading

import pytest
import torch

import spmd
from spmd import Mesh
from spmd.core.run.syncs import Synced


class TestResidence:
    """residence: on the host, pending, on devices, planned with alone, or lost; asking changes
    nothing."""

    def test_life(self, mesh8: Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8).to("xla"), mesh8, ("fsdp",))
        y = x * 2
        z = y[1:]
        assert [*map(spmd.residence, (x, y, z, x[1:]))] == ["host", "pending", "pending", "host"]
        spmd.sync()
        assert [*map(spmd.residence, (x, y, z))] == ["devices"] * 3
        y.add_(1)
        x.copy_(torch.zeros(8))
        assert [*map(spmd.residence, (x, y))] == ["host", "pending"]

    def test_planned(self) -> None:
        x = torch.ones(2).to("xla") + 1
        spmd.sync()

        def step() -> torch.Tensor:
            assert (
                spmd.residence(x) in ("devices", "pending", "abstract")
                and spmd.residence(x.add_(1)) == "pending"
            )
            spmd.sync()
            assert spmd.residence(x) == "abstract"
            return x

        spmd.plan(step)
        assert spmd.residence(x) == "devices" and x.tolist() == [2.0, 2.0]

    def test_not_on_the_device(self) -> None:
        with pytest.raises(TypeError, match="residence: expected a tensor on xla, got one on cpu"):
            spmd.residence(torch.ones(2))


class TestOnSync:
    """on_sync: told of each barrier, by sync or by a read, until it is removed."""

    def test_what_ran(self) -> None:
        spmd.sync()
        seen: list[Synced] = []
        handle = spmd.on_sync(seen.append)
        kept = torch.randn(3, 17).to("xla") * 3, torch.ones(2).to("xla") + 1
        spmd.sync()
        (kept[0] / 7).sum().item()
        spmd.sync()
        handle.remove()
        (kept[0] + 1).sum().item()
        assert [(one.num_tensors, one.num_programs) for one in seen] == [(2, 1), (1, 1), (0, 0)]
        assert [len(one.compiled) for one in seen] == [1, 1, 0]
        assert seen[0].compiled[0].name == "step" and "test_sync.py" in seen[0].line

    def test_reads_in_it_tell_nobody(self) -> None:
        spmd.sync()
        x, seen = torch.ones(2).to("xla"), []
        with spmd.on_sync(lambda done: seen.append((x * len(seen)).sum().item())):
            spmd.sync()
            spmd.sync()
        assert seen == [0.0, 2.0]

    def test_of_a_read_that_runs_what_it_needs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        spmd.sync()
        monkeypatch.setattr(spmd.config, "sync_on_read", "needed")
        seen: list[Synced] = []
        with spmd.on_sync(seen.append):
            one, two = torch.ones(2).to("xla") + 1, torch.ones(2).to("xla") + 2
            assert one.tolist() == [2.0, 2.0] and spmd.residence(two) == "pending"
        assert [done.num_tensors for done in seen] == [1]

    def test_what_it_raises(self) -> None:
        x = torch.ones(2).to("xla") + 1

        def fail(done: Synced) -> None:
            raise KeyError("in the hook")

        with spmd.on_sync(fail), pytest.raises(KeyError, match="in the hook"):
            spmd.sync()
        assert spmd.residence(x) == "devices"

    def test_a_plan_tells_nobody(self) -> None:
        seen: list[Synced] = []
        with spmd.on_sync(seen.append):
            spmd.plan(lambda: torch.ones(2, device="xla") + 1)
        assert seen == []

    def test_no_function(self) -> None:
        with pytest.raises(TypeError, match="on_sync: expected a function of a Synced, got 5"):
            spmd.on_sync(5)


class TestStepClosures:
    """add_step_closure: once, at the end of the step, in order; in a thread of its own where
    asked."""

    def test_order(self) -> None:
        seen: list[object] = []
        loss = torch.ones(2).to("xla").sum()
        spmd.torch_xla.add_step_closure(
            lambda value: seen.append((spmd.residence(value), value.item())), args=(loss,)
        )
        spmd.torch_xla.add_step_closure(lambda: seen.append("second"))
        (torch.ones(2).to("xla") + 1).tolist()
        assert seen == []  # a read ends no step
        spmd.torch_xla.mark_step()
        assert seen == [("devices", 2.0), "second"]
        spmd.sync()
        assert len(seen) == 2

    def test_one_that_adds_another(self) -> None:
        seen: list[int] = []
        spmd.torch_xla.add_step_closure(
            lambda: (seen.append(1), spmd.torch_xla.add_step_closure(lambda: seen.append(2)))
        )
        spmd.sync()
        assert seen == [1]
        spmd.sync()
        assert seen == [1, 2]

    def test_a_fault_leaves_the_others(self) -> None:
        seen: list[int] = []
        spmd.torch_xla.add_step_closure(lambda: 1 // 0)
        spmd.torch_xla.add_step_closure(lambda: seen.append(1))
        with pytest.raises(ZeroDivisionError):
            spmd.sync()
        assert seen == []
        spmd.sync()
        assert seen == [1]

    def test_beside_the_steps(self) -> None:
        go, done, seen = threading.Event(), threading.Event(), []

        def slow(value: torch.Tensor) -> None:
            go.wait(30)
            seen.append((value.item(), threading.current_thread() is threading.main_thread()))
            done.set()

        spmd.torch_xla.add_step_closure(slow, (torch.ones(3).to("xla").sum(),), run_async=True)
        spmd.sync()
        assert seen == []  # the step did not wait for it
        go.set()
        assert done.wait(30) and seen == [(3.0, False)]

    def test_a_fault_beside_the_steps(self) -> None:
        done = threading.Event()

        def fail() -> None:
            done.set()
            raise KeyError("beside")

        spmd.torch_xla.add_step_closure(fail, run_async=True)
        spmd.sync()
        assert done.wait(30)
        last = threading.Event()
        spmd.torch_xla.add_step_closure(last.set, run_async=True)
        with pytest.raises(KeyError, match="beside"):
            for _ in range(1000):
                spmd.sync()
                last.wait(0.01)

    def test_arguments(self) -> None:
        with pytest.raises(TypeError, match="add_step_closure: expected a function, got 'print'"):
            spmd.torch_xla.add_step_closure("print")
        with pytest.raises(
            TypeError, match=r"expected args as a tuple, got XlaTensor; one is \(loss,\)"
        ):
            spmd.torch_xla.add_step_closure(print, torch.ones(2, device="xla"))

"""Saving in a thread: the values of the call are written while steps overwrite their tensors."""

import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import spmd
from spmd.checkpoint import SaveError
from spmd.core.graph import buffer_leases
from spmd.jobs.checkpoint import staged_state, step_folder

from .states import MESHES, Run


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Saves wait for this event before each shard that they read."""
    event, cut = threading.Event(), staged_state._cut

    def held(*args: Any) -> Any:
        assert event.wait(60)
        return cut(*args)

    monkeypatch.setattr(staged_state, "_cut", held)
    yield event
    event.set()


@pytest.fixture
def opening(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that waits for a save opens the gate."""
    wait = buffer_leases._changed.wait

    def waiting() -> bool:
        gate.set()
        return wait()

    monkeypatch.setattr(buffer_leases._changed, "wait", waiting)


def sharded(*values: float) -> list[torch.Tensor]:
    return [
        spmd.mark_sharding(torch.full((16, 8), value).to("xla"), MESHES["8"], ("fsdp", None))
        for value in values
    ]


class TestValues:
    """The saved values are those of the call, whatever later steps write into the tensors."""

    @pytest.mark.parametrize("is_compiled", [False, True])
    def test_while_training(self, is_compiled: bool, tmp_path: Path, gate: threading.Event) -> None:
        run = Run()
        if is_compiled:
            run.update = spmd.compile(run.update)
        run.train(4)  # the learning rate is as it stays
        replayed = run.update.num_replayed if is_compiled else 0
        manager = spmd.CheckpointManager(tmp_path, async_=True)
        compiled, spared = spmd.metrics.num_compiles(), spmd.metrics.counter("buffers_spared")
        assert manager.save(4, run.state) and manager.all_steps() == []
        expected = run.train(2)
        assert (
            spmd.metrics.num_compiles() == compiled
            and spmd.metrics.counter("buffers_spared") > spared
        )
        if is_compiled:
            assert run.update.num_replayed == replayed + 2, run.update.causes
        gate.set()
        manager.wait()
        other = Run()
        manager.restore(other.state)
        assert other.state["progress"]["step"] == 4 and other.train(2) == expected

    def test_other_writes(self, tmp_path: Path, gate: threading.Event) -> None:
        """In-place ops, `copy_`, a marked dim, a tensor that is gone, and tensors on the CPU."""
        added, copied, resharded, gone = sharded(1, 2, 3, 4)
        host = torch.ones(3)
        manager = spmd.CheckpointManager(tmp_path)
        state = {
            "added": added,
            "copied": copied,
            "resharded": resharded,
            "gone": gone,
            "host": host,
        }
        manager.save_async(0, state)
        added.add_(10)
        copied.copy_(torch.zeros(16, 8))
        spmd.mark_sharding(resharded, MESHES["8"], (None, "fsdp"))
        resharded.mul_(2)
        host.add_(5)
        del state["gone"], gone
        spmd.sync()
        assert added.sum().item() == 128 * 11
        gate.set()
        manager.wait()
        found = {name: torch.zeros(16, 8) for name in ("added", "copied", "resharded", "gone")} | {
            "host": torch.zeros(3)
        }
        manager.restore(found)
        assert [found[name].unique().tolist() for name in found] == [[1], [2], [3], [4], [1]]

    def test_rows_of_a_store(
        self, tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Scanned layers, whose weights are rows of one array: it is copied once, and a row written
        by itself is not seen."""
        monkeypatch.setattr(spmd.config, "scan_layers", "always")
        torch.manual_seed(0)
        layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(4)]).to("xla")
        for layer in layers:
            spmd.mark_sharding(layer.weight, MESHES["8"], ("fsdp", None))

        def step() -> None:
            x = torch.ones(4, 8, device="xla")
            for layer in layers:
                x = layer(x).tanh()
            x.sum().backward()
            with torch.no_grad():
                for parameter in layers.parameters():
                    parameter.sub_(0.1 * parameter.grad)
                    parameter.grad = None
            spmd.sync()

        step()
        step()
        before = {name: value.cpu() for name, value in layers.state_dict().items()}
        assert layers[1].weight._storage.value.store is not None
        manager = spmd.CheckpointManager(tmp_path)
        manager.save_async(0, {"layers": layers})
        step()
        with torch.no_grad():
            layers[2].weight.zero_()
        step()
        gate.set()
        manager.wait()
        manager.restore({"layers": layers})
        for name, value in layers.state_dict().items():
            assert torch.equal(value.cpu(), before[name]), name


class TestWaiting:
    """The copies of one step take no more than the room; what is too much is waited for, and no
    more than that."""

    def test_room(self, tmp_path: Path, gate: threading.Event, opening: None) -> None:
        """Two arrays and room for one: a step that overwrites one of them does not wait, one that
        overwrites both does, until one is written."""
        first, second = sharded(1, 2)
        spmd.sync()
        manager = spmd.CheckpointManager(tmp_path, device_bytes=first.nbytes)
        spared = spmd.metrics.counter("buffers_spared")
        manager.save_async(0, {"first": first, "second": second})
        second.add_(1)
        spmd.sync()
        assert not gate.is_set() and spmd.metrics.counter("buffers_spared") == spared + 1
        gate.set()
        manager.wait()
        gate.clear()
        manager.save_async(1, {"first": first, "second": second})
        first.add_(1)
        second.add_(1)
        spmd.sync()
        assert gate.is_set() and spmd.metrics.counter("buffers_spared") <= spared + 2
        manager.wait()
        for step, expected in ((0, [1, 2]), (1, [1, 3])):
            state = {"first": torch.zeros(16, 8), "second": torch.zeros(16, 8)}
            manager.restore(state, step)
            assert [value[0, 0].item() for value in state.values()] == expected

    def test_no_room(self, tmp_path: Path, gate: threading.Event, opening: None) -> None:
        """Without room the step waits until the array is written, and overwrites it in place."""
        (x,) = sharded(1)
        manager = spmd.CheckpointManager(tmp_path, device_bytes=0)
        spared = spmd.metrics.counter("buffers_spared")
        manager.save_async(0, {"x": x})
        x.add_(1)
        spmd.sync()
        assert gate.is_set() and spmd.metrics.counter("buffers_spared") == spared
        manager.wait()
        assert manager.last_save is not None and manager.last_save.seconds_waited > 0
        state = {"x": torch.zeros(16, 8)}
        manager.restore(state)
        assert state["x"].unique().tolist() == [1] and x.unique().tolist() == [2]

    def test_interrupted(
        self, tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A wait that Ctrl-C ends is made once more, and raises what the save fails with."""

        def interrupted(thread: threading.Thread) -> None:
            raise KeyboardInterrupt

        def fails(*args: Any) -> None:
            raise OSError(5, "Input/output error")

        (x,) = sharded(1)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save_async(0, {"x": x})
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(threading.Thread, "join", interrupted)
            manager.wait()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            gate.set()
            with pytest.raises(SaveError, match="Input/output error"):
                manager.wait()
        manager.wait()
        assert manager.all_steps() == []

    def test_one_at_a_time(self, tmp_path: Path, gate: threading.Event) -> None:
        (x,) = sharded(1)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save_async(0, {"x": x})
        threading.Timer(0.2, gate.set).start()
        manager.save_async(1, {"x": x})
        assert gate.is_set() and 0 in manager.all_steps()
        manager.wait()
        assert manager.all_steps() == [0, 1]


class TestMemory:
    """The host holds two shards of the devices' arrays at a time; nothing is lent any more at the
    end."""

    def test_two_shards(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        alive: list[Any] = []
        most = 0
        on_its_way = staged_state._on_its_way

        def counted(data: Any) -> Any:
            nonlocal most
            made = on_its_way(data)
            alive.append(weakref.ref(made))
            most = max(most, sum(1 for ref in alive if ref() is not None))
            return made

        monkeypatch.setattr(staged_state, "_on_its_way", counted)
        spmd.CheckpointManager(tmp_path).save(
            0, {str(i): x for i, x in enumerate(sharded(*range(5)))}
        )
        assert len(alive) == 40 and most == 2
        assert not any(ref() is not None for ref in alive)

    @pytest.mark.parametrize("fails", [False, True])
    def test_given_back(self, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (x,) = sharded(1)
        manager = spmd.CheckpointManager(tmp_path)
        with monkeypatch.context() as patch:
            if fails:
                patch.setattr(step_folder.SyncedFile, "append", _raise)
            manager.save_async(0, {"x": x})
            if fails:
                with pytest.raises(spmd.checkpoint.SaveError, match="ValueError: a fault"):
                    manager.wait()
            manager.wait()
        spared = spmd.metrics.counter("buffers_spared")
        x.add_(1)
        spmd.sync()
        assert spmd.metrics.counter("buffers_spared") == spared

    def test_a_state_that_cannot_be_held(self, tmp_path: Path) -> None:
        (x,) = sharded(1)
        with pytest.raises(TypeError, match="which a checkpoint cannot hold"):
            spmd.CheckpointManager(tmp_path).save(0, {"x": x, "f": [print]})
        spared = spmd.metrics.counter("buffers_spared")
        x.add_(1)
        spmd.sync()
        assert spmd.metrics.counter("buffers_spared") == spared


def _raise(*args: Any) -> None:
    raise ValueError("a fault")

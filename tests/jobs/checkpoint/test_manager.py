"""The steps of `spmd.CheckpointManager`: when it saves, which stay, and saves at a signal."""

import gc
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import spmd
from spmd.jobs.checkpoint import preemption


class TestSteps:
    """Which steps are saved, which stay, and under which names."""

    def test_interval_and_keep(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(tmp_path, save_interval=5, keep=2)
        assert [step for step in range(16) if manager.save(step, {"n": step})] == [0, 5, 10, 15]
        assert manager.all_steps() == [10, 15] and manager.latest_step() == 15
        assert manager.save(16, {"n": 16}, force=True) and manager.all_steps() == [15, 16]
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "15", "16"]
        state = {"n": 0}
        assert manager.restore(state, 15) == 15 and state["n"] == 15

    def test_shorter_than_the_interval(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A run that saved nothing says so at its end; one that saved a step does not."""
        for steps, force, says in ((4, False, 1), (4, True, 0), (6, False, 0)):
            manager = spmd.CheckpointManager(tmp_path / f"{steps}{force}", save_interval=5)
            for step in range(1, steps + 1):
                manager.save(step, {"n": step}, force=force)
            assert "nothing was saved" not in capsys.readouterr().err
            del manager
            gc.collect()
            said = capsys.readouterr().err
            assert said.count("nothing was saved up to step 4, as save_interval is 5") == says
            assert ("force=True" in said) == bool(says)

    def test_saved_again(self, tmp_path: Path) -> None:
        """After a return to an earlier step the later ones are saved again: at no time is one of
        them not there."""
        manager = spmd.CheckpointManager(tmp_path, keep=3)
        for step in (1, 2, 3):
            manager.save(step, {"n": step})
        for times in (1, 2):
            manager.save(2, {"n": 2 + 10 * times})
            state = {"n": 0}
            manager.restore(state, 2)
            assert state["n"] == 2 + 10 * times and manager.all_steps() == [1, 2, 3]
        manager.save(4, {"n": 4})
        assert manager.all_steps() == [2, 3, 4]  # 1 was saved longest ago

    def test_a_new_run_in_an_old_folder(self, tmp_path: Path) -> None:
        """Steps go by age, and the latest is that with the highest number: for a while one of the
        old run."""
        manager = spmd.CheckpointManager(tmp_path, keep=2)
        for step in (40, 50):
            manager.save(step, {"n": step})
        manager.save(0, {"n": 0})
        state = {"n": 1}
        assert (
            manager.all_steps() == [0, 50]
            and manager.latest_step() == manager.restore(state) == state["n"] == 50
        )
        manager.save(10, {"n": 10})
        assert manager.all_steps() == [0, 10] and manager.latest_step() == 10

    def test_clock_that_goes_back(self, tmp_path: Path) -> None:
        """A step that was written under a clock that was ahead is not the newest for ever."""
        manager = spmd.CheckpointManager(tmp_path, keep=2)
        manager.save(1, {"n": 1})
        ahead = time.time_ns() + 10**18
        os.utime(tmp_path / "1/manifest.json", ns=(ahead, ahead))
        for step in (2, 3, 4):
            manager.save(step, {"n": step})
        assert manager.all_steps() == [3, 4]

    def test_none(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(tmp_path / "new")
        assert manager.all_steps() == [] and manager.latest_step() is None
        with pytest.raises(FileNotFoundError, match="no committed step in"):
            manager.restore({"n": 0})
        manager.save(1, {"n": 1})
        with pytest.raises(FileNotFoundError, match=r"no committed step 2 in .*; it has 1"):
            manager.restore({"n": 0}, 2)

    def test_arguments(self, tmp_path: Path) -> None:
        for given in ({"save_interval": 0}, {"keep": 0}, {"device_bytes": -1}, {"keep": 2.0}):
            with pytest.raises(ValueError, match=f"expected {next(iter(given))} to be"):
                spmd.CheckpointManager(tmp_path, **given)
        with pytest.raises(ValueError, match="expected a step of 0 or more, got -1"):
            spmd.CheckpointManager(tmp_path).save(-1, {})


class TestPreemption:
    """SIGTERM is kept for the next step, which is saved once; a second one does what one did
    before."""

    @pytest.fixture(autouse=True)
    def _handler(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        before = signal.getsignal(signal.SIGTERM)
        self.taken: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: self.taken.append(number))
        monkeypatch.setattr(preemption, "_signal", None)
        yield
        signal.signal(signal.SIGTERM, before)

    def test_saves_once(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(tmp_path, save_interval=100, async_=True)
        assert not manager.save(1, {"n": 1})
        os.kill(os.getpid(), signal.SIGTERM)
        spmd.sync()
        assert manager.should_save(2) and manager.reached_preemption(2)
        assert manager.save(2, {"n": 2}) and manager.all_steps() == [2]
        assert not manager.save(3, {"n": 3}) and not manager.reached_preemption(3)
        assert self.taken == []
        os.kill(os.getpid(), signal.SIGTERM)
        torch.ones(1, device="xla").add_(1)  # handlers run between two ops
        assert self.taken == [signal.SIGTERM]

    def test_not_asked_for(self, tmp_path: Path) -> None:
        spmd.CheckpointManager(tmp_path)
        os.kill(os.getpid(), signal.SIGTERM)
        assert self.taken == [signal.SIGTERM]

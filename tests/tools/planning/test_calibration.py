"""Constants measured on the device that is here, kept in a file, and the times of plans that they
change."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import spmd
from spmd import __main__ as command
from spmd.core.programs.hlo import Module
from spmd.tools.planning import gpu_clock, step_time, tpu_clock
from spmd.tools.planning.clock import CHIPS, Chip
from spmd.tools.profiler import calibration
from spmd.tools.profiler.calibration import Sizes, calibrate
from tests.tools.planning import hlo_of_tpu
from tests.tools.planning.test_tpu_clock import gather, work

TINY = Sizes(product=64, sequence=128, images=1, collective=1 << 12, times=2)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(spmd.config, "calibration_file", str(tmp_path / "constants.json"))
    return tmp_path / "constants.json"


def chip(**fields: Any) -> Chip:
    return Chip("here", 1e12, 1 << 30, 1e10, "made up", **fields)


class TestMeasured:
    """Every constant of the clock is measured, and kept by the kind of device."""

    def test_a_gpu(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(CHIPS, "cpu", chip(bandwidth=1e11))
        file.write_text(json.dumps({"another": {"rates": {"product": 0.5}}}))
        found = calibrate(sizes=TINY)
        wanted = {name for names in gpu_clock.GpuClock.constants.values() for name in names}
        assert set(found) == wanted and all(value > 0 for value in found.values())
        known = json.loads(file.read_text())
        assert known["cpu"]["rates"] == found and known["another"]["rates"] == {"product": 0.5}

    def test_a_tpu(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(CHIPS, "cpu", chip(flops_per_cycle=1000, links=4))
        # a CPU's has none
        monkeypatch.setattr(calibration, "plan", lambda *args: SimpleNamespace(cycles=100))
        wanted = {name for names in tpu_clock.TpuClock.constants.values() for name in names}
        assert set(calibrate(file, TINY)) == wanted

    def test_a_device_of_unknown_peaks(
        self, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command.main(["calibrate"]) == 1
        assert "expected a TPU or a GPU whose peaks are known, got 'cpu'" in capsys.readouterr().err
        assert not file.exists()


class TestRead:
    """A plan for that kind of device is told by them."""

    def terms(self) -> dict[str, step_time.Term]:
        places = [
            SimpleNamespace(device_kind="TPU v5 lite", coords=(x, y, 0)[:2])
            for x in range(2)
            for y in range(2)
        ]
        lines = f"%y = f32[1024,1024]{{1,0}} negate(%x), {work(0.25)}\n{gather(4)}"
        program = Module(hlo_of_tpu.program(lines))
        found, _ = step_time.terms_of(program, CHIPS["TPU v5 lite"], (0,) * 4, places)
        return {term.name: term for term in found}

    def test_measured_ones_first(self, file: Path) -> None:
        before = self.terms()
        assert {term.source for term in before.values()} == {"compiler", "analytic"}
        file.write_text(json.dumps({"TPU v5 lite": {"rates": {"cycles": 2.0, "link": 0.25}}}))
        after = self.terms()
        assert after["instructions"].seconds == pytest.approx(2 * 0.25)
        assert (
            after["instructions"].low == pytest.approx(0.45)
            and after["instructions"].source == "measured"
        )
        links = "waiting for collectives (ici)"
        # no hop measured
        assert (
            after[links].seconds > 2 * before[links].seconds and after[links].source == "analytic"
        )

    def test_another_file(self, file: Path) -> None:
        file.write_text("[1]")
        with pytest.raises(
            ValueError, match="expected what `python -m spmd calibrate` writes; delete it"
        ):
            self.terms()

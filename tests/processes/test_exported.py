"""Programs that two processes of four devices export together, and that these or one of eight
devices load."""

from pathlib import Path

import pytest

import spmd

from .programs import exported_job, load_step
from .test_processes import HASTY, results, together


class TestExported:
    """A step of both processes as one program: its losses are the step's, wherever it is loaded."""

    def test_by_two_for_two_and_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        found = results(together("export_step", 0, 0, FOLDER=str(tmp_path), XLA_FLAGS=HASTY))
        assert found[0] == found[1]
        assert found[0]["pieces"] == [[3, 12]] * 4  # of 24 rows each device read its own
        assert found[0]["losses"] == pytest.approx(found[0]["expected"], rel=1e-5)
        monkeypatch.setenv("FOLDER", str(tmp_path))
        assert load_step() == pytest.approx(found[0]["losses"], rel=1e-6)

    @pytest.mark.long
    def test_by_one_for_two(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        step, batch = exported_job()
        spmd.export(step, batch).save(tmp_path)
        monkeypatch.setenv("FOLDER", str(tmp_path))
        expected = load_step()
        found = results(together("load_step", 0, 0, FOLDER=str(tmp_path)))
        assert found[0] == found[1] == pytest.approx(expected, rel=1e-6)

    @pytest.mark.long
    def test_another_step(self, tmp_path: Path) -> None:
        """Processes that export different steps are told so, and nothing is written."""
        printed = together("export_different_steps", 1, 1, FOLDER=str(tmp_path / "program"))
        assert all("ProcessError" in text and "spmd.export" in text for text in results(printed)), (
            printed
        )
        assert not (tmp_path / "program").exists()

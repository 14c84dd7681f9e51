"""Flags by the names that they had before: one error names the new name."""

import os
import subprocess
import sys

import pytest

import spmd
from spmd.core.base.config import FLAGS, RENAMED


class TestRenamed:
    """A flag that was renamed is never ignored in silence."""

    @pytest.mark.parametrize(("old", "new"), RENAMED.items())
    def test_attribute(self, old: str, new: str) -> None:
        assert new in {flag.name for flag in FLAGS}
        with pytest.raises(AttributeError, match=f"config.{old} is now config.{new}"):
            setattr(spmd.config, old, "auto")

    def test_environment(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", "import spmd"],
            capture_output=True,
            text=True,
            env={**os.environ, "SPMD_ROLL_LAYERS": "never"},
        )
        assert done.returncode == 1
        assert done.stderr.strip().endswith(
            "ValueError: SPMD_ROLL_LAYERS is now SPMD_SCAN_LAYERS: set that instead"
        )

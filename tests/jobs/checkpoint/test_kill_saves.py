"""Saves that are killed leave the last committed step: a part of `kill_saves.py`, which kills at
every operation."""

import subprocess
import sys
from pathlib import Path


class TestKills:
    """In one process, and in either of two."""

    def test_some(self) -> None:
        script = Path(__file__).parent / "kill_saves.py"
        done = subprocess.run(
            [sys.executable, "-W", "error", str(script), "--few"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert (
            "kills in" in done.stdout.splitlines()[-1]
            and "always the last committed step" in done.stdout
        )

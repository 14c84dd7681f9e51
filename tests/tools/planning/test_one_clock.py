"""One kernel with one mask and one block size costs the same on all sides: torch's words,
`call_jax`, JAX by hand."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# libtpu looks for no TPU, and lets several processes load it.
SETTINGS = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "JAX_PLATFORMS": "cpu"}


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu")
class TestOneCall:
    def test_sides(self) -> None:
        """Causal, within a window and without a mask.

        Backward of `call_jax` runs the forward kernel a second time.
        """
        command = [sys.executable, "-W", "ignore", "-m", "tests.tools.planning.splash_by_sides"]
        environment = {**os.environ, **SETTINGS, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        seconds = json.loads(done.stdout.splitlines()[-1])
        for kind, share in (("causal", 0.61), ("window", 0.50), ("full", 1.0)):
            found = seconds[kind]
            assert found["by hand"] / seconds["full"]["by hand"] == pytest.approx(
                share, abs=0.05
            ), found
            assert found.get("torch", found["by hand"]) == pytest.approx(
                found["by hand"], rel=0.01
            ), found
            assert found["call_jax"] == pytest.approx(
                found["by hand"] + found["forward"], rel=0.01
            ), found
            assert not any("count all scores" in note for note in found["notes"]), found

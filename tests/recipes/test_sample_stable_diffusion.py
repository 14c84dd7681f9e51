"""The Stable Diffusion recipe against plain PyTorch: images of both schedulers, and the programs of
its 50 steps."""

import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, own_environment, run_script

pytest.importorskip("diffusers")

SAMPLES = """
import torch
from recipes import sample_stable_diffusion as recipe
images = []
for device in ("cpu", "xla"):
    pipe = recipe.build("{scheduler}", 0).to(device)
    sampled, compiled = recipe.sample(pipe, recipe.latents(1, 1), "a red square", device, 50)
    images.append(sampled)
torch.testing.assert_close(images[1], images[0], rtol=1e-4, atol=1e-5)
print(len(compiled), compiled[-1] - compiled[2], tuple(sampled.shape))
"""


class TestPlain:
    """As on the CPU; from the third step on one program, which runs again.

    The drop-in is of a whole process.
    """

    @pytest.mark.parametrize("scheduler", ["dpm", "ddim"])
    def test_images(self, scheduler: str) -> None:
        script = "import warnings; warnings.simplefilter('default')" + SAMPLES.format(
            scheduler=scheduler
        )
        assert run_script(script, timeout=400) == "50 0 (1, 3, 16, 16)\n"


class TestReport:
    """It leaves a picture, or a plan."""

    @pytest.mark.parametrize(
        ("arguments", "file"),
        [(["--sampling-steps=4", "--images=2"], "samples.png"), (["--target=cpu:1"], "plan.html")],
    )
    def test_run(self, arguments: list[str], file: str, tmp_path: Path) -> None:
        command = [
            sys.executable,
            "recipes/sample_stable_diffusion.py",
            "--out",
            str(tmp_path),
            *arguments,
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=own_environment()
        )
        assert done.returncode == 0, done.stderr
        assert (tmp_path / file).stat().st_size > 1000

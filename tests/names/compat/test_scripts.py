"""Scripts as PyTorch/XLA's users write them run through `python -m spmd run`, with the numbers of
the CPU."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from scripted import SCRIPTS, loaded
from support import ROOT, own_environment
from torch import nn

import spmd


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    spmd.compat.install()
    yield
    spmd.compat.uninstall()


def ran(script: str, *arguments: str, folder: Path) -> Any:
    """The contents of the file that a script saves, run on eight simulated devices."""
    saved = folder / "saved.pt"
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "spmd",
        "run",
        "--devices",
        "8",
        str(SCRIPTS / script),
    ]
    done = subprocess.run(
        [*command, *arguments, "--save", str(saved)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=own_environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return torch.load(saved) | {"printed": done.stdout}


def check_model(state: dict[str, torch.Tensor], expected: nn.Module) -> None:
    assert list(state) == list(expected.state_dict())
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-4)


class TestResNet:
    """Data parallel and spatial sharding, by xm, xr, xs, pl, met."""

    @pytest.mark.parametrize(
        ("sharding", "text"), [("batch", "[8,1,1,1]"), ("spatial", "[1,1,4,2]")]
    )
    def test_as_on_the_cpu(self, sharding: str, text: str, tmp_path: Path) -> None:
        given = ran(
            "resnet_spmd.py",
            "--sharding",
            sharding,
            "--num_steps",
            "2",
            "--metrics_debug",
            folder=tmp_path,
        )
        script = loaded("resnet_spmd.py")
        torch.manual_seed(42)
        model = script.ResNet()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        images, labels = script.fake_batch(8)
        losses = []
        for _ in range(2):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert given["losses"] == pytest.approx(losses, rel=2e-5)
        check_model(given["model"], model)
        assert f"input sharding {{devices={text}0,1," in given["printed"]
        assert "programs_compiled" in given["printed"]


class TestDecoder:
    """FSDP v2 with checkpointed layers and accumulated gradients."""

    def test_as_on_the_cpu(self, tmp_path: Path) -> None:
        given = ran("decoder_fsdp_v2.py", "--steps", "2", folder=tmp_path)
        script = loaded("decoder_fsdp_v2.py")
        torch.manual_seed(42)
        model = script.Decoder()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for batch in script.batches(2, 2, 8):
            parts = [script.loss_of(model, tokens) for tokens in batch["input_ids"]]
            loss = sum(parts) / len(parts)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert given["losses"] == pytest.approx(losses, rel=2e-5)
        check_model(given["model"], model)
        assert "weight {devices=[" in given["printed"]


class TestDistributedDataParallel:
    """Under `launch`, in a group of one process, with a compiled step of a full graph."""

    def test_as_on_the_cpu(self, tmp_path: Path) -> None:
        result = ran("resnet_ddp.py", folder=tmp_path)
        script = loaded("resnet_ddp.py")
        model = script.build_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        images, labels = script.dataset().tensors
        for rows in torch.arange(48).split(16):  # two for each of eight devices
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert result["losses"] == pytest.approx(losses, rel=2e-5)
        check_model(result["model"], model)


class TestCheckpointAndProfile:
    """Planners, the manager, traces and metrics by PyTorch/XLA's names, in one script that checks
    itself."""

    def test_script(self, tmp_path: Path) -> None:
        given = ran("checkpoint_and_profile.py", folder=tmp_path)
        assert len(given["losses"]) == len(given["again"]) == 3 and given["traces"]

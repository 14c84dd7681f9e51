"""Programs with the calls of PyTorch/XLA's announcements and overview, run by `python -m spmd run`: torch's numbers."""

import importlib.util
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import ROOT, own_environment
from torch import nn

from spmd.torch_xla.sample_data import SampleGenerator

PROGRAMS = Path(__file__).parent / "announcements"


def shapes() -> ModuleType:
    spec = importlib.util.spec_from_file_location("announced_shapes", PROGRAMS / "shapes.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SHAPES = shapes()


def finished(
    program: str, *arguments: str, devices: int = 0, code: int = 0, warnings: str = "error", **environment: str
) -> subprocess.CompletedProcess[str]:
    simulated = ("--devices", str(devices)) if devices else ()
    command = [sys.executable, "-W", "error", "-W", warnings, "-m", "spmd", "run", *simulated, str(PROGRAMS / program)]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, cwd=ROOT, env={**own_environment(), **environment}
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def ran(folder: Path, program: str, *arguments: str, **settings: Any) -> Any:
    """What a program saves."""
    saved = folder / "saved.pt"
    done = finished(program, *arguments, "--save", str(saved), **settings)
    return torch.load(saved) | {"printed": done.stdout}


def check(given: dict[str, torch.Tensor], expected: nn.Module, tolerance: float = 1e-4) -> None:
    assert list(given) == list(expected.state_dict())
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(given[name], value, rtol=tolerance, atol=tolerance)


def trained(
    model: nn.Module, batches: list[Any], momentum: float = 0.0, lr: float = 0.1, epoch: int = 1000
) -> list[float]:
    """The losses of SGD on the CPU; the learning rate is halved after each `epoch` steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=epoch, gamma=0.5)
    losses = []
    for data, target in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def joined(batches: list[Any], count: int) -> list[Any]:
    return [tuple(map(torch.cat, zip(*batches[i : i + count], strict=True))) for i in range(0, len(batches), count)]


class TestTraceOnce:
    """`torchxla_trace_once` in evaluation, and `aot_torchxla_trace_once` of a function that calls backward."""

    def test_resnet18(self, tmp_path: Path) -> None:
        # torch warns at each graph break after a backward, on the CPU, too
        saved = ran(tmp_path, "trace_once.py", warnings="ignore:The .grad attribute of a Tensor that is not a leaf")
        model = SHAPES.resnet18().eval()
        for given, (data, _) in zip(saved["evaluated"], SHAPES.images(3, 64), strict=True):
            torch.testing.assert_close(given, model(data).detach(), rtol=1e-4, atol=1e-5)
        model.train()
        for given, (data, target) in zip(saved["trained"], SHAPES.images(2, 64), strict=True):
            output = model(data)
            F.cross_entropy(output, target).backward()
            torch.testing.assert_close(given, output.detach(), rtol=1e-4, atol=1e-5)
        for name, param in model.named_parameters():
            torch.testing.assert_close(saved["grads"][name], param.grad, rtol=1e-4, atol=1e-5)


class TestMarked:
    """A weight and batches marked over a mesh of eight; sums over a list with a mark_step in each round."""

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_linear(self, partitioner: str, tmp_path: Path) -> None:
        saved = ran(tmp_path, "marked_linear.py", devices=8, SPMD_PARTITIONER=partitioner)
        model = SHAPES.simple_linear()
        assert saved["losses"] == pytest.approx(trained(model, SHAPES.rows(4)), rel=2e-5)
        check(saved["model"], model)
        assert saved["sharding"] == "{devices=[2,4]0,1,2,3,4,5,6,7}"
        assert saved["num_compiles"] == 1 and all((total == 15).all() for total in saved["totals"])


class TestWrapped:
    """Units by size (of more than 1e7 parameters) and by class."""

    def test_policies(self, tmp_path: Path) -> None:
        saved = ran(tmp_path, "wrapping.py", devices=8)
        by_class = (SHAPES.convolutions(), SHAPES.images(2, 8, 4), "3")
        for name, (model, batches, units) in {
            "size": (SHAPES.wide(), SHAPES.rows(2, 16), "2"),
            "class": by_class,
        }.items():
            assert saved[name]["losses"] == pytest.approx(trained(model, batches), rel=2e-5)
            assert saved[name]["units"] == units


class TestNewer:
    """scan_layers of 64 layers made on the device, and a value on the host and back."""

    def test_layers_and_places(self, tmp_path: Path) -> None:
        saved = ran(tmp_path, "layers_and_places.py")
        torch.testing.assert_close(saved["out"], saved["loop"], rtol=1e-4, atol=1e-5)
        layer = nn.Linear(1024, 1024)
        layer.load_state_dict(saved["first"])
        assert layer.weight.abs().max().item() <= 1 / 32 and saved["out"].shape == saved["x"].shape == (1024,)
        values = torch.arange(6.0).view(2, 3)
        torch.testing.assert_close(saved["placed"], {"value": values * 2, "grad": values * 8})


class TestLaunched:
    """`launch` is data parallelism over all devices, with `debug_single_process` a run on one; traced and captured."""

    def test_all_devices(self, tmp_path: Path) -> None:
        saved = ran(tmp_path, "launched.py", devices=8)
        model = SHAPES.simple_linear()
        assert saved["losses"] == pytest.approx(
            trained(model, joined(SHAPES.rows(16, size=4), 8), momentum=0.9), rel=2e-5
        )
        check(saved["model"], model)

    def test_debug_and_capture(self, tmp_path: Path) -> None:
        saved = ran(tmp_path, "launched.py", "debug", devices=8)
        model = SHAPES.simple_linear()
        assert saved["losses"] == pytest.approx(trained(model, SHAPES.rows(16, size=4), momentum=0.9), rel=2e-5)
        check(saved["model"], model)
        assert saved["captured"] == 1


class TestImageNet:
    """The script on fake data, by PJRT_DEVICE: it trains on the CPU; elsewhere one sentence says what is not here."""

    def test_on_the_cpu(self, tmp_path: Path) -> None:
        variables = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4", "GPU_NUM_DEVICES": "4"}
        saved = ran(tmp_path, "imagenet.py", "--fake_data", "--metrics_debug", **variables)
        # In float32 on one thread torch itself is 0.5 % off in the third step, where a ReLU turns on by rounding.
        model = SHAPES.resnet18().double()
        data, target = joined(SHAPES.images(1, 64) * 4, 4)[0]
        losses = trained(model, [(data.double(), target)] * len(saved["losses"]), momentum=0.9, lr=0.05, epoch=2)
        assert saved["losses"] == pytest.approx(losses, rel=2e-5) and losses[-1] < losses[0]
        assert "Epoch 1 train end" in saved["printed"] and "Epoch 1 test end, Accuracy=" in saved["printed"]
        assert "Metric: CompileTime" in saved["printed"]

    def test_fake_data_ends(self) -> None:
        """An iterator over made-up batches is one: a loader that takes a few at a time would begin them again."""
        batches = iter(SampleGenerator(data="batch", sample_count=3))
        assert iter(batches) is batches and [*islice(batches, 2), *batches] == ["batch"] * 3

    @pytest.mark.parametrize(("device", "platform"), [("TPU", "tpu"), ("GPU", "cuda")])
    def test_without_the_hardware(self, device: str, platform: str) -> None:
        done = finished("marked_linear.py", code=1, PJRT_DEVICE=device, GPU_NUM_DEVICES="4", JAX_PLATFORMS="")
        assert done.stderr.splitlines()[-1].startswith(
            f"RuntimeError: JAX_PLATFORMS or PJRT_DEVICE names {platform!r}, which is not here: "
        )

"""Programs with the calls of PyTorch/XLA's announcements and overview, run by `python -m spmd run`:
torch's numbers."""

import ast
import importlib.util
import re
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
    program: str,
    *arguments: str,
    devices: int = 0,
    code: int = 0,
    warnings: str = "error",
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    simulated = ("--devices", str(devices)) if devices else ()
    command = [
        sys.executable,
        "-W",
        "error",
        "-W",
        warnings,
        "-m",
        "spmd",
        "run",
        *simulated,
        str(PROGRAMS / program),
    ]
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**own_environment(), **environment},
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
    """The losses of SGD on the CPU, by the kind of target; the learning rate is halved after each
    `epoch` steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=epoch, gamma=0.5)
    losses = []
    for data, target in batches:
        optimizer.zero_grad()
        loss = (F.mse_loss if target.is_floating_point() else F.cross_entropy)(model(data), target)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def joined(batches: list[Any], count: int) -> list[Any]:
    return [
        tuple(map(torch.cat, zip(*batches[i : i + count], strict=True)))
        for i in range(0, len(batches), count)
    ]


def names_of(program: Path) -> set[str]:
    """The names of PyTorch/XLA's that a program imports or reads of an imported module."""
    tree = ast.parse(program.read_text())
    names: set[str] = set()
    aliases = set[str]()
    for node in ast.walk(tree):
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if f"{module}.{alias.name}".lstrip(".").startswith("torch_xla"):
                    aliases.add(alias.asname or alias.name.partition(".")[0])
                    names |= set() if alias.asname else {alias.name.rpartition(".")[2]}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            if (isinstance(owner, ast.Name) and owner.id in aliases) or getattr(
                owner, "attr", ""
            ) == "_XLAC":
                names.add(node.attr)
    return names


@pytest.mark.parametrize(
    "program",
    sorted({*PROGRAMS.glob("*.py")} - {PROGRAMS / "shapes.py"}),
    ids=lambda path: path.name,
)
def test_page_names_each_call(program: Path) -> None:
    page = (ROOT / "docs/from-torch-xla.md").read_text()
    backends = re.findall(r'backend="(\w+)"', program.read_text())
    names = names_of(program)
    assert names and not [
        name for name in {*names, *backends} if not re.search(rf"\b{name}\b", page)
    ]


class TestTraceOnce:
    """`torchxla_trace_once` in evaluation, and `aot_torchxla_trace_once` of a function that calls
    backward."""

    def test_resnet18(self, tmp_path: Path) -> None:
        # torch warns at each graph break after a backward, on the CPU, too
        saved = ran(
            tmp_path,
            "trace_once.py",
            warnings="ignore:The .grad attribute of a Tensor that is not a leaf",
        )
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
    """A weight and the data marked by one spec, over a mesh of eight."""

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    def test_linear(self, partitioner: str, tmp_path: Path) -> None:
        saved = ran(tmp_path, "marked_linear.py", devices=8, SPMD_PARTITIONER=partitioner)
        model = SHAPES.simple_linear()
        assert saved["losses"] == pytest.approx(trained(model, SHAPES.rows(4)), rel=2e-5)
        check(saved["model"], model)
        assert saved["sharding"] == saved["data"] == "{devices=[2,4]0,1,2,3,4,5,6,7}"


class TestLazyTensors:
    """Sums with a mark_step in each round: their programs, and the text of a graph that has not
    run."""

    @pytest.mark.parametrize("scalars", ["0", "1"])
    def test_sums(self, scalars: str, tmp_path: Path) -> None:
        saved = ran(tmp_path, "lazy_tensors.py", XLA_NO_SPECIAL_SCALARS=scalars)
        (grown, num_dynamic), (last, num_static), (sums, num_sums) = (
            saved["dynamic"],
            saved["static"],
            saved["sums"],
        )
        assert (
            grown.tolist() == [0.0] + [256.0] * 6
            and last.tolist() == [256.0]
            and sums.tolist() == [20.0] * 8
        )
        # The first number is a constant of its program; the others are operands of one.
        assert 1 < num_dynamic <= 6 and num_static == 1 and num_sums <= 2
        assert (
            "dot_general" in saved["text"]
            and "ENTRY" in saved["hlo"]
            and "Metric: CompileTime" in saved["report"]
        )


class TestWrapped:
    """Units by size (of more than 1e7 parameters) and by class."""

    def test_policies(self, tmp_path: Path) -> None:
        saved = ran(tmp_path, "wrapping.py", devices=8)
        by_class = (SHAPES.convolutions(), SHAPES.images(2, 8, 4), "3")
        for name, (model, batches, units) in {
            "size": (SHAPES.wide(), SHAPES.labelled_rows(2, 16), "2"),
            "class": by_class,
        }.items():
            assert saved[name]["losses"] == pytest.approx(trained(model, batches), rel=2e-5)
            assert saved[name]["units"] == units


class TestNewer:
    """scan_layers of 64 decoder layers made on the device, and a value on the host and back."""

    def test_layers_and_places(self, tmp_path: Path) -> None:
        saved = ran(tmp_path, "layers_and_places.py")
        torch.testing.assert_close(saved["out"], saved["loop"], rtol=1e-4, atol=1e-5)
        assert list(saved["first"]) == ["linear.weight", "linear.bias"]
        assert 0 < saved["first"]["linear.weight"].abs().max().item() <= 1 / 32
        assert saved["out"].shape == saved["x"].shape == (1, 1024)
        values = torch.arange(6.0).view(2, 3)
        torch.testing.assert_close(saved["placed"], {"value": values * 2, "grad": values * 8})


class TestLaunched:
    """`launch` is data parallelism over all devices, with `debug_single_process` a run on one;
    traced and captured."""

    def test_all_devices(self, tmp_path: Path) -> None:
        saved = ran(tmp_path, "launched.py", devices=8)
        model = SHAPES.simple_linear()
        assert saved["losses"] == pytest.approx(
            trained(model, joined(SHAPES.rows(16, size=4), 8), momentum=0.9, lr=0.01), rel=2e-5
        )
        check(saved["model"], model)

    def test_debug_and_capture(self, tmp_path: Path) -> None:
        saved = ran(tmp_path, "launched.py", "debug", devices=8)
        model = SHAPES.simple_linear()
        assert saved["losses"] == pytest.approx(
            trained(model, SHAPES.rows(16, size=4), momentum=0.9, lr=0.01), rel=2e-5
        )
        check(saved["model"], model)
        assert saved["captured"] == 1


class TestProcesses:
    """Data parallelism by PyTorch/XLA 2.0's names, and images of one pipeline over four devices by
    `launch`."""

    def test_pjrt(self, tmp_path: Path) -> None:
        # torch's DDP says on stderr that it times cpu and cuda alone
        saved = ran(tmp_path, "ddp_pjrt.py", devices=8, PJRT_DEVICE="CPU")
        model = SHAPES.simple_linear()
        assert saved["losses"] == pytest.approx(trained(model, SHAPES.rows(4)), rel=2e-5)
        check(saved["model"], model)

    def test_stable_diffusion(self, tmp_path: Path) -> None:
        pipe = SHAPES.diffusion_pipeline()
        pipe.set_progress_bar_config(disable=True)
        prompt, negative, noise = map(torch.cat, zip(*SHAPES.prompts(4), strict=True))
        # numpy says that torch's arrays have an older interface
        with pytest.warns(DeprecationWarning, match="__array__"):
            latents = pipe(
                prompt_embeds=prompt,
                negative_prompt_embeds=negative,
                latents=noise,
                num_inference_steps=2,
                output_type="latent",
            ).images
        with torch.no_grad():
            images = pipe.vae.decode(latents / pipe.vae.config.scaling_factor).sample
        saved = ran(
            tmp_path, "stable_diffusion.py", devices=4, warnings="ignore:__array__ implementation"
        )
        torch.testing.assert_close(saved["images"], images, rtol=1e-4, atol=1e-4)
        assert (
            saved["shards"] == 4
            and "0: 4 images on 4 devices" in saved["printed"]
            and saved["index"] == 0
        )
        assert saved["error"] == (
            "launch: args=(0,) are what my_function takes behind its index, so that the call is "
            "my_function(0, 0): too many positional arguments. Write launch(my_function) for a "
            "function of the index alone"
        )


class TestImageNet:
    """The script's command on fake data, by PJRT_DEVICE: it trains on the CPU; else a sentence says
    what lacks."""

    options = ("--fake_data", "--batch_size=256", "--num_epochs=1")

    def test_on_the_cpu(self, tmp_path: Path) -> None:
        variables = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4", "GPU_NUM_DEVICES": "4"}
        saved = ran(
            tmp_path, "imagenet.py", *self.options, "--metrics_debug", "--lr=0.01", **variables
        )
        # In float32 on one thread torch itself is 0.5 % off in the third step, where a ReLU turns
        # on by rounding.
        model = SHAPES.narrow_resnet18().double()
        data, target = joined(SHAPES.images(1, 8, batch_size=256) * 4, 4)[0]
        losses = trained(
            model, [(data.double(), target)] * len(saved["losses"]), momentum=0.9, lr=0.01, epoch=2
        )
        assert saved["losses"] == pytest.approx(losses, rel=2e-5) and losses[-1] < losses[0]
        assert (
            "Epoch 1 train end" in saved["printed"]
            and "Epoch 1 test end, Accuracy=" in saved["printed"]
        )
        assert "Metric: CompileTime" in saved["printed"]

    def test_fake_data_ends(self) -> None:
        """An iterator over made-up batches is one: a loader that takes a few at a time would begin
        them again."""
        batches = iter(SampleGenerator(data="batch", sample_count=3))
        assert iter(batches) is batches and [*islice(batches, 2), *batches] == ["batch"] * 3

    @pytest.mark.parametrize(
        ("device", "platform"), [("TPU", "tpu"), ("GPU", "cuda"), ("CUDA", "cuda")]
    )
    def test_without_the_hardware(self, device: str, platform: str) -> None:
        done = finished(
            "imagenet.py",
            *self.options,
            code=1,
            PJRT_DEVICE=device,
            GPU_NUM_DEVICES="4",
            JAX_PLATFORMS="",
        )
        assert done.stderr.splitlines()[-1].startswith(
            f"RuntimeError: JAX_PLATFORMS or PJRT_DEVICE names {platform!r}, which is not here: "
        )

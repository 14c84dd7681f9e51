"""Scripts that know nothing of meshes: all devices compute, and the losses are the CPU's."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, own_environment

SCRIPT = """
import sys
import torch
from torch import nn

device = sys.argv[1]
torch.manual_seed(0)
data, classes = torch.randn(512, 16), torch.arange(512) % 4
scale = torch.linspace(0.5, 1, 16).to(device)  # copied once: no batch
model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 4))
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(4):
    rows = torch.randint(512, (256,))
    x, y = data[rows].to(device), classes[rows].to(device)
    loss = nn.functional.cross_entropy(model(x * scale), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
    model.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
"""
# `python -m spmd run`, and the operations of a device in the last program that it compiled.
RUN = """
import atexit, runpy, spmd
atexit.register(lambda: print("operations", spmd.metrics.compiles()[-1].flops))
runpy.run_module("spmd", run_name="__main__")
"""


def ran(folder: Path, num_devices: int, script: str = SCRIPT) -> tuple[list[float], float, str]:
    """The losses, the operations of a device, and what stood on stderr."""
    path = folder / "train.py"
    path.write_text(script)
    command = ["run", "--devices", str(num_devices), str(path), "xla", str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *command],
        capture_output=True,
        text=True,
        timeout=300,
        env=own_environment(),
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    words = [line.split() for line in done.stdout.splitlines()]
    by_name = {
        name: [float(word[1]) for word in words if word[0] == name]
        for name in ("loss", "operations")
    }
    return by_name["loss"], by_name["operations"][-1], done.stderr


class TestBatches:
    def test_all_devices_compute(self, tmp_path: Path) -> None:
        (tmp_path / "cpu.py").write_text(SCRIPT)
        command = [sys.executable, tmp_path / "cpu.py", "cpu"]
        on_cpu = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        expected = [float(line.split()[1]) for line in on_cpu.stdout.splitlines()]
        losses, operations, said = ran(tmp_path, 8)
        assert losses == pytest.approx(expected, rel=1e-5)
        assert said.count("are sharded along dim 0 over 8 devices") == 1
        assert "batches copied at train.py:15" in said
        _, of_one, _ = ran(tmp_path, 1)
        assert operations <= 1.2 * of_one / 8

    def test_a_script_of_its_own_marks(self, tmp_path: Path) -> None:
        """One that imports the library places its batches itself."""
        _, operations, said = ran(
            tmp_path, 8, SCRIPT.replace("import torch\n", "import torch, spmd\n")
        )
        assert "are sharded along dim 0" not in said
        assert operations > ran(tmp_path, 1)[1] / 2


# What timm's scripts read: its loader, in a folder of packages, copies the next batch ahead.
LOADER = """
class PrefetchLoader:
    def __init__(self, loader, device):
        self.loader, self.device = loader, device

    def __iter__(self):
        ahead = None
        for x, y in self.loader:
            batch = x.to(self.device).sub_(0.5).div_(2.0), y.to(self.device)
            if ahead is not None:
                yield ahead
            ahead = batch
        yield ahead
"""
LOADED = """
import sys
import torch
from torch import nn
from timm.data import loader

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.rand(256, 16), torch.arange(256) % 4)
batches = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 4))
model.to(sys.argv[1])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
for x, y in loader.PrefetchLoader(batches, sys.argv[1]):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
"""


class TestTimm:
    def test_all_devices_compute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        packages = tmp_path / "site-packages"
        (packages / "timm" / "data").mkdir(parents=True)
        (packages / "timm" / "data" / "loader.py").write_text(LOADER)
        monkeypatch.setenv("PYTHONPATH", str(packages))
        (tmp_path / "cpu.py").write_text(LOADED)
        command = [sys.executable, tmp_path / "cpu.py", "cpu"]
        on_cpu = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        expected = [float(line.split()[1]) for line in on_cpu.stdout.splitlines()]
        losses, operations, _ = ran(tmp_path, 8, LOADED)
        assert losses == pytest.approx(expected, rel=1e-5)
        assert operations <= 1.2 * ran(tmp_path, 1, LOADED)[1] / 8


# Few rows and large weights: the optimizers' steps are most of what would not be shared.
GAN = """
import sys
import torch
from torch import nn

device, folder = sys.argv[1:]
torch.manual_seed(0)
images = torch.rand(256, 64)
generator = nn.Sequential(nn.Linear(16, 512), nn.LeakyReLU(0.2), nn.Linear(512, 64), nn.Tanh())
judge = nn.Sequential(nn.Linear(64, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1))
optimizers = []
for model in (generator.to(device), judge.to(device)):
    optimizers.append(torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.5, 0.999)))
loss_of = nn.functional.binary_cross_entropy_with_logits
noises = torch.randn(12, 32, 16)
for step in range(12):
    real, noise = images[torch.randint(256, (32,))].to(device), noises[step].to(device)
    loss = loss_of(judge(generator(noise)), torch.ones(32, 1, device=device))
    loss.backward()
    optimizers[0].step()
    optimizers[0].zero_grad()
    optimizers[1].zero_grad()
    of_real = loss_of(judge(real), torch.ones(32, 1, device=device))
    of_fake = loss_of(judge(generator(noise).detach()), torch.zeros(32, 1, device=device))
    ((of_real + of_fake) / 2).backward()
    optimizers[1].step()
    optimizers[1].zero_grad()
    print("loss", loss.item())
    print("loss", (of_real + of_fake).item())
    if step == 7:  # a checkpoint, which this run goes on from
        states = [one.state_dict() for one in (generator, judge, *optimizers)]
        torch.save(states, folder + "/states.pt")
        states = torch.load(folder + "/states.pt", map_location="cpu")
        assert states[2]["state"][0]["exp_avg"].shape == (512, 16)
        for one, state in zip((generator, judge, *optimizers), states):
            one.load_state_dict(state)
"""


class TestSteps:
    """Optimizers' steps are shared, too: each device holds and computes a part of their state."""

    def test_all_devices_compute(self, tmp_path: Path) -> None:
        (tmp_path / "cpu.py").write_text(GAN)
        command = [sys.executable, tmp_path / "cpu.py", "cpu", tmp_path]
        on_cpu = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        expected = [float(line.split()[1]) for line in on_cpu.stdout.splitlines()]
        losses, operations, _ = ran(tmp_path, 8, GAN)
        assert losses == pytest.approx(expected, rel=1e-4)
        assert operations <= 1.2 * ran(tmp_path, 1, GAN)[1] / 8

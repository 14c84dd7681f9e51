"""A small ResNet on fake data as PyTorch/XLA's users write it: SPMD, data parallel or by
--sharding.

python resnet_spmd.py --sharding batch --num_epochs 2
python resnet_spmd.py --sharding spatial
"""

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.debug.profiler as xp
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
import torch_xla.utils.utils as xu
from torch import nn, optim

parser = argparse.ArgumentParser()
parser.add_argument("--sharding", nargs="*", choices=["batch", "spatial"], default=["batch"])
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--num_epochs", type=int, default=1)
parser.add_argument("--num_steps", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--log_steps", type=int, default=1)
parser.add_argument("--metrics_debug", action="store_true")
parser.add_argument("--save", default=None)
FLAGS, _ = parser.parse_known_args()


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(out)))


class ResNet(nn.Module):
    def __init__(self, channels=8, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.Sequential(Block(channels), Block(channels))
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


def fake_batch(batch_size):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(batch_size, 3, 16, 8, generator=generator)
    return images, torch.randint(0, 10, (batch_size,), generator=generator)


def _train_update(step, loss, tracker, epoch, losses):
    losses.append(loss.item())
    xm.master_print(
        f"Epoch {epoch} step {step}, loss: {losses[-1]:.7f}, rate {tracker.rate():.1f}", flush=True
    )


def train_spmd():
    torch.manual_seed(42)
    xr.use_spmd()
    device = torch_xla.device()
    num_devices = xr.global_runtime_device_count()
    device_ids = np.arange(num_devices)
    if "spatial" in FLAGS.sharding:
        mesh = xs.Mesh(device_ids, (1, 1, num_devices // 2, 2), ("N", "C", "H", "W"))
    else:
        mesh = xs.Mesh(device_ids, (num_devices, 1, 1, 1), ("N", "C", "H", "W"))
    assert mesh.device_ids.tolist() == list(range(num_devices))

    train_loader = xu.SampleGenerator(
        data=fake_batch(FLAGS.batch_size), sample_count=FLAGS.num_steps
    )
    test_loader = xu.SampleGenerator(data=fake_batch(FLAGS.batch_size), sample_count=1)
    image_sharding = xs.ShardingSpec(mesh, ("N", "C", "H", "W"))
    if FLAGS.sharding == ["batch"]:
        # data parallel: the first dim of images and of labels
        image_sharding = xs.ShardingSpec(mesh, ("N", None, None, None))
    train_device_loader = pl.MpDeviceLoader(train_loader, device, input_sharding=image_sharding)
    test_device_loader = pl.MpDeviceLoader(test_loader, device, input_sharding=image_sharding)

    model = ResNet().to(device)
    optimizer = optim.SGD(model.parameters(), lr=FLAGS.lr, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    losses = []

    def train_loop_fn(loader, epoch):
        tracker = xm.RateTracker()
        model.train()
        for step, (data, target) in enumerate(loader):
            with xp.StepTrace("train_resnet"), xp.Trace("build_graph"):
                optimizer.zero_grad()
                output = model(data)
                loss = loss_fn(output, target)
                loss.backward()
                optimizer.step()
            tracker.add(FLAGS.batch_size)
            if step % FLAGS.log_steps == 0:
                xm.add_step_closure(_train_update, args=(step, loss, tracker, epoch, losses))

    def test_loop_fn(loader):
        total_samples, correct = 0, 0
        model.eval()
        with torch.no_grad():
            for data, target in loader:
                pred = model(data).max(1, keepdim=True)[1]
                correct += pred.eq(target.view_as(pred)).sum()
                total_samples += data.size()[0]
        return 100.0 * float(xm.mesh_reduce("accuracy", correct.item() / total_samples, np.mean))

    for epoch in range(1, FLAGS.num_epochs + 1):
        xm.master_print(f"Epoch {epoch} train begin {time.strftime('%H:%M:%S')}")
        train_loop_fn(train_device_loader, epoch)
        xm.wait_device_ops()
        accuracy = test_loop_fn(test_device_loader)
        xm.master_print(f"Epoch {epoch} test end, Accuracy={accuracy:.2f}")
    if FLAGS.metrics_debug:
        xm.master_print(met.metrics_report())
        assert (
            met.counter_value("UncachedCompile") is not None
            and met.metric_data("CompileTime")[0] > 0
        )
    sharding = torch_xla._XLAC._get_xla_sharding_spec(next(iter(train_device_loader))[0])
    xm.master_print("input sharding", sharding)
    if FLAGS.save:
        xm.save({"model": model.state_dict(), "losses": losses, "accuracy": accuracy}, FLAGS.save)


def _mp_fn(index):
    assert index == 0 and xr.world_size() == 1 and xr.is_spmd()
    train_spmd()


if __name__ == "__main__":
    xmp.spawn(_mp_fn, args=())

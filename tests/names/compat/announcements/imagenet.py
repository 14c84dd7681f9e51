"""The shape of PyTorch/XLA's ImageNet test: an image classifier on fake data, launched on all
devices.

PJRT_DEVICE=TPU python imagenet.py --fake_data --batch_size=256 --num_epochs=1
PJRT_DEVICE=CPU python imagenet.py --fake_data --batch_size=256 --num_epochs=1
PJRT_DEVICE=CUDA GPU_NUM_DEVICES=4 python imagenet.py --fake_data --batch_size=256 --num_epochs=1
"""

import argparse
import sys

import numpy as np
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.debug.profiler as xp
import torch_xla.distributed.parallel_loader as pl
import torch_xla.runtime as xr
import torch_xla.test.test_utils as test_utils
import torch_xla.utils.utils as xu
from shapes import images, narrow_resnet18
from torch import nn, optim
from torch_xla.amp import autocast, syncfree

parser = argparse.ArgumentParser()
for name, kind, default in (
    ("batch_size", int, 128), ("num_epochs", int, 18), ("num_batches", int, 8),
    ("image_size", int, 8), ("log_steps", int, 1), ("num_cores", int, None), ("lr", float, 0.05),
    ("momentum", float, 0.9), ("loader_prefetch_size", int, 8), ("device_prefetch_size", int, 4),
    ("host_to_device_transfer_threads", int, 1), ("logdir", str, None), ("save", str, None),
    ("target_accuracy", float, 0.0),
):  # fmt: skip
    parser.add_argument(f"--{name}", type=kind, default=default)
for name in ("fake_data", "metrics_debug", "profile", "amp", "use_syncfree_optim"):
    parser.add_argument(f"--{name}", action="store_true")
FLAGS = parser.parse_args()
SAVED = {"losses": []}


def _train_update(device, step, loss, tracker, epoch, writer):
    SAVED["losses"].append(loss.item())
    test_utils.print_training_update(
        device,
        step,
        loss.item(),
        tracker.rate(),
        tracker.global_rate(),
        epoch,
        summary_writer=writer,
    )


def fake_loader(count):
    return xu.SampleGenerator(
        data=images(1, FLAGS.image_size, batch_size=FLAGS.batch_size)[0],
        sample_count=count // xr.world_size(),
    )


def train_imagenet():
    assert FLAGS.fake_data
    train_loader = fake_loader(FLAGS.num_batches)
    test_loader = fake_loader(4)
    torch.manual_seed(42)
    device = xm.xla_device()
    model = narrow_resnet18().to(device)
    writer = test_utils.get_summary_writer(FLAGS.logdir) if xm.is_master_ordinal() else None
    optim_cls = syncfree.SGD if FLAGS.use_syncfree_optim else optim.SGD
    optimizer = optim_cls(model.parameters(), lr=FLAGS.lr, momentum=FLAGS.momentum)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    loss_fn = nn.CrossEntropyLoss()

    def train_loop_fn(loader, epoch):
        tracker = xm.RateTracker()
        model.train()
        for step, (data, target) in enumerate(loader):
            with xp.StepTrace("train_imagenet", step_num=step), xp.Trace("build_graph"):
                optimizer.zero_grad()
                with autocast(device, enabled=FLAGS.amp):
                    loss = loss_fn(model(data), target)
                loss.backward()
                xm.optimizer_step(optimizer)
                tracker.add(FLAGS.batch_size)
                scheduler.step()
            if step % FLAGS.log_steps == 0:
                xm.add_step_closure(
                    _train_update, args=(device, step, loss, tracker, epoch, writer)
                )

    def test_loop_fn(loader, epoch):
        total_samples, correct = 0, 0
        model.eval()
        for step, (data, target) in enumerate(loader):
            pred = model(data).max(1, keepdim=True)[1]
            correct += pred.eq(target.view_as(pred)).sum()
            total_samples += data.size()[0]
            if step % FLAGS.log_steps == 0:
                xm.add_step_closure(test_utils.print_test_update, args=(device, None, epoch, step))
        return xm.mesh_reduce("test_accuracy", 100.0 * correct.item() / total_samples, np.mean)

    loader_options = {
        name: getattr(FLAGS, name)
        for name in (
            "loader_prefetch_size",
            "device_prefetch_size",
            "host_to_device_transfer_threads",
        )
    }
    train_device_loader = pl.MpDeviceLoader(train_loader, device, **loader_options)
    test_device_loader = pl.MpDeviceLoader(test_loader, device, **loader_options)
    accuracy = 0.0
    for epoch in range(1, FLAGS.num_epochs + 1):
        xm.master_print(f"Epoch {epoch} train begin {test_utils.now()}")
        train_loop_fn(train_device_loader, epoch)
        xm.master_print(f"Epoch {epoch} train end {test_utils.now()}")
        accuracy = test_loop_fn(test_device_loader, epoch)
        xm.master_print(f"Epoch {epoch} test end, Accuracy={accuracy:.2f}")
        test_utils.write_to_summary(
            writer,
            epoch,
            dict_to_write={"Accuracy/test": accuracy},
            write_xla_metrics=FLAGS.metrics_debug,
        )
        if FLAGS.metrics_debug:
            xm.master_print(met.metrics_report())
    test_utils.close_summary_writer(writer)
    SAVED["model"] = {name: value.cpu() for name, value in model.state_dict().items()}
    return accuracy


def _mp_fn(index, flags):
    global FLAGS
    FLAGS = flags
    torch.set_default_dtype(torch.float32)
    if train_imagenet() < FLAGS.target_accuracy:
        sys.exit(21)


if __name__ == "__main__":
    server = xp.start_server(0) if FLAGS.profile else None
    torch_xla.launch(_mp_fn, args=(FLAGS,), debug_single_process=FLAGS.num_cores == 1)
    torch.save(SAVED, FLAGS.save)

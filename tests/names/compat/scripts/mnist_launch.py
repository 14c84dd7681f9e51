"""A classifier as PyTorch/XLA's users train it on all devices: `launch`, a sampler by rank, a
loader of each device.

python -m spmd run --devices 8 mnist_launch.py --save out.pt
"""

import argparse
from typing import Any

import numpy as np
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def build_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))


def dataset(rows: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    return TensorDataset(
        torch.randn(rows, 12, generator=generator),
        torch.randint(4, (rows,), generator=generator),
        torch.arange(rows),
    )


def note(saved: dict[str, Any], loss: torch.Tensor, rows: torch.Tensor) -> None:
    saved["losses"].append(loss.item())
    saved["rows"].append(rows.cpu())


def train(index: int, flags: argparse.Namespace, saved: dict[str, Any]) -> None:
    device = torch_xla.device()
    data = dataset(flags.rows)
    sampler = DistributedSampler(
        data,
        num_replicas=xr.world_size(),
        rank=xr.global_ordinal(),
        shuffle=True,
        drop_last=flags.sampler_drops,
    )
    loader = DataLoader(
        data, batch_size=flags.batch_size, sampler=sampler, drop_last=flags.drop_last
    )
    model = build_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    train_loader = pl.MpDeviceLoader(loader, device)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        saved["steps"] = len(train_loader)
        for x, y, rows in train_loader:
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            xm.optimizer_step(optimizer)
            mean = xm.all_reduce("sum", loss.detach(), scale=1.0 / xr.world_size())
            xm.add_step_closure(note, args=(saved, mean, rows))
    correct = total = 0
    para_loader = pl.ParallelLoader(DataLoader(data, batch_size=flags.batch_size), [device])
    for x, y, _ in para_loader.per_device_loader(device):
        correct += (model(x).argmax(1) == y).sum().item()
        total += y.shape[0]
    saved["accuracy"] = xm.mesh_reduce("accuracy", correct / total, np.mean)
    saved["total"] = total
    saved["model"] = {name: value.cpu() for name, value in model.state_dict().items()}
    xm.master_print("trained", index, xr.world_size())


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save")
    parser.add_argument("--rows", type=int, default=75)
    parser.add_argument("--batch_size", type=int, default=2)
    parser.add_argument("--start", choices=["launch", "spawn", "debug"], default="launch")
    parser.add_argument("--drop_last", action="store_true")
    parser.add_argument("--sampler_drops", action="store_true")
    return parser.parse_args(arguments)


def start(flags: argparse.Namespace, saved: dict[str, Any]) -> None:
    if flags.start == "spawn":
        xmp.spawn(train, args=(flags, saved), nprocs=None, start_method="fork")
    else:
        torch_xla.launch(train, args=(flags, saved), debug_single_process=flags.start == "debug")


if __name__ == "__main__":
    flags = parse()
    saved: dict[str, Any] = {"losses": [], "rows": []}
    start(flags, saved)
    torch.save(saved, flags.save)

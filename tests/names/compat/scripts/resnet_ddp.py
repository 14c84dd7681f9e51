"""Data parallelism as PyTorch/XLA's example has it: `launch`, DistributedDataParallel, a compiled
step of a full graph.

python -m spmd run --devices 8 resnet_ddp.py --save out.pt
"""

import argparse
from typing import Any

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.runtime as xr
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def build_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(
        torch.randn(48, 1, 6, 6, generator=generator), torch.randint(3, (48,), generator=generator)
    )


class Training:
    def __init__(self) -> None:
        dist.init_process_group("xla", init_method="xla://")
        self.device = torch_xla.device()
        sampler = DistributedSampler(
            dataset(), num_replicas=xr.world_size(), rank=xr.global_ordinal(), shuffle=False
        )
        self.loader = pl.MpDeviceLoader(
            DataLoader(dataset(), batch_size=2, sampler=sampler), self.device
        )
        self.model = DistributedDataParallel(
            build_model().to(self.device), gradient_as_bucket_view=True
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.loss_of = nn.CrossEntropyLoss()
        self.compiled_step = torch_xla.compile(
            self.step, full_graph=True, max_different_graphs=2, name="step"
        )

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss_of(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss

    def train(self) -> list[float]:
        self.model.train()
        losses = []
        for images, labels in self.loader:
            losses.append(self.compiled_step(images, labels).item())
        xm.wait_device_ops()
        return losses


def main(index: int, path: str) -> None:
    training = Training()
    losses = training.train()
    xm.save({"losses": losses, "model": training.model.module.state_dict()}, path)
    dist.destroy_process_group()


def parsed() -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save")
    return parser.parse_args()


if __name__ == "__main__":
    torch_xla.launch(main, args=(parsed().save,))

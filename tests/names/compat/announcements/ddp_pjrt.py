"""DistributedDataParallel by the names of PyTorch/XLA 2.0: the rendezvous pjrt://, its module, and
a shared model.

python ddp_pjrt.py --save saved.pt
"""

import os
import sys

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.experimental.pjrt_backend  # noqa: F401
from shapes import rows, simple_linear
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch_xla.experimental import pjrt

saved = {"losses": []}


def _mp_fn(index):
    device = xm.xla_device()
    dist.init_process_group("xla", init_method="pjrt://")
    model = simple_linear().to(device)
    pjrt.broadcast_master_param(model)  # 2.0's place of it
    xm.broadcast_master_param(model)
    model = DDP(model, gradient_as_bucket_view=True)
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for data, target in rows(4):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(data), target)
        loss.backward()
        optimizer.step()
        xm.mark_step()
        saved["losses"].append(loss.item())
    saved["model"] = {name: value.cpu() for name, value in model.module.state_dict().items()}
    print([p.mean() for p in model.parameters()])


if __name__ == "__main__":
    os.environ["PJRT_DEVICE"] = "CPU"
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    xmp.spawn(_mp_fn)
    torch.save(saved, sys.argv[-1])

"""GSPMD by the names of PyTorch/XLA 2.0: a weight and batches marked over a mesh, in a loop that
ends in mark_step.

python marked_linear.py --save saved.pt
"""

import sys

import numpy as np
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.experimental.xla_sharding as xs
import torch_xla.runtime as xr
from shapes import rows, simple_linear
from torch import nn, optim
from torch_xla.experimental.xla_sharding import Mesh

xr.use_spmd()
num_devices = xr.global_runtime_device_count()
mesh = Mesh(np.arange(num_devices), (num_devices // 4, 4), ("x", "y"))
partition_spec = (0, 1)  # axes of the mesh by their places, of the weight and of the data

device = xm.xla_device()
model = simple_linear().to(device)
xs.mark_sharding(model.fc1.weight, mesh, partition_spec)
optimizer = optim.SGD(model.parameters(), lr=0.1)
loss_fn = nn.MSELoss()
losses = []
model.train()
for data, target in rows(4):
    optimizer.zero_grad()
    data = data.to(device)
    target = target.to(device)
    xs.mark_sharding(data, mesh, partition_spec)
    output = model(data)
    loss = loss_fn(output, target)
    loss.backward()
    optimizer.step()
    xm.mark_step()
    losses.append(loss.detach())
sharding = torch_xla._XLAC._get_xla_sharding_spec(model.fc1.weight)
torch.save(
    {
        "losses": [loss.item() for loss in losses],
        "model": {name: value.cpu() for name, value in model.state_dict().items()},
        "sharding": sharding,
        "data": torch_xla._XLAC._get_xla_sharding_spec(data),
    },
    sys.argv[-1],
)

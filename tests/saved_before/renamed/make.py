"""Write the files of this folder, at commit 2ba737a, before the library was renamed into the words
of its glossary.

python tests/saved_before/renamed/make.py FOLDER
"""

import sys

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import fsdp
import spmd

spmd.simulate(8)
out = sys.argv[1]
torch.manual_seed(0)
mesh = spmd.Mesh(range(8), (4, 2), ("fsdp", "tensor"))
weight = spmd.mark_sharding(torch.arange(64.0).reshape(8, 8).to("xla"), mesh, ("fsdp", "tensor"))
torch.save(
    {"weight": weight, "parameter": nn.Parameter(torch.ones(3, device="xla"))}, f"{out}/tensors.pt"
)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).to("xla")
model = fsdp.FullyShardedDataParallel(model, mesh=spmd.Mesh(range(8), (8,), ("fsdp",)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(8, 8, device="xla")).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    spmd.sync()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{out}/training.pt")
torch.save({name: value.cpu() for name, value in model.state_dict().items()}, f"{out}/cpu.pt")
inner = nn.Linear(4, 4).to("xla")
spmd.mark_sharding(inner.weight, mesh, ("fsdp", None))
torch.save(inner, f"{out}/module.pt")
dcp.save({"model": model.state_dict()}, checkpoint_id=f"{out}/distributed", no_dist=True)

"""Write the files of this folder, at commit 1ecdd5d, before the core was given its doors.

SPMD_PROGRAM_CACHE_DIR=FOLDER/cache python tests/saved_before/doors/make.py FOLDER

A step of AdamW under FSDP over eight devices in each format that the library writes: a job's
checkpoint with a loader's position, safetensors, an exported step and an exported model, compiled
programs, the cache of programs, rules.
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn

import fsdp
import spmd

spmd.simulate(8)
out = Path(sys.argv[1])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).to("xla")
mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
model = fsdp.FullyShardedDataParallel(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
source = torch.utils.data.DataLoader(torch.arange(64.0), batch_size=8, shuffle=True)
loader = spmd.DataLoader(source, mesh, ("fsdp",))
progress = {"step": 0}


def step(x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


# before there is data
spmd.warm(lambda host: step(host.to("xla")), torch.ones(8, 8), folder=out / "programs")
x = torch.ones(8, 8, device="xla")
for _ in range(2):
    step(x)
    spmd.sync()
    progress["step"] += 1
batches = iter(loader)
seen = [next(batches).tolist() for _ in range(3)]  # of eight
state = {"model": model, "optimizer": optimizer, "loader": loader, "progress": progress}
state["random"] = spmd.checkpoint.RandomState()
spmd.CheckpointManager(out / "job").save(2, state, force=True)
fsdp.save_checkpoint(model, out / "shards")
spmd.export(step, (x,)).save(out / "step")
spmd.export(model, (x,)).save(out / "model")
specs = {"0.weight": ("fsdp", None), "*.weight:output": (("fsdp",), None)}
spmd.ShardingRules(specs, units=["*"], checkpoint=["0"]).save(out / "rules.toml")
later = [batch.tolist() for batch in batches]
(out / "after.json").write_text(
    json.dumps({"losses": [step(x).item() for _ in range(2)], "batches": [*seen, *later]})
)

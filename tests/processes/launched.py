"""A script without `spmd.initialize`, as `python -m spmd launch` starts it; its arguments say how
it ends."""

import os
import signal
import sys

import torch
import torch.distributed as dist

import spmd

spmd.simulate(8)  # over all processes
dist.init_process_group("xla", init_method="xla://")
rank, size = dist.get_rank(), dist.get_world_size()
assert (rank, size, dist.get_backend()) == (spmd.process_index(), spmd.process_count(), "xla")
mesh = spmd.Mesh(spmd.device_ids(), (8,), ("a",))
x = spmd.mark_sharding(torch.arange(8.0, device="xla"), mesh, ("a",))
total = x.sum()
dist.all_reduce(total)
own = torch.tensor([1.0 + rank])
dist.all_reduce(own)
parts = [torch.zeros(2, device="xla") for _ in range(size)]
dist.all_gather(parts, torch.ones(2, device="xla"))
whole = torch.zeros(2 * size, device="xla")
dist.all_gather_into_tensor(whole, torch.ones(2, device="xla"))
found = [None] * size
dist.all_gather_object(found, {"rank": rank})
said = [f"from {rank}"]
dist.broadcast_object_list(said)
dist.barrier()
try:
    dist.reduce_scatter(torch.zeros(2, device="xla"), parts)
except NotImplementedError as error:
    assert "no process has a part of its own" in str(error) and size > 1
else:
    assert size == 1
print(
    total.item(),
    own.item(),
    torch.cat(parts).sum().item(),
    whole.sum().item(),
    found,
    said,
    flush=True,
)
if "raise" in sys.argv and rank == 1:
    raise ValueError("a fault of this process alone")
if "kill" in sys.argv and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
while sys.argv[1:] and rank != 1:
    y = x * 2
    spmd.sync(wait=True)
dist.destroy_process_group()

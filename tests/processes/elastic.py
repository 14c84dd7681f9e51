"""A training that torchrun restarts: the newest checkpoint, on the mesh of its name.

    torchrun --standalone --nproc_per_node 2 --max-restarts 1 elastic.py FOLDER DEVICES

DEVICES: of each process. In the first life the last process is killed in step 3.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

import fsdp
import spmd

STEPS = 6


def main(folder: Path, devices: int) -> None:
    count = int(os.environ["WORLD_SIZE"])
    spmd.initialize(local_device_count=devices, heartbeat_timeout_seconds=10)
    mesh = spmd.Mesh(range(count * devices), (count * devices,), ("fsdp",))
    torch.manual_seed(0)
    with torch.device("xla"):
        model = fsdp.fully_shard(nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 8)), mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    manager = spmd.CheckpointManager(folder, save_interval=1)
    state = {"model": model, "optimizer": optimizer}
    start = manager.restore(state) if manager.latest_step() is not None else 0
    is_first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    for step in range(start, STEPS):
        batch = torch.randn(16, 16, generator=torch.Generator().manual_seed(step))
        loss = model(batch.to("xla")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        number = loss.item()
        if is_first_life and step == 3 and spmd.process_index() == count - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        manager.save(step + 1, state)
        if spmd.process_index() == 0:
            with (folder / "losses.txt").open("a") as file:
                print(step, number, file=file)
    manager.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

"""A program of `test_sequences.py`'s processes:
`python sequences.py INDEX PORT FOLDER NAME MESH`."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import spmd
from spmd.jobs.checkpoint import step_folder
from tests.parallel.decoder import Layer, decoder, next_token_loss, sharded, tokens

BATCH, LENGTH, STEPS = 2, 32, 6
MESHES = {"context": ((8,), ("context",)), "fsdp and context": ((2, 4), ("fsdp", "context"))}
SPECS = {"context": (None, "context"), "fsdp and context": ("fsdp", "context")}


class Training:
    """Steps over a sharded sequence, with dropout in the ring; each process has its part of the
    tokens."""

    def __init__(self, mesh: str) -> None:
        spmd.config.parallel = "ring"
        shape, axes = MESHES[mesh]
        self.mesh, self.spec = spmd.Mesh(spmd.device_ids(), shape, axes), SPECS[mesh]
        self.model = sharded(decoder(dropout=0.1), Layer, self.mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        torch.manual_seed(5)

    @property
    def state(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "random": spmd.checkpoint.RandomState(),
        }

    def losses(self, start: int, stop: int) -> list[float]:
        found = []
        for step in range(start, stop):
            whole = tokens(BATCH, LENGTH + step)[:, step:]
            part = whole.chunk(spmd.process_count(), 1 if self.spec[0] is None else 0)[
                spmd.process_index()
            ]
            ids = spmd.from_process_local(part.contiguous(), self.mesh, self.spec)
            loss = next_token_loss(self.model, ids)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            found.append(loss.item())
        return found


def train(index: int, folder: Path, mesh: str) -> Any:
    found = Training(mesh).losses(0, 2)
    return {
        "losses": found,
        "exchanges": [dict(record.passes)["exchange"] for record in spmd.metrics.compiles()],
    }


def die(index: int, folder: Path, mesh: str) -> Any:
    """Steps 0 to 3; the second process is killed while it writes what follows step 3."""
    training, manager = Training(mesh), spmd.CheckpointManager(folder)
    found = training.losses(0, 2)
    manager.save(2, training.state)
    found += training.losses(2, 4)
    print(json.dumps(found), flush=True)
    if index == 1:
        step_folder.SyncedFile.append = lambda *args: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    manager.save(4, training.state)


def resume(index: int, folder: Path, mesh: str) -> Any:
    training, manager = Training(mesh), spmd.CheckpointManager(folder)
    step = manager.restore(training.state)
    return {"step": step, "losses": training.losses(step, STEPS)}


if __name__ == "__main__":
    place, port, where, name, mesh = int(sys.argv[1]), *sys.argv[2:]
    spmd.initialize(
        f"127.0.0.1:{port}", 2, place, local_device_count=4, heartbeat_timeout_seconds=10
    )
    print(json.dumps(globals()[name](place, Path(where), mesh)))

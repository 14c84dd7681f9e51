"""A program of `test_stages.py`'s processes: `python stages.py INDEX PORT FOLDER NAME STAGES`."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import fsdp  # noqa: F401  carries out the units of the rules
import spmd
from spmd.jobs.checkpoint import step_folder
from tests.parallel.staged import Model, loss_of

ROWS, LAYERS, STEPS = 16, 8, 6


def batch(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(ROWS, 8, dtype=torch.float64, generator=generator)


class Training:
    """Steps of a model in stages, or by FSDP alone (0); each process has its part of the rows."""

    def __init__(self, stages: int) -> None:
        torch.manual_seed(5)
        self.model = Model(LAYERS).double().to("xla")
        sizes = (max(stages, 1), 8 // max(stages, 1))
        self.mesh = spmd.Mesh(spmd.device_ids(), sizes, ("stage", "fsdp"))
        table = spmd.ShardingRules(
            (), units=["layers.*"], stages="stage" if stages else None,
            **({"micro_batches": 2} if stages else {}),
        )  # fmt: skip
        table.apply(self.model, self.mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def losses(self, start: int, stop: int) -> list[float]:
        found = []
        for step in range(start, stop):
            part = batch(step).chunk(spmd.process_count())[spmd.process_index()]
            x = spmd.from_process_local(
                part.contiguous(), self.mesh, spmd.P(("stage", "fsdp"), None)
            )
            loss = loss_of(self.model, x)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            found.append(loss.item())
        return found


def train(index: int, folder: Path, stages: int) -> Any:
    training = Training(stages)
    losses = training.losses(0, 2)
    weights = [layer.up.weight.cpu().sum().item() for layer in training.model.layers]
    notes = [dict(record.passes) for record in spmd.metrics.compiles()]
    found = [note["stages"] for note in notes if "stages" in note]
    return {"losses": losses, "weights": weights, "stages": found}


def die(index: int, folder: Path, stages: int) -> Any:
    """Steps 0 to 3; the second process is killed while it writes what follows step 3."""
    training, manager = Training(stages), spmd.CheckpointManager(folder)
    found = training.losses(0, 2)
    manager.save(2, training.state)
    found += training.losses(2, 4)
    print(json.dumps(found), flush=True)
    if index == 1:
        step_folder.SyncedFile.append = lambda *args: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    manager.save(4, training.state)


def resume(index: int, folder: Path, stages: int) -> Any:
    training, manager = Training(stages), spmd.CheckpointManager(folder)
    step = manager.restore(training.state)
    return {"step": step, "losses": training.losses(step, STEPS)}


if __name__ == "__main__":
    place, port, where, name, count = int(sys.argv[1]), *sys.argv[2:]
    spmd.initialize(
        f"127.0.0.1:{port}", 2, place, local_device_count=4, heartbeat_timeout_seconds=10
    )
    print(json.dumps(globals()[name](place, Path(where), int(count))))

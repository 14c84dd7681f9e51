"""A program of `test_sequences.py`'s processes:
`python sequences.py INDEX PORT FOLDER NAME MESH`."""

from typing import Any

import torch

import spmd
from tests.parallel.decoder import Layer, decoder, next_token_loss, sharded, tokens
from tests.processes.killed import run

BATCH, LENGTH = 2, 32
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


def train(training: Training) -> Any:
    return {
        "losses": training.losses(0, 2),
        "exchanges": [dict(record.passes)["exchange"] for record in spmd.metrics.compiles()],
    }


if __name__ == "__main__":
    run(Training, train)

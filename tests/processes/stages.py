"""A program of `test_stages.py`'s processes: `python stages.py INDEX PORT FOLDER NAME STAGES`."""

from typing import Any

import torch

import fsdp  # noqa: F401  carries out the units of the rules
import spmd
from tests.parallel.staged import Model, loss_of
from tests.processes.killed import run

ROWS, LAYERS = 16, 8


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
        losses = []
        for step in range(start, stop):
            part = batch(step).chunk(spmd.process_count())[spmd.process_index()]
            x = spmd.from_process_local(
                part.contiguous(), self.mesh, spmd.P(("stage", "fsdp"), None)
            )
            loss = loss_of(self.model, x)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


def train(training: Training) -> Any:
    losses = training.losses(0, 2)
    weights = [layer.up.weight.cpu().sum().item() for layer in training.model.layers]
    notes = [dict(record.passes) for record in spmd.metrics.compiles()]
    stages = [note["stages"] for note in notes if "stages" in note]
    return {"losses": losses, "weights": weights, "stages": stages}


if __name__ == "__main__":
    run(lambda stages: Training(int(stages)), train)

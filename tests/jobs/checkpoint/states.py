"""The state that tests of checkpoints save: a small training run on any mesh, with all that a step
depends on."""

from typing import Any

import torch
from torch import nn

import fsdp
import spmd

MESHES = {
    "8": spmd.Mesh(range(8), (8,), ("fsdp",)),
    "2x4": spmd.Mesh(range(8), (2, 4), ("data", "fsdp")),
    "3": spmd.Mesh([5, 6, 7], (3,), ("fsdp",)),
    "1": spmd.Mesh([2], (1,), ("fsdp",)),
}


class Tied(nn.Module):
    """A model with tied weights, dropout and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.inner = nn.Sequential(
            nn.Linear(8, 12, bias=False),
            nn.BatchNorm1d(12),
            nn.Tanh(),
            nn.Dropout(0.2),
            nn.Linear(12, 8),
        )
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(self.embed(x)))


class Run:
    """A training run, whose state is `state`. mesh: None: unmarked."""

    def __init__(
        self, mesh: str | None = "8", optimizer: Any = torch.optim.AdamW, *, dropout: bool = True
    ) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = Tied()
        if not dropout:
            self.model.inner[3].p = 0.0
        self.model.to("xla")
        if mesh is not None:
            self.model = fsdp.FullyShardedDataParallel(self.model, MESHES[mesh])
        self.optimizer = optimizer(self.model.parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 3, 3], 0.5)
        tokens = torch.randint(10, (96,), generator=torch.Generator().manual_seed(1))
        source = torch.utils.data.DataLoader(
            tokens, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(2)
        )
        self.loader = spmd.DataLoader(source, MESHES[mesh or "1"], spmd.P())
        self.batches: Any = None
        model, stepped = self.model, self.optimizer

        def update(tokens: torch.Tensor) -> torch.Tensor:
            loss = nn.functional.cross_entropy(model(tokens), tokens)
            loss.backward()
            stepped.step()
            stepped.zero_grad()
            return loss.detach()

        self.update: Any = update
        self.state: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "loader": self.loader,
            "random": spmd.checkpoint.RandomState(),
            "progress": {"step": 0},
        }

    def train(self, steps: int) -> list[float]:
        self.batches = self.batches or iter(self.loader)
        losses = []
        for _ in range(steps):
            loss = self.update(next(self.batches))
            self.schedule.step()
            spmd.sync()
            losses.append(loss.item())
            self.state["progress"]["step"] += 1
        return losses

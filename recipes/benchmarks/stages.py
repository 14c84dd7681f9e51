"""A model of equal layers over the stages of a pipeline and by FSDP alone, as plans of one step.

The layers have the products of a Llama layer of the given width without its scores: the MLP's
three, and four as wide as attention's. Nothing runs: the compiler of the target's chips is asked.

    python -m recipes.benchmarks.stages                 70B-like, 64 v5p, 16 stages, and without
    python -m recipes.benchmarks.stages --stages 16 8   other numbers of stages; 0: FSDP alone
"""

import argparse
import time

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import nn

import fsdp
import spmd

_HEADS_OF_KEYS = 8  # the part of the width that the narrow product has


def _linear(rows: int, columns: int) -> nn.Linear:
    return nn.Linear(rows, columns, bias=False)


class Layer(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.first, self.second = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.query, self.out = _linear(width, width), _linear(width, width)
        self.key = _linear(width, width // _HEADS_OF_KEYS)
        self.gate, self.up, self.down = (
            _linear(width, inner),
            _linear(width, inner),
            _linear(inner, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.first(x)
        keys = torch.cat([torch.tanh(self.key(normed))] * _HEADS_OF_KEYS, -1)
        x = x + self.out(self.query(normed) * keys)
        normed = self.second(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Model(nn.Module):
    def __init__(self, layers: int, width: int, inner: int, vocabulary: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList([Layer(width, inner) for _ in range(layers)])
        self.norm, self.head = nn.RMSNorm(width, 1e-5), _linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x)).flatten(0, 1).float()
        return F.cross_entropy(logits, ids.flatten())


def plan_of(given: argparse.Namespace, stages: int) -> spmd.Plan:
    shape = (stages, given.devices // stages) if stages else (given.devices,)
    mesh = spmd.Mesh(range(given.devices), shape, ("stage", "fsdp") if stages else ("fsdp",))
    with torch.device("xla"):
        model = Model(given.layers, given.width, given.inner, given.vocabulary)
    options = {"stages": "stage", "micro_batches": given.micro_batches} if stages else {}
    rules = spmd.ShardingRules(units=["layers.*"], checkpoint=["layers.*"], **options)
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    rules.apply(model, mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step(ids: torch.Tensor) -> torch.Tensor:
        loss = model(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    ids = torch.zeros(given.batch, given.length, dtype=torch.long, device="meta")
    return spmd.plan(step, ids, target=given.target)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="v5p:4x4x4")
    parser.add_argument("--stages", type=int, nargs="+", default=[16, 0])
    numbers = {
        "devices": 64, "micro_batches": 32, "batch": 128, "length": 4096,
        "layers": 80, "width": 8192, "inner": 28672, "vocabulary": 128256,
    }  # fmt: skip
    for name, default in numbers.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, default=default, help=f"default {default}"
        )
    given = parser.parse_args()
    spmd.simulate(given.devices)
    heads = ("stages", "moved GiB", "of which waiting s", "step s", "peak GiB", "processor s")
    table = Table(*heads, title=f"{given.layers} layers on {given.target}", title_justify="left")
    for stages in given.stages:
        started = time.process_time()
        plan = plan_of(given, stages)
        table.add_row(
            str(stages),
            f"{plan.moved_bytes / 2**30:.1f}",
            f"{sum(collective.waiting for collective in plan.collectives):.3f}",
            f"{plan.seconds:.2f}" if plan.seconds else "-",
            f"{plan.peak / 2**30:.1f}",
            f"{time.process_time() - started:.0f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

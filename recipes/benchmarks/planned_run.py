"""Plan the training step of a Llama for the device that is here, run it, and print both.

    python -m recipes.benchmarks.planned_run                             # Llama-1B, 4 x 4,096, recomputed
    python -m recipes.benchmarks.planned_run --batch 1 --sequence 32768
    python -m recipes.benchmarks.planned_run --tiny                      # a toy, on one simulated device

Weights and AdamW's moments are in float32, products in bfloat16. A step is timed from its tokens on the host to its
loss there.
"""

import argparse
import dataclasses
import statistics
import time

import spmd  # isort: skip  # before jax: it sets environment variables that XLA reads when jax is imported
import jax
import torch
from rich.console import Console
from rich.table import Table

from recipes.llama import CONFIGS, Llama, LlamaConfig, cross_entropy, fully_sharded

_WARM = 3  # steps that are not timed
TINY = LlamaConfig(2, 64, 4, 2, 128, 256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tiny", action="store_true", help="a toy, on one simulated device")
    given = parser.parse_args()
    if given.tiny:
        spmd.simulate(1)
    config = dataclasses.replace(TINY if given.tiny else CONFIGS["1b"], sequence=given.sequence, checkpointed=True)
    mesh = spmd.Mesh(range(1), (1,), ("fsdp",))
    with torch.device("xla"):
        model = Llama(config)
    sharded = fully_sharded(model, mesh)
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=3e-4)
    tokens = torch.randint(0, config.vocabulary, (given.batch, given.sequence))

    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss = cross_entropy(sharded(tokens), tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    plan = spmd.plan(step, tokens.to("xla"))
    compiled, times = spmd.compile(step), []
    for _ in range(_WARM + given.steps):
        started = time.perf_counter()
        loss = compiled(tokens.to("xla")).item()
        times.append(time.perf_counter() - started)
    device = jax.local_devices()[0]
    stats = device.memory_stats() or {}
    title = f"{given.batch} x {given.sequence:,} tokens on {device.device_kind}, median of {given.steps} steps"
    table = Table("", "planned", "run", title=f"{title}; last loss {loss:.3f}", title_justify="left")
    planned = f"{plan.seconds:.3f}" if plan.seconds else "no time for this device"
    table.add_row("step s", planned, f"{statistics.median(times[_WARM:]):.3f}")
    run = f"{stats['peak_bytes_in_use'] / 2**30:.3f}" if stats else "not known"
    table.add_row("peak GiB", f"{plan.peak / 2**30:.3f}", run)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

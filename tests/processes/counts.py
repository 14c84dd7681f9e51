"""One of two processes that share rows that data counts: `python counts.py INDEX PORT`. Prints the
counts with other numbers than torch's on the CPU, and the new programs of each."""

import json
import sys

import torch
from torch import Tensor

import spmd
from spmd import P

ROWS, WIDTH, COUNTS = 24, 4, (5, 9, 12, 7, 1, 0, 24, 11)


def step(x: Tensor, mask: Tensor) -> Tensor:
    index = torch.where(mask)[0]
    rows = x[index].tanh()
    table = torch.zeros(ROWS, WIDTH, dtype=x.dtype, device=x.device)
    table[index] = rows * rows.softmax(0)
    return table.sum(1) / max(1, len(index))


def run(mesh: spmd.Mesh, count: int) -> tuple[bool, int]:
    """True if a step has the numbers of the CPU; its new programs."""
    before, results = spmd.metrics.num_compiles(), []
    generator = torch.Generator().manual_seed(count)
    data = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
    mask = torch.zeros(ROWS, dtype=torch.bool)
    mask[torch.randperm(ROWS, generator=generator)[:count]] = True
    for device in ("cpu", "xla"):
        x = data.to(device, copy=True)
        if device == "xla":
            spmd.mark_sharding(x, mesh, P("data", None))
        x.requires_grad_()
        result = step(x, mask.to(device))
        result.square().sum().backward()
        results.append(torch.cat([result.detach()[:, None], x.grad], 1).cpu())
    return torch.allclose(*results, rtol=1e-9, atol=1e-9), spmd.metrics.num_compiles() - before


if __name__ == "__main__":
    place, port = int(sys.argv[1]), sys.argv[2]
    spmd.initialize(
        f"127.0.0.1:{port}", 2, place, local_device_count=4, heartbeat_timeout_seconds=10
    )
    mesh = spmd.Mesh(range(8), (8,), ("data",))
    ran = {count: run(mesh, count) for count in COUNTS}
    wrong = [count for count, (is_right, _) in ran.items() if not is_right]
    print(json.dumps({"wrong": wrong, "programs": [number for _, number in ran.values()]}))

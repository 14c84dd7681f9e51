"""The script of `test_restore_plan.py`: restores rows into columns; prints the host's peak and the
plan's, in bytes.

`python big_restore.py LAYERS WIDTH FOLDER`. The devices' arrays, which are the host's own here, are
not counted.
"""

import gc
import json
import sys
from pathlib import Path

import torch

import spmd


def resident(name: str) -> int:
    """A figure of this process from Linux: VmRSS, the memory now, or VmHWM, its peak since it was
    cleared."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def tensors(layers: int, width: int, *spec: str | None) -> dict[str, torch.Tensor]:
    mesh = spmd.Mesh(range(8), (8,), ("x",))
    return {
        str(layer): spmd.mark_sharding(torch.zeros(width, width, device="xla"), mesh, spec)
        for layer in range(layers)
    }


def main(layers: int, width: int, folder: str) -> None:
    spmd.simulate(8)
    manager = spmd.CheckpointManager(folder)
    manager.save(0, tensors(1, 8, "x", None))
    manager.restore(tensors(1, 8, None, "x"))  # allocations that are made only once
    rows = tensors(layers, width, "x", None)
    for tensor in rows.values():
        spmd.checkpoint.fill_shards(
            tensor, lambda indices: torch.full([one.stop - one.start for one in indices], 0.5)
        )
    manager.save(1, rows)
    del rows
    columns = tensors(layers, width, None, "x")
    spmd.sync()
    gc.collect()
    planned = manager.plan_restore(columns).processes[0].peak_host_bytes
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
    manager.restore(columns)
    print(json.dumps({"peak": resident("VmHWM") - resident("VmRSS"), "planned": planned}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

"""The script of `test_loading.py`: loads a sharded model and prints the host's peak memory, in
bytes.

`python big_model.py FILE LAYERS WIDTH`. Memory that the process has before is not counted; the
devices' arrays are.
"""

import gc
import json
import sys
from pathlib import Path

import torch
from torch import nn

import fsdp
import spmd


def net(layers: int, width: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))


def resident(name: str) -> int:
    """A figure of this process from Linux: VmRSS, the memory now, or VmHWM, its peak since it was
    cleared."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def main(path: str, layers: int, width: int) -> None:
    spmd.simulate(8)
    fsdp.load_checkpoint(
        fsdp.FullyShardedDataParallel(nn.Linear(width, 8)), path, strict=False
    )  # allocations that are made only once
    with torch.device("meta"):
        model = net(layers, width)
    sharded = fsdp.FullyShardedDataParallel(
        model.to_empty(device="xla"), auto_wrap_policy=fsdp.always_wrap_policy
    )
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
    before = resident("VmRSS")
    fsdp.load_checkpoint(sharded, path)
    held = {"peak": resident("VmHWM") - before, "now": resident("VmRSS") - before}
    print(json.dumps(held | {"sum": sum(value.sum().item() for value in sharded.parameters())}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

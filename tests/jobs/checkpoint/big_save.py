"""The script of `test_saving.py`: saves a sharded model and prints the host's peak memory in
addition, in bytes.

`python big_save.py LAYERS WIDTH`. The devices' arrays, which are the host's own here, are not
counted.
"""

import gc
import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import fsdp
import spmd


def resident(name: str) -> int:
    """A figure of this process from Linux: VmRSS, the memory now, or VmHWM, its peak since it was
    cleared."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def main(layers: int, width: int) -> None:
    spmd.simulate(8)
    with tempfile.TemporaryDirectory() as folder:
        small = fsdp.FullyShardedDataParallel(nn.Linear(width, 8).to("xla"))
        fsdp.save_checkpoint(small, f"{folder}/small")  # allocations that are made only once
        with torch.device("xla"):
            model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
        sharded = fsdp.FullyShardedDataParallel(model, auto_wrap_policy=fsdp.always_wrap_policy)
        for parameter in sharded.parameters():
            spmd.checkpoint.fill_shards(
                parameter,
                lambda indices: torch.full([one.stop - one.start for one in indices], 0.5),
            )
        gc.collect()
        compiled = spmd.metrics.num_compiles()
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
        before = resident("VmRSS")
        fsdp.save_checkpoint(sharded, f"{folder}/model", max_shard_size="100MB")
        peak = resident("VmHWM") - before
    print(json.dumps({"peak": peak, "compiled": spmd.metrics.num_compiles() - compiled}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

"""Time resharding: by the devices, as the library does it, and by `jax.device_put`.

python recipes/benchmarks/resharding.py [n]  # an n by n array (4096) over eight simulated devices
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import spmd
from spmd.core.run.pjrt import transfer


def best(function: Callable[[], Any], times: int = 7) -> float:
    """Returns the milliseconds of the fastest of several calls, without the first one, which
    compiles."""
    found = []
    for _ in range(times + 1):
        started = time.perf_counter()
        jax.block_until_ready(function())
        found.append(time.perf_counter() - started)
    return 1000 * min(found[1:])


def main(size: int) -> None:
    spmd.simulate(8)
    ring, half = (spmd.Mesh(range(count), (count,), ("a",)) for count in (8, 4))
    rows = spmd.mark_sharding(torch.randn(size, size).to("xla"), ring, ("a", None))
    spmd.local_shards(rows)
    buffer, sharding = rows._storage.value.placed()
    for name, mesh in (("the same devices", ring), ("half of them", half)):
        target = mesh.sharding((None, "a"), 2)
        ours = best(lambda to=target: transfer.move(buffer, (size, size), sharding, to))
        theirs = best(lambda to=target: jax.device_put(buffer, to.jax, may_alias=False))
        print(f"rows to columns over {name}: {ours:.1f} ms, by jax.device_put {theirs:.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4096)

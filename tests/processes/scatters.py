"""One of two processes that scatter sums between them: `python scatters.py INDEX PORT`. Prints the
wrong elements.

The sizes are those at which a reduce-scatter by gloo was wrong on the first process of a group in
jax 0.12's nightly builds (jax-ml/jax#40830): four mebibytes of float64 for each device.
"""

import json
import sys

import torch

import spmd
from spmd import P

CHUNK, ITERATIONS = (4 << 20) // 8, 3


def wrong_elements(mesh: spmd.Mesh) -> list[int]:
    """The elements of this process that differ from their sum, for each iteration; integers, so
    that sums are exact."""
    spec = P(("group", "rank"))
    scatter = spmd.shard_map(
        lambda x: spmd.manual.reduce_scatter(x, "sum", 0, "rank"), mesh, spec, spec
    )
    groups, ranks = mesh.mesh_shape
    counts = []
    for i in range(ITERATIONS):
        values = torch.randint(
            100, (groups, ranks, ranks * CHUNK), generator=torch.Generator().manual_seed(i)
        ).double()
        x = spmd.mark_sharding(values.flatten().to("xla"), mesh, spec)
        sums, expected = scatter(x), values.sum(1).flatten()
        counts.append(
            sum(
                int((shard.data.cpu() != expected[shard.indices]).sum())
                for shard in spmd.local_shards(sums)
            )
        )
    return counts


if __name__ == "__main__":
    place, port = int(sys.argv[1]), sys.argv[2]
    spmd.initialize(
        f"127.0.0.1:{port}", 2, place, local_device_count=4, heartbeat_timeout_seconds=10
    )
    # Groups of one device of each process, and of two devices of one process.
    meshes = {"across": [0, 4, 1, 5, 2, 6, 3, 7], "within": range(8)}
    found = {
        name: wrong_elements(spmd.Mesh(ids, (4, 2), ("group", "rank")))
        for name, ids in meshes.items()
    }
    print(json.dumps(found))

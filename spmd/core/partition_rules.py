"""Partition rules of ops, and the known shardings that they ask for."""

from ..ops.partition import partition, per_shard
from ..ops.sharded import (
    SUMS,
    axes_of,
    axes_of_dims,
    by_platform,
    exchanged,
    in_front,
    mesh,
    note_finding,
    note_unused,
    num_shards,
    placed,
    platform,
    reshaped,
    same,
    spec,
)
from .propagation.walk import WORDS
from .sharding.partitioner import partitioner

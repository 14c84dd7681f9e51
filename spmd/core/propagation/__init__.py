"""Sharding propagation over the recorded graph: the known shardings that lowering and partition rules read."""

from .walk import walk as walk

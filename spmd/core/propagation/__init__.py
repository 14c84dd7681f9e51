"""Sharding propagation over the recorded graph: the known shardings that lowering and partition
rules read."""

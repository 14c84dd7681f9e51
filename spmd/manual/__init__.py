"""Per-shard code: `shard_map` and its collectives."""

"""Functions of one shard, recorded."""

"""Loading of checkpoint files: a model's data is read shard by shard, only the bytes of this process's devices."""

from .loading import bare_name as bare_name
from .loading import load_checkpoint as load_checkpoint
from .streaming import fill_shards as fill_shards

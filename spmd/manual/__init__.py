"""Per-shard code: `shard_map` and its collectives."""

from .collectives import all_gather as all_gather
from .collectives import all_reduce as all_reduce
from .collectives import all_to_all as all_to_all
from .collectives import axis_index as axis_index
from .collectives import axis_size as axis_size
from .collectives import broadcast as broadcast
from .collectives import collective_permute as collective_permute
from .collectives import reduce_scatter as reduce_scatter
from .shard_map import shard_map as shard_map

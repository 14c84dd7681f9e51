"""Global-view SPMD for PyTorch: write for one big device, say where tensors live, XLA partitions the program."""

from . import metrics as metrics
from .annotate import Shard as Shard
from .annotate import clear_sharding as clear_sharding
from .annotate import get_sharding as get_sharding
from .annotate import local_shards as local_shards
from .annotate import mark_sharding as mark_sharding
from .annotate import use_sharding as use_sharding
from .core.config import config as config
from .core.debug import check as check
from .core.debug import eager as eager
from .core.debug import nan_guard as nan_guard
from .core.host import no_host_transfer as no_host_transfer
from .core.jax_interop import call_jax as call_jax
from .core.jax_interop import register_lowering as register_lowering
from .core.sharding import Sharding as Sharding
from .mesh import Mesh as Mesh
from .partition_spec import P as P
from .partition_spec import PartitionSpec as PartitionSpec
from .runtime import device as device
from .runtime import device_ids as device_ids
from .runtime import get_stablehlo as get_stablehlo
from .runtime import manual_seed as manual_seed
from .runtime import mark_step as mark_step
from .runtime import simulate as simulate
from .runtime import sync as sync

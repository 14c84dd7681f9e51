"""Fully sharded data parallel: an auto-wrap policy chooses units, a plan shards each parameter, XLA
does the rest."""

import typing

from .accumulation import accumulate_gradients as accumulate_gradients
from .accumulation import gradient_accumulation as gradient_accumulation
from .activation_checkpoint import checkpoint_module as checkpoint_module
from .api import CPUOffloadPolicy as CPUOffloadPolicy
from .api import MixedPrecisionPolicy as MixedPrecisionPolicy
from .api import OffloadPolicy as OffloadPolicy
from .attach import summon_full_params as summon_full_params
from .convert import consolidate_sharded_model_checkpoints as consolidate_sharded_model_checkpoints
from .convert import consolidate_sharded_state_dicts as consolidate_sharded_state_dicts
from .fully_shard import FSDPModule as FSDPModule
from .fully_shard import UnshardHandle as UnshardHandle
from .fully_shard import fully_shard as fully_shard
from .fully_shard import register_fsdp_forward_method as register_fsdp_forward_method
from .plan import parameter_spec as parameter_spec
from .plan import plan_units as plan_units
from .plan import recursive_wrap as recursive_wrap
from .policies import always_wrap_policy as always_wrap_policy
from .policies import lambda_auto_wrap_policy as lambda_auto_wrap_policy
from .policies import or_policy as or_policy
from .policies import policy_from_config as policy_from_config
from .policies import size_based_auto_wrap_policy as size_based_auto_wrap_policy
from .policies import transformer_auto_wrap_policy as transformer_auto_wrap_policy
from .summary import Shown as Shown
from .summary import show as show
from .wrapper import FullyShardedDataParallel as FullyShardedDataParallel
from .wrapper import SpmdFullyShardedDataParallel as SpmdFullyShardedDataParallel
from .wrapper import XlaFullyShardedDataParallel as XlaFullyShardedDataParallel
from .zero import ZeroRedundancyOptimizer as ZeroRedundancyOptimizer

if typing.TYPE_CHECKING:  # of a package of spmd: imported at their first use
    from spmd import load_checkpoint as load_checkpoint
    from spmd import save_checkpoint as save_checkpoint
else:
    from .library import __dir__ as __dir__
    from .library import __getattr__ as __getattr__

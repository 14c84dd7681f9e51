"""Fully sharded data parallel: an auto-wrap policy chooses units, a plan splits each parameter, XLA does the rest."""

from .api import MixedPrecisionPolicy as MixedPrecisionPolicy
from .convert import consolidate_sharded_model_checkpoints as consolidate_sharded_model_checkpoints
from .convert import consolidate_sharded_state_dicts as consolidate_sharded_state_dicts
from .library import load_checkpoint as load_checkpoint
from .plan import parameter_spec as parameter_spec
from .plan import plan_units as plan_units
from .policies import always_wrap_policy as always_wrap_policy
from .policies import lambda_auto_wrap_policy as lambda_auto_wrap_policy
from .policies import size_based_auto_wrap_policy as size_based_auto_wrap_policy
from .policies import transformer_auto_wrap_policy as transformer_auto_wrap_policy
from .wrapper import FullyShardedDataParallel as FullyShardedDataParallel

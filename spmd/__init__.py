"""Global-view SPMD for PyTorch: write for one big device, annotate tensors, XLA partitions the
program."""

import typing

from . import command_line as _command_line  # noqa: F401  # first: it answers a wrong command line
from . import manual as manual
from .core import AbstractError as AbstractError
from .core import BodyError as BodyError
from .core import ProcessError as ProcessError
from .core import Sharding as Sharding
from .core import config as config
from .core import no_host_transfer as no_host_transfer
from .loops import higher_order as _higher_order  # noqa: F401  # torch.cond and its like on the device
from .loops.chunked_cross_entropy import linear_cross_entropy as linear_cross_entropy
from .loops.cond import cond as cond
from .loops.interop.call_jax import call_jax as call_jax
from .loops.interop.call_jax import register_lowering as register_lowering
from .loops.layers import LayersDifferError as LayersDifferError
from .loops.layers import scan_layers as scan_layers
from .loops.pure import PureModule as PureModule
from .loops.pure import assume_pure as assume_pure
from .loops.recompute import checkpoint_policies as checkpoint_policies
from .loops.recompute.recompute import remat as remat
from .loops.scan import scan as scan
from .loops.while_loop import while_loop as while_loop
from .manual.reading import use_sharding as use_sharding
from .manual.reduction import reduce_gradient_in as reduce_gradient_in
from .manual.shard_map import shard_map as shard_map
from .manual.unreduced import unreduced as unreduced
from .mesh.hybrid_mesh import HybridMesh as HybridMesh
from .mesh.mesh import Mesh as Mesh
from .mesh.partition_spec import P as P
from .mesh.partition_spec import PartitionSpec as PartitionSpec
from .rules.applied import register_units as register_units
from .rules.rules import ShardingRules as ShardingRules
from .tensors import metrics as metrics
from .tensors.annotate import clear_sharding as clear_sharding
from .tensors.annotate import get_sharding as get_sharding
from .tensors.annotate import mark_sharding as mark_sharding
from .tensors.annotate import reshard as reshard
from .tensors.annotate import shard_as as shard_as
from .tensors.annotate import with_sharding_constraint as with_sharding_constraint
from .tensors.closures import on_sync as on_sync
from .tensors.launch import from_process_local as from_process_local
from .tensors.launch import full_state_dict as full_state_dict
from .tensors.launch import full_tensor as full_tensor
from .tensors.launch import initialize as initialize
from .tensors.launch import process_count as process_count
from .tensors.launch import process_index as process_index
from .tensors.memory import checkpoint_name as checkpoint_name
from .tensors.memory import offload_optimizer as offload_optimizer
from .tensors.memory import place_to_device as place_to_device
from .tensors.memory import place_to_host as place_to_host
from .tensors.metrics import explain as explain
from .tensors.runtime import device as device
from .tensors.runtime import device_ids as device_ids
from .tensors.runtime import get_hlo as get_hlo
from .tensors.runtime import get_stablehlo as get_stablehlo
from .tensors.runtime import manual_seed as manual_seed
from .tensors.runtime import residence as residence
from .tensors.runtime import sync as sync
from .tensors.shards import from_local_shards as from_local_shards
from .tensors.shards import load_local_shards_ as load_local_shards_
from .tensors.shards import local_shards as local_shards
from .tensors.simulated import simulate as simulate

if typing.TYPE_CHECKING:  # of packages: imported at their first use
    from .adaptive.padding.marks import mark_dynamic as mark_dynamic
    from .jobs import checkpoint as checkpoint
    from .jobs import data as data
    from .jobs.checkpoint import CheckpointManager as CheckpointManager
    from .jobs.checkpoint import load_checkpoint as load_checkpoint
    from .jobs.checkpoint import save_checkpoint as save_checkpoint
    from .jobs.data import DataLoader as DataLoader
    from .jobs.frameworks.choice import use as use
    from .names import compat as compat
    from .names import dtensor as dtensor
    from .names import torch_xla as torch_xla
    from .parallel.kernels import kernel as kernel
    from .steps.exporting import Exported as Exported
    from .steps.exporting import LoadedProgram as LoadedProgram
    from .steps.exporting import export as export
    from .steps.exporting import load_exported as load_exported
    from .steps.replay.compiled_function import compile as compile
    from .tools import profiler as profiler
    from .tools.debug.check import check as check
    from .tools.debug.check import eager as eager
    from .tools.debug.check import nan_guard as nan_guard
    from .tools.explain.forbidden import CollectiveError as CollectiveError
    from .tools.explain.forbidden import RecompileError as RecompileError
    from .tools.explain.forbidden import allow as allow
    from .tools.explain.forbidden import no_recompile as no_recompile
    from .tools.explain.program_folder import load_programs as load_programs
    from .tools.planning import Plan as Plan
    from .tools.planning import plan as plan
    from .tools.planning import warm as warm
    from .tools.planning.clock import describe_gpu as describe_gpu
    from .tools.show.inspection import inspect as inspect
    from .tools.show.pictures import show_sharding as show_sharding
    from .tools.suggestions.suggest import suggest as suggest
    from .tools.verification import Verification as Verification
    from .tools.verification import verify as verify
else:
    from .packages import __dir__ as __dir__
    from .packages import __getattr__ as __getattr__

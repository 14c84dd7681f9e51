"""Global-view SPMD for PyTorch: write for one big device, annotate tensors, XLA partitions the program."""

from . import adaptive as _adaptive  # noqa: F401  # joins the core
from . import manual as manual
from . import packages as _packages  # noqa: F401  # under their names
from .core.base.config import config as config
from .core.base.counters import explain as explain
from .core.dispatch.fused import linear_cross_entropy as linear_cross_entropy
from .core.interop.call_jax import call_jax as call_jax
from .core.interop.call_jax import register_lowering as register_lowering
from .core.ir.errors import AbstractError as AbstractError
from .core.lazy.body import BodyError as BodyError
from .core.pjrt.agreement import ProcessError as ProcessError
from .core.pjrt.host import no_host_transfer as no_host_transfer
from .core.sharding.value import Sharding as Sharding
from .jobs import checkpoint as checkpoint
from .jobs import data as data
from .jobs.checkpoint import CheckpointManager as CheckpointManager
from .jobs.checkpoint import load_checkpoint as load_checkpoint
from .jobs.checkpoint import save_checkpoint as save_checkpoint
from .jobs.data import DataLoader as DataLoader
from .jobs.frameworks.choice import use as use
from .jobs.launching import process_group as _process_group  # noqa: F401  # torch.distributed's "xla"
from .loops import higher_order as _higher_order  # noqa: F401  # torch.cond and its like on the device
from .loops.cond import cond as cond
from .loops.layer_match import LayersDifferError as LayersDifferError
from .loops.layers import scan_layers as scan_layers
from .loops.pure import PureModule as PureModule
from .loops.pure import assume_pure as assume_pure
from .loops.scan import scan as scan
from .loops.while_loop import while_loop as while_loop
from .manual.shard_map import shard_map as shard_map
from .mesh.hybrid_mesh import HybridMesh as HybridMesh
from .mesh.mesh import Mesh as Mesh
from .mesh.partition_spec import P as P
from .mesh.partition_spec import PartitionSpec as PartitionSpec
from .names import compat as compat
from .names import torch_xla as torch_xla
from .recompute import checkpoint_policies as checkpoint_policies
from .recompute.recompute import remat as remat
from .rules.applied import register_units as register_units
from .rules.rules import ShardingRules as ShardingRules
from .steps.dynamo import join_compiler as _dynamo  # noqa: F401  # torch.compile
from .steps.exporting import Exported as Exported
from .steps.exporting import LoadedProgram as LoadedProgram
from .steps.exporting import export as export
from .steps.exporting import load_exported as load_exported
from .steps.replay.compiled_function import compile as compile
from .tensors import metrics as metrics
from .tensors.annotate import clear_sharding as clear_sharding
from .tensors.annotate import get_sharding as get_sharding
from .tensors.annotate import mark_dynamic as mark_dynamic
from .tensors.annotate import mark_sharding as mark_sharding
from .tensors.annotate import reshard as reshard
from .tensors.annotate import shard_as as shard_as
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
from .tensors.partial_sums import unreduced as unreduced
from .tensors.reading import reduce_gradient_in as reduce_gradient_in
from .tensors.reading import use_sharding as use_sharding
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
from .tools import profiler as profiler
from .tools.debug.check import check as check
from .tools.debug.check import eager as eager
from .tools.debug.check import nan_guard as nan_guard
from .tools.explain import graph_text as _graph_text  # noqa: F401  # config.print_graphs, config.graphs_file
from .tools.explain import slow_compiles as _slow_compiles  # noqa: F401  # the line of a compilation that takes long
from .tools.explain import waiting_device as _waiting_device  # noqa: F401  # its hint
from .tools.explain.allowed_collectives import CollectiveError as CollectiveError
from .tools.explain.allowed_collectives import allow as allow
from .tools.explain.given_programs import load_programs as load_programs
from .tools.explain.recompile import RecompileError as RecompileError
from .tools.explain.recompile import no_recompile as no_recompile
from .tools.hlo import of_programs as _of_programs  # noqa: F401  # collectives and moves in the compile log
from .tools.planning import Plan as Plan
from .tools.planning import describe_gpu as describe_gpu
from .tools.planning import plan as plan
from .tools.planning import warm as warm
from .tools.reports import displays as _displays  # noqa: F401  # how plans are printed and drawn
from .tools.show.inspection import inspect as inspect
from .tools.show.pictures import show_sharding as show_sharding
from .tools.suggestions.suggest import suggest as suggest
from .tools.verification import Verification as Verification
from .tools.verification import verify as verify

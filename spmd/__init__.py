"""Global-view SPMD for PyTorch: write for one big device, annotate tensors, XLA partitions the program."""

from . import adaptive as _adaptive  # noqa: F401  # joins the core
from . import checkpoint as checkpoint
from . import compat as compat
from . import data as data
from . import manual as manual
from . import profiler as profiler
from . import torch_xla as torch_xla
from .checkpoint import CheckpointManager as CheckpointManager
from .checkpoint import load_checkpoint as load_checkpoint
from .checkpoint import save_checkpoint as save_checkpoint
from .core.backend.recompute import remat as remat
from .core.base import checkpoint_policies as checkpoint_policies
from .core.base.config import config as config
from .core.base.counters import explain as explain
from .core.control import higher_order as _higher_order  # noqa: F401  # torch.cond and its like on the device
from .core.control.cond import cond as cond
from .core.control.layer_match import LayersDifferError as LayersDifferError
from .core.control.layers import scan_layers as scan_layers
from .core.control.pure import PureModule as PureModule
from .core.control.pure import assume_pure as assume_pure
from .core.control.scan import scan as scan
from .core.control.while_loop import while_loop as while_loop
from .core.debug.check import check as check
from .core.debug.check import eager as eager
from .core.debug.check import nan_guard as nan_guard
from .core.dispatch.fused import linear_cross_entropy as linear_cross_entropy
from .core.dynamo import join_compiler as _dynamo  # noqa: F401  # torch.compile
from .core.explain import graph_text as _graph_text  # noqa: F401  # config.print_graphs, config.graphs_file
from .core.explain import slow_compiles as _slow_compiles  # noqa: F401  # the line of a compilation that takes long
from .core.explain import waiting_device as _waiting_device  # noqa: F401  # its hint
from .core.explain.allowed_collectives import CollectiveError as CollectiveError
from .core.explain.allowed_collectives import allow as allow
from .core.explain.given_programs import load_programs as load_programs
from .core.explain.recompile import RecompileError as RecompileError
from .core.explain.recompile import no_recompile as no_recompile
from .core.hlo import of_programs as _of_programs  # noqa: F401  # collectives and moves in the compile log
from .core.interop.call_jax import call_jax as call_jax
from .core.interop.call_jax import register_lowering as register_lowering
from .core.ir.errors import AbstractError as AbstractError
from .core.lazy.body import BodyError as BodyError
from .core.pjrt.agreement import ProcessError as ProcessError
from .core.pjrt.host import no_host_transfer as no_host_transfer
from .core.sharding.value import Sharding as Sharding
from .data import DataLoader as DataLoader
from .exporting import Exported as Exported
from .exporting import LoadedProgram as LoadedProgram
from .exporting import export as export
from .exporting import load_exported as load_exported
from .frameworks.choice import use as use
from .launching import process_group as _process_group  # noqa: F401  # torch.distributed's "xla"
from .manual.shard_map import shard_map as shard_map
from .mesh.hybrid_mesh import HybridMesh as HybridMesh
from .mesh.mesh import Mesh as Mesh
from .mesh.partition_spec import P as P
from .mesh.partition_spec import PartitionSpec as PartitionSpec
from .planning import Plan as Plan
from .planning import describe_gpu as describe_gpu
from .planning import plan as plan
from .planning import warm as warm
from .replay.compiled_function import compile as compile
from .reports import displays as _displays  # noqa: F401  # how plans are printed and drawn
from .rules.applied import register_units as register_units
from .rules.rules import ShardingRules as ShardingRules
from .show.inspection import inspect as inspect
from .show.pictures import show_sharding as show_sharding
from .suggestions.suggest import suggest as suggest
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
from .verification import Verification as Verification
from .verification import verify as verify

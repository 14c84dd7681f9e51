"""The lazy-tensor/PJRT core that `spmd` and `fsdp` share. Its only form of a mesh is a sharding; it
has no FSDP.

This is its door: what the library takes, names and modules. Packages that record ops or change
graphs take more from `extend`.
"""

from ..ops import create as create
from . import loop as _loop  # joins lower
from . import registration as points
from .base import compile_log as compile_log
from .base import config as variables
from .base import counters as counters
from .base import dtypes as dtypes
from .base import extras as extras
from .base import forking as forking
from .base import in_flight as in_flight
from .base import jax_private as jax_facts
from .base import messages as messages
from .base import seed as seed
from .base import state as observation
from .base import trace_rows as trace_rows
from .base.compile_record import Collective as Collective
from .base.compile_record import CompileRecord as CompileRecord
from .base.compile_record import Move as Move
from .base.config import config as config
from .base.state import held as held
from .files import disk as persistent
from .graph import buffer_leases as buffer_leases
from .graph.errors import AbstractError as AbstractError
from .graph.graph import DeviceData as DeviceData
from .graph.meta import Meta as Meta
from .graph.meta import dense_meta as dense_meta
from .graph.source import ends_at_user_line as ends_at_user_line
from .graph.source import user_frame as user_frame
from .graph.source import user_line as user_line
from .graph.source import warn as warn
from .programs import cache as cache
from .programs import program as options
from .programs.miscompiles import MISCOMPILES as MISCOMPILES
from .programs.program import compiled_with as compiled_with
from .propagation import walk as _walk  # joins lower
from .record import annotations as annotations
from .record import constraints as constraints
from .record import resolve as resolve
from .record import threads as threads
from .record.body import BodyError as BodyError
from .record.calls.copies import host_copy as host_copy
from .record.kept_values import Kept as Kept
from .record.storage import LOCK as LOCK
from .record.storage import Storage as Storage
from .record.tensor import XlaTensor as XlaTensor
from .record.tensor import abstract as abstract
from .record.tensor import described as described
from .record.tensor import gradients_of as gradients_of
from .record.tensor import set_gradients as set_gradients
from .record.tensor import storage_of as storage_of
from .record.tensor import tensor_meta as tensor_meta
from .record.tensor import view_of as view_of
from .record.tensor import wrap as wrap
from .run import host_reads as host_reads
from .run import syncs as syncs
from .run.execute import GuardError as GuardError
from .run.pjrt import devices as hardware
from .run.pjrt import processes as processes
from .run.pjrt import transfer as transfer
from .run.pjrt.host import leaving as leaving
from .run.pjrt.host import no_host_transfer as no_host_transfer
from .run.pjrt.processes import ProcessError as ProcessError
from .run.recording import recording as recording
from .run.schedule import placed_like as placed_like
from .sharding import topology as topology
from .sharding import value as specs
from .sharding.partitioner import compiler_context as compiler_context
from .sharding.text import Tiling as Tiling
from .sharding.value import DEVICE as DEVICE
from .sharding.value import HOST as HOST
from .sharding.value import UNCONSTRAINED as UNCONSTRAINED
from .sharding.value import Dim as Dim
from .sharding.value import Sharding as Sharding
from .sharding.value import Spec as Spec
from .torch_state import backward as grad_shardings
from .torch_state import device_memory as device_memory
from .torch_state import modules as module_moves
from .torch_state import swap as swap
from .torch_state.install import OTHER_OWNERS as OTHER_OWNERS  # the device
from .torch_state.state_shardings import shard_state as shard_state
from .torch_state.when_imported import Patch as Patch
from .torch_state.when_imported import guarded as guarded
from .torch_state.when_imported import patch_when_imported as patch_when_imported
from .torch_state.when_imported import replaces as replaces

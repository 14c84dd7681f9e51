"""The lazy-tensor/PJRT core that `spmd` and `fsdp` share. Its only form of a mesh is a sharding; it has no FSDP.

This is its door: what the library takes. Packages that record ops or change graphs take more from `extend`.
"""

from . import checks as _checks  # noqa: F401  # joins programs and run
from . import files as _files  # noqa: F401  # joins programs
from . import loop as _loop  # noqa: F401  # joins lower
from .base import extras as extras
from .base.compile_record import Collective as Collective
from .base.compile_record import CompileRecord as CompileRecord
from .base.compile_record import Move as Move
from .base.config import config as config
from .graph.errors import AbstractError as AbstractError
from .graph.graph import DeviceData as DeviceData
from .graph.meta import Meta as Meta
from .graph.meta import dense_meta as dense_meta
from .graph.source import at_user_line as at_user_line
from .graph.source import ends_at_user_line as ends_at_user_line
from .graph.source import user_frame as user_frame
from .graph.source import user_line as user_line
from .programs.program import compiled_with as compiled_with
from .propagation import walk as _walk  # noqa: F401  # joins lower
from .record.body import BodyError as BodyError
from .record.storage import LOCK as LOCK
from .record.storage import Storage as Storage
from .record.tensor import XlaTensor as XlaTensor
from .record.tensor import abstract as abstract
from .record.tensor import storage_of as storage_of
from .record.tensor import tensor_meta as tensor_meta
from .record.tensor import view_of as view_of
from .record.tensor import wrap as wrap
from .run.execute import GuardError as GuardError
from .run.pjrt.host import leaving as leaving
from .run.pjrt.host import no_host_transfer as no_host_transfer
from .run.pjrt.processes import ProcessError as ProcessError
from .run.pjrt.transfer import ShardSlice as ShardSlice
from .run.recording import recording as recording
from .run.syncs import Synced as Synced
from .sharding.partitioner import compiler_context as compiler_context
from .sharding.value import DEVICE as DEVICE
from .sharding.value import HOST as HOST
from .sharding.value import UNCONSTRAINED as UNCONSTRAINED
from .sharding.value import Dim as Dim
from .sharding.value import Sharding as Sharding
from .sharding.value import Spec as Spec
from .subsystems import annotations as annotations
from .subsystems import counters as counters
from .subsystems import dtypes as dtypes
from .subsystems import forking as forking
from .subsystems import grad_shardings as grad_shardings
from .subsystems import hardware as hardware
from .subsystems import messages as messages
from .subsystems import module_moves as module_moves
from .subsystems import observation as observation
from .subsystems import options as options
from .subsystems import points as points
from .subsystems import processes as processes
from .subsystems import samples as samples
from .subsystems import seed as seed
from .subsystems import specs as specs
from .subsystems import syncs as syncs
from .subsystems import topology as topology
from .subsystems import transfer as transfer
from .subsystems import variables as variables
from .torch_state import install as _install  # noqa: F401  # the device
from .torch_state.when_imported import Patch as Patch
from .torch_state.when_imported import guarded as guarded
from .torch_state.when_imported import patch_when_imported as patch_when_imported
from .torch_state.when_imported import replaces as replaces

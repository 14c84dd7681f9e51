"""Registration points: lists that packages join, and the readers of programs that they replace."""

from .base.config import join_while
from .base.counters import when_cleared
from .files.disk import program_sources
from .passes import COMPILE_PASSES, EXPORT_PASSES, PASSES
from .passes.dynamic import keeps_start
from .programs.cache import (
    after_compiling,
    before_compiling,
    before_making,
    refuse_loops,
    while_compiling,
)
from .programs.program import PROGRAM_READERS
from .record.call import between_ops, names_of
from .record.calls.copies import after_upload
from .record.calls.fallback import after_fallback
from .record.op_watch import after_own_op
from .record.record import noted_by
from .record.storage import can_run
from .record.threads import AT_FIRST_USE
from .run.executables import before_recorded_run, before_run, on_launch
from .run.execute import on_schedule
from .run.host_reads import after_read
from .run.prepare import after_pass
from .run.syncs import after_wait
from .torch_state.modules import after_move

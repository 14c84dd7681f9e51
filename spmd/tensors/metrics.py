"""Counters, timers and the compile log of the library."""

from ..core.base.counters import Collective as Collective
from ..core.base.counters import CompileRecord as CompileRecord
from ..core.base.counters import clear as clear
from ..core.base.counters import compiles as compiles
from ..core.base.counters import counter as counter
from ..core.base.counters import counter_names as counter_names
from ..core.base.counters import explain as explain
from ..core.base.counters import fallback_ops as fallback_ops
from ..core.base.counters import num_compiles as num_compiles
from ..core.base.counters import num_loaded as num_loaded
from ..core.base.counters import report as report
from ..core.base.counters import timer as timer
from ..core.base.move import Move as Move
from ..core.programs.cache import trivial_dispatch_seconds as trivial_dispatch_seconds

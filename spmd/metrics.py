"""Counters, timers and the compile log of the library."""

from .core.compile.cache import trivial_dispatch_seconds as trivial_dispatch_seconds
from .core.counters import Collective as Collective
from .core.counters import CompileRecord as CompileRecord
from .core.counters import clear as clear
from .core.counters import compiles as compiles
from .core.counters import counter as counter
from .core.counters import counter_names as counter_names
from .core.counters import explain as explain
from .core.counters import fallback_ops as fallback_ops
from .core.counters import num_compiles as num_compiles
from .core.counters import report as report
from .core.counters import timer as timer

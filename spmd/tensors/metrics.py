"""Counters, timers and the compile log of the library."""

from ..core import Collective as Collective
from ..core import CompileRecord as CompileRecord
from ..core import Move as Move
from ..core import counters as _counters
from .explained import explain as explain

clear = _counters.clear
compiles = _counters.compiles
counter = _counters.counter
counter_names = _counters.counter_names
fallback_ops = _counters.fallback_ops
num_compiles = _counters.num_compiles
num_loaded = _counters.num_loaded
report = _counters.report
timer = _counters.timer
trivial_dispatch_seconds = _counters.trivial_dispatch_seconds

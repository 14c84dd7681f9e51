"""What the library counted, timed and compiled: the core's metrics, as scripts read them."""

from .core.compile.cache import trivial_dispatch_seconds as trivial_dispatch_seconds
from .core.metrics import Collective as Collective
from .core.metrics import CompileRecord as CompileRecord
from .core.metrics import clear as clear
from .core.metrics import compiles as compiles
from .core.metrics import counter as counter
from .core.metrics import counter_names as counter_names
from .core.metrics import explain as explain
from .core.metrics import fallback_ops as fallback_ops
from .core.metrics import num_compiles as num_compiles
from .core.metrics import report as report
from .core.metrics import timer as timer

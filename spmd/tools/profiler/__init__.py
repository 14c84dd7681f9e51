"""`spmd.profiler`: where the time of a step goes."""

from ..explain.step_hints import Hint as Hint
from ..explain.step_hints import hints as hints
from .meter_callbacks import lightning_callback as lightning_callback
from .meter_callbacks import trainer_callback as trainer_callback
from .profile_server import capture as capture
from .profile_server import start_server as start_server
from .profile_server import stop_server as stop_server
from .step_meter import StepMeter as StepMeter
from .summaries import Summary as Summary
from .summaries import summary as summary
from .traces import StepTrace as StepTrace
from .traces import Trace as Trace
from .traces import start_trace as start_trace
from .traces import stop_trace as stop_trace
from .traces import trace as trace

"""Plans: the compiler's figures of a step, without allocation, also for devices that are not
present."""

from .planner import plan as plan
from .planner import warm as warm
from .report import Plan as Plan

"""Plans: the compiler's figures of a step, without allocation, also for devices that are not present."""

from .planner import plan as plan
from .report import Plan as Plan

"""Plans: the compiler's figures of a step, without allocation, also for devices that are not present."""

from . import displays as displays
from .applied import register_units as register_units
from .planner import plan as plan
from .report import Plan as Plan
from .rules import ShardingRules as ShardingRules
from .search import Suggestion as Suggestion
from .search import suggest as suggest

"""The compiler asked before anything is allocated: what a step takes on machines that are not here."""

from .planner import plan as plan
from .report import Plan as Plan
from .rules import ShardingRules as ShardingRules
from .suggest import Suggestion as Suggestion
from .suggest import suggest as suggest

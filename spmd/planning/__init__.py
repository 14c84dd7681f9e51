"""The compiler asked before anything is allocated: what a step takes on machines that are not here."""

from .planner import plan as plan
from .report import Plan as Plan
from .rules import ShardingRules as ShardingRules
from .search import Suggestion as Suggestion
from .search import suggest as suggest

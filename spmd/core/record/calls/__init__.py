"""Calls that are more than a rule, by family: rows of the tables of `core.record.resolve`."""

from . import bounds as bounds
from . import fallback as fallback
from . import host_kernels as host_kernels
from . import lists as lists
from . import out as out
from . import refusals as refusals
from . import specials as specials

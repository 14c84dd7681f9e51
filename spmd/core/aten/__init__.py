"""Calls that are more than a rule, by family: rows of the tables of `core.record.resolve`."""

from . import bounds as bounds
from . import library_ops as library_ops
from . import specials as specials

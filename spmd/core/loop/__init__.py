"""A loop as one op: iterations that a graph repeats, with their stacks."""

from . import updates as updates

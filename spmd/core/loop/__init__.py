"""A loop as one op: iterations that a graph repeats, with their stacks."""

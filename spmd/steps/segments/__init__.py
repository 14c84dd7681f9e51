"""Segments of a training loop that replay by themselves: a module's call with its backward, and an
optimizer's step."""

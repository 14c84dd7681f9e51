"""Calls that are more than a rule, by family. `core.record.resolve` composes plans of them."""

from . import host_kernels as host_kernels  # joins op specs

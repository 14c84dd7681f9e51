"""Numeric kernels that the rules share."""

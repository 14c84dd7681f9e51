"""Nodes to one JAX function."""

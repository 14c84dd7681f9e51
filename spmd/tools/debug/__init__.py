"""Debugging: eager runs, comparison with the CPU, the lowering of each op."""

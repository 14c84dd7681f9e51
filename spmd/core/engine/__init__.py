"""The barrier: what runs, where, and in which programs."""

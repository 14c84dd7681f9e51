"""Flags, dtypes, counters, locks and jax's private names: imported by every folder of the core."""

from . import versions as versions

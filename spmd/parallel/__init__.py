"""Partition rules beyond the core's: ops over a sharded sequence, each with the exchange that it needs."""

from . import sequence_attention as sequence_attention

"""Tensors in a script: annotate, read, put shards in and out, run, measure."""

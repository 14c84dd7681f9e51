"""Devices, buffers and memories, through jax."""

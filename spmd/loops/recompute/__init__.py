"""Activation checkpointing: what backward computes again, keeps or moves to the host."""

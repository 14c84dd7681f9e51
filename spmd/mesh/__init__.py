"""Meshes and specs: the devices, and the mesh axes of each dim."""

from . import gpus as _gpus  # noqa: F401  # targets may name them

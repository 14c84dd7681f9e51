"""`import torch_xla` resolved to this library: off until `install()` is called, or a script runs
under `spmd run`."""

from .finder import install as install
from .finder import uninstall as uninstall

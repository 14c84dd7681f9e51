"""The lazy-tensor/PJRT core that `spmd` and `fsdp` share. It knows meshes only as shardings, and nothing of FSDP."""

# First: it sets what jaxlib reads when it is imported.
from . import config as config

# isort: split
from .backend import install as install

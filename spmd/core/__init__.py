"""The lazy-tensor/PJRT core that `spmd` and `fsdp` share. It knows meshes only as shardings, and nothing of FSDP."""

from . import config as config
from .backend import install as install

"""The lazy-tensor/PJRT core that `spmd` and `fsdp` share. It knows meshes only as shardings, and nothing of FSDP."""

from . import config as _config  # first: it sets what jax reads at import
from . import backend as backend

"""The lazy-tensor/PJRT core that `spmd` and `fsdp` share. Its only form of a mesh is a sharding; it has no FSDP."""

from . import checks as checks
from . import loop as loop
from .base import config as config
from .torch_state import install as install

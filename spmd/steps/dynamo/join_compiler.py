"""The patches of torch.compile, applied when torch imports Dynamo."""

from ...core import Patch
from .backends import join_backends
from .tensors import join_tracing

PATCHES = (
    Patch("Dynamo's table of types", "traces see plain tensors", join_tracing),
    Patch("`torch._TorchCompileInductorWrapper.__call__(self, model_, inputs_, ...)`", "its backend", join_backends),
)

for _patch in PATCHES:
    _patch.apply()

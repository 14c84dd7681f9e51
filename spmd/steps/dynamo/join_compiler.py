"""The patches of torch.compile, applied at import of the library."""

from ...core.backend.graph_constants import constant_of_graphs
from ...core.backend.when_imported import Patch
from ...recompute.checkpoint_policies import Policy
from .backends import join_backends
from .tensors import join_tracing

PATCHES = (
    Patch("Dynamo's table of types", "traces see plain tensors", join_tracing),
    Patch("`torch._TorchCompileInductorWrapper.__call__(self, model_, inputs_, ...)`", "its backend", join_backends),
)

for _patch in PATCHES:
    _patch.apply()

constant_of_graphs(Policy)

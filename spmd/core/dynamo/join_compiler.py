"""The patches of torch.compile, applied at import of the library."""

from ..backend.install import Patch
from ..base.checkpoint_policies import Policy
from .backends import join_backends
from .graph_constants import constant_of_graphs
from .tensors import join_tracing

PATCHES = (
    Patch("Dynamo's table of types", "traces see plain tensors", "the type of a tensor", join_tracing),
    Patch("the backends of torch.compile", "graphs on the device are ours", "the device of tensors", join_backends),
)

for _patch in PATCHES:
    _patch.put()

constant_of_graphs(Policy)

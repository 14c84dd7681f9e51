"""A value with a name, by which a checkpoint's policy knows it (see `core.checkpoint_policies`): the value itself."""

import torch

from .registry import lower

_library = torch.library.Library("spmd", "FRAGMENT")
_library.define("checkpoint_name(Tensor x, str name) -> Tensor")
_library.impl("checkpoint_name", lambda x, name: x.clone(), "CompositeExplicitAutograd")
torch.library.register_autograd(
    "spmd::checkpoint_name", lambda context, gradient: (gradient, None), lib=_library
)  # also of the second order: it is the gradient itself

CHECKPOINT_NAME = torch.ops.spmd.checkpoint_name.default


@lower(CHECKPOINT_NAME)
def spmd_checkpoint_name(x, name):
    return x

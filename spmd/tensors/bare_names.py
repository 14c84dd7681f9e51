"""Names of parameters without the modules that wrappers insert."""

import re

from ..core import ends_at_user_line

# The modules that PyTorch/XLA's FSDPs, torch.compile and torch's checkpoint_wrapper put between a
# module and its parameters.
_WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:_orig_module|_orig_mod|_fsdp_wrapped_module|_fpw_module|_checkpoint_wrapped_"
    r"module)(?:\.|$)"
)


@ends_at_user_line
def bare_name(name: str) -> str:
    """The name of a parameter, buffer or module without the modules that wrappers of other
    libraries insert.

    The known wrappers are PyTorch/XLA's two FSDPs, torch.compile and torch's checkpoint_wrapper.
    `load_checkpoint`, FSDP's `load_state_dict`, `CheckpointManager.restore` and `SPMDLoadPlanner`
    call it themselves.

    >>> import spmd
    >>> spmd.checkpoint.bare_name("_orig_module.layers.0._orig_mod.weight")
    'layers.0.weight'
    """
    return _WRAPPERS.sub("", name).removesuffix(".")

"""torch's control flow without dynamo: torch traces what is around such an op, which the device records by itself."""

from typing import Any

from torch._higher_order_ops import utils
from torch.utils._pytree import tree_leaves

from ..lazy.tensor import XlaTensor


def join_control_flow() -> None:
    """Lets the ops of `torch.cond` and its like be called as they are where a tensor of the device is among what they
    are given."""
    compiled = utils._hop_compile_and_call

    def call(fn: Any, args: Any, kwargs: Any = None) -> Any:
        if any(type(leaf) is XlaTensor for leaf in tree_leaves((args, kwargs))):
            return fn(*args, **(kwargs or {}))
        return compiled(fn, args, kwargs)

    utils._hop_compile_and_call = call

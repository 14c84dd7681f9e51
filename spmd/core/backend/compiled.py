"""torch's control flow without dynamo: torch traces the code around such an op, which the device records itself."""

from typing import Any

from torch._higher_order_ops import utils
from torch.utils._pytree import tree_flatten

from ..lazy.tensor import XlaTensor


def join_control_flow() -> None:
    """Has torch call the ops of `torch.cond` and its like directly where a tensor of the device is among their
    arguments."""
    compiled = utils._hop_compile_and_call

    def call(fn: Any, args: Any, kwargs: Any = None) -> Any:
        if any(type(value) is XlaTensor for value in tree_flatten((args, kwargs))[0]):
            return fn(*args, **(kwargs or {}))
        return compiled(fn, args, kwargs)

    utils._hop_compile_and_call = call

"""A name of PyTorch/XLA's for functions that are recorded once."""

from collections.abc import Callable
from typing import Any

from ...loops.pure import assume_pure


def assume_pure_torch(func: Callable[..., Any], use_cache: bool = False) -> Callable[..., Any]:
    """`spmd.assume_pure` by PyTorch/XLA's name; the recordings are always kept, and it has a
    gradient here.

    >>> import torch, spmd
    >>> spmd.torch_xla.purity.assume_pure_torch(torch.sin)(torch.zeros(2).to("xla")).tolist()
    [0.0, 0.0]
    """
    return assume_pure(func)

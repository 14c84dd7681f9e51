"""The state of `torch.amp.GradScaler`: data, as a parameter's is, and no op of the next step."""

import functools
from typing import Any

import torch

from ..record.tensor import XlaTensor


def join_grad_scaler() -> None:
    """Makes a scaler on the device keep its first and its loaded numbers as data.

    torch fills its tensors: the first step, and the one after `load_state_dict`, would be programs of their own.
    """
    scaler: Any = torch.amp.GradScaler
    for name in ("_lazy_init_scale_growth_tracker", "load_state_dict"):
        setattr(scaler, name, _with_data(getattr(scaler, name)))


def _with_data(original: Any) -> Any:
    @functools.wraps(original)
    def filled(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # Both methods fill these with these two numbers, which both set.
        for tensor, number in ((self._scale, self._init_scale), (self._growth_tracker, self._init_growth_tracker)):
            if type(tensor) is XlaTensor:
                tensor.copy_(torch.tensor(number, dtype=tensor.dtype, device="cpu"))

    return filled

"""What is done to a unit's gradients on their way: the dtype they are reduced in, the number they are divided by."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import spmd


class GradientHooks:
    """Hooks on the gradients of parameters that are trained; of a copied unit there are none until its first pass."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._set: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_handles": [], "_set": None}

    def forget(self) -> None:
        """Has the next `put` hook anew: what autograd knows of parameters has been swapped."""
        self._set = None

    def put(self, parameters: Sequence[nn.Parameter], dtype: torch.dtype | None, scale: float | None) -> None:
        """Has gradients be reduced in a dtype and multiplied by a factor, of the parameters that are trained now: they
        may have been frozen or thawed since."""
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        wanted = (dtype, scale, [id(parameter) for parameter in trained])
        if wanted == self._set:
            return
        for handle in self._handles:
            handle.remove()
        self._handles, self._set = [], wanted
        for parameter in trained:
            if dtype is not None:
                self._handles.append(spmd.reduce_gradient_in(parameter, dtype))
            if scale is not None:
                self._handles.append(parameter.register_hook(_Scale(scale)))


class _Scale:
    """The hook on a parameter's gradient that multiplies it; it holds no unit, as a unit holds the parameter."""

    def __init__(self, factor: float):
        self.factor = factor

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * self.factor

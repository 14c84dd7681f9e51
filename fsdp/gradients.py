"""Hooks on the gradients of a unit: the dtype in which they are reduced, the factor by which they are scaled."""

# Why a hook on the gradient, and no reduction of ours: the partitioner reduces where the sum is made, at the op, in the
# dtype of that op. So the dtype has to reach the op, which `spmd.reduce_gradient_in` records again.

import operator
from collections.abc import Sequence
from functools import partial

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

import spmd


class GradientHooks:
    """Hooks on the gradients of trained parameters; a copied unit has none until its first pass."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._set: object = None

    def __getstate__(self) -> dict[str, object]:
        return {"_handles": [], "_set": None}

    def forget(self) -> None:
        """Makes the next `put` register its hooks again: the tensors of parameters have been replaced."""
        self._set = None

    def put(self, parameters: Sequence[nn.Parameter], dtype: torch.dtype | None, scale: float | None) -> None:
        """Registers hooks that reduce gradients in a dtype and multiply them by a factor, on the parameters that are
        trained now: parameters may have been frozen or unfrozen since the last call."""
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        wanted = (dtype, scale, [id(parameter) for parameter in trained])
        # A copy that is not trained, as an average of weights, keeps its state: a compiled step may have a guard on it.
        if wanted == self._set or not (trained or self._handles):
            return
        for handle in self._handles:
            handle.remove()
        self._handles, self._set = [], wanted
        for parameter in trained:
            if dtype is not None:
                self._handles.append(spmd.reduce_gradient_in(parameter, dtype))
            if scale is not None:
                self._handles.append(parameter.register_hook(partial(operator.mul, scale)))

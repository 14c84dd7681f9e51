"""`UnsyncedGradients`: backward passes whose gradients are not reduced yet, as `no_sync` has them."""

import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

import spmd

# By the number of autograd's graph task, the parameters whose gradients have arrived in it.
_arrived: dict[int, list[tuple["UnsyncedGradients", "weakref.ref[nn.Parameter]"]]] = {}


_in_loop = 0  # of `accumulate_gradients`, which decides itself when its gradients are reduced


@contextmanager
def loop_of_passes() -> Iterator[None]:
    """The backward passes inside are those of a loop's body: their gradients are left as they arrive."""
    global _in_loop
    _in_loop += 1
    try:
        yield
    finally:
        _in_loop -= 1


class UnsyncedGradients:
    """The gradients of a unit's parameters while some backward passes add to them unreduced.

    `.grad` is always the gradient of all passes so far, and what reads it gets that. It is recorded as a sum over a
    stack of summands; the next pass adds its own summands to the stack, and the former sum is never computed where
    nothing has read it.

    over: the axes over which passes do not reduce now; empty: they do.
    """

    def __init__(self) -> None:
        self.over: tuple[str, ...] = ()
        self._before: tuple[str, ...] = ()  # the axes of the sums that are to be reduced now
        self._hooks: list[RemovableHandle] = []
        self._sums: dict[int, weakref.ref[torch.Tensor]] = {}  # by a parameter's id, its `.grad` that is such a sum

    def __getstate__(self) -> dict[str, object]:
        return {}  # the passes of a copy reduce

    def __setstate__(self, state: object) -> None:
        UnsyncedGradients.__init__(self)

    def set(
        self, parameters: Sequence[nn.Parameter], mesh: spmd.Mesh, batch_axes: Sequence[str], over: Sequence[str]
    ) -> None:
        """Has the backward passes from now on not reduce over these axes; of none: reduce, with what was left."""
        self.over = tuple(axis for axis in over if mesh.shape()[axis] > 1)
        if not self.over:
            return
        self._before = self.over
        self.mesh, self.batch_axes = mesh, tuple(batch_axes)
        for hook in self._hooks:
            hook.remove()
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._hooks = [one.register_post_accumulate_grad_hook(self._arrive) for one in trained]

    def _arrive(self, parameter: Any) -> None:
        if _in_loop:
            return
        ref = self._sums.get(id(parameter))
        if parameter.grad.requires_grad:  # it has a history, which the sum of a stack would not have
            return
        if self.over or (ref is not None and ref() is parameter.grad):
            task = torch._C._current_graph_task_id()
            if task not in _arrived:
                _arrived[task] = []
                torch.autograd.Variable._execution_engine.queue_callback(lambda: _keep(task))
            _arrived[task].append((self, weakref.ref(parameter)))

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes over which the gradients of the pass that ends are not reduced, or reduced with the former ones."""
        return self.over or self._before

    def keep(self, parameter: nn.Parameter, stack: torch.Tensor | NotImplementedError) -> None:
        """Makes a gradient the sum of a stack."""
        if isinstance(stack, NotImplementedError):
            warnings.warn(
                f"no_sync: the gradient of a parameter of shape {list(parameter.shape)} is reduced after each backward "
                f"pass; {stack}",
                UserWarning,
                stacklevel=2,
            )
            return
        gradient = parameter.grad
        assert gradient is not None, "a backward pass has left it"
        gradient.copy_(stack.sum(0))  # in place: in the body of a loop it may be a tensor from outside
        self._sums.pop(id(parameter), None)
        if self.over:
            self._sums[id(parameter)] = weakref.ref(gradient)


def _keep(task: int) -> None:
    """Records the gradients that a backward pass has left as sums of stacks, those of equal axes together."""
    groups: dict[Any, dict[int, tuple[UnsyncedGradients, nn.Parameter]]] = {}
    for unsynced, ref in _arrived.pop(task):
        parameter = ref()
        if parameter is not None and parameter.grad is not None:
            key = unsynced.mesh, unsynced.batch_axes, unsynced.axes
            groups.setdefault(key, {})[id(parameter)] = unsynced, parameter
    with torch.no_grad():
        for (mesh, batch_axes, over), group in groups.items():
            gradients: list[Any] = [parameter.grad for _, parameter in group.values()]
            stacks = spmd.unreduced(gradients, mesh, batch_axes, over)
            for (unsynced, parameter), stack in zip(group.values(), stacks, strict=True):
                unsynced.keep(parameter, stack)

"""Gradients of a unit: the dtype of their reduction, their factor, and backward passes without
reduction."""

# Why a hook on the gradient, and no reduction of ours: the partitioner reduces where the sum is
# made, at the op, in the dtype of that op. So the dtype has to reach the op, which
# `spmd.reduce_gradient_in` records again.

import itertools
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

import spmd
from spmd.mesh.notes import warn

from .library import Mesh

# By the number of autograd's graph task, the parameters whose gradients have arrived in it.
_arrived: dict[int, list[tuple["UnsyncedGradients", "weakref.ref[torch.Tensor]"]]] = {}
# a mesh, the batch's axes, those not reduced over
_Axes = tuple[Mesh, tuple[str, ...], tuple[str, ...]]
_numbers = itertools.count()
_num_loops = 0  # of `accumulate_gradients`, which decides itself when its gradients are reduced


@contextmanager
def loop_of_passes() -> Iterator[None]:
    """Context of a loop's body in `accumulate_gradients`, which decides itself when gradients are
    reduced: `no_sync` has no effect inside."""
    global _num_loops
    _num_loops += 1
    try:
        yield
    finally:
        _num_loops -= 1


class GradientHooks:
    """Hooks on the gradients of trained parameters; a copied unit has none until its first pass."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._set: object = None

    def __getstate__(self) -> dict[str, object]:
        return {"_handles": [], "_set": None}

    def forget(self) -> None:
        """Makes the next `put` register its hooks again: the tensors of parameters have been
        replaced."""
        self._set = None

    def put(
        self, parameters: Sequence[nn.Parameter], dtype: torch.dtype | None, scale: float | None
    ) -> None:
        """Registers hooks that reduce gradients in a dtype and multiply them by a factor, on the
        parameters that are trained now: parameters may have been frozen or unfrozen since the last
        call."""
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        settings = (dtype, scale, [id(parameter) for parameter in trained])
        # A copy that is not trained, as an average of weights, keeps its state: a compiled step may
        # have a guard on it.
        if settings == self._set or not (trained or self._handles):
            return
        for handle in self._handles:
            handle.remove()
        self._handles, self._set = [], settings
        for parameter in trained:
            if dtype is not None or scale is not None:
                self._handles.append(spmd.reduce_gradient_in(parameter, dtype, scale))


# [Note: gradients that are not reduced yet]
#
# FSDP2 keeps an unsharded gradient between the passes of `no_sync`, and starts a reduce-scatter at
# the end. Here `.grad` is at all times a sum over a stack of summands, of which each device has
# one: XLA computes the sum, by a reduce-scatter or an all-reduce, only where something reads it. So
# there is no state that a user could see half-way.


class UnsyncedGradients:
    """The gradients of a unit's parameters while some backward passes add to them unreduced.

    `.grad` is always the gradient of all passes so far, for every reader. It is recorded as a sum
    over a stack of summands; the next pass adds its own summands to the stack, and an unread former
    sum is never computed.

    over: the axes over which passes leave gradients unreduced now; empty: none.
    """

    def __init__(self) -> None:
        self.over: tuple[str, ...] = ()
        self._unreduced_axes: tuple[str, ...] = ()  # of the sums so far
        self._hooks: list[RemovableHandle] = []
        self._order: dict[int, int] = {}  # by a parameter's id
        # by a parameter's id, its `.grad` that is such a sum
        self._sums: dict[int, weakref.ref[torch.Tensor]] = {}

    def __getstate__(self) -> dict[str, object]:
        return {}  # a copy reduces its gradients in every backward pass

    def __setstate__(self, state: object) -> None:
        UnsyncedGradients.__init__(self)

    def set(
        self,
        parameters: Sequence[nn.Parameter],
        mesh: Mesh,
        batch_axes: Sequence[str],
        over: Sequence[str],
    ) -> None:
        """Has later backward passes leave gradients unreduced over these axes. Without axes they
        reduce their gradients, together with the unreduced sums so far."""
        self.over = tuple(axis for axis in over if mesh.shape()[axis] > 1)
        if not self.over:
            return
        self._unreduced_axes = self.over
        self.mesh, self.batch_axes = mesh, tuple(batch_axes)
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        hooked = [self._arrive in (x._post_accumulate_grad_hooks or {}).values() for x in trained]
        if len(self._hooks) != len(trained) or not all(hooked):
            for hook in self._hooks:
                hook.remove()
            # After accumulation, as `.grad` has the sum of this pass and the former ones only then.
            self._hooks = [
                parameter.register_post_accumulate_grad_hook(self._arrive) for parameter in trained
            ]
            self._order = {id(parameter): next(_numbers) for parameter in trained}

    def _arrive(self, parameter: torch.Tensor) -> None:
        """Notes a parameter whose gradient has been accumulated unreduced; `_keep` runs at the end
        of the backward pass."""
        # A gradient that requires a gradient has a history, which the sum of a stack would not
        # have.
        if _num_loops or parameter.grad is None or parameter.grad.requires_grad:
            return
        ref = self._sums.get(id(parameter))
        if self.over or (ref is not None and ref() is parameter.grad):
            task = torch._C._current_graph_task_id()
            # All gradients of a backward together: one walk over the graph finds the summands of
            # all.
            if task not in _arrived:
                _arrived[task] = []
                torch.autograd.Variable._execution_engine.queue_callback(lambda: _keep(task))
            _arrived[task].append((self, weakref.ref(parameter)))

    @staticmethod
    def order_of(arrived: "tuple[UnsyncedGradients, weakref.ref[torch.Tensor]]") -> int:
        """The place of a parameter among those with hooks: the order in which gradients arrive is
        another one where the backward pass is replayed."""
        unsynced, ref = arrived
        return unsynced._order.get(id(ref()), 0)

    _arrive.plays = True  # type: ignore[attr-defined]  # see `spmd.core.torch_state.backward`

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes over which the gradients of the ending pass stay unreduced, or are reduced with
        earlier ones."""
        return self.over or self._unreduced_axes

    def keep(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        stack: torch.Tensor | NotImplementedError,
    ) -> None:
        """Makes a gradient the sum of a stack of summands, in place. An error in place of the stack
        becomes a warning: the gradient is reduced."""
        if isinstance(stack, NotImplementedError):
            warn(
                f"no_sync: the gradient of a parameter of shape {list(parameter.shape)} is "
                f"reduced after each backward pass; {stack}"
            )
            return
        # in place: in the body of a loop it may be a tensor from outside
        gradient.copy_(stack.sum(0))
        self._sums.pop(id(parameter), None)
        if self.over:
            self._sums[id(parameter)] = weakref.ref(gradient)


def _keep(task: int) -> None:
    """Records the gradients of an ended backward pass as sums of stacks, by one op for those of
    equal axes."""
    groups: dict[_Axes, dict[int, tuple[UnsyncedGradients, torch.Tensor, torch.Tensor]]] = {}
    for unsynced, ref in sorted(_arrived.pop(task), key=UnsyncedGradients.order_of):
        parameter = ref()
        if parameter is not None and parameter.grad is not None:
            key = unsynced.mesh, unsynced.batch_axes, unsynced.axes
            groups.setdefault(key, {})[id(parameter)] = unsynced, parameter, parameter.grad
    with torch.no_grad():
        for (mesh, batch_axes, over), group in groups.items():
            stacks = spmd.unreduced(
                [gradient for *_, gradient in group.values()], mesh, batch_axes, over
            )
            for (unsynced, parameter, gradient), stack in zip(group.values(), stacks, strict=True):
                unsynced.keep(parameter, gradient, stack)

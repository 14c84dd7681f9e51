"""What one unit does around its forward and backward: gathers its parameters, in the dtype it computes in."""

import dataclasses
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import spmd

from .api import MixedPrecisionPolicy

_Held = dict[tuple[nn.Module, str], Any]  # where modules hold parameters, and what is there


@dataclasses.dataclass(frozen=True)
class _Pass:
    """One forward pass: what it gathered, and what modules hold in it."""

    gathers: tuple[spmd.use_sharding, ...]
    held: _Held


class Unit:
    """Parameters that are gathered together: whole in the unit's forward, and anew in its backward.

    own: the parameters. slots: where modules hold parameters, (module, name), that forward reads in another dtype.
    Where the policy names a dtype these hold a cast of the parameter while forward runs, and from the first gradient to
    the end of backward, which may compute forward again without a hook; and only then.
    """

    def __init__(
        self,
        own: Collection[nn.Parameter],
        slots: Collection[tuple[nn.Module, str]],
        mesh: spmd.Mesh,
        axis: str,
        mp_policy: MixedPrecisionPolicy,
        reshard_after_forward: bool,
    ):
        self.mesh, self.axis = mesh, axis
        self.policy = mp_policy
        self.reshard_after_forward = reshard_after_forward
        self.slots = tuple(slot for slot in slots if self._is_cast(_held(*slot)))
        cast = {id(_held(*slot)) for slot in self.slots}
        self.gather = self._gather([parameter for parameter in own if id(parameter) not in cast])
        self._passes: list[tuple[_Pass, _Held]] = []  # those that run, innermost last, and what they took the place of
        self._latest = _Pass((), {})
        self._masters: _Held = {}  # what the casts took the place of in backward

    @property
    def is_running(self) -> bool:
        """Whether a forward pass is under way."""
        return bool(self._passes)

    def enter(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Begins a forward pass; returns its inputs. It gathers when its input is there: not before, as a compiler
        might."""
        if not self._passes:
            self.restore()
        inputs = self._cast_inputs((args, kwargs))
        stored = {slot: _held(*slot) for slot in self.slots}
        casts = self._casts([parameter for parameter in stored.values() if self._is_cast(parameter)])
        gathers = (self.gather, self._gather(casts.values()))
        if self.reshard_after_forward:
            for tensor in tensors(inputs)[:1]:
                for gather in gathers:
                    gather.renew(tensor)
        for gather in gathers:
            gather.__enter__()
        held = {slot: casts.get(id(parameter), parameter) for slot, parameter in stored.items()}
        self._passes.append((_Pass(gathers, held), stored))
        _hold(held)
        return inputs

    def leave(self) -> None:
        """Ends it."""
        self._latest, stored = self._passes.pop()
        _hold(stored)
        for gather in reversed(self._latest.gathers):
            gather.__exit__()

    def restore(self) -> None:
        """Gives modules their own parameters back."""
        _hold(self._masters)
        self._masters = {}

    def arrive(self, gradient: torch.Tensor, at: "_Pass") -> None:
        """Begins the backward of a forward pass."""
        if self.reshard_after_forward:
            for gather in at.gathers:
                gather.renew(gradient)
        if self.slots and not self._passes:
            self._masters = self._masters or {slot: _held(*slot) for slot in self.slots}
            _hold(at.held)
            torch.autograd.Variable._execution_engine.queue_callback(self.restore)

    @contextmanager
    def forward(self, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
        """One forward pass."""
        inputs = self.enter(args, kwargs)
        try:
            yield inputs
        finally:
            self.leave()

    def watch(self, output: Any) -> None:
        """Gathers anew when the first gradient arrives at an output of a forward pass."""
        if self.reshard_after_forward or self.slots:
            arrived = _Arrived(self, self._latest)
            for tensor in tensors(output):
                if tensor.grad_fn is not None:
                    tensor.register_hook(arrived)

    def _gather(self, of: Any) -> spmd.use_sharding:
        return spmd.use_sharding(of, self.mesh, over=self.axis)

    def _is_cast(self, tensor: torch.Tensor) -> bool:
        dtype = self.policy.param_dtype
        return dtype is not None and tensor.is_floating_point() and tensor.dtype != dtype

    def _casts(self, parameters: list[nn.Parameter]) -> dict[int, torch.Tensor]:
        """What forward reads instead of each, by id: split as it is, and gathered after the cast."""
        casts = {}
        for parameter in parameters:
            sharding = spmd.get_sharding(parameter)
            assert sharding is not None, "parameters are marked when they are wrapped"
            cast = parameter.to(self.policy.param_dtype)
            casts[id(parameter)] = spmd.mark_sharding(cast, self.mesh, sharding.partition_spec(parameter.dim()))
        return casts

    def _cast_inputs(self, inputs: Any) -> Any:
        if self.policy.param_dtype is None or not self.policy.cast_forward_inputs:
            return inputs
        return tree_map(
            lambda leaf: (
                leaf.to(self.policy.param_dtype) if isinstance(leaf, torch.Tensor) and self._is_cast(leaf) else leaf
            ),
            inputs,
        )


def slots(module: nn.Module, inner: Collection[nn.Module]) -> list[tuple[nn.Module, str]]:
    """Where a module and those below it, the inner units left out, hold parameters: (module, name)."""
    found = [(module, name) for name, parameter in module._parameters.items() if parameter is not None]
    for child in module.children():
        if child not in inner:
            found += slots(child, inner)
    return list(dict.fromkeys(found))


def _held(module: nn.Module, name: str) -> Any:
    return module._parameters[name]


def _hold(values: _Held) -> None:
    """Puts tensors where modules hold parameters, which need not be parameters themselves."""
    for (module, name), value in values.items():
        module._parameters[name] = value
    for module in {module for module, _ in values if isinstance(module, nn.RNNBase)}:
        module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]


class _Arrived:
    """The hook on a unit's outputs; once in each run of autograd's engine."""

    def __init__(self, unit: Unit, at: _Pass):
        self.unit = unit
        self.at = at
        self.task = -1

    def __call__(self, gradient: torch.Tensor) -> None:
        task = torch._C._current_graph_task_id()
        if task != self.task:
            self.task = task
            self.unit.arrive(gradient, self.at)


class Enter:
    """A forward pre-hook that gathers a unit's parameters."""

    def __init__(self, unit: Unit):
        self.unit = unit

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return self.unit.enter(args, kwargs)


class Exit:
    """A forward hook that ends the gathering and annotates the output; it also runs where the forward raised."""

    def __init__(self, unit: Unit, annotate: Callable[[Any], None]):
        self.unit = unit
        self.annotate = annotate

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.unit.leave()
        if output is not None:  # else forward raised, as it does where a recomputation has all that it wants
            self.annotate(output)
            self.unit.watch(output)


def tensors(output: Any) -> list[torch.Tensor]:
    """Every device tensor of an output: a tensor, tuple, dict, dataclass, nested."""
    if isinstance(output, torch.Tensor):
        return [output] if output.device.type == "xla" else []
    found: list[torch.Tensor] = []
    for leaf in tree_leaves(output):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            found += tensors([getattr(leaf, field.name) for field in dataclasses.fields(leaf)])
        elif isinstance(leaf, torch.Tensor) and leaf.device.type == "xla":
            found.append(leaf)
    return found

"""The user's objects that are reachable from a step: found, recorded, and restored."""

import dis
import functools
import random
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ..core.backend.swap import hooks_after
from ..core.base import seed
from ..core.lazy.tensor import OURS, XlaTensor

_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size, np.ndarray)
_CLOSED = (type, types.ModuleType, types.BuiltinFunctionType, torch.Generator)
_MAPS = (dict, OrderedDict, defaultdict)


class Reachable:
    """The modules, optimizers and tensors reachable from a function and its arguments, and every container between."""

    def __init__(self, step: Any, arguments: Any):
        self.modules: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.tensors: list[torch.Tensor] = []
        self._boxes: list[tuple[Any, Any]] = []
        self._names: list[tuple[dict[str, Any], str, Any]] = []
        self._captured: list[tuple[types.CellType, Any]] = []
        self._seen: set[int] = set()
        self._held: list[Any] = []  # keeps the objects alive, so that no id is used twice
        self._globals = _globals_of(step)
        self._walk([step, arguments])

    def _walk(self, todo: list[Any]) -> None:
        while todo:
            thing = todo.pop()
            if isinstance(thing, (*_PLAIN, *_CLOSED)) or id(thing) in self._seen:
                continue
            self._seen.add(id(thing))
            self._held.append(thing)
            todo.extend(self._inside(thing))

    def _inside(self, thing: Any) -> list[Any]:
        if isinstance(thing, torch.Tensor):
            return self._of_tensor(thing)
        if isinstance(thing, types.FunctionType):
            return self._of_function(thing)
        if isinstance(thing, types.MethodType):
            return [thing.__self__, thing.__func__]
        if isinstance(thing, functools.partial):
            return [thing.func, thing.args, thing.keywords]
        if isinstance(thing, (tuple, frozenset)):
            return list(thing)
        if isinstance(thing, (list, deque, set)):
            self._boxes.append((thing, thing.copy()))
            return list(thing)
        if isinstance(thing, _MAPS):
            self._boxes.append((thing, dict(thing)))
            return [*thing.values(), *(key for key in thing if isinstance(key, torch.Tensor))]
        if isinstance(thing, nn.Module):
            self.modules.append(thing)
        if isinstance(thing, torch.optim.Optimizer):
            self.optimizers.append(thing)
        own = getattr(thing, "__dict__", None)
        return [own] if isinstance(own, dict) else []

    def _of_tensor(self, tensor: torch.Tensor) -> list[Any]:
        self.tensors.append(tensor)
        if not tensor.is_leaf:
            return []
        return [] if tensor.grad is None else [tensor.grad]

    def _of_function(self, function: types.FunctionType) -> list[Any]:
        found: list[Any] = list(function.__defaults__ or ())
        for captured in function.__closure__ or ():
            try:
                content = captured.cell_contents
            except ValueError:  # not assigned yet
                continue
            self._captured.append((captured, content))
            found.append(content)
        if function.__globals__ is self._globals:
            for name in _names(function.__code__):
                if name in self._globals:
                    value = self._globals[name]
                    self._names.append((self._globals, name, value))
                    found.append(value)
        return found

    def state(self) -> "State":
        """The present state of all of it."""
        return State(self._boxes, self._names, self._captured, self.tensors)


def outermost(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """The modules that are not a child of another one of them."""
    inner = {id(child) for module in modules for child in module.children()}
    return [module for module in modules if id(module) not in inner]


def _globals_of(step: Any) -> dict[str, Any] | None:
    while isinstance(step, functools.partial):
        step = step.func
    if isinstance(step, types.MethodType):
        step = step.__func__
    function = step if isinstance(step, types.FunctionType) else vars(type(step)).get("__call__")
    return getattr(function, "__globals__", None)


# `co_names` has the names of attributes, too: `optimizer.step()` is no use of a global `step`.
_OF_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL"})


def _names(code: types.CodeType) -> list[str]:
    """The names of globals that a function, and those inside it, reads or writes."""
    inner = [name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in _names(constant)]
    own = (one.argval for one in dis.get_instructions(code) if one.opname in _OF_GLOBALS)
    return [*dict.fromkeys(own), *inner]


class State:
    """The state to restore after a recorded step: containers, names, closures, tensors' own, random streams."""

    def __init__(self, boxes: Any, names: Any, captured: Any, tensors: list[torch.Tensor]):
        self._boxes, self._names, self._captured = boxes, names, captured
        trained = [tensor for tensor in tensors if tensor.is_leaf and tensor.requires_grad]
        self._grads = [(tensor, tensor.grad) for tensor in trained]
        self._hooks = [_Hooks(tensor) for tensor in trained]
        self._own = [
            (tensor, {name: value for name, value in tensor.__dict__.items() if name in OURS})
            for tensor in tensors
            if type(tensor) is XlaTensor and tensor.is_leaf
        ]
        self._small = [
            (tensor, tensor.detach().clone(), tensor._version)
            for tensor in tensors
            if type(tensor) is not XlaTensor and tensor.device.type == "cpu" and tensor.nbytes <= _SMALL
        ]
        self._random = torch.get_rng_state(), random.getstate(), np.random.get_state(), seed.get_state()

    def put_back(self) -> None:
        """Restores the state."""
        for box, before in self._boxes:
            _refill(box, before)
        for names, name, value in self._names:
            names[name] = value
        for captured, content in self._captured:
            captured.cell_contents = content
        for ours, own in self._own:
            for name in OURS:
                ours.__dict__.pop(name, None)
            ours.__dict__.update(own)
        for hooks in self._hooks:
            hooks.put_back()
        for tensor, grad in self._grads:
            if tensor.grad is not grad:
                tensor.grad = grad
        for tensor, before, version in self._small:
            if tensor._version != version:
                tensor.detach().copy_(before)
        host, python, numpy, device = self._random
        torch.set_rng_state(host)
        random.setstate(python)
        np.random.set_state(numpy)
        seed.set_state(device)


class _Hooks:
    """The hooks on a parameter, which stay with the object whatever its data: annotations and units add some."""

    def __init__(self, tensor: Any):
        self.tensor = tensor
        self.pin = {name: value for name, value in tensor.__dict__.items() if name == "_pins_grad"}
        held = tensor._backward_hooks, hooks_after(tensor)
        # The dicts themselves are restored: the user's handles refer to them.
        self.held = [(hooks, None if hooks is None else hooks.copy()) for hooks in held]

    def put_back(self) -> None:
        for hooks, before in self.held:
            if hooks is not None and hooks != before:
                _refill(hooks, before)
        own = self.tensor.__dict__
        if own.get("_pins_grad") is not self.pin.get("_pins_grad"):
            own.pop("_pins_grad", None)
            own.update(self.pin)
        (backward, _), (after, _) = self.held
        if self.tensor._backward_hooks is not backward:
            self.tensor._backward_hooks = backward
        if hooks_after(self.tensor) is not after:
            self.tensor._post_accumulate_grad_hooks = after


_SMALL = 1 << 20


def _refill(box: Any, before: Any) -> None:
    """Restores the contents of a container, if they have changed."""
    if isinstance(box, dict):
        if len(box) != len(before) or any(
            key is not old or value is not was
            for (key, value), (old, was) in zip(box.items(), before.items(), strict=True)
        ):
            box.clear()
            box.update(before)
    elif isinstance(box, list):
        box[:] = before
    elif box != before:
        box.clear()
        box.update(before) if isinstance(box, set) else box.extend(before)

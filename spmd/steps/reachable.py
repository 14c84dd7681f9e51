"""The user's objects that are reachable from a step, and how to restore the containers between them."""

import dis
import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size, np.ndarray)
_CLOSED = (type, types.ModuleType, types.BuiltinFunctionType, torch.Generator)
_MAPS = (dict, OrderedDict, defaultdict)


class Reachable:
    """The modules, optimizers and tensors reachable from a function and its arguments.

    undo: restores the containers between them, the globals and the captured variables, as they were when found.
    """

    def __init__(self, step: Any, arguments: Any):
        self.modules: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.tensors: list[torch.Tensor] = []
        self.undo: list[Callable[[], Any]] = []
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
            self.tensors.append(thing)
            return [thing.grad] if thing.is_leaf and thing.grad is not None else []
        if isinstance(thing, types.FunctionType):
            return self._of_function(thing)
        if isinstance(thing, types.MethodType):
            return [thing.__self__, thing.__func__]
        if isinstance(thing, functools.partial):
            return [thing.func, thing.args, thing.keywords]
        if isinstance(thing, (tuple, frozenset)):
            return list(thing)
        if isinstance(thing, (list, deque, set)):
            self.undo.append(functools.partial(refill, thing, thing.copy()))
            return list(thing)
        if isinstance(thing, _MAPS):
            self.undo.append(functools.partial(refill, thing, dict(thing)))
            return [*thing.values(), *(key for key in thing if isinstance(key, torch.Tensor))]
        if isinstance(thing, nn.Module):
            self.modules.append(thing)
        if isinstance(thing, torch.optim.Optimizer):
            self.optimizers.append(thing)
        own = getattr(thing, "__dict__", None)
        return [own] if isinstance(own, dict) else []

    def _of_function(self, function: types.FunctionType) -> list[Any]:
        found: list[Any] = list(function.__defaults__ or ())
        for captured in function.__closure__ or ():
            try:
                content = captured.cell_contents
            except ValueError:  # not assigned yet
                continue
            self.undo.append(functools.partial(setattr, captured, "cell_contents", content))
            found.append(content)
        if function.__globals__ is self._globals:
            for name in global_names(function.__code__):
                if name in self._globals:
                    value = self._globals[name]
                    self.undo.append(functools.partial(self._globals.__setitem__, name, value))
                    found.append(value)
        return found


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


def global_names(code: types.CodeType) -> list[str]:
    """The names of globals that a function, and those inside it, reads or writes."""
    inner = [
        name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in global_names(constant)
    ]
    own = (one.argval for one in dis.get_instructions(code) if one.opname in _OF_GLOBALS)
    return [*dict.fromkeys(own), *inner]


def refill(box: Any, before: Any) -> None:
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

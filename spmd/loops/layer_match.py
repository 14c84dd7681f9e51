"""The check that layers are isomorphic: one of them represents all while the body of a loop is recorded."""

import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..core import dense_meta

_OWN = frozenset(vars(nn.Module()))  # torch's own attributes of a module
_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called",
)  # fmt: skip


class LayersDifferError(ValueError):
    """Raised for layers that cannot be one loop because they differ; the message names the first difference."""


@dataclass(frozen=True, slots=True)
class LayerTensor:
    """A parameter or buffer of every layer: its path in a layer, and its tensors, one per layer."""

    path: str
    owner: str
    name: str
    tensors: list[torch.Tensor]
    is_buffer: bool


class Numbered:
    """A stand-in for a whole number that differs from layer to layer, such as a layer's index: it may be passed on, and
    reading it raises LayersDifferError."""

    def __init__(self, path: str, numbers: Sequence[int]):
        self.path, self.numbers = path, numbers
        self.is_read = False

    def error(self) -> LayersDifferError:
        return LayersDifferError(
            f"spmd.scan_layers: the layers differ: {self.path} is {', '.join(map(str, self.numbers[:4]))}"
            f"{', ...' if len(self.numbers) > 4 else ''}, and their forward depends on it"
        )

    def refuse(self, *_: Any) -> Any:
        self.is_read = True
        raise self.error()


for _name in (
    "index", "int", "float", "bool", "eq", "ne", "lt", "le", "gt", "ge", "hash", "add", "radd", "sub", "rsub", "mul",
    "rmul", "floordiv", "truediv", "mod", "rmod", "pow", "neg", "abs", "format", "str", "getitem", "len", "iter",
):  # fmt: skip
    setattr(Numbered, f"__{_name}__", Numbered.refuse)


def check_same_in_all(layers: Sequence[nn.Module]) -> tuple[list[LayerTensor], list[tuple[nn.Module, str, Numbered]]]:
    """Returns each layer's own tensors, and the whole numbers that differ. Raises LayersDifferError."""
    paths = [dict(layer.named_modules(remove_duplicate=False)) for layer in layers]
    numbers: dict[tuple[str, str], list[int]] = {}
    for k in range(1, len(layers)):
        _Pair(paths[0], paths[k], k).check(numbers)
    numbered = []
    for (path, name), others in numbers.items():
        first = getattr(paths[0][path], name)
        numbered.append((paths[0][path], name, Numbered(f"layers[i].{_join(path, name)}", [first, *others])))
    return list(_tensors(paths)), numbered


def _tensors(paths: Sequence[Mapping[str, nn.Module]]) -> Iterator[LayerTensor]:
    """Yields every parameter and buffer once, but for tensors that all layers share."""
    seen: set[int] = set()
    for path, module in paths[0].items():
        for name, tensor in _state(module).items():
            if tensor is None or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            all_of_them = [_state(modules[path])[name] for modules in paths]
            if len(paths) == 1 or any(other is not tensor for other in all_of_them):
                yield LayerTensor(_join(path, name), path, name, all_of_them, name in module._buffers)


def _state(module: nn.Module) -> dict[str, Any]:
    """A module's own parameters and buffers; None for those that it goes without."""
    return {**module._parameters, **module._buffers}


def settings_of(module: nn.Module) -> dict[str, Any]:
    """The attributes that a user has given a module."""
    return {name: value for name, value in vars(module).items() if name not in _OWN}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _outline(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yields the path of each part of a layer, with the words for it, and those for a layer that goes without it."""
    for path, module in modules.items():
        yield path, (f"is a {type(module).__module__}.{type(module).__qualname__}", "is not there")
        yield _join(path, "training"), (f"is {module.training}", "is not there")
        for name, tensor in _state(module).items():
            yield _join(path, name), (f"is {_shown(tensor)}", "is None")
        for kind in _HOOKS:
            yield _join(path, kind), (f"has {len(vars(module)[kind])} hooks", "is not there")
        for name in settings_of(module):
            yield _join(path, name), ("is set", "is not set")


class _Pair:
    """The comparison of the first layer with another: first the outlines, then part by part."""

    def __init__(self, first: Mapping[str, nn.Module], other: Mapping[str, nn.Module], k: int):
        self.first, self.other, self.k = first, other, k
        self.twins: dict[int, Any] = {}  # the other layer's object by the id of the first layer's
        self.compared: set[tuple[int, int]] = set()

    def _differ(self, path: str, one: str, other: str) -> LayersDifferError:
        where = f".{path}" if path else ""
        return LayersDifferError(
            f"spmd.scan_layers: the layers differ: layers[0]{where} {one}, layers[{self.k}]{where} {other}"
        )

    def check(self, numbers: dict[tuple[str, str], list[int]]) -> None:
        first, second = dict(_outline(self.first)), dict(_outline(self.other))
        for path in first | second:
            a = first[path][0] if path in first else second[path][1]
            b = second[path][0] if path in second else first[path][1]
            if a != b:
                raise self._differ(path, a, b)
        pairs = [(path, module, self.other[path]) for path, module in self.first.items()]
        for _, module, twin in pairs:
            self.twins[id(module)] = twin
            for name, tensor in _state(module).items():
                self.twins.setdefault(id(tensor), _state(twin).get(name))
        for path, module, twin in pairs:
            for name, tensor in _state(module).items():
                if tensor is not None and self.twins[id(tensor)] is not _state(twin)[name]:
                    raise self._differ(_join(path, name), "is tied to another tensor of its layer", "is not")
            self._check_hooks(path, module, twin)
            for name, a in settings_of(module).items():
                b = vars(twin)[name]
                if type(a) is int and type(b) is int:
                    if a != b or (path, name) in numbers:
                        numbers.setdefault((path, name), [a] * (self.k - 1)).append(b)
                elif not self.same(a, b):
                    raise self._differ(_join(path, name), f"is {_short(a)}", f"is {_short(b)}")

    def _check_hooks(self, path: str, module: nn.Module, twin: nn.Module) -> None:
        for kind in _HOOKS:
            for a, b in zip(vars(module)[kind].values(), vars(twin)[kind].values(), strict=True):
                if not self.same(a, b):
                    raise self._differ(
                        _join(path, kind), f"has the hook {_hook(a)}",
                        f"has {_hook(b)}, with other data: one hook stands for all layers and cannot know which "
                        "of them runs; use the same function for all, or remove it",
                    )  # fmt: skip

    def same(self, a: Any, b: Any) -> bool:
        """True if two objects do the same, each in its layer."""
        if a is b or self.twins.get(id(a), self) is b:
            return True
        if type(a) is not type(b) or isinstance(a, (nn.Module, torch.Tensor)):
            return False
        if isinstance(a, (list, tuple)):
            return len(a) == len(b) and all(map(self.same, a, b))
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(self.same(a[key], b[key]) for key in a)
        if isinstance(a, types.FunctionType):
            return a.__code__ is b.__code__ and self.same(_around(a), _around(b))
        if isinstance(a, types.MethodType):
            return self.same(a.__func__, b.__func__) and self.same(a.__self__, b.__self__)
        if isinstance(a, functools.partial):
            return self.same((a.func, a.args, a.keywords), (b.func, b.args, b.keywords))
        if type(a).__eq__ is not object.__eq__:
            return bool(a == b)
        if (id(a), id(b)) in self.compared:
            return True
        self.compared.add((id(a), id(b)))
        return self.same(_public(a), _public(b))


def _around(function: types.FunctionType) -> tuple[Any, ...]:
    """The closure, defaults and keyword defaults of a function."""
    closure = [each.cell_contents for each in function.__closure__ or ()]
    return (*closure, *(function.__defaults__ or ()), function.__kwdefaults__)


def _public(value: Any) -> dict[str, Any]:
    """An object's attributes without an underscore."""
    return {name: part for name, part in getattr(value, "__dict__", {}).items() if not name.startswith("_")}


def _shown(tensor: torch.Tensor | None) -> str:
    return "None" if tensor is None else repr(dense_meta(tensor.shape, tensor.dtype))


def _hook(hook: Callable[..., Any]) -> str:
    return getattr(hook, "__qualname__", None) or _short(hook)


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {_shown(value)} that is neither parameter nor buffer"
    text = repr(value)
    return text if len(text) < 80 else f"{text[:77]}..."

"""The objects that a function reaches: containers, their contents, and what has changed in them."""

import collections
import dis
import enum
import functools
import operator
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

# No step keeps its state in a library: following torch's own modules would reach all of the process.
LIBRARIES = frozenset({"torch", "jax", "jaxlib", "numpy", "spmd", *sys.stdlib_module_names})
# Objects of these packages are not read by a step as state, or guard themselves (meshes and shardings are immutable).
_CLOSED_PACKAGES = frozenset({
    "jax", "jaxlib", "numpy", "spmd", "logging", "threading", "_thread", "asyncio", "concurrent", "multiprocessing",
    "re", "weakref", "io", "_io", "socket", "queue", "contextlib", "inspect", "importlib", "abc", "typing", "types",
    "unittest", "_pytest", "pytest", "enum", "pathlib", "sre_constants", "_weakrefset",
})  # fmt: skip
_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size, torch.layout)
_CLOSED = (types.BuiltinFunctionType, types.CodeType, torch.Generator, types.GetSetDescriptorType, property)
_MODULE_STATE = frozenset(nn.Module().__dict__)
# A vocabulary or a dataset held as a list is compared, but not walked.
_LARGE = 4096  # items; a longer list is compared item by item, and must hold plain values
_MOST = 200_000  # containers
_Object = TypeVar("_Object")


@dataclass(frozen=True, slots=True)
class Change:
    """A place whose value a call has changed; `missing` stands for no value."""

    path: str
    container: Any
    kind: "Kind"
    key: Any
    old: Any
    new: Any

    def settled(self) -> "Change":
        """The change with its old value in words, which holds nothing that is gone."""
        return replace(self, old=missing if self.old is missing else _Words(_short(self.old)))

    def __str__(self) -> str:
        return f"{self.path} was {_short(self.old)}, now {_short(self.new)}"


def _short(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"


class _Words(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


missing: Any = _Words("nothing")


class Kind(enum.Enum):
    """The kinds of containers, by what is read of them: all items, or some by name."""

    DICT = enum.auto()
    LIST = enum.auto()
    OTHER = enum.auto()  # sets, deques
    ATTRIBUTES = enum.auto()  # names of an object's `__dict__`
    SCOPE = enum.auto()  # names of a module's globals
    CLASS = enum.auto()  # names of a class
    SLOTS = enum.auto()
    CAPTURED = enum.auto()  # the variables that a function has captured


@dataclass(eq=False, slots=True)
class Held:
    """One container: what it is, where it was found, and its contents when it was looked at.

    names: the keys that count, for the kinds that have names.
    """

    container: Any
    path: str
    kind: Kind
    names: Sequence[str] = ()
    keys: Sequence[object] = ()
    values: Sequence[object] = ()

    def __post_init__(self) -> None:
        self.keys, self.values = self.read()

    def read(self) -> tuple[Sequence[object], Sequence[object]]:
        """The contents now, as keys and values."""
        box, names = self.container, self.names
        match self.kind:
            case Kind.DICT:
                # Of a subclass, too: its own methods may run the user's code.
                methods = _methods_of(box)
                return list(methods.keys(box)), list(methods.values(box))
            case Kind.LIST:
                items = list.copy(box)
                return range(len(items)), items
            case Kind.OTHER:
                return list(box), list(box)
            case Kind.ATTRIBUTES | Kind.SCOPE | Kind.CLASS:
                scope = self.scope()
                return names, [scope.get(name, missing) for name in names]
            case Kind.SLOTS:
                return names, [getattr(box, name, missing) for name in names]
            case Kind.CAPTURED:
                return names, [_content(variable) for variable in box.__closure__]

    def restore(self) -> None:
        """Gives the container the contents that it had when it was looked at, if it has others."""
        box = self.container
        match self.kind:
            case Kind.DICT | Kind.ATTRIBUTES:
                methods = _methods_of(box)
                if not _is_identical([*methods.keys(box), *methods.values(box)], [*self.keys, *self.values]):
                    methods.clear(box)
                    for key, old in zip(self.keys, self.values, strict=True):
                        methods.__setitem__(box, key, old)
            case Kind.LIST:
                box[:] = self.values
            case Kind.OTHER:
                if not _is_identical([*box], self.values):
                    box.clear()
                    (box.update if isinstance(box, set) else box.extend)(self.values)
            case Kind.SCOPE:
                box.update((name, old) for name, old in zip(self.keys, self.values, strict=True) if old is not missing)
            case Kind.CAPTURED:
                for variable, old in zip(box.__closure__, self.values, strict=True):
                    if old is not missing:
                        variable.cell_contents = old

    def scope(self) -> Mapping[str, object]:
        """The names of a class, or of a container that is a dict."""
        return vars(self.container) if self.kind is Kind.CLASS else self.container

    def changes(self, same: Callable[[object, object], bool]) -> Iterator[Change]:
        """The changes since then. same: whether a value counts as the one before."""
        keys, values = self.read()
        if len(keys) == len(self.keys) and all(map(same, values, self.values)) and all(map(same, keys, self.keys)):
            return
        old, new = dict(zip(self.keys, self.values, strict=True)), dict(zip(keys, values, strict=True))
        for key in dict.fromkeys([*old, *new]):
            before, now = old.get(key, missing), new.get(key, missing)
            if not same(now, before):
                yield Change(_path(self.path, self.container, key), self.container, self.kind, key, before, now)


def _methods_of(box: dict[Any, Any]) -> type[dict[Any, Any]]:
    """The class whose methods read and write a dict, whatever a subclass does in them. An OrderedDict keeps an order of
    its own, which dict's methods would not touch."""
    return collections.OrderedDict if isinstance(box, collections.OrderedDict) else dict


def _is_identical(now: Sequence[object], before: Sequence[object]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


class _Contents:
    """A comparison of containers by the contents that they had. A class: a function that calls itself is a reference
    cycle, which would hold what the call has dropped."""

    def __init__(self, held: dict[int, Held]):
        self._held = held

    def same(self, now: object, before: object) -> bool:
        held = self._held.get(id(before)) if type(now) is type(before) and now is not before else None
        if held is None or held.kind not in (Kind.DICT, Kind.LIST):
            return is_same(now, before)
        current = Held(now, "", held.kind)
        return len(current.keys) == len(held.keys) and all(
            map(self.same, (*current.keys, *current.values), (*held.keys, *held.values))
        )


def is_same(one: object, other: object) -> bool:
    """True for one object, and for equal plain values."""
    if one is other:
        return True
    # 1 == 1.0 == True: a number of another type is another argument of an op.
    kind = type(one)
    if kind is not type(other):
        return False
    if isinstance(one, tuple) and isinstance(other, tuple) and kind is tuple:
        return len(one) == len(other) and all(map(is_same, one, other))
    # 0.0 == -0.0, and they are different numbers of an op.
    return kind in _COMPARED and one == other and repr(one) == repr(other)


_COMPARED = frozenset({str, bytes, int, float, complex, bool, torch.Size, types.MethodType})


def _path(path: str, container: object, key: object) -> str:
    if isinstance(container, (list, dict, collections.deque)) and not path.endswith(".__dict__"):
        shown = repr(key) if isinstance(key, (str, int)) else type(key).__name__
        return f"{path}[{shown}]"
    return f"{path.removesuffix('.__dict__')}.{key}"


@dataclass(eq=False)
class Objects:
    """The objects that some roots reach, each root with the path that its objects' paths begin with.

    names: the attributes that count; None: all. ran: the code that ran; what only other functions refer to is left out.
    None: all. scope: the only globals that are followed, with no class and all instances; None: those of the user's
    functions, with his classes. held: the containers. tensors: each with its path. arrays, iterators: numpy's arrays,
    and iterators that are under way, by path. opaque: the paths of what is too large to be followed.
    """

    roots: Sequence[tuple[str, object]]
    names: Collection[str] | None = None
    ran: Collection[types.CodeType] | None = None
    scope: Mapping[str, object] | None = None
    held: list[Held] = field(default_factory=list)
    tensors: dict[int, tuple[str, torch.Tensor]] = field(default_factory=dict)
    arrays: list[tuple[str, np.ndarray]] = field(default_factory=list)
    iterators: list[str] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)
    _seen: dict[int, object] = field(default_factory=dict)  # keeps them alive, so that no id is used twice

    def __post_init__(self) -> None:
        # Breadth first, so that an object has the shortest of its paths.
        todo = collections.deque(self.roots)
        while todo:
            path, thing = todo.popleft()
            if isinstance(thing, (*_PLAIN, *_CLOSED)) or id(thing) in self._seen:
                continue
            self._seen[id(thing)] = thing
            # A guard over more would take longer than recording the step again.
            if len(self.held) > _MOST and self.scope is None:
                self.opaque.append(path)
                return
            todo.extend(self._inside(path, thing))

    @classmethod
    def of_step(cls, step: object, arguments: object) -> "Objects":
        """The objects of a step and its arguments: by containers, attributes, captured variables and the globals of the
        step's own module, however many these are."""
        return cls([("the step", step), ("the arguments", arguments)], scope=_globals_of(step))

    def of(self, kind: type[_Object]) -> list[_Object]:
        """The objects of a class."""
        return [thing for thing in self._seen.values() if isinstance(thing, kind)]

    def changes(self) -> list[Change]:
        """The changes since then; a container with the contents that the one before had is no change."""
        comparison = _Contents({id(held.container): held for held in self.held})
        return [change for held in self.held for change in held.changes(comparison.same)]

    def restore(self) -> None:
        """Restores the contents of the containers."""
        for held in self.held:
            held.restore()

    def _hold(self, path: str, container: Any, kind: Kind, names: Sequence[str] = ()) -> list[tuple[str, object]]:
        held = Held(container, path, kind, names)
        self.held.append(held)
        # A plan restores what it finds, however large; a guard only compares.
        if len(held.values) > _LARGE and self.scope is None:
            if not all(isinstance(value, _PLAIN) for value in held.values):
                self.opaque.append(path)
            return []
        return [(_path(path, container, key), value) for key, value in zip(held.keys, held.values, strict=True)]

    def _inside(self, path: str, thing: object) -> Sequence[tuple[str, object]]:
        if isinstance(thing, torch.Tensor):
            self.tensors[id(thing)] = path, thing
            return []
        if isinstance(thing, np.ndarray):
            self.arrays.append((path, thing))
            return []
        if isinstance(thing, types.FunctionType):
            return self._of_function(path, thing)
        if isinstance(thing, types.MethodType):
            return [(path.rpartition(".")[0] or path, thing.__self__), (path, thing.__func__)]
        if isinstance(thing, (staticmethod, classmethod)):
            return [(path, thing.__func__)]
        if isinstance(thing, functools.partial):
            return [(path, thing.func), (path, thing.args), (path, thing.keywords)]
        if isinstance(thing, (tuple, frozenset)):
            return [(f"{path}[{place}]", item) for place, item in enumerate(thing)]
        if isinstance(thing, list):
            return self._hold(path, thing, Kind.LIST)
        if isinstance(thing, (collections.deque, set)):
            return self._hold(path, thing, Kind.OTHER)
        if isinstance(thing, dict):
            # An optimizer's state may be the only place that refers to a parameter.
            return [
                *self._hold(path, thing, Kind.DICT),
                *((path, key) for key in dict.keys(thing) if isinstance(key, torch.Tensor)),
            ]
        if isinstance(thing, types.ModuleType):
            return self._of_python_module(path, thing)
        if isinstance(thing, type):
            return self._of_class(path, thing) if self.scope is None else []
        return self._of_object(path, thing)

    def _of_object(self, path: str, thing: object) -> Sequence[tuple[str, object]]:
        kind = type(thing)
        package = kind.__module__.partition(".")[0]
        state = getattr(thing, "__dict__", None)
        # All attributes of any object: a step may count in one that no code is known to read.
        if self.scope is not None:
            return self._hold(f"{path}.__dict__", state, Kind.ATTRIBUTES, [*state]) if isinstance(state, dict) else []
        # Its position cannot be compared without moving it.
        if hasattr(kind, "__next__"):
            self.iterators.append(path)
            return []
        # Locks, loggers and meshes: no state of a step, or objects that do not change.
        if package in _CLOSED_PACKAGES:
            return []
        children: list[tuple[str, object]] = []
        if isinstance(state, dict):
            # Dispatch of a module reads these by C code, which names none of them.
            always = _MODULE_STATE if isinstance(thing, nn.Module) else frozenset()
            names = [name for name in state if self.names is None or name in self.names or name in always]
            children += self._hold(f"{path}.__dict__", state, Kind.ATTRIBUTES, names)
        # Attributes outside of `__dict__`; those of libraries are theirs to change.
        slots = [name for base in kind.__mro__ for name in vars(base).get("__slots__", ()) if isinstance(name, str)]
        if slots and package not in LIBRARIES:
            children += self._hold(path, thing, Kind.SLOTS, slots)
        if package not in LIBRARIES:
            children.append((f"{kind.__name__}", kind))
        return children

    def _of_class(self, path: str, kind: type) -> Sequence[tuple[str, object]]:
        """The attributes of the user's classes, methods among them."""
        children: list[tuple[str, object]] = []
        for base in kind.__mro__:
            # A user's class inherits nn.Module: of it, only its own methods can be replaced between two calls.
            if base.__module__.partition(".")[0] in LIBRARIES:
                continue
            names = [
                name
                for name, value in vars(base).items()
                if not (name.startswith("__") and not callable(value))
                and not isinstance(value, types.GetSetDescriptorType)
            ]
            if base is kind:
                children += self._hold(path, kind, Kind.CLASS, names)
            else:
                children.append((base.__name__, base))
        return children

    def _of_python_module(self, path: str, module: types.ModuleType) -> Sequence[tuple[str, object]]:
        """The attributes of the user's modules that functions name."""
        if module.__name__.partition(".")[0] in LIBRARIES or self.names is None:
            return []
        variables = vars(module)
        names = [name for name in variables if name in self.names and not name.startswith("__")]
        return self._hold(path, variables, Kind.SCOPE, names)

    def _of_function(self, path: str, function: types.FunctionType) -> Sequence[tuple[str, object]]:
        # A function that did not run has read nothing.
        if self.ran is not None and function.__code__ not in self.ran:
            return []
        children: list[tuple[str, object]] = [(path, function.__defaults__), (path, function.__kwdefaults__)]
        if function.__dict__:
            children += self._hold(f"{path}.__dict__", function.__dict__, Kind.DICT)
        if function.__closure__:
            children += self._hold(path, function, Kind.CAPTURED, function.__code__.co_freevars)
        scope = function.__globals__
        if scope is self.scope or (self.scope is None and not _is_library(scope)):
            # By name: a module's other globals may change at each import.
            wanted = [name for name in _global_names(function.__code__) if name in scope]
            children += self._hold("globals()", scope, Kind.SCOPE, wanted)
        return children


def _is_library(scope: Mapping[str, object]) -> bool:
    """True for the globals of a module of a library; a doctest has a module's name and globals of its own."""
    name = str(scope.get("__name__", ""))
    return name.partition(".")[0] in LIBRARIES and getattr(sys.modules.get(name), "__dict__", None) is scope


def _content(variable: types.CellType) -> object:
    try:
        return variable.cell_contents
    except ValueError:  # not assigned yet
        return missing


def _globals_of(step: object) -> Mapping[str, object]:
    # The globals that count are those of the function that the user wrote.
    while isinstance(step, functools.partial):
        step = step.func
    if isinstance(step, types.MethodType):
        step = step.__func__
    function = step if isinstance(step, types.FunctionType) else vars(type(step)).get("__call__")
    return getattr(function, "__globals__", {})


# `co_names` has the names of attributes, too: `optimizer.step()` is no use of a global `step`.
_OF_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL"})


def _global_names(code: types.CodeType) -> list[str]:
    """The names of globals that a function, and those inside it, reads or writes."""
    inner = [
        name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in _global_names(constant)
    ]
    names = (instruction.argval for instruction in dis.get_instructions(code) if instruction.opname in _OF_GLOBALS)
    return [*dict.fromkeys(names), *inner]


def outermost(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """The modules that are not a child of another one of them."""
    children = {id(child) for module in modules for child in module.children()}
    return [module for module in modules if id(module) not in children]

"""The objects that a function reaches: containers, their contents, and what has changed in them."""

import array
import collections
import contextvars
import dis
import functools
import random
import re
import sys
import threading
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from ..record.tensor import OURS
from .contents import Change, Contents, Kind, Snapshot, path_of

# No step keeps its state in a library: following torch's own modules would reach all of the
# process.
LIBRARIES = frozenset({"torch", "jax", "jaxlib", "numpy", "spmd", *sys.stdlib_module_names})
# Objects of these packages are not read by a step as state, or guard themselves (meshes and
# shardings are immutable).
_CLOSED_PACKAGES = frozenset({
    "jax", "jaxlib", "numpy", "spmd", "logging", "threading", "_thread", "asyncio", "concurrent",
    "multiprocessing", "re", "weakref", "io", "_io", "socket", "contextlib", "inspect",
    "importlib", "abc", "typing", "types", "unittest", "_pytest", "pytest", "enum", "pathlib",
    "sre_constants", "_weakrefset",
})  # fmt: skip
_PLAIN = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
    torch.layout,
)
_CLOSED = (types.CodeType, types.GetSetDescriptorType)
_OPEN = (types.SimpleNamespace, threading.local)  # in spite of their packages
# Random generators on the host. Those of the device are operands.
_GENERATORS = (
    random.Random,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    torch.Generator,
)
_OURS = frozenset(OURS)
_MODULE_STATE = frozenset(nn.Module().__dict__)
# A vocabulary or a dataset held as a list is compared, but not walked.
_LARGE = 4096  # items; a longer list is compared item by item, and must hold plain values
_MOST = 200_000  # containers
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_Object = TypeVar("_Object")


@dataclass(eq=False)
class Objects:
    """The objects reachable from some roots, by path from the root.

    Attributes:
        names: limits attributes to these; None: all.
        ran: limits functions to this code; None: all.
        scope: of a plan: the only globals that are followed, with all instances and no classes.
            None for a guard: globals of the user's functions, and the user's classes.
        snapshots: of the containers.
        tensors: (path, tensor), by id.
        arrays, iterators, generators: numpy arrays, started iterators and random generators of the
            host, with their paths.
        opaque: the paths of objects too large to follow.
    """

    roots: Sequence[tuple[str, object]]
    names: Collection[str] | None = None
    ran: Collection[types.CodeType] | None = None
    scope: Mapping[str, object] | None = None
    snapshots: list[Snapshot] = field(default_factory=list)
    tensors: dict[int, tuple[str, torch.Tensor]] = field(default_factory=dict)
    arrays: list[tuple[str, np.ndarray]] = field(default_factory=list)
    iterators: list[str] = field(default_factory=list)
    generators: list[tuple[str, Any]] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)
    # keeps them alive, so that no id is used twice
    _visited: dict[int, object] = field(default_factory=dict)
    # The user's modules, each with its visited names; and all names in the functions' code.
    _modules: list[tuple[str, types.ModuleType, set[str]]] = field(default_factory=list)
    _mentioned: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        # `nn.Module.__call__` reads the module's own state (hooks, parameters) in code whose names
        # are not collected: these attributes always count.
        self._names_of_modules = None if self.names is None else _MODULE_STATE.union(self.names)
        # Breadth first, so that an object has the shortest of its paths.
        todo = collections.deque(self.roots)
        while todo or (todo := self._in_modules()):
            path, thing = todo.popleft()
            if isinstance(thing, (*_PLAIN, *_CLOSED)) or id(thing) in self._visited:
                continue
            self._visited[id(thing)] = thing
            # A guard (scope is None) over more containers would take longer than recording the step
            # again.
            if len(self.snapshots) > _MOST and self.scope is None:
                self.opaque.append(path)
                return
            todo.extend(self._inside(path, thing))

    @classmethod
    def of_step(cls, step: object, arguments: object) -> "Objects":
        """The objects of a step and its arguments: by containers, attributes, captured variables
        and the globals of the step's own module, however many these are."""
        return cls([("the step", step), ("the arguments", arguments)], scope=_globals_of(step))

    def of(self, kind: type[_Object]) -> list[_Object]:
        """The objects of a class."""
        return [thing for thing in self._visited.values() if isinstance(thing, kind)]

    def changes(self) -> list[Change]:
        """The changes since the snapshots; a new container with equal contents is no change."""
        comparison = Contents({id(snapshot.container): snapshot for snapshot in self.snapshots})
        return [
            change for snapshot in self.snapshots for change in snapshot.changes(comparison.same)
        ]

    def restore(self) -> None:
        """Restores the contents of the containers."""
        for snapshot in self.snapshots:
            snapshot.restore()

    def _snapshot(
        self, path: str, container: Any, kind: Kind, names: Collection[str] | None = None
    ) -> list[tuple[str, object]]:
        """Takes a snapshot of a container; returns its items as (path, value). A guard skips the
        items of a very long container."""
        snapshot = Snapshot(container, path, kind, names)
        self.snapshots.append(snapshot)
        # A plan restores what it finds, however large; a guard only compares.
        if len(snapshot.values) > _LARGE and self.scope is None:
            if not all(isinstance(value, _PLAIN) for value in snapshot.values):
                self.opaque.append(path)
            return []
        return [
            (path_of(path, container, key), value)
            for key, value in zip(snapshot.keys, snapshot.values, strict=True)
        ]

    def _inside(self, path: str, thing: object) -> Sequence[tuple[str, object]]:
        """Notes an object by its kind (tensor, array, generator, ...); returns its items as (path,
        value)."""
        if isinstance(thing, torch.Tensor):
            self.tensors[id(thing)] = path, thing
            # Only a guard looks at the attributes that a user has set on a tensor.
            is_named = self.scope is None and not _OURS.issuperset(vars(thing))
            return (
                self._snapshot(path, vars(thing), Kind.ATTRIBUTES, self.names) if is_named else []
            )
        if isinstance(thing, np.ndarray):
            self.arrays.append((path, thing))
            return []
        if isinstance(thing, (contextvars.ContextVar, bytearray, array.array)):
            return self._snapshot(path, thing, Kind.VALUE)
        if isinstance(thing, _GENERATORS):
            self.generators.append((path, thing))
            return []
        if isinstance(thing, types.FunctionType):
            return self._of_function(path, thing)
        if isinstance(thing, types.MethodType):
            return [(path.rpartition(".")[0] or path, thing.__self__), (path, thing.__func__)]
        if isinstance(thing, (types.BuiltinFunctionType, types.MethodWrapperType)):
            return [] if isinstance(thing.__self__, types.ModuleType) else [(path, thing.__self__)]
        if isinstance(thing, (staticmethod, classmethod, property)):
            return [(path, thing.fget if isinstance(thing, property) else thing.__func__)]
        if isinstance(thing, functools.partial):
            return self._snapshot(path, thing, Kind.SLOTS, ("func", "args", "keywords"))
        if isinstance(thing, types.ModuleType):
            if self.scope is None and (_is_own(vars(thing)) or self.names is not None):
                self._modules.append((path, thing, set()))
            return []
        if isinstance(thing, type):
            return self._of_class(path, thing) if self.scope is None else []
        # Of a subclass of a container, the attributes, too.
        items = self._items(path, thing)
        is_plain = items is not None and type(thing).__module__ in ("builtins", "collections")
        return [*(items or ()), *(() if is_plain else self._of_object(path, thing))]

    def _items(self, path: str, thing: object) -> Sequence[tuple[str, object]] | None:
        """The items of a container; None for no container."""
        if isinstance(thing, (tuple, frozenset)):
            return [(f"{path}[{index}]", item) for index, item in enumerate(thing)]
        if isinstance(thing, list):
            return self._snapshot(path, thing, Kind.LIST)
        if isinstance(thing, (collections.deque, set)):
            return self._snapshot(path, thing, Kind.OTHER)
        if isinstance(thing, dict):
            # An optimizer's state may be the only place that refers to a parameter.
            return [
                *self._snapshot(path, thing, Kind.DICT),
                *((path, key) for key in dict.keys(thing) if isinstance(key, torch.Tensor)),
            ]
        return None

    def _of_object(self, path: str, thing: object) -> Sequence[tuple[str, object]]:
        """The attributes of an object of any other class."""
        kind = type(thing)
        package = str(kind.__module__).partition(".")[0]
        state = getattr(thing, "__dict__", None)
        # All attributes of any object: a step may count in one that no code is known to read.
        if self.scope is not None:
            return (
                self._snapshot(f"{path}.__dict__", state, Kind.ATTRIBUTES)
                if isinstance(state, dict)
                else []
            )
        # An iterator's position cannot be compared without moving it.
        if hasattr(kind, "__next__"):
            self.iterators.append(path)
            return []
        # Locks, loggers and meshes: no state of a step, or objects that do not change.
        if package in _CLOSED_PACKAGES and not isinstance(thing, _OPEN):
            # A compiled function inside another one stands for the function that it wraps.
            wrapped = state.get("__wrapped__") if package == "spmd" and state else None
            return [] if wrapped is None else [(path, wrapped)]
        children: list[tuple[str, object]] = []
        special, slots = ["__class__"], list[str]()
        if isinstance(state, dict):
            names = self._names_of_modules if isinstance(thing, nn.Module) else self.names
            children += self._snapshot(f"{path}.__dict__", state, Kind.ATTRIBUTES, names)
            special.append("__dict__")
        # Attributes outside of `__dict__`; those of libraries are theirs to change.
        if package not in LIBRARIES:
            slots += [name for base in kind.__mro__ for name in _slots_of(base)]
            children.append((kind.__name__, kind))
        if isinstance(state, dict) or slots:
            children += self._snapshot(path, thing, Kind.SLOTS, special + slots)[len(special) :]
        return children

    def _of_class(self, path: str, kind: type) -> Sequence[tuple[str, object]]:
        """The attributes of a user's class, methods among them, its user-written bases and its
        metaclass."""
        children: list[tuple[str, object]] = []
        for base in kind.__mro__:
            # A user's class inherits nn.Module: of it, only its own methods can be replaced between
            # two calls.
            if str(base.__module__).partition(".")[0] in LIBRARIES:
                continue
            if base is kind:
                children += self._snapshot(path, kind, Kind.CLASS)
            else:
                children.append((base.__name__, base))
        return [*children, (path, type(kind))]

    def _in_modules(self) -> collections.deque[tuple[str, object]]:
        """The attributes of the user's modules that functions name; visited last, when all these
        names are known."""
        mentioned_names, items = (
            set(self._mentioned if self.names is None else self.names),
            collections.deque[Any](),
        )
        for path, module, visited_names in self._modules:
            if module.__name__.partition(".")[0] not in LIBRARIES and (
                new_names := mentioned_names - visited_names
            ):
                visited_names |= new_names
                items.extend(self._snapshot(path, vars(module), Kind.SCOPE, new_names))
        return items

    def _of_function(self, path: str, function: types.FunctionType) -> Sequence[tuple[str, object]]:
        """The objects that a function refers to: defaults, attributes, captured variables,
        globals."""
        # A function that did not run has read nothing.
        if self.ran is not None and function.__code__ not in self.ran:
            return []
        code, scope = function.__code__, function.__globals__
        is_users = self.scope is None and not _is_library(scope)
        is_own = is_users and _is_own(scope)
        children: list[tuple[str, object]] = [(path, function.__kwdefaults__)]
        if function.__dict__ or is_own:
            children += self._snapshot(f"{path}.__dict__", function.__dict__, Kind.DICT)
        if function.__closure__ or is_own:
            children += self._snapshot(path, function, Kind.FUNCTION)
        else:
            children.append((path, function.__defaults__))
        if scope is self.scope or is_users:
            # By name: a module's other globals may change at each import.
            children += self._snapshot("globals()", scope, Kind.SCOPE, _global_names(code))
        if is_own:  # modules that it imports, or takes by their names
            names = names_in([code])
            self._mentioned |= names
            children += [
                (name, sys.modules[name])
                for name in names
                if _is_own(getattr(sys.modules.get(name), "__dict__", vars(sys)))
            ]
        return children


def _is_own(scope: Mapping[str, object]) -> bool:
    """True for the globals of the user's own modules, outside of installed packages."""
    package, file = str(scope.get("__name__", "")).partition(".")[0], str(scope.get("__file__", ""))
    return package != "fsdp" and package not in LIBRARIES and not _INSTALLED.search(file)


def _slots_of(kind: type) -> Iterable[str]:
    """The names of a class's slots, private ones mangled (`_Class__name`)."""
    # Not `copyreg._slotnames`, which keeps its result in the class: a change that guards would see.
    slots = vars(kind).get("__slots__", ())
    private = f"_{kind.__name__.lstrip('_')}"
    names = [slots] if isinstance(slots, str) else slots
    return [
        private + name if name.startswith("__") and not name.endswith("__") else name
        for name in names
    ]


def names_in(codes: Iterable[types.CodeType]) -> set[str]:
    """The names of attributes, modules and items that code may read."""
    names: set[str] = set()
    for code in codes:
        names.update(code.co_names)
        names.update(constant for constant in code.co_consts if isinstance(constant, str))
        names |= names_in(
            constant for constant in code.co_consts if isinstance(constant, types.CodeType)
        )
    return names


def _is_library(scope: Mapping[str, object]) -> bool:
    """True for the globals of a module of a library; a doctest has a module's name and globals of
    its own."""
    name = str(scope.get("__name__", ""))
    return (
        name.partition(".")[0] in LIBRARIES
        and getattr(sys.modules.get(name), "__dict__", None) is scope
    )


def _globals_of(step: object) -> Mapping[str, object]:
    """The globals of the function that a step wraps: behind partials, as a method, or as the
    `__call__` of its class."""
    while isinstance(step, functools.partial):
        step = step.func
    if isinstance(step, types.MethodType):
        step = step.__func__
    function = step if isinstance(step, types.FunctionType) else vars(type(step)).get("__call__")
    return getattr(function, "__globals__", {})


# `co_names` has the names of attributes, too: `optimizer.step()` is no use of a global `step`.
_OF_GLOBALS = frozenset(
    {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL"}
)


@functools.lru_cache(16_384)  # functions of libraries, most of them, at each recording
def _global_names(code: types.CodeType) -> frozenset[str]:
    """The names of globals that a function and its inner functions read or write."""
    inner = (
        _global_names(constant)
        for constant in code.co_consts
        if isinstance(constant, types.CodeType)
    )
    names = (
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in _OF_GLOBALS
    )
    return frozenset(names).union(*inner)


def outermost(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """The modules that are not a child of another one of them."""
    children = {id(child) for module in modules for child in module.children()}
    return [module for module in modules if id(module) not in children]

"""Snapshots of containers: their changes since, and their restoration."""

import array
import collections
import contextvars
import enum
import operator
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..record.tensor import described


@dataclass(frozen=True, slots=True)
class Change:
    """A key of a container whose value a call has changed, with its path; `missing`: no value."""

    path: str
    container: Any
    kind: "Kind"
    key: Any
    old: Any
    new: Any

    def settled(self) -> "Change":
        """Returns the change with its old value as text, which keeps no object alive."""
        return replace(self, old=missing if self.old is missing else _Words(described(self.old)))

    def __str__(self) -> str:
        return f"{self.path} was {described(self.old)}, now {described(self.new)}"


class _Words(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


missing: Any = _Words("nothing")


class Kind(enum.Enum):
    """The kinds of containers, by the parts that a snapshot reads: all items, or some by name."""

    DICT = enum.auto()
    LIST = enum.auto()
    OTHER = enum.auto()  # sets, deques
    ATTRIBUTES = enum.auto()  # names of an object's `__dict__`
    SCOPE = enum.auto()  # names of a module's globals
    CLASS = enum.auto()  # names of a class, and its bases
    SLOTS = enum.auto()  # its class, its `__dict__`, and attributes outside of that
    VALUE = enum.auto()  # of a context variable, an array of bytes or of numbers
    FUNCTION = enum.auto()  # its code, its defaults, and the variables that it has captured


@dataclass(eq=False, slots=True)
class Snapshot:
    """The contents of a container at one time: its keys and values.

    names: limits the snapshot to these names, of which some may be absent; None: all names. Kinds
    without names ignore it.
    """

    container: Any
    path: str
    kind: Kind
    names: Collection[Any] | None = None
    keys: Sequence[object] = ()
    values: Sequence[object] = ()

    def __post_init__(self) -> None:
        self.keys, self.values = self.read()

    def read(self) -> tuple[Sequence[object], Sequence[object]]:
        """The contents now, as keys and values."""
        container, names = self.container, self.names or ()
        match self.kind:
            case Kind.DICT:
                # Of a subclass, too: its own methods may run the user's code.
                methods = _methods_of(container)
                return list(methods.keys(container)), list(methods.values(container))
            case Kind.LIST:
                items = list.copy(container)
                return range(len(items)), items
            case Kind.OTHER:
                items = [*container]
                return items if isinstance(container, set) else range(len(items)), items
            case Kind.ATTRIBUTES | Kind.SCOPE:
                # The smaller of the two is walked.
                short, long = (
                    (names, container) if len(names) < len(container) else (container, names)
                )
                keys = (
                    [*container] if self.names is None else [name for name in short if name in long]
                )
                return keys, [container[name] for name in keys]
            case Kind.CLASS:
                state = {
                    name: value
                    for name, value in vars(container).items()
                    if _is_state_of_class(name, value)
                }
                return ["__mro__", *state], [container.__mro__, *state.values()]
            case Kind.SLOTS:
                return tuple(names), [getattr(container, name, missing) for name in names]
            case Kind.VALUE:
                is_variable = isinstance(container, contextvars.ContextVar)
                return ["value"], [container.get(missing) if is_variable else bytes(container)]
            case Kind.FUNCTION:
                captured = [_cell_content(variable) for variable in container.__closure__ or ()]
                return [*_FUNCTION_PARTS, *container.__code__.co_freevars], [
                    *parts_of_function(container),
                    *captured,
                ]

    def has_missing(self) -> bool:
        """True if one of the names had no value."""
        return any(value is missing for value in self.values)

    def restore(self) -> None:
        """Restores the contents of the snapshot, if the container's differ."""
        container = self.container
        match self.kind:
            case Kind.DICT | Kind.ATTRIBUTES:
                methods = _methods_of(container)
                if not _is_identical(
                    [*methods.keys(container), *methods.values(container)],
                    [*self.keys, *self.values],
                ):
                    methods.clear(container)
                    # Cleared and filled again, as the order of keys counts.
                    for key, old in zip(self.keys, self.values, strict=True):
                        methods.__setitem__(container, key, old)
            case Kind.LIST:
                container[:] = self.values
            case Kind.OTHER:
                if not _is_identical([*container], self.values):
                    container.clear()
                    (container.update if isinstance(container, set) else container.extend)(
                        self.values
                    )
            case Kind.SCOPE:
                container.update(zip(self.keys, self.values, strict=True))
            case Kind.VALUE if isinstance(container, contextvars.ContextVar):
                if self.values[0] is not missing:
                    container.set(self.values[0])
            case Kind.VALUE:
                content: Any = self.values[0]
                code = getattr(container, "typecode", None)
                container[:] = content if code is None else array.array(code, content)
            case Kind.FUNCTION:
                for variable, old in zip(
                    container.__closure__ or (), self.values[len(_FUNCTION_PARTS) :], strict=True
                ):
                    if old is not missing:
                        variable.cell_contents = old

    def scope(self) -> Mapping[str, object]:
        """The names of a class, or of a container that is a dict."""
        return vars(self.container) if self.kind is Kind.CLASS else self.container

    def changes(self, same: Callable[[object, object], bool]) -> Iterator[Change]:
        """The changes since the snapshot. same: decides if a value is unchanged."""
        keys, values = self.read()
        if (
            len(keys) == len(self.keys)
            and all(map(same, values, self.values))
            and all(map(same, keys, self.keys))
        ):
            return
        old, new = (
            dict(zip(self.keys, self.values, strict=True)),
            dict(zip(keys, values, strict=True)),
        )
        for key in dict.fromkeys([*old, *new]):
            old_value, new_value = old.get(key, missing), new.get(key, missing)
            if not same(new_value, old_value):
                yield Change(
                    path_of(self.path, self.container, key),
                    self.container,
                    self.kind,
                    key,
                    old_value,
                    new_value,
                )


_FUNCTION_PARTS = "__code__", "__defaults__", "__kwdefaults__"
parts_of_function = operator.attrgetter(*_FUNCTION_PARTS)


def _is_state_of_class(name: str, value: object) -> bool:
    return (callable(value) or not name.startswith("__")) and not isinstance(
        value, types.GetSetDescriptorType
    )


def _cell_content(variable: types.CellType) -> object:
    try:
        return variable.cell_contents
    except ValueError:  # not assigned yet
        return missing


def _methods_of(container: dict[Any, Any]) -> type[dict[Any, Any]]:
    """The class whose methods read and write a dict, as a subclass may override them. An
    OrderedDict keeps an order of its own, which dict's methods would not touch."""
    return collections.OrderedDict if isinstance(container, collections.OrderedDict) else dict


def _is_identical(values: Sequence[object], old_values: Sequence[object]) -> bool:
    return len(values) == len(old_values) and all(map(operator.is_, values, old_values))


class Contents:
    """Compares containers by their former contents. A class, because a recursive closure is a
    reference cycle and would keep dropped objects alive."""

    def __init__(self, snapshots: dict[int, Snapshot]):
        self._snapshots = snapshots

    def same(self, value: object, old_value: object) -> bool:
        """True for equal plain values, and for a new dict or list with the snapshot's contents of
        the old one."""
        snapshot = (
            self._snapshots.get(id(old_value))
            if type(value) is type(old_value) and value is not old_value
            else None
        )
        if snapshot is None or snapshot.kind not in (Kind.DICT, Kind.LIST):
            return is_same(value, old_value)
        current = Snapshot(value, "", snapshot.kind)
        return len(current.keys) == len(snapshot.keys) and all(
            map(self.same, (*current.keys, *current.values), (*snapshot.keys, *snapshot.values))
        )


def is_same(a: object, b: object) -> bool:
    """True for one object, and for equal plain values."""
    if a is b:
        return True
    # 1 == 1.0 == True: a number of another type is another argument of an op.
    kind = type(a)
    if kind is not type(b):
        return False
    if isinstance(a, tuple) and isinstance(b, tuple) and kind is tuple:
        return len(a) == len(b) and all(map(is_same, a, b))
    # 0.0 == -0.0, and they are different numbers of an op.
    return kind in _COMPARED and a == b and repr(a) == repr(b)


_COMPARED = frozenset({str, bytes, int, float, complex, bool, torch.Size, types.MethodType})


def path_of(path: str, container: object, key: object) -> str:
    """The path of an item: `path[key]` in a container, `path.key` for an attribute or a name."""
    if isinstance(container, (list, dict, collections.deque)) and not path.endswith(".__dict__"):
        label = repr(key) if isinstance(key, (str, int, bytes)) else type(key).__name__
        return f"{path}[{label}]"
    return f"{path.removesuffix('.__dict__')}.{key}"

"""The contents of containers as they were: what has changed in them, and how they are restored."""

import collections
import enum
import operator
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch


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
        """Returns the change with its old value as text, so that it keeps no object alive."""
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
    FUNCTION = enum.auto()  # its code, its defaults, and the variables that it has captured


@dataclass(eq=False, slots=True)
class Held:
    """A snapshot of a container: its kind, its path, and its keys and values at that time.

    names: the names that count, present or not, for the kinds that have names; None: all.
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
        box, names = self.container, self.names or ()
        match self.kind:
            case Kind.DICT:
                # Of a subclass, too: its own methods may run the user's code.
                methods = _methods_of(box)
                return list(methods.keys(box)), list(methods.values(box))
            case Kind.LIST:
                items = list.copy(box)
                return range(len(items)), items
            case Kind.OTHER:
                items = list(box)
                return range(len(items)) if isinstance(box, collections.deque) else items, items
            case Kind.ATTRIBUTES | Kind.SCOPE:
                short, long = (names, box) if len(names) < len(box) else (box, names)
                keys = [*box] if self.names is None else [name for name in short if name in long]
                return keys, [box[name] for name in keys]
            case Kind.CLASS:
                state = {
                    name: value
                    for name, value in vars(box).items()
                    if _is_state_of_class(name, value)
                }
                return [*state], [*state.values()]
            case Kind.SLOTS:
                return tuple(names), [getattr(box, name, missing) for name in names]
            case Kind.FUNCTION:
                captured = [_content(variable) for variable in box.__closure__ or ()]
                return [*_OF_FUNCTION, *box.__code__.co_freevars], [
                    box.__code__,
                    box.__defaults__,
                    box.__kwdefaults__,
                    *captured,
                ]

    def restore(self) -> None:
        """Gives the container the contents that it had when it was looked at, if it has others."""
        box = self.container
        match self.kind:
            case Kind.DICT | Kind.ATTRIBUTES:
                methods = _methods_of(box)
                if not _is_identical(
                    [*methods.keys(box), *methods.values(box)], [*self.keys, *self.values]
                ):
                    methods.clear(box)
                    # Cleared and filled again, as the order of keys counts.
                    for key, old in zip(self.keys, self.values, strict=True):
                        methods.__setitem__(box, key, old)
            case Kind.LIST:
                box[:] = self.values
            case Kind.OTHER:
                if not _is_identical([*box], self.values):
                    box.clear()
                    (box.update if isinstance(box, set) else box.extend)(self.values)
            case Kind.SCOPE:
                box.update(zip(self.keys, self.values, strict=True))
            case Kind.FUNCTION:
                for variable, old in zip(
                    box.__closure__ or (), self.values[len(_OF_FUNCTION) :], strict=True
                ):
                    if old is not missing:
                        variable.cell_contents = old

    def scope(self) -> Mapping[str, object]:
        """The names of a class, or of a container that is a dict."""
        return vars(self.container) if self.kind is Kind.CLASS else self.container

    def changes(self, same: Callable[[object, object], bool]) -> Iterator[Change]:
        """The changes since the container was looked at. same: decides whether a value counts as
        the former one."""
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


_OF_FUNCTION = "__code__", "__defaults__", "__kwdefaults__"


def _is_state_of_class(name: str, value: object) -> bool:
    return (callable(value) or not name.startswith("__")) and not isinstance(
        value, types.GetSetDescriptorType
    )


def _content(variable: types.CellType) -> object:
    try:
        return variable.cell_contents
    except ValueError:  # not assigned yet
        return missing


def _methods_of(box: dict[Any, Any]) -> type[dict[Any, Any]]:
    """The class whose methods read and write a dict, whatever a subclass does in them. An
    OrderedDict keeps an order of its own, which dict's methods would not touch."""
    return collections.OrderedDict if isinstance(box, collections.OrderedDict) else dict


def _is_identical(values: Sequence[object], old_values: Sequence[object]) -> bool:
    return len(values) == len(old_values) and all(map(operator.is_, values, old_values))


class Contents:
    """Compares containers by their former contents. A class, because a recursive closure is a
    reference cycle, which would keep alive what the call has dropped."""

    def __init__(self, snapshots: dict[int, Held]):
        self._held = snapshots

    def same(self, value: object, old_value: object) -> bool:
        """True for equal plain values, and for a new dict or list with the contents that the old
        one had."""
        snapshot = (
            self._held.get(id(old_value))
            if type(value) is type(old_value) and value is not old_value
            else None
        )
        if snapshot is None or snapshot.kind not in (Kind.DICT, Kind.LIST):
            return is_same(value, old_value)
        current = Held(value, "", snapshot.kind)
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
    if isinstance(container, (list, dict, collections.deque)) and not path.endswith(".__dict__"):
        shown = repr(key) if isinstance(key, (str, int, bytes)) else type(key).__name__
        return f"{path}[{shown}]"
    return f"{path.removesuffix('.__dict__')}.{key}"

"""`torch_xla.utils.utils` (xu): tools of scripts, and the made-up batches of `sample_data`."""

import copy
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any


class DataWrapper:
    """An object with tensors that go to the device: `get_tensors` lists them, `from_tensors` takes
    the moved ones."""

    def get_tensors(self) -> list[Any]:
        """The tensors on the CPU."""
        raise NotImplementedError(
            f"{type(self).__name__}.get_tensors: expected a method that lists the tensors"
        )

    def from_tensors(self, tensors: list[Any]) -> Any:
        """The object with these tensors."""
        raise NotImplementedError(
            f"{type(self).__name__}.from_tensors: expected a method that takes moved tensors"
        )


def for_each_instance_rewrite(
    value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any]
) -> Any:
    """A copy of a structure with `fn` applied to each selected object in it; tuples become lists.

    Objects are copied with what their `__dict__` holds; an object that occurs twice stays one.

    >>> import spmd
    >>> spmd.torch_xla.script_tools.for_each_instance_rewrite(
    ...     {"a": (1, "b")}, lambda x: x == 1, lambda x: 2
    ... )
    {'a': [2, 'b']}
    """
    return _rewritten(value, select_fn, fn, {})


def _rewritten(
    value: Any, select: Callable[[Any], bool], fn: Callable[[Any], Any], copies: dict[int, Any]
) -> Any:
    if id(value) in copies:
        return copies[id(value)][1]

    def result(of: Any) -> Any:
        # with the object itself, as the number of a dead one is used again
        copies[id(value)] = value, of
        return of

    def inner(part: Any) -> Any:
        return _rewritten(part, select, fn, copies)

    if select(value):
        return result(fn(value))
    match value:
        case dict():
            table = result(copy.copy(value))
            table.clear()
            table.update((inner(key), inner(item)) for key, item in value.items())
            return table
        case list() | tuple():
            items = result([])
            items.extend(map(inner, value))
            return items
        case set():
            return result({inner(item) for item in value})
        case DataWrapper():
            return result(value.from_tensors([inner(tensor) for tensor in value.get_tensors()]))
    if not hasattr(value, "__dict__") or isinstance(value, type) or callable(value):
        return result(value)
    twin = result(copy.copy(value))
    twin.__dict__.update({name: inner(item) for name, item in value.__dict__.items()})
    return twin


def for_each_instance(
    value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], None]
) -> None:
    """Calls `fn` with each selected object in a structure, once for each.

    >>> import spmd
    >>> spmd.torch_xla.script_tools.for_each_instance(
    ...     [1, {"a": 2}], lambda x: isinstance(x, int), print
    ... )
    1
    2
    """

    def visited(item: Any) -> Any:
        fn(item)
        return item

    for_each_instance_rewrite(value, select_fn, visited)


def as_list(t: Any) -> Any:
    """A list or tuple itself, anything else in a list.

    >>> import spmd
    >>> spmd.torch_xla.script_tools.as_list(1)
    [1]
    """
    return t if isinstance(t, (list, tuple)) else [t]


def getenv_as(name: str, type: Callable[[Any], Any], defval: Any = None) -> Any:
    """A variable of the environment as a value of a type; a bool is written as a number.

    >>> import spmd
    >>> spmd.torch_xla.script_tools.getenv_as("NOT_SET", int, 3)
    3
    """
    text = os.environ.get(name)
    return defval if text is None else bool(int(text)) if type is bool else type(text)


def check_env_flag(name: str, default: str = "") -> bool:
    """True where a variable of the environment is "true" or a positive number.

    >>> import spmd
    >>> spmd.torch_xla.script_tools.check_env_flag("NOT_SET", "1")
    True
    """
    text = os.environ.get(name) or default
    return text == "true" or (text.isdigit() and int(text) > 0)


def eprint(*args: Any, **kwargs: Any) -> None:
    """Prints to stderr.

    >>> import spmd
    >>> spmd.torch_xla.script_tools.eprint("seen on stderr")
    """
    print(*args, file=sys.stderr, **kwargs)


def null_print(*args: Any, **kwargs: Any) -> None:
    """Prints nothing.

    >>> import spmd
    >>> spmd.torch_xla.script_tools.null_print("unseen")
    """


def get_print_fn(debug: Any = None) -> Callable[..., None]:
    """`eprint` with debug, or with DEBUG=1 in the environment, else `null_print`.

    >>> import spmd
    >>> spmd.torch_xla.script_tools.get_print_fn(0)("unseen")
    """
    return eprint if (getenv_as("DEBUG", int, 0) if debug is None else debug) else null_print


class TimedScope:
    """A block whose milliseconds are printed, unless `set_error` was called in it.

    >>> import spmd
    >>> with spmd.torch_xla.script_tools.TimedScope(
    ...     "step: ", printfn=spmd.torch_xla.script_tools.null_print
    ... ):
    ...     pass
    """

    def __init__(self, msg: str = "", printfn: Callable[..., None] | None = eprint):
        self._msg, self._printfn, self._error = msg, printfn or get_print_fn(), None

    def __enter__(self) -> "TimedScope":
        self._started = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        if self._error is None:
            self._printfn(f"{self._msg}{1e3 * (time.perf_counter() - self._started):.3f}ms")

    def set_error(self, error: Any) -> None:
        """Prints no time."""
        self._error = error


def timed(
    fn: Callable[[], Any], msg: str = "", printfn: Callable[..., None] | None = eprint
) -> Any:
    """The result of a function; its milliseconds are printed.

    >>> import spmd
    >>> spmd.torch_xla.script_tools.timed(lambda: 3, printfn=spmd.torch_xla.script_tools.null_print)
    3
    """
    with TimedScope(msg, printfn):
        return fn()


class ToXlaTensorArena:
    """Converts all selected tensors of a structure at once: `convert_fn` takes the list of them.

    Source: `torch_xla.core.xla_model.ToXlaTensorArena`.

    >>> import spmd
    >>> arena = spmd.torch_xla.script_tools.ToXlaTensorArena(sorted, lambda x: isinstance(x, int))
    >>> arena.transform([3, 4, ("a", 5)])
    [3, 4, ['a', 5]]
    """

    def __init__(
        self, convert_fn: Callable[[list[Any]], Sequence[Any]], select_fn: Callable[[Any], bool]
    ):
        self._convert, self._select = convert_fn, select_fn

    def transform(self, inputs: Any) -> Any:
        """A copy of the structure with the converted tensors in it."""
        selected: list[Any] = []
        for_each_instance(inputs, self._select, selected.append)
        converted = iter(self._convert(selected) if selected else ())
        return for_each_instance_rewrite(inputs, self._select, lambda _: next(converted))


def set_variable(name: str, value: str) -> None:
    """Sets a variable of the environment that scripts read.

    >>> import spmd
    >>> spmd.torch_xla.script_tools.set_variable("XLA_USE_SPMD", "1")
    """
    os.environ[name] = value


def get_free_tcp_ports(n: int = 1) -> list[int]:
    """Ports of this machine that nothing listens on.

    >>> import spmd
    >>> len(spmd.torch_xla.script_tools.get_free_tcp_ports(2))
    2
    """
    sockets = [socket.socket() for _ in range(n)]
    for one in sockets:
        one.bind(("", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class NoneRemover:
    """Takes the Nones out of a list, in place, or a tuple, and puts them back. Source:
    `torch_xla._dynamo.dynamo_bridge.NoneRemover`.

    >>> import spmd
    >>> remover = spmd.torch_xla.script_tools.NoneRemover()
    >>> remover.remove_nones((1, None, 2)), remover.add_nones([3, 4])
    ((1, 2), [3, None, 4])
    """

    def __init__(self) -> None:
        self.none_poslist: list[int] = []

    def remove_nones(self, value_list: Any) -> Any:
        """The values that are not None; raises TypeError for what is no list or tuple."""
        values = _listed(value_list)
        self.none_poslist = [i for i, value in enumerate(values) if value is None]
        return _filled(value_list, [value for value in values if value is not None])

    def add_nones(self, value_list: Any) -> Any:
        """The values, with None where it was; raises TypeError for what is no list or tuple."""
        values = _listed(value_list)
        for position in self.none_poslist:
            values.insert(position, None)
        return _filled(value_list, values)


def _listed(values: Any) -> list[Any]:
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"NoneRemover: expected a list or a tuple, got {type(values).__name__}")
    return [*values]


def _filled(values: Any, new: list[Any]) -> Any:
    """A list itself with new values; a tuple of them."""
    if isinstance(values, tuple):
        return tuple(new)
    values[:] = new
    return values

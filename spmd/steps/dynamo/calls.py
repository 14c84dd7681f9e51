"""A call of one of this library's functions in a graph of Dynamo: its arguments as data, run on the graph's tensors."""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

from ...core import XlaTensor, storage_of
from .lines import WithLines


@dataclass(frozen=True)
class Place:
    """The place of a tensor of the graph in the arguments of a call."""

    index: int


@dataclass(eq=False)
class Body:
    """An argument that is a function of the user's: once traced, a graph of the values that it is called with.

    num_captured: how many values the graph reads besides its arguments; None where the function is not called.
    arguments: the structure of its arguments. results, constants: that of its results, in which None stands for the
    next tensor and a list of one for anything else.
    """

    name: str
    num_captured: int | None = None
    arguments: TreeSpec | None = None
    results: TreeSpec | None = None
    constants: Sequence[Any] = ()

    def function(self, graph: Any, captured: Sequence[Any]) -> Callable[..., Any]:
        """Returns the traced function, with the values that it captures."""
        # Two tuples in the closure: a recomputation holds back the first one (`backend.recompute`).
        are_held = [type(one) is XlaTensor and not storage_of(one).is_parameter for one in captured]
        activations = tuple(one for one, is_held in zip(captured, are_held, strict=True) if is_held)
        others = tuple(one for one, is_held in zip(captured, are_held, strict=True) if not is_held)

        def function(*args: Any, **kwargs: Any) -> Any:
            flat, tree = tree_flatten((args, kwargs))
            if tree != self.arguments:
                raise NotImplementedError(
                    f"{self.name}: its function is called with {tree}, and was traced for {self.arguments}"
                )
            held, rest = iter(activations), iter(others)
            read = [next(held if is_held else rest) for is_held in are_held]
            result = iter(WithLines(graph).run(*flat, *read))
            assert self.results is not None, "only a traced function is called"
            return tree_unflatten([next(result) if one is None else one[0] for one in self.constants], self.results)

        return function


@dataclass(eq=False)
class Call:
    """One call: what a graph calls. It takes the tensors among the arguments, then for each body its graph and what
    that captures; it returns those tensors of the function's results that are no arguments.

    mesh: the default mesh there (of `with mesh:` inside the graph). outputs: the places of the results to return, among
    all leaves of the results.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    num_tensors: int
    bodies: list[Body]
    mesh: Any = None
    outputs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:  # a graph as text calls it by these
        self.__name__ = self.__qualname__ = "spmd_" + re.sub(r"\W", "_", self.function.__name__)
        self.__module__ = __name__

    def __call__(self, *operands: Any) -> list[Any]:
        """Runs the call."""
        queue = iter(operands)
        tensors = [next(queue) for _ in range(self.num_tensors)]
        functions: list[Any] = []
        for body in self.bodies:
            if body.num_captured is None:
                functions.append(_never)
            else:
                graph = next(queue)
                functions.append(body.function(graph, [next(queue) for _ in range(body.num_captured)]))
        leaves = tree_leaves(self.run(tensors, functions))
        return [leaves[place] for place in self.outputs]

    def run(self, tensors: Sequence[Any], functions: Sequence[Callable[..., Any]]) -> Any:
        """Calls the function with tensors and functions in their places."""

        def filled(value: Any) -> Any:
            if isinstance(value, Place):
                return tensors[value.index]
            return functions[self.bodies.index(value)] if isinstance(value, Body) else value

        args, kwargs = tree_map(filled, (list(self.args), self.kwargs))
        with self.mesh or contextlib.nullcontext():
            return self.function(*args, **kwargs)


def _never(*args: Any, **kwargs: Any) -> None:
    raise NotImplementedError("a function is called that was not called when it was traced")


# --- contexts ---------------------------------------------------------------------------------------------------------


class _Thread(threading.local):
    def __init__(self) -> None:
        self.entered: list[Any] = []


_thread = _Thread()


class Enter(Call):
    """A call of a context manager's class, whose object is entered and returned."""

    def __call__(self, *operands: Any) -> Any:
        context = self.run(operands, [])
        context.__enter__()
        _thread.entered.append(context)
        return context


def leave(context: Any) -> None:
    """Leaves what `Enter` has entered."""
    _thread.entered.remove(context)
    context.__exit__(None, None, None)


@contextlib.contextmanager
def left_on_error() -> Iterator[None]:
    """Context in which a graph runs: where it raises, the contexts that it has entered are left."""
    count = len(_thread.entered)
    try:
        yield
    finally:
        for context in reversed(_thread.entered[count:]):
            leave(context)

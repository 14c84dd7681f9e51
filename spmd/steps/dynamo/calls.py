"""A call of one of this library's functions in a graph of Dynamo: its arguments as data, run on the
graph's tensors, or on stand-ins for the shapes of its results and for the arguments with which it
calls the functions given to it.

A call inside a function that is under trace (a collective inside `shard_map`) runs inside the calls
around it: these run on stand-ins again, up to where they call that function.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

from ...core import Meta, XlaTensor, seed, storage_of, tensor_meta
from ...loops.capture import Capture
from .lines import WithLines


@dataclass(frozen=True)
class GraphTensor:
    """The number of a tensor of the graph in the arguments of a call."""

    index: int


@dataclass(eq=False)
class Body:
    """An argument that is a function of the user's: once traced, a graph of the values that it is
    called with.

    num_captured: how many values the graph reads besides its arguments; None where the function is
    not called. arguments: the structure of its arguments. results, constants: that of its results,
    in which None stands for the next tensor and a list of one for anything else.
    """

    name: str
    num_captured: int | None = None
    arguments: TreeSpec | None = None
    results: TreeSpec | None = None
    constants: Sequence[Any] = ()

    def function(self, graph: Any, captured: Sequence[Any]) -> Callable[..., Any]:
        """Returns the traced function, with the values that it captures."""
        # Two tuples in the closure: a recomputation holds back the first one (`backend.recompute`).
        are_held = [
            type(value) is XlaTensor and not storage_of(value).is_parameter for value in captured
        ]
        activations = tuple(
            value for value, is_held in zip(captured, are_held, strict=True) if is_held
        )
        unheld_values = tuple(
            value for value, is_held in zip(captured, are_held, strict=True) if not is_held
        )

        def function(*args: Any, **kwargs: Any) -> Any:
            flat, tree = tree_flatten((args, kwargs))
            if tree != self.arguments:
                raise NotImplementedError(
                    f"{self.name}: its function is called with {tree}, and was traced for "
                    f"{self.arguments}"
                )
            remaining_activations, unheld = iter(activations), iter(unheld_values)
            read = [next(remaining_activations if is_held else unheld) for is_held in are_held]
            result = iter(WithLines(graph).run(*flat, *read))
            assert self.results is not None, "only a traced function is called"
            values = [
                next(result) if constant is None else constant[0] for constant in self.constants
            ]
            return tree_unflatten(values, self.results)

        return function


@dataclass(eq=False)
class GraphedCall:
    """One call: what a graph calls. It takes the tensors among the arguments, then for each body
    its graph and what that captures; it returns those tensors of the function's results that are no
    arguments.

    mesh: the default mesh there (of `with mesh:` inside the graph). outputs: the places of the
    results to return, among all leaves of the results.
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
                functions.append(
                    body.function(graph, [next(queue) for _ in range(body.num_captured)])
                )
        values = tree_leaves(self.run(tensors, functions))
        return [values[index] for index in self.outputs]

    def run(self, tensors: Sequence[Any], functions: Sequence[Callable[..., Any]]) -> Any:
        """Calls the function with tensors and functions in their places."""

        def filled(value: Any) -> Any:
            if isinstance(value, GraphTensor):
                return tensors[value.index]
            return functions[self.bodies.index(value)] if isinstance(value, Body) else value

        args, kwargs = tree_map(filled, (list(self.args), self.kwargs))
        with self.mesh or contextlib.nullcontext():
            return self.function(*args, **kwargs)


def _never(*args: Any, **kwargs: Any) -> None:
    raise NotImplementedError("a function is called that was not called when it was traced")


# --- contexts -------------------------------------------------------------------------------------


class _Entered(threading.local):
    def __init__(self) -> None:
        self.contexts: list[Any] = []


_entered = _Entered()


class Enter(GraphedCall):
    """A call of a context manager's class, whose object is entered and returned."""

    def __call__(self, *operands: Any) -> Any:
        context = self.run(operands, [])
        context.__enter__()
        _entered.contexts.append(context)
        return context


def leave(context: Any) -> None:
    """Leaves what `Enter` has entered."""
    _entered.contexts.remove(context)
    context.__exit__(None, None, None)


@contextlib.contextmanager
def left_on_error() -> Iterator[None]:
    """Context in which a graph runs: where it raises, the contexts that it has entered are left."""
    count = len(_entered.contexts)
    try:
        yield
    finally:
        for context in reversed(_entered.contexts[count:]):
            leave(context)


# --- on stand-ins ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Like:
    """A tensor to be made: its shape, strides and dtype, and whether it has a gradient."""

    meta: Meta
    requires_grad: bool


class Untraced(BaseException):
    """Raised where a call calls a function that is not traced yet, with the arguments (tensors as
    `Like`)."""

    def __init__(self, body: Body, arguments: Any):
        super().__init__()
        self.body, self.arguments = body, arguments


class _Done(BaseException):
    pass


@dataclass(frozen=True)
class OnStandIns:
    """A call with what its stand-ins are like. traced: by body, its graph and what its captured
    values are like."""

    call: GraphedCall
    tensors: Sequence[Like]
    traced: dict[Body, tuple[Any, Sequence[Any]]] = field(default_factory=dict)

    def run(
        self, capture: Capture, target: Body | None = None, then: Callable[[], None] | None = None
    ) -> Any:
        """Runs the call; where it calls the body `target`, `then` runs instead.

        Returns stand-ins and results.
        """

        def function(body: Body) -> Callable[..., Any]:
            if body in self.traced:
                graph, captured = self.traced[body]
                return body.function(graph, [_stand_in(capture, value) for value in captured])

            def untraced(*args: Any, **kwargs: Any) -> None:
                if body is target and then is not None:
                    then()
                flat, tree = tree_flatten((args, kwargs))
                raise Untraced(body, (list(map(like, flat)), tree))

            return untraced

        tensors = [_stand_in(capture, like) for like in self.tensors]
        return tensors, self.call.run(tensors, [function(body) for body in self.call.bodies])


def like(value: Any) -> Any:
    """Returns what a tensor is like; anything else as it is."""
    return (
        Like(tensor_meta(value).layout, value.requires_grad) if type(value) is XlaTensor else value
    )


def _stand_in(capture: Capture, value: Any) -> Any:
    return (
        capture.stand_in(value.meta, requires_grad=value.requires_grad)
        if type(value) is Like
        else value
    )


def results(call: OnStandIns, around: Sequence[tuple[OnStandIns, Body]]) -> tuple[list[Any], Any]:
    """Returns the leaves of a call's results, and their structure: a tensor of the arguments by its
    place as an int in a list, a new tensor as `Like`, equal ones as one object.

    around: the calls around it, the outermost first, and the body of each that calls the next one.
    Raises Untraced.
    """
    values: list[Any] = []
    tree: Any = None

    def innermost(capture: Capture) -> None:
        nonlocal tree
        tensors, result = call.run(capture)
        flat, tree = tree_flatten(result)
        kinds: dict[int, Any] = {id(tensor): [index] for index, tensor in enumerate(tensors)}
        values.extend(kinds.setdefault(id(value), like(value)) for value in flat)
        raise _Done

    state = seed.get_state()
    try:
        with Capture("torch.compile") as capture:
            step = partial(innermost, capture)
            for outer, body in reversed(around):
                step = partial(outer.run, capture, body, step)
            capture.run(step)
    except _Done:
        pass
    finally:
        seed.set_state(state)  # nothing of this runs
    return values, tree

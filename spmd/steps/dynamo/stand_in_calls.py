"""Calls on stand-ins: the shapes of a call's results, and the arguments with which it calls the functions given to it.

A call inside a function that is under trace (a collective inside `shard_map`) runs inside the calls around it: these
run on stand-ins again, up to where they call that function.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch.utils._pytree import tree_flatten

from ...core import Meta, XlaTensor, seed, tensor_meta
from ...loops.capture import Capture
from .calls import Body, Call


@dataclass(frozen=True)
class Like:
    """A tensor to be made: its shape, strides and dtype, and whether it has a gradient."""

    meta: Meta
    requires_grad: bool


class Untraced(BaseException):
    """Raised where a call calls a function that is not traced yet, with the arguments (tensors as `Like`)."""

    def __init__(self, body: Body, arguments: Any):
        super().__init__()
        self.body, self.arguments = body, arguments


class _Done(BaseException):
    pass


@dataclass(frozen=True)
class OnStandIns:
    """A call with what its stand-ins are like. traced: by body, its graph and what its captured values are like."""

    call: Call
    tensors: Sequence[Like]
    traced: dict[Body, tuple[Any, Sequence[Any]]] = field(default_factory=dict)

    def run(self, capture: Capture, at: Body | None = None, then: Callable[[], None] | None = None) -> Any:
        """Runs the call; where it calls the body `at`, `then` runs instead. Returns stand-ins and results."""

        def function(body: Body) -> Callable[..., Any]:
            if body in self.traced:
                graph, captured = self.traced[body]
                return body.function(graph, [_made(capture, one) for one in captured])

            def untraced(*args: Any, **kwargs: Any) -> None:
                if body is at and then is not None:
                    then()
                flat, tree = tree_flatten((args, kwargs))
                raise Untraced(body, (list(map(like, flat)), tree))

            return untraced

        tensors = [_made(capture, one) for one in self.tensors]
        return tensors, self.call.run(tensors, [function(body) for body in self.call.bodies])


def like(value: Any) -> Any:
    """Returns what a tensor is like; anything else as it is."""
    return Like(tensor_meta(value).layout, value.requires_grad) if type(value) is XlaTensor else value


def _made(capture: Capture, one: Any) -> Any:
    return capture.stand_in(one.meta, requires_grad=one.requires_grad) if type(one) is Like else one


def results(call: OnStandIns, around: Sequence[tuple[OnStandIns, Body]]) -> tuple[list[Any], Any]:
    """Returns the leaves of a call's results, and their structure: a tensor of the arguments by its place as an int in
    a list, a new tensor as `Like`, equal ones as one object.

    around: the calls around it, the outermost first, and the body of each that calls the next one. Raises Untraced.
    """
    found: list[Any] = []

    def innermost(capture: Capture) -> None:
        tensors, result = call.run(capture)
        flat, tree = tree_flatten(result)
        places = {id(tensor): [index] for index, tensor in enumerate(tensors)}
        kinds: dict[int, Any] = {}
        for value in flat:
            found.append(kinds.setdefault(id(value), places.get(id(value)) or like(value)))
        found.append(tree)
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
    return found[:-1], found[-1]

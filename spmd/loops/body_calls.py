"""The calls of torch functions and collectives in the bodies of manual computations, noted while a
run records them, and one change of one of them.

Not here: which changes are tried (`tools/verification/single_changes.py`); the collectives
themselves (`spmd.manual`).
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import wraps
from types import CodeType
from typing import Any, NamedTuple, TypeVar

from ..core import held, user_frame
from ..core.extend import Line
from . import vma
from .manual_lowering import Axes

_Collective = TypeVar("_Collective", bound=Callable[..., Any])


class CallSite(NamedTuple):
    """A call in the user's code: its name, code and instruction; for an argument of a body, the
    body's code and the argument's number as -1, -2, ..."""

    name: str
    code: CodeType | None
    instruction: int

    def __str__(self) -> str:
        if self.instruction >= 0:
            return str(Line(self.code, self.instruction))
        return f"argument {-1 - self.instruction} of the body at {Line(self.code, 0)}"


class BodyValue(NamedTuple):
    """A tensor that a call returned: its shape, dtype, and the manual axes along which it may
    differ."""

    shape: tuple[int, ...]
    is_float: bool
    over: Axes


@dataclass(frozen=True)
class BodyCall:
    """One call. result: None where it raised. operand: of a collective, its tensor. arguments: of a
    collective, by name, without the tensor."""

    site: CallSite
    result: BodyValue | None
    operand: BodyValue | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_collective(self) -> bool:
        return self.operand is not None


# Replaces the result of a call. It takes the call as it stands, its tensor (None for a torch
# function), its arguments.
Change = Callable[[Callable[..., Any], Any, Mapping[str, Any]], Any]


class BodyCalls:
    """The calls of one run, in order, with the axes of the meshes they are in; `change` replaces
    those of one site.

    checks: whether results that may differ between shards where out_specs has them the same are
    errors.
    """

    def __init__(
        self, site: CallSite | None = None, change: Change | None = None, *, checks: bool = True
    ):
        self.site, self.change, self.checks = site, change, checks
        self.calls: dict[CallSite, BodyCall] = {}
        self.axes: dict[str, int] = {}
        # of a collective, whose own torch functions are no calls of the body
        self._is_inside = False

    def function(self, name: str, result: Any, *, in_place: bool) -> Any:
        """Notes a torch function; returns its result, or what replaces it."""
        if self._is_inside or in_place or not vma.is_ours(result):
            return result
        return self._called(CallSite(name, *user_frame(2)), lambda: result, None, {})

    def argument(self, function: Any, number: int, tensor: Any) -> Any:
        """Notes an argument of a body."""
        return self._called(
            CallSite("", getattr(function, "__code__", None), -1 - number), lambda: tensor, None, {}
        )

    def collective(
        self, call: Callable[..., Any], name: str, tensor: Any, arguments: Mapping[str, Any]
    ) -> Any:
        """Calls a collective, or what replaces it, and notes it."""
        if self._is_inside or not vma.is_ours(tensor):
            return call(tensor, **arguments)
        return self._called(CallSite(name, *user_frame(2)), call, tensor, arguments)

    def _called(
        self, site: CallSite, call: Callable[..., Any], tensor: Any, arguments: Mapping[str, Any]
    ) -> Any:
        """Returns the result of a call, or what replaces it, and notes the call."""
        operand = None if tensor is None else self._value(tensor)
        value = None  # of a call that raises
        try:
            with held(self, _is_inside=True):
                if site == self.site and self.change is not None:
                    result = self.change(call, tensor, arguments)
                else:
                    result = call() if tensor is None else call(tensor, **arguments)
            value = self._value(result)
        finally:
            self.calls.setdefault(site, BodyCall(site, value, operand, arguments))
        return result

    def _value(self, tensor: Any) -> BodyValue:
        scope = vma.tracker()
        assert scope is not None, "the body of a manual computation is recorded"
        self.axes |= {axis: scope.sizes[axis] for axis in scope.axes}
        over = scope.in_order(scope.of_tensor(tensor).may_diverge)
        return BodyValue(tuple(tensor.shape), tensor.dtype.is_floating_point, over)


def body_calls() -> BodyCalls | None:
    """The calls that the calling thread notes, or None."""
    calls: BodyCalls | None = vma.thread.calls
    return calls


def noting(calls: BodyCalls) -> AbstractContextManager[None]:
    """Has the calling thread note the calls in bodies."""
    return held(vma.thread, calls=calls)


def noted(function: _Collective) -> _Collective:
    """A decorator for a collective of one tensor: where calls are noted, this one is."""

    @wraps(function)
    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        calls = body_calls()
        if calls is None or vma.tracker() is None:
            return function(tensor, *args, **kwargs)
        bound = inspect.signature(function).bind(tensor, *args, **kwargs)
        bound.apply_defaults()
        _, *names = bound.arguments
        return calls.collective(
            function, function.__name__, tensor, {name: bound.arguments[name] for name in names}
        )

    return call  # type: ignore[return-value]  # of the same signature

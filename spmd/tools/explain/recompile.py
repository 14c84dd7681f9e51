"""`no_recompile`: the context in which a graph that has no program raises before XLA compiles it."""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar, overload

from ...core import points
from ...core.extend import Graph, Line, PerThread, RefusedError

Function = TypeVar("Function", bound=Callable[..., Any])

_guards = PerThread[tuple["Guard", ...]](())  # the contexts that the thread is in, the innermost last


class RecompileError(RefusedError):
    """A program would have been compiled inside `no_recompile`. Recorded ops stay recorded: a sync outside runs them.

    Attributes:
        cause: the reason, as in the compile log. line: the user's line whose sync needed the program.
    """

    def __init__(self, message: str, cause: str, line: str):
        super().__init__(message)
        self.cause = cause
        self.line = line

    def __reduce__(self) -> Any:
        return RecompileError, (str(self), self.cause, self.line)


class Guard(contextlib.ContextDecorator):
    """The result of `no_recompile`: a context, or a decorator, that may be used again.

    compiled: the number of programs compiled inside so far, apart from first ones that were allowed.
    """

    def __init__(self, max_programs: int, allow_first: bool):
        self.max_programs = max_programs
        self.allow_first = allow_first
        self.compiled = 0

    def __enter__(self) -> "Guard":
        if _refuse not in points.before_compiling:
            points.before_compiling.append(_refuse)
        _guards.value += (self,)
        return self

    def __exit__(self, *_: object) -> None:
        _guards.value = tuple(guard for guard in _guards.value if guard is not self)


@overload
def no_recompile(function: None = None, /, *, max_programs: int = 0, allow_first: bool = False) -> Guard: ...
@overload
def no_recompile(function: Function, /, *, max_programs: int = 0, allow_first: bool = False) -> Function: ...
def no_recompile(function: Any = None, /, *, max_programs: int = 0, allow_first: bool = False) -> Any:
    """A context, or a decorator, in which compiling is an error: for a step that is to be one program.

    A sync that would compile raises before XLA begins, with the difference from the nearest program (see
    `spmd.metrics.compiles`) and the user's line. Nothing is lost: recorded ops stay recorded, and a sync outside runs
    them. A program that is on disk counts as well, so that a warm and a cold start do the same. The context holds for
    the thread that enters it; each of several processes must enter it. `spmd.inspect` and `spmd.plan` may compile.

    Args:
        max_programs: the number that may be compiled inside, over all uses of this object; the next one raises.
        allow_first: programs of a sync that has run none before are not counted: the first step may compile.

    Raises RecompileError at the sync; TypeError or ValueError for other arguments. Source: `max_different_graphs` of
    `torch_xla.compile`, which counts graphs and does not report the cause.

    >>> import torch, spmd
    >>> @spmd.no_recompile(allow_first=True)
    ... def step(x):
    ...     y = x.cos().sum()
    ...     spmd.sync()
    ...     return y
    >>> y = step(torch.ones(3, device="xla")), step(torch.ones(3, device="xla"))
    >>> step(torch.ones(3, 3, device="xla"))
    Traceback (most recent call last):
    spmd.tools.explain.recompile.RecompileError: no_recompile: a program of ...
    """
    if type(max_programs) is not int or type(allow_first) is not bool:
        raise TypeError(
            f"no_recompile: expected max_programs to be an int and allow_first a bool, got {max_programs!r} and "
            f"{allow_first!r}"
        )
    if max_programs < 0:
        raise ValueError(f"no_recompile: expected max_programs of 0 or more, got {max_programs}")
    if function is not None and not callable(function):
        raise TypeError(f"no_recompile: expected a function to decorate, got {function!r}")
    guard = Guard(max_programs, allow_first)
    return guard if function is None else guard(function)


def _refuse(graph: Graph, name: str, line: Line, cause: str, is_first: bool) -> None:
    """Raises RecompileError, before a graph is compiled, if this thread is in a context that does not allow it."""
    counting = [guard for guard in _guards.value if not (is_first and guard.allow_first)]
    for guard in counting:
        if guard.compiled >= guard.max_programs:
            had = f" ({guard.compiled} were before, max_programs={guard.max_programs})" if guard.max_programs else ""
            hint = (
                "Run the step once before, or allow it by allow_first=True"
                if is_first
                else "Remove the difference, or sync outside of no_recompile"
            )
            raise RecompileError(
                f"no_recompile: a program of {len(graph.nodes):,} ops ({name}) would be compiled at {line}{had}. Why: "
                f"{cause}. {hint}; recorded ops stay recorded.",
                cause,
                str(line),
            )
    for guard in set(counting):
        guard.compiled += 1

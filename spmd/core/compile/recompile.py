"""Compiling as an error: the context in which a graph that has no program raises before XLA sees it."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar, overload

from ..ir.graph import Graph
from ..ir.source import Line

Function = TypeVar("Function", bound=Callable[..., Any])

_thread = threading.local()  # .guards: those that this thread is in, the innermost last

num_runs = 0  # how many times something pending was run: what one run needs is compiled together


def next_run() -> None:
    """Counts a run."""
    global num_runs
    num_runs += 1


class RecompileError(RuntimeError):
    """A program would have been compiled inside `no_recompile`. What is recorded stays so: a barrier outside runs it.

    Attributes:
        cause: why, as the ledger says it. line: the user's line whose barrier needed the program.
    """

    def __init__(self, message: str, cause: str, line: str):
        super().__init__(message)
        self.cause = cause
        self.line = line

    def __reduce__(self) -> Any:
        return RecompileError, (str(self), self.cause, self.line)


class Guard(contextlib.ContextDecorator):
    """What `no_recompile` returns: a context, or a decorator, that may be used again.

    compiled: how many programs were compiled inside so far, first ones that were allowed aside.
    """

    def __init__(self, max_programs: int, allow_first: bool):
        self.max_programs = max_programs
        self.allow_first = allow_first
        self.compiled = 0

    def __enter__(self) -> "Guard":
        if not hasattr(_thread, "guards"):
            _thread.guards = []
        _thread.guards.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _thread.guards.remove(self)

    def counts(self, *, is_first: bool) -> bool:
        """Whether a program is one of those that are limited."""
        return not (is_first and self.allow_first)


@overload
def no_recompile(function: None = None, /, *, max_programs: int = 0, allow_first: bool = False) -> Guard: ...
@overload
def no_recompile(function: Function, /, *, max_programs: int = 0, allow_first: bool = False) -> Function: ...
def no_recompile(function: Any = None, /, *, max_programs: int = 0, allow_first: bool = False) -> Any:
    """A context, or a decorator, in which compiling is an error: for a step that is to be one program.

    What would be compiled raises at the barrier, before XLA begins, with what has changed since the nearest program
    (see `spmd.metrics.compiles`) and the user's line. Nothing is lost: what is recorded stays so, and a barrier outside
    runs it. A program that the disk has counts as well, so that a warm and a cold start do the same. It holds for the
    thread that enters it; several processes enter it alike. `spmd.inspect` and `spmd.plan` are not hindered.

    Args:
        max_programs: so many may be compiled inside, over all uses of this object; the next one raises.
        allow_first: programs of a barrier that has run nothing before are not counted: the first step may compile.

    Raises RecompileError at the barrier; TypeError or ValueError for other arguments. Source: `max_different_graphs` of
    `torch_xla.compile`, which counts graphs and does not say why.

    >>> import torch, spmd
    >>> @spmd.no_recompile(allow_first=True)
    ... def step(x):
    ...     y = x.cos().sum()
    ...     spmd.sync()
    ...     return y
    >>> y = step(torch.ones(3, device="xla")), step(torch.ones(3, device="xla"))
    >>> step(torch.ones(3, 3, device="xla"))
    Traceback (most recent call last):
    spmd.core.compile.recompile.RecompileError: no_recompile: a program of ...
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


def refuse(graph: Graph, name: str, line: Line, cause: str, *, is_first: bool) -> None:
    """Before a graph is compiled: RecompileError where this thread is in a context that does not allow it."""
    counting = [guard for guard in getattr(_thread, "guards", ()) if guard.counts(is_first=is_first)]
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
                f"{cause}. {hint}; what is recorded stays as it is.",
                cause,
                str(line),
            )
    for guard in set(counting):
        guard.compiled += 1

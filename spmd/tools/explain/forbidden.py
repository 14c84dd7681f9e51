"""Contexts that refuse a program: `no_recompile` before it is compiled, `allow` before it runs."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar, overload

from ...core import Collective, ends_at_user_line, points
from ...core.extend import Graph, Line, PerThread, Program, RefusedError
from ..hlo.hlo_collectives import KINDS

Function = TypeVar("Function", bound=Callable[..., Any])
Axes = str | Iterable[str] | bool


class Refusing(contextlib.ContextDecorator):
    """A context of the thread that enters it, or a decorator, that may be used again."""

    def __enter__(self) -> Self:
        point, look = _LOOKS[type(self)]
        if look not in point:  # before the first of them, no run pays for it
            point.append(look)
        _open.value += (self,)
        return self

    def __exit__(self, *_: object) -> None:
        _open.value = tuple(context for context in _open.value if context is not self)


# the contexts that the thread is in, the innermost last
_open = PerThread[tuple[Refusing, ...]](())


# --- compilations ---------------------------------------------------------------------------------


class RecompileError(RefusedError):
    """A program would have been compiled inside `no_recompile`. Recorded ops stay recorded: a sync
    outside runs them.

    Attributes:
        cause: the reason, as in the compile log. line: the user's line whose sync needed the
            program.

    >>> import torch, spmd
    >>> with spmd.no_recompile():
    ...     try:
    ...         (torch.ones(23, device="xla") * 2).cpu()
    ...     except spmd.RecompileError as error:
    ...         print(error.cause)
    first program of this sync
    """

    def __init__(self, message: str, cause: str, line: str):
        super().__init__(message)
        self.cause = cause
        self.line = line

    def __reduce__(self) -> Any:
        return RecompileError, (str(self), self.cause, self.line)


class Guard(Refusing):
    """The result of `no_recompile`.

    compiled: the number of programs compiled inside so far, apart from first ones that were
    allowed.
    """

    def __init__(self, max_programs: int, allow_first: bool):
        self.max_programs = max_programs
        self.allow_first = allow_first
        self.compiled = 0


@overload
def no_recompile(
    function: None = None, /, *, max_programs: int = 0, allow_first: bool = False
) -> Guard: ...
@overload
def no_recompile(
    function: Function, /, *, max_programs: int = 0, allow_first: bool = False
) -> Function: ...
@ends_at_user_line
def no_recompile(
    function: Any = None, /, *, max_programs: int = 0, allow_first: bool = False
) -> Any:
    """A context, or a decorator, in which compiling is an error: for a step that is to be one
    program.

    A sync that would compile raises before XLA begins, with the difference from the nearest program
    (see `spmd.metrics.compiles`) and the user's line. Nothing is lost: recorded ops stay recorded,
    and a sync outside runs them. A program that is on disk counts as well, so that a warm and a
    cold start do the same. The context holds for the thread that enters it; each of several
    processes must enter it. `spmd.inspect` and `spmd.plan` may compile.

    Args:
        max_programs: the number that may be compiled inside, over all uses of this object; the next
            one raises.
        allow_first: programs of a sync that has run none before are not counted: the first step may
            compile.

    Raises RecompileError at the sync; TypeError or ValueError for other arguments. Source:
    `max_different_graphs` of `torch_xla.compile`, which counts graphs and does not report the
    cause.

    >>> import torch, spmd
    >>> @spmd.no_recompile(allow_first=True)
    ... def step(x):
    ...     y = x.cos().sum()
    ...     spmd.sync()
    ...     return y
    >>> y = step(torch.ones(3, device="xla")), step(torch.ones(3, device="xla"))
    >>> step(torch.ones(3, 3, device="xla"))
    Traceback (most recent call last):
    spmd.tools.explain.forbidden.RecompileError: no_recompile: a program of ...
    """
    if type(max_programs) is not int or type(allow_first) is not bool:
        raise TypeError(
            "no_recompile: expected max_programs to be an int and allow_first a bool, got "
            f"{max_programs!r} and {allow_first!r}"
        )
    if max_programs < 0:
        raise ValueError(f"no_recompile: expected max_programs of 0 or more, got {max_programs}")
    if function is not None and not callable(function):
        raise TypeError(f"no_recompile: expected a function to decorate, got {function!r}")
    guard = Guard(max_programs, allow_first)
    return guard if function is None else guard(function)


def _refuse_compiling(graph: Graph, name: str, line: Line, cause: str, is_first: bool) -> None:
    """Raises RecompileError, before a graph is compiled, if this thread is in a context that does
    not allow it."""
    guards = [guard for guard in _open.value if isinstance(guard, Guard)]
    counting = [guard for guard in guards if not (is_first and guard.allow_first)]
    for guard in counting:
        if guard.compiled >= guard.max_programs:
            had = (
                f" ({guard.compiled} were before, max_programs={guard.max_programs})"
                if guard.max_programs
                else ""
            )
            hint = (
                "Run the step once before, or allow it by allow_first=True"
                if is_first
                else "Remove the difference, or sync outside of no_recompile"
            )
            raise RecompileError(
                f"no_recompile: a program of {len(graph.nodes):,} ops ({name}) would be compiled "
                f"at {line}{had}. Why: {cause}. {hint}; recorded ops stay recorded.",
                cause,
                str(line),
            )
    for guard in set(counting):
        guard.compiled += 1


# --- collectives ----------------------------------------------------------------------------------


class CollectiveError(RefusedError):
    """A program inside `allow` has collectives that it does not name. Recorded ops stay recorded: a
    sync outside runs them.

    Attributes:
        collectives: those that are not allowed, as rows of the table (`spmd.metrics.Collective`),
            with op and line.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh(range(8), (8,), ("data",))
    >>> x = spmd.mark_sharding(torch.ones(16, device="xla"), mesh, ("data",))
    >>> try:
    ...     with spmd.allow(above=0):
    ...         x.sum().item()
    ... except spmd.CollectiveError as error:
    ...     print([row.kind for row in error.collectives])
    ['all-reduce']
    """

    def __init__(self, message: str, collectives: tuple[Collective, ...]):
        super().__init__(message)
        self.collectives = collectives

    def __reduce__(self) -> Any:
        return CollectiveError, (str(self), self.collectives)


class Limit(Refusing):
    """The result of `allow`."""

    def __init__(self, above: int, kinds: dict[str, frozenset[str] | bool]):
        self.above = above
        self.kinds = kinds

    def allows(self, row: Collective) -> bool:
        """True for a collective that is named, or too small to count."""
        axes = self.kinds.get(_kind(row), False)
        return (
            row.bytes <= self.above
            or axes is True
            or (axes is not False and axes.issuperset(row.axes))
        )


def _kind(row: Collective) -> str:
    return "reduce-scatter" if row.is_sliced else row.kind


@ends_at_user_line
def allow(*, above: int = 1 << 16, **kinds: Axes) -> Limit:
    """A context, or a decorator, in which a collective that is not named is an error at its line.

    A program is compared before it runs, compiled, from the cache or from the disk. The context
    holds for the thread that enters it; contexts inside of one another must all allow a collective.
    Nothing is lost: recorded ops stay recorded, and a sync outside runs them. The partitioner
    gathers what it cannot keep sharded without a word, which is right and slow; this makes it an
    error, in a test or in a job.

    Args:
        above: the bytes of one collective, on one device (`Collective.bytes`), up to which any is
            allowed.
        kinds: all_gather, all_reduce, reduce_scatter, all_to_all, collective_permute,
            ragged_all_to_all or collective_broadcast, each with the mesh axis, the axes, or True
            for all axes. An all-reduce of which each device keeps a slice, the CPU's form of it, is
            a reduce_scatter.

    Raises CollectiveError at the sync; TypeError or ValueError for other arguments.

    >>> import torch, spmd
    >>> with spmd.allow(all_gather="fsdp", reduce_scatter="fsdp", all_reduce=("data", "fsdp")):
    ...     y = torch.ones(3, device="xla").cos().sum().item()
    """
    if type(above) is not int or above < 0:
        raise ValueError(f"allow: expected above to be a number of bytes, 0 or more, got {above!r}")
    kind_of = {kind.replace("-", "_"): kind for kind in KINDS}
    unknown = [name for name in kinds if name not in kind_of]
    if unknown:
        raise TypeError(
            f"allow: there is no collective {', '.join(unknown)}: expected "
            f"{', '.join(sorted(kind_of))}"
        )
    return Limit(above, {kind_of[name]: _axes(name, axes) for name, axes in kinds.items()})


def _axes(name: str, axes: Any) -> frozenset[str] | bool:
    if isinstance(axes, (bool, str)):
        return axes if isinstance(axes, bool) else frozenset((axes,))
    names = frozenset(axes) if isinstance(axes, (tuple, list, set, frozenset)) else None
    if names is None or not all(isinstance(axis, str) for axis in names):
        raise TypeError(f"allow: expected {name} to be a mesh axis, axes or True, got {axes!r}")
    return names


def _refuse_collectives(program: Program) -> None:
    """Raises CollectiveError if this thread is in a context that does not allow a collective of a
    program."""
    limits = [limit for limit in _open.value if isinstance(limit, Limit)]
    if not limits or program.record is None:
        return
    rows = tuple(
        row for row in program.record.traffic if not all(limit.allows(row) for limit in limits)
    )
    if rows:
        listed = "\n".join(f"  {row}" for row in rows)
        allowances = sorted({f"{_kind(row).replace('-', '_')}={_text(row.axes)}" for row in rows})
        raise CollectiveError(
            f"allow: a program of {len(program.entries):,} ops ({program.name}), needed at "
            f"{program.line}, has collectives that are not allowed:\n{listed}\nA mark_sharding of "
            "an operand or of the result of that op may remove one (spmd.explain(step) shows the "
            f"shardings); spmd.allow({', '.join(allowances)}) allows them. Recorded ops stay "
            "recorded.",
            rows,
        )


def _text(axes: tuple[str, ...]) -> str:
    return repr(axes[0] if len(axes) == 1 else axes)


_LOOKS: dict[type[Refusing], tuple[list[Any], Callable[..., None]]] = {
    Guard: (points.before_compiling, _refuse_compiling),
    Limit: (points.before_run, _refuse_collectives),
}

"""`allow`: the context in which a program with a collective that is not named raises before it runs."""

import contextlib
from collections.abc import Iterable
from typing import Any

from ...core import Collective, points
from ...core.extend import PerThread, Program, RefusedError
from ..hlo.hlo_collectives import KINDS

_limits = PerThread[tuple["Limit", ...]](())  # the contexts that the thread is in, the innermost last

Axes = str | Iterable[str] | bool


class CollectiveError(RefusedError):
    """A program inside `allow` has collectives that it does not name. Recorded ops stay recorded: a sync outside runs
    them.

    Attributes:
        collectives: those that are not allowed, as rows of the table (`spmd.metrics.Collective`), with op and line.
    """

    def __init__(self, message: str, collectives: tuple[Collective, ...]):
        super().__init__(message)
        self.collectives = collectives

    def __reduce__(self) -> Any:
        return CollectiveError, (str(self), self.collectives)


class Limit(contextlib.ContextDecorator):
    """The result of `allow`: a context, or a decorator, that may be used again."""

    def __init__(self, above: int, kinds: dict[str, frozenset[str] | bool]):
        self.above = above
        self.kinds = kinds

    def __enter__(self) -> "Limit":
        if _refuse not in points.before_run:  # before the first of them, no run pays for it
            points.before_run.append(_refuse)
        _limits.value += (self,)
        return self

    def __exit__(self, *_: object) -> None:
        _limits.value = tuple(limit for limit in _limits.value if limit is not self)

    def allows(self, row: Collective) -> bool:
        """True for a collective that is named, or too small to count."""
        axes = self.kinds.get(_kind(row), False)
        return row.bytes <= self.above or axes is True or (axes is not False and axes.issuperset(row.axes))


def _kind(row: Collective) -> str:
    return "reduce-scatter" if row.is_sliced else row.kind


def allow(*, above: int = 1 << 16, **kinds: Axes) -> Limit:
    """A context, or a decorator, in which a collective that is not named is an error at its line.

    A program is compared before it runs, compiled, from the cache or from the disk. The context holds for the thread
    that enters it; contexts inside of one another must all allow a collective. Nothing is lost: recorded ops stay
    recorded, and a sync outside runs them. The partitioner gathers what it cannot keep sharded without a word, which is
    right and slow; this makes it an error, in a test or in a job.

    Args:
        above: the bytes of one collective, on one device (`Collective.bytes`), up to which any is allowed.
        kinds: all_gather, all_reduce, reduce_scatter, all_to_all, collective_permute, ragged_all_to_all or
            collective_broadcast, each with the mesh axis, the axes, or True for all axes. An all-reduce of which each
            device keeps a slice, the CPU's form of it, is a reduce_scatter.

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
        raise TypeError(f"allow: there is no collective {', '.join(unknown)}: expected {', '.join(sorted(kind_of))}")
    return Limit(above, {kind_of[name]: _axes(name, axes) for name, axes in kinds.items()})


def _axes(name: str, axes: Any) -> frozenset[str] | bool:
    if isinstance(axes, (bool, str)):
        return axes if isinstance(axes, bool) else frozenset((axes,))
    names = frozenset(axes) if isinstance(axes, (tuple, list, set, frozenset)) else None
    if names is None or not all(isinstance(axis, str) for axis in names):
        raise TypeError(f"allow: expected {name} to be a mesh axis, axes or True, got {axes!r}")
    return names


def _refuse(program: Program) -> None:
    """Raises CollectiveError if this thread is in a context that does not allow a collective of a program."""
    limits = _limits.value
    if not limits or program.record is None:
        return
    rows = tuple(row for row in program.record.traffic if not all(limit.allows(row) for limit in limits))
    if rows:
        listed = "\n".join(f"  {row}" for row in rows)
        wanted = sorted({f"{_kind(row).replace('-', '_')}={_text(row.axes)}" for row in rows})
        raise CollectiveError(
            f"allow: a program of {len(program.entries):,} ops ({program.name}), needed at {program.line}, has "
            f"collectives that are not allowed:\n{listed}\nA mark_sharding of an operand or of the result of that op "
            f"may remove one (spmd.explain(step) shows the shardings); spmd.allow({', '.join(wanted)}) allows them. "
            "Recorded ops stay recorded.",
            rows,
        )


def _text(axes: tuple[str, ...]) -> str:
    return repr(axes[0] if len(axes) == 1 else axes)

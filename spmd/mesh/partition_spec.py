"""PartitionSpec: the mesh axes that shard each dim of a tensor."""

from typing import Any, ClassVar

from ..core import UNCONSTRAINED, ends_at_user_line

Axis = str | int
SpecEntry = Axis | tuple[Axis, ...] | None | Any  # Any: jax's UNCONSTRAINED


@ends_at_user_line
def _refuse(entry: object) -> None:
    raise TypeError(
        "PartitionSpec: expected an axis name, an axis index, a tuple of them, None or "
        f"UNCONSTRAINED, got {entry!r}"
    )


class PartitionSpec(tuple[SpecEntry, ...]):
    """One entry per tensor dim: a mesh axis (by name or index), a tuple of axes (split over all of
    them, the first the slowest), None (not split), or `P.UNCONSTRAINED` (jax's own: the partitioner
    chooses). A plain tuple means the same everywhere a spec is taken.

    Raises TypeError where an entry is none of these. Source: `jax.sharding.PartitionSpec`,
    `torch_xla.distributed.spmd`.

    >>> from spmd import P
    >>> P(("data", "fsdp"), None)
    P(('data', 'fsdp'), None)
    """

    __slots__ = ()
    UNCONSTRAINED: ClassVar[Any] = UNCONSTRAINED

    def __new__(cls, *entries: Any) -> "PartitionSpec":
        for entry in entries:
            if entry is UNCONSTRAINED:
                continue
            axes = entry if isinstance(entry, tuple) else (entry,)
            for axis in axes:
                is_none = axis is None and not isinstance(entry, tuple)
                if not is_none and (not isinstance(axis, (str, int)) or isinstance(axis, bool)):
                    _refuse(entry)
        return super().__new__(cls, entries)

    def without(self, axis: str) -> "PartitionSpec":
        """The spec without an axis: a dim that the axis shards is unsharded over it.

        >>> PartitionSpec("tensor", ("data", "fsdp")).without("fsdp")
        P('tensor', 'data')
        """
        entries = [entry if isinstance(entry, tuple) else (entry,) for entry in self]
        axes_per_dim = [
            tuple(name for name in entry if name not in (axis, None)) for entry in entries
        ]
        return PartitionSpec(
            *(names[0] if len(names) == 1 else names or None for names in axes_per_dim)
        )

    def __repr__(self) -> str:
        return f"P({', '.join(map(repr, self))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return PartitionSpec, tuple(self)


P = PartitionSpec

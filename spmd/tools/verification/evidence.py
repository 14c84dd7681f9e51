"""The result of a verification: a row for each value compared, and the file that keeps it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..planning.report import VIEWS, text_of
from .one_run import Name


@dataclass(frozen=True, slots=True)
class Compared:
    """One value of a step on a mesh against one device.

    Attributes:
        kind: "result", "parameter", "gradient" or "buffer"; path: its name. layout, partitioner: of
            the run on the mesh. dtype: "float64", or "own" where the step ran in its own dtypes.
            difference: the largest absolute one of an element. tolerance: the largest that rounding
            explains. magnitude: the largest absolute element. roundings: on the longest path to the
            value.
    """

    kind: str
    path: str
    layout: str
    partitioner: str
    dtype: str
    difference: float
    tolerance: float
    magnitude: float
    roundings: int

    @property
    def is_equal(self) -> bool:
        """True where rounding explains the difference."""
        return self.difference <= self.tolerance

    def __str__(self) -> str:
        where = f"{self.layout}, {self.partitioner}, {self.dtype}"
        return (
            f"{Name(self.kind, self.path)} ({where}): differs by {self.difference:.3g} where "
            f"{self.tolerance:.3g} is allowed (largest element {self.magnitude:.3g}, "
            f"{self.roundings:,} roundings)"
        )


@dataclass(frozen=True, repr=False)
class Verification:
    """The result of `spmd.verify`; true where every value is equal to one device's, up to rounding.

    Attributes:
        rows: one for each value, layout, partitioner and precision. first: the first op that
            differs, with the user's line; "" where all are equal. repair: where a body of
            `shard_map` is the cause, the one change of one of its collectives with which the step
            is equal; "" where none is known. evidence: digest of the inputs, seeds, versions,
            meshes, formula. seconds.

    >>> import torch, spmd
    >>> result = spmd.verify(
    ...     lambda x: x.sin(), torch.ones(8), meshes=[spmd.Mesh([0], (1,), ("data",))]
    ... )
    >>> bool(result), result.differences
    (True, ())
    >>> result.raise_on_difference()
    """

    rows: tuple[Compared, ...]
    first: str
    evidence: Mapping[str, Any]
    seconds: float = field(compare=False)
    repair: str = ""

    def __bool__(self) -> bool:
        return all(row.is_equal for row in self.rows)

    @property
    def differences(self) -> tuple[Compared, ...]:
        """The rows that differ by more than rounding explains."""
        return tuple(row for row in self.rows if not row.is_equal)

    def worst(self) -> list[Compared]:
        """For each value and precision the row with the largest share of its tolerance, in the
        order of the rows."""
        rows: dict[tuple[str, str, str], Compared] = {}
        for row in self.rows:
            key = row.kind, row.path, row.dtype
            if key not in rows or share(row) > share(rows[key]):
                rows[key] = row
        return [*rows.values()]

    def raise_on_difference(self) -> None:
        """Raises AssertionError where a value differs, with the worst rows and the first op."""
        if not self:
            rows = sorted(self.differences, key=share, reverse=True)
            first = f"\nthe first op that differs: {self.first}" if self.first else ""
            first += f"\n{self.repair}" if self.repair else ""
            raise AssertionError(
                f"verify: {len(rows)} of {len(self.rows)} comparisons with one device differ by "
                "more than rounding explains" + "".join(f"\n  {row}" for row in rows[:5]) + first
            )

    def to_json(self) -> str:
        """The evidence, the rows and the first op as JSON."""
        result = {
            **self.evidence,
            "equal": bool(self),
            "first_difference": self.first,
            "repair": self.repair,
            "seconds": round(self.seconds, 3),
            "rows": [{**asdict(row), "equal": row.is_equal} for row in self.rows],
        }
        return json.dumps(result, indent=1)

    def save(self, path: str | Path) -> None:
        """Writes `to_json` to a file."""
        Path(path).write_text(self.to_json())

    def __rich__(self) -> Any:
        return VIEWS["table"]().verified(self)

    def __repr__(self) -> str:
        return text_of(self)


def share(row: Compared) -> float:
    """The difference as a share of the tolerance."""
    return (
        row.difference / row.tolerance if row.tolerance else float("inf") if row.difference else 0.0
    )

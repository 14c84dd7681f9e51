"""Move: a change of layout that the partitioner made by itself, as data that a program keeps."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Move:
    """A value of a program that the partitioner moved between devices, and no annotation requests it.

    Attributes:
        kind: "move"; "given up" where devices gather the value and keep a slice of it: XLA found no way from one layout
            to the other ("involuntary full rematerialization"), or the value comes back to its layout.
        op: the recorded op that reads or makes the value; line: the user's line of that op; path: the module it belongs
            to ("" except in `spmd.plan`).
        value: "operand 0" or "the result" of the op, or "" where the program's text does not say; shape: of the value,
            unsharded.
        before, after: the two layouts, as specs; "" where they are not known.
        collectives: the kinds that move it, in order. axes: the mesh axes over which. largest: the bytes of the largest
            one (`Collective.bytes`). bytes: those that each device sends for it in one run.
        mark: the annotation to try. is_checked: the program was compiled with it, and has this move no more.
    """

    kind: str
    op: str
    value: str = ""
    shape: tuple[int, ...] = ()
    before: str = ""
    after: str = ""
    collectives: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    largest: int = 0
    bytes: int = 0
    mark: str = ""
    is_checked: bool = False
    line: str = ""
    path: str = ""

    @staticmethod
    def of(fields: dict[str, Any]) -> "Move":
        """Returns the move with these fields, tuples of which JSON has made lists."""
        return Move(**fields | {name: tuple(fields[name]) for name in ("shape", "collectives", "axes")})

    @property
    def text(self) -> str:
        """The move in words, without its line."""
        of = f"{self.value} {list(self.shape)}" if self.value else "a value"
        known = f", from {self.before}" if self.before else f", to {self.after}" if self.after else ""
        layouts = f", {self.before} -> {self.after}" if self.before and self.after else known
        how = f"{' + '.join(self.collectives)} over {' x '.join(self.axes)}, moves {self.bytes:,} B"
        whole = "gathered and cut again, " if self.kind == "given up" else ""
        return f"{of}{layouts}: {whole}{how}{f'; {self.advice}' if self.mark else ''}"

    @property
    def advice(self) -> str:
        """The annotation to try, and how far it is known to help."""
        return f"{self.mark} removes it (compiled)" if self.is_checked else f"{self.mark} may remove it"

    def __str__(self) -> str:
        where = f" | {self.path}" if self.path else ""
        return f"{self.kind}: {self.op}, {self.text}{where} | {self.line}"

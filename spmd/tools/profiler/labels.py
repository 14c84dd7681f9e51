"""The user's names of a program's instructions: module paths, ops and lines."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...core.extend import Module, Program
from ..hlo.hlo_collectives import Origin, origins

_SHOWN = 3  # names in a row's title; its arguments have all


class Label(NamedTuple):
    """The words of a device's row for an instruction: module paths, ops and lines of all that it was made of, the one
    that names it first; the bytes that it reads and writes; whether it runs others, as a loop does."""

    modules: tuple[str, ...]
    ops: tuple[str, ...]
    lines: tuple[str, ...]
    num_bytes: int

    @property
    def title(self) -> str:
        """The modules and ops in short; "" where neither is known."""
        return ": ".join(filter(None, (_short(filter(None, self.modules)), _short(self.ops))))


def _short(names: Iterable[str]) -> str:
    distinct = list(names)
    more = f" + {len(distinct) - _SHOWN} more" if len(distinct) > _SHOWN else ""
    return " + ".join(distinct[:_SHOWN]) + more


def labels_of(program: Program) -> dict[str, Label]:
    """Returns the label of each instruction of a program, by the instruction's name."""
    instructions = origins(Module(program.executable.as_text()), len(program.entries))
    lines = list(map(str, program.lines))
    return {name: _label(program, origin, lines) for name, origin in instructions.items()}


def _label(program: Program, origin: Origin, lines: Sequence[str]) -> Label:
    paths = (_path(program, place) for place in origin.places)
    ops = (program.entries[place].name for place in origin.places)
    return Label(
        tuple(dict.fromkeys(paths)),
        tuple(dict.fromkeys(ops)),
        tuple(dict.fromkeys(lines[place] for place in origin.places)),
        origin.num_bytes,
    )


def _path(program: Program, place: int) -> str:
    """The path of an op's module; of an op in a loop over equal layers, the paths of all of them as one."""
    if not program.paths:
        return ""
    for first, iterations, period in program.loops:
        if first <= place < first + period:
            places = [place + i * period for i in range(iterations)]
            if places[-1] < len(program.entries):
                same = [one for one in places if program.entries[one] is program.entries[place]]
                return _joined([program.paths[one] for one in same])
    return program.paths[place]


_NUMBER = re.compile(r"\d+")


def _joined(paths: Sequence[str]) -> str:
    """One path for paths that differ in a number: "layers.*.fc" of "layers.0.fc" and "layers.1.fc"; else the first."""
    columns = list(zip(*(path.split(".") for path in paths), strict=False))
    starred = [column[0] if len(set(column)) == 1 else _NUMBER.sub("*", column[0]) for column in columns]
    return ".".join(starred)

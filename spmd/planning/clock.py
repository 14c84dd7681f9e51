"""The clock of an estimated run: the lines of a schedule one after the other, and collectives next to them."""

from abc import ABC, abstractmethod
from typing import ClassVar

from ..core.base.counters import Collective
from ..core.hlo.hlo import Computation, Instruction, Module, num_bytes
from ..core.hlo.hlo_collectives import collective_kind
from .chips import Chip

WAITING = {"ici": "waiting for collectives (ici)", "dcn": "waiting for collectives (dcn)"}


class Clock(ABC):
    """A run of the schedule, on one stream that computes and one that moves data.

    spent: the seconds by name. now: of the run; free: the end of the last collective.
    """

    # The names of what a run spends its time on, in the order of a table, with the constants that each depends on.
    constants: ClassVar[dict[str, tuple[str, ...]]]

    def __init__(self, module: Module, chip: Chip):
        self.module, self.chip = module, chip
        self.now = 0.0
        self.free = 0.0
        self.ends: dict[tuple[str, str], tuple[float, str]] = {}  # of a started collective, with its link
        self.spent = dict.fromkeys(self.constants, 0.0)

    def run(self) -> dict[str, float]:
        """Returns the seconds by name."""
        self.computation(self.module.computations[self.module.entry])
        return self.spent

    @abstractmethod
    def compute(self, computation: Computation, line: Instruction) -> None:
        """Spends the time of a line that is no collective."""

    @abstractmethod
    def seconds_of(self, line: Instruction, kind: str, data: int) -> tuple[float, str]:
        """The time of a collective of so many bytes of operands, and its link; 0 for one of a single device."""

    def computation(self, computation: Computation) -> None:
        """Runs the lines of a computation."""
        for line in computation.lines:
            if line.opcode == "while":
                self._loop(computation, line)
            elif line.opcode in ("call", "conditional", "async-start"):
                for _, name in line.called[:1]:  # of a conditional the first branch stands for all
                    self.computation(self.module.computations[name])
            elif (kind := collective_kind(line)) is not None:
                self.start((computation.name, line.name), computation, line, kind)
                if not line.opcode.endswith("-start"):
                    self.wait((computation.name, line.name))
            elif line.opcode.endswith("-done"):
                self.wait((computation.name, line.operands[0]))
            else:
                self.compute(computation, line)

    def spend(self, name: str, seconds: float) -> None:
        """Computes for some time."""
        self.spent[name] += seconds
        self.now += seconds

    def _loop(self, computation: Computation, line: Instruction) -> None:
        """One iteration in full, and the others like it."""
        iterations = self.module.iterations(computation, line)
        before, started = self.spent.copy(), self.now
        for _, name in line.called:
            self.computation(self.module.computations[name])
        more = iterations - 1
        for name in self.constants:
            self.spent[name] += (self.spent[name] - before[name]) * more
        shift = (self.now - started) * more
        self.now, self.free = self.now + shift, self.free + shift
        self.ends = {key: (end + shift, link) for key, (end, link) in self.ends.items()}

    def start(self, key: tuple[str, str], computation: Computation, line: Instruction, kind: str) -> None:
        """Starts a collective, when those before it are through."""
        data = sum(num_bytes(computation.by_name[name].shape) for name in line.operands if name in computation.by_name)
        seconds, link = self.seconds_of(line, kind, data)
        if seconds:
            self.free = max(self.free, self.now) + seconds
            self.ends[key] = self.free, link

    def wait(self, key: tuple[str, str]) -> None:
        """Waits for the end of a collective."""
        end, link = self.ends.pop(key, (0.0, "ici"))
        self.spend(WAITING[link], max(0.0, end - self.now))


def ring_bytes(kind: str, size: int, data: int) -> int:
    """The bytes that a device sends in a collective of so many devices and bytes of operands."""
    return Collective(kind, (), size, data * size if kind == "all-gather" else data, 1).moved_bytes

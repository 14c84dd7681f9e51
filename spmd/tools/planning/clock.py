"""The clock of an estimated run: the lines of a schedule one after the other, collectives and copies to and from the
host's memory next to them."""

import re
from abc import ABC, abstractmethod
from collections import defaultdict
from typing import ClassVar

from ...core import Collective
from ...core.extend import Computation, Instruction, Module, num_bytes
from ..hlo.hlo_collectives import collective_kind
from .chips import Chip

HOST = "waiting for the host"
WAITING = {
    "ici": "waiting for collectives (ici)",
    "dcn": "waiting for collectives (dcn)",
    "to host": HOST,
    "from host": HOST,
}


class Clock(ABC):
    """A run of the schedule, on a stream that computes, one of collectives, and one for each way to and from the host.

    spent: the seconds by name. now: of the run; free: the end of the last transfer of each stream.
    """

    # The names of what a run spends its time on, in the order of a table, with the constants that each depends on.
    constants: ClassVar[dict[str, tuple[str, ...]]]

    def __init__(self, module: Module, chip: Chip, host: float):
        self.module, self.chip = module, chip
        self.host_rate = chip.host_bytes * host  # bytes per second to or from the host's memory; 0: not known
        self.now = 0.0
        self.free: defaultdict[str, float] = defaultdict(float)
        self.ends: dict[tuple[str, str], tuple[float, str]] = {}  # of a started transfer, with its link
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
            elif (moved := host_copy(line)) is not None:
                link, data = moved
                seconds = data / self.host_rate if self.host_rate else 0.0
                self._start((computation.name, line.name), link, seconds)
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
        self.now += shift
        for stream in self.free:
            self.free[stream] += shift
        self.ends = {key: (end + shift, link) for key, (end, link) in self.ends.items()}

    def start(self, key: tuple[str, str], computation: Computation, line: Instruction, kind: str) -> None:
        """Starts a collective, when those before it are through."""
        data = sum(num_bytes(computation.by_name[name].shape) for name in line.operands if name in computation.by_name)
        seconds, link = self.seconds_of(line, kind, data)
        self._start(key, link, seconds)

    def _start(self, key: tuple[str, str], link: str, seconds: float) -> None:
        """Starts a transfer. Collectives of both links follow each other."""
        if seconds:
            stream = link if "host" in link else "collectives"
            self.free[stream] = max(self.free[stream], self.now) + seconds
            self.ends[key] = self.free[stream], link

    def wait(self, key: tuple[str, str]) -> None:
        """Waits for the end of a transfer."""
        end, link = self.ends.pop(key, (0.0, "ici"))
        self.spend(WAITING[link], max(0.0, end - self.now))


# The copies that XLA starts and waits for: (result, operand, ...), and ((operands), result, ...) of slices.
_COPIES = ("copy-start", "dynamic-slice-start", "dynamic-update-slice-start")
_HOST = re.compile(r"\bS\(5\)")
_PLACED = re.compile(r"\w+\[[\d,]+\]\{[^}]*\}")


def host_copy(line: Instruction) -> tuple[str, int] | None:
    """The way and the bytes of a copy between the memory of the device and that of the host (XLA's memory space 5);
    None for another line."""
    if line.opcode not in _COPIES:
        return None
    places = [(one, _HOST.search(one) is not None) for one in _PLACED.findall(line.shape)]
    if len({is_host for _, is_host in places}) < 2:
        return None
    is_to_host = places[0][1] if line.opcode == "copy-start" else line.opcode == "dynamic-update-slice-start"
    return "to host" if is_to_host else "from host", min(num_bytes(one) for one, _ in places)


def ring_bytes(kind: str, size: int, data: int) -> int:
    """The bytes that a device sends in a collective of so many devices and bytes of operands."""
    return Collective(kind, (), size, data * size if kind == "all-gather" else data, 1).moved_bytes

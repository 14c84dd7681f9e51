"""The clock of an estimated run: the lines of a schedule one after the other, collectives and copies to and from the
host's memory next to them."""

import re
from abc import ABC, abstractmethod
from collections import defaultdict
from typing import ClassVar

from ...core import Collective
from ...core.extend import Computation, Instruction, Module, num_bytes
from ..hlo.hlo_collectives import Key, collective_kind, collectives_within, key_of
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

    spent: the seconds by name. times: of each collective the seconds of its transfers, and those of them that nothing
    covers. now: of the run; free: the end of the last transfer of each stream.
    """

    # The names of what a run spends its time on, in the order of a table, with the constants that each depends on.
    constants: ClassVar[dict[str, tuple[str, ...]]]

    def __init__(self, module: Module, chip: Chip, host: float):
        self.module, self.chip = module, chip
        self.host_rate = chip.host_bytes * host  # bytes per second to or from the host's memory; 0: not known
        self.now = 0.0
        self.free: defaultdict[str, float] = defaultdict(float)
        self.ends: dict[Key, tuple[float, str, Key | None]] = {}  # of a started transfer, with its link and collective
        self.spent = dict.fromkeys(self.constants, 0.0)
        self.transfers: list[tuple[float, float, Key]] = []  # of collectives: begin and end, which may be to come
        self.times: defaultdict[Key, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        self.rounds: defaultdict[str, float] = defaultdict(float)  # of a loop that ends by its data, one iteration

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
            elif line.opcode.endswith("-start") and (within := [*collectives_within(self.module, line)]):
                for inner, collective, of_kind in within:  # one after the other, on their stream
                    self.start((computation.name, line.name), inner, collective, of_kind)
            elif line.opcode in ("call", "conditional", "async-start"):
                for _, name in line.called[:1]:  # of a conditional the first branch stands for all
                    self.computation(self.module.computations[name])
            elif (kind := collective_kind(line)) is not None:
                self.start((computation.name, line.name), computation, line, kind)
                if not line.opcode.endswith("-start"):
                    self.wait((computation.name, line.name))
            elif (copied := host_copy(line)) is not None:
                link, data = copied
                seconds = data / self.host_rate if self.host_rate else 0.0
                self._start((computation.name, line.name), link, seconds)
            elif line.opcode.endswith("-update") and (computation.name, line.operands[0]) in self.ends:
                self.ends[computation.name, line.name] = self.ends.pop((computation.name, line.operands[0]))
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
        before, times, started = self.spent.copy(), self.times.copy(), self.now
        for _, name in line.called:
            self.computation(self.module.computations[name])
        if line.name in self.module.unknown:
            self.rounds[line.name] += self.now - started
        more = iterations - 1
        for name in self.constants:
            self.spent[name] += (self.spent[name] - before[name]) * more
        for key, (seconds, waiting) in self.times.items():
            ahead, idle = times.get(key, (0.0, 0.0))
            self.times[key] = seconds + (seconds - ahead) * more, waiting + (waiting - idle) * more
        shift = (self.now - started) * more
        self.now += shift
        for stream in self.free:
            self.free[stream] += shift
        self.ends = {key: (end + shift, link, of) for key, (end, link, of) in self.ends.items()}
        self.transfers = [(begin + shift, end + shift, of) for begin, end, of in self.transfers]

    def start(self, key: Key, computation: Computation, line: Instruction, kind: str) -> None:
        """Starts a collective, when those before it are through."""
        data = sum(num_bytes(computation.by_name[name].shape) for name in line.operands if name in computation.by_name)
        seconds, link = self.seconds_of(line, kind, data)
        self._start(key, link, seconds, key_of(computation, line))

    def _start(self, key: Key, link: str, seconds: float, collective: Key | None = None) -> None:
        """Starts a transfer. Collectives of both links follow each other."""
        if seconds:
            stream = link if "host" in link else "collectives"
            begin = max(self.free[stream], self.now)
            self.free[stream] = begin + seconds
            self.ends[key] = begin + seconds, link, collective
            if collective is not None:
                self.transfers.append((begin, begin + seconds, collective))
                self._count(collective, seconds, 0.0)

    def wait(self, key: Key) -> None:
        """Waits for the end of a transfer."""
        end, link, collective = self.ends.pop(key, (0.0, "ici", None))
        # Those that it stands behind are waited for, too: each for the time in which it is transferred.
        for begin, stop, of in self.transfers if collective is not None else ():
            self._count(of, 0.0, max(0.0, min(stop, end) - max(begin, self.now)))
        self.spend(WAITING[link], max(0.0, end - self.now))
        self.transfers = [transfer for transfer in self.transfers if transfer[1] > self.now]

    def _count(self, collective: Key, seconds: float, waiting: float) -> None:
        before = self.times[collective]
        self.times[collective] = before[0] + seconds, before[1] + waiting


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

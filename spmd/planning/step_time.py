"""The estimated time of a step on a GPU: its kernels and collectives, in the order of the compiler's schedule.

Every figure is computed from counts of the optimised program and constants of the chip (roofline: Williams et al.,
doi:10.1145/1498765.1498785), none is measured, so each has a range: at best, each kernel reaches the peak of the unit
that limits it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ..core.base.counters import Collective
from ..core.hlo.gpu_kernels import ATTENTION, CONVOLUTION, OTHER, PRODUCT, Kernel, kernel_of
from ..core.hlo.hlo import Computation, Instruction, Module, num_bytes
from ..core.hlo.hlo_collectives import collective_kind, groups_of
from .chips import Chip


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a step's time. seconds: expected; low, high: the range. source: "analytic", from counts and the
    chip's constants."""

    name: str
    seconds: float
    low: float
    high: float
    source: str


@dataclass(frozen=True, slots=True)
class _Rates:
    """The part of its peak that each unit reaches, and the seconds that a launch and a collective add."""

    product: float
    attention: float
    convolution: float
    memory: float
    link: float
    launch: float
    latency: float


# What large kernels reach, by published runs of cuBLAS, cuDNN and NCCL; the range covers the others.
_EXPECTED = _Rates(0.70, 0.50, 0.50, 0.85, 0.75, 2e-6, 12e-6)
_BEST = _Rates(0.90, 0.75, 0.75, 0.95, 0.90, 1e-6, 5e-6)
_WORST = _Rates(0.50, 0.30, 0.25, 0.65, 0.50, 4e-6, 25e-6)


def terms_of(module: Module, chip: Chip, slices: tuple[int, ...]) -> tuple[Term, ...]:
    """The parts of the time of one run of a program on a GPU.

    slices: of each device of the program, in its order (nodes).
    """
    expected, best, worst = (_Clock(module, chip, slices, rates).run() for rates in (_EXPECTED, _BEST, _WORST))
    names = [name for name in _NAMES if expected[name] or worst[name]]
    return tuple(Term(name, expected[name], best[name], worst[name], "analytic") for name in names)


def summed(programs: "list[tuple[Term, ...]]") -> tuple[Term, ...]:
    """The terms of several programs, one after the other."""
    found: dict[str, Term] = {}
    for term in (term for terms in programs for term in terms):
        one = found.get(term.name)
        found[term.name] = (
            term
            if one is None
            else Term(term.name, one.seconds + term.seconds, one.low + term.low, one.high + term.high, term.source)
        )
    return tuple(found.values())


_LAUNCHES = "launches"
_WAITING = {"ici": "waiting for collectives (ici)", "dcn": "waiting for collectives (dcn)"}
_NAMES = (PRODUCT, CONVOLUTION, ATTENTION, OTHER, _LAUNCHES, *_WAITING.values())


class _Clock:
    """A run of the schedule: kernels one after the other, and collectives next to them, as XLA has two streams."""

    def __init__(self, module: Module, chip: Chip, slices: tuple[int, ...], rates: _Rates):
        self.module, self.chip, self.slices, self.rates = module, chip, slices, rates
        self.now = 0.0
        self.free = 0.0  # when the collectives' stream is
        self.ends: dict[tuple[str, str], tuple[float, str]] = {}  # of a started collective, with its link
        self.spent = dict.fromkeys(_NAMES, 0.0)

    def run(self) -> dict[str, float]:
        self._computation(self.module.computations[self.module.entry])
        return self.spent

    def _computation(self, computation: Computation) -> None:
        for line in computation.lines:
            if line.opcode == "while":
                self._loop(computation, line)
            elif line.opcode in ("call", "conditional", "async-start"):
                for _, name in line.called[:1]:  # of a conditional the first branch stands for all
                    self._computation(self.module.computations[name])
            elif (kind := collective_kind(line)) is not None:
                self._start(computation, line, kind)
            elif line.opcode.endswith("-done"):
                self._wait((computation.name, line.operands[0]))
            else:
                kernel = kernel_of(self.module, computation, line)
                if kernel is not None:
                    self._kernel(kernel)

    def _loop(self, computation: Computation, line: Instruction) -> None:
        """One iteration in full, and the others like it."""
        iterations = self.module.iterations(computation, line)
        before, started = self.spent.copy(), self.now
        for _, name in line.called:
            self._computation(self.module.computations[name])
        more = iterations - 1
        for name in _NAMES:
            self.spent[name] += (self.spent[name] - before[name]) * more
        shift = (self.now - started) * more
        self.now, self.free = self.now + shift, self.free + shift
        self.ends = {key: (end + shift, link) for key, (end, link) in self.ends.items()}

    def _kernel(self, kernel: Kernel) -> None:
        busy = kernel.bytes / (self.chip.bandwidth * self.rates.memory)
        if kernel.flops:
            busy = max(busy, kernel.flops / self._flops(kernel))
        self.spent[kernel.kind] += busy
        self.spent[_LAUNCHES] += self.rates.launch
        self.now += busy + self.rates.launch

    def _flops(self, kernel: Kernel) -> float:
        """The operations per second of a kernel: the peak of its dtype, less the cores that have no tile in the last
        round."""
        share = {PRODUCT: self.rates.product, ATTENTION: self.rates.attention, CONVOLUTION: self.rates.convolution}
        rate = _PEAKS.get(kernel.dtype, lambda chip: chip.peak_flops)(self.chip) * share[kernel.kind]
        cores = self.chip.cores
        if kernel.tiles > cores:  # fewer tiles: a product is split along its summed dim
            rate *= kernel.tiles / (-(-kernel.tiles // cores) * cores)
        return rate

    def _start(self, computation: Computation, line: Instruction, kind: str) -> None:
        group = groups_of(line, len(self.slices))[0]
        size, nodes = len(group), len({self.slices[device] for device in group})
        if kind == "collective-permute":
            size, nodes = 2, max(len({self.slices[device] for device in pair}) for pair in groups_of(line, 0))
        if size < 2:
            return
        link = "ici" if nodes == 1 else "dcn"
        data = sum(num_bytes(computation.by_name[name].shape) for name in line.operands if name in computation.by_name)
        moved = Collective(kind, (), size, data * size if kind == "all-gather" else data, 1).moved_bytes
        # Rings over several nodes use the networks of all GPUs of a node that are in the group.
        rate = self.chip.link_bytes if nodes == 1 else min(self.chip.link_bytes, self.chip.network_bytes * size / nodes)
        seconds = moved / (rate * self.rates.link) + self.rates.latency * nodes
        self.free = max(self.free, self.now) + seconds
        self.ends[computation.name, line.name] = self.free, link
        if not line.opcode.endswith("-start"):
            self._wait((computation.name, line.name))

    def _wait(self, key: tuple[str, str]) -> None:
        end, link = self.ends.pop(key, (0.0, "ici"))
        waited = max(0.0, end - self.now)
        self.spent[_WAITING[link]] += waited
        self.now += waited


# The operations per second of products, by dtype, where they are not the peak of bfloat16.
_PEAKS: dict[str, Callable[[Chip], float]] = {
    "tf32": lambda chip: chip.peak_flops / 2,
    "f32": lambda chip: chip.f32_flops,
    "f64": lambda chip: chip.f64_flops,
    "f8e4m3fn": lambda chip: 2 * chip.peak_flops,
    "f8e5m2": lambda chip: 2 * chip.peak_flops,
    "s8": lambda chip: 2 * chip.peak_flops,
}

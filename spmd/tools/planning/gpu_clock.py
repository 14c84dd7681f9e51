"""The time of a step on a GPU, by counts of its kernels and constants of the chip.

A kernel takes the longer of its operations and its bytes by the rates of the unit that limits it
(roofline: Williams et al., doi:10.1145/1498765.1498785).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from ...core.extend import Computation, Instruction, Module
from ..hlo.hlo_collectives import groups_of
from ..hlo.program_facts import ATTENTION, CONVOLUTION, OTHER, PRODUCT, Kernel, kernel_of
from .clock import HOST, STAGES, WAITING, Chip, Clock, ring_bytes


@dataclass(frozen=True, slots=True)
class GpuRates:
    """The part of its peak that each unit reaches, and the seconds that a launch and a collective
    add."""

    product: float
    attention: float
    convolution: float
    memory: float
    link: float
    host: float
    launch: float
    latency: float


# Rates of large kernels, from published runs of cuBLAS, cuDNN and NCCL; the range covers other
# kernels.
EXPECTED = GpuRates(0.70, 0.50, 0.50, 0.85, 0.75, 0.8, 2e-6, 12e-6)
BEST = GpuRates(0.90, 0.75, 0.75, 0.95, 0.90, 0.95, 1e-6, 5e-6)
WORST = GpuRates(0.50, 0.30, 0.25, 0.65, 0.50, 0.5, 4e-6, 25e-6)

_LAUNCHES = "launches"


class GpuClock(Clock):
    """A run of a GPU's schedule. nodes: of each device of the program, in its order."""

    constants: ClassVar = {
        PRODUCT: ("product",),
        CONVOLUTION: ("convolution",),
        ATTENTION: ("attention",),
        OTHER: ("memory",),
        _LAUNCHES: ("launch",),
        WAITING["ici"]: ("link", "latency"),
        WAITING["dcn"]: (),
        HOST: (),
        STAGES: (),
    }

    def __init__(self, module: Module, chip: Chip, nodes: tuple[int, ...], rates: GpuRates):
        super().__init__(module, chip, rates.host)
        self.nodes, self.rates = nodes, rates

    def compute(self, computation: Computation, line: Instruction) -> None:
        kernel = kernel_of(self.module, computation, line)
        if kernel is None:
            return
        busy = kernel.bytes / (self.chip.bandwidth * self.rates.memory)
        if kernel.flops:
            busy = max(busy, kernel.flops / self._flops(kernel))
        self.spend(kernel.kind, busy)
        self.spend(_LAUNCHES, self.rates.launch)

    def _flops(self, kernel: Kernel) -> float:
        """The operations per second of a kernel: the peak of its dtype, less the cores that have no
        tile in the last round."""
        share = {
            PRODUCT: self.rates.product,
            ATTENTION: self.rates.attention,
            CONVOLUTION: self.rates.convolution,
        }
        rate = (
            _PEAKS.get(kernel.dtype, lambda chip: chip.peak_flops)(self.chip) * share[kernel.kind]
        )
        cores = self.chip.cores
        if kernel.tiles > cores:  # fewer tiles: a product is split along its summed dim
            rate *= kernel.tiles / (-(-kernel.tiles // cores) * cores)
        return rate

    def seconds_of(self, line: Instruction, kind: str, data: int) -> tuple[float, str]:
        # Of a permutation the groups are pairs, or none where no device sends.
        groups = groups_of(line, len(self.nodes))
        size = max(map(len, groups), default=0)
        nodes = max((len({self.nodes[device] for device in group}) for group in groups), default=0)
        if size < 2:
            return 0.0, "ici"
        # Rings over several nodes use the networks of all GPUs of a node that are in the group.
        rate = (
            self.chip.link_bytes
            if nodes == 1
            else min(self.chip.link_bytes, self.chip.network_bytes * size / nodes)
        )
        seconds = (
            ring_bytes(kind, size, data) / (rate * self.rates.link) + self.rates.latency * nodes
        )
        return seconds, "ici" if nodes == 1 else "dcn"


# The operations per second of products, by dtype, where they are not the peak of bfloat16.
_PEAKS: dict[str, Callable[[Chip], float]] = {
    "tf32": lambda chip: chip.peak_flops / 2,
    "f32": lambda chip: chip.f32_flops,
    "f64": lambda chip: chip.f64_flops,
    "f8e4m3fn": lambda chip: 2 * chip.peak_flops,
    "f8e5m2": lambda chip: 2 * chip.peak_flops,
    "s8": lambda chip: 2 * chip.peak_flops,
}

"""The time of a step on a TPU: the compiler's cycles, kernels by operations, collectives by the
links that they cross.

The compiler estimates the cycles of each of its own instructions, not of collectives nor of kernels
(Pallas). It names the dims of the torus that a collective uses.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...core.extend import Computation, Instruction, Module
from ..hlo.hlo_collectives import (
    chain_of,
    collectives_within,
    groups_of,
    key_of,
    kind_between_slices,
    links_of,
)
from ..hlo.program_facts import kernel_flops, line_cycles
from ..hlo.splash_calls import is_attention
from .clock import HOST, STAGES, WAITING, Chip, Clock, ring_bytes


@dataclass(frozen=True, slots=True)
class TpuRates:
    """The part of the compiler's cycles that pass, the part of their peak that attention, other
    kernels (grouped products, whose peak may be that of the memory), links, the network between
    slices and the way to the host reach, and the seconds that a hop adds."""

    cycles: float
    attention: float
    kernels: float
    link: float
    network: float
    host: float
    hop: float


# The chosen half of the published steps (`python -m recipes.benchmarks.published_steps --fit`)
# moves none of them by more than its uncertainty. Grouped products, of which that half has no step:
# what the compiler estimates for dense ones of their size. BEST and WORST hold every step of that
# half.
EXPECTED = TpuRates(1.0, 0.45, 0.85, 0.88, 0.7, 0.8, 1e-6)
BEST = TpuRates(0.81, 0.56, 0.95, 0.95, 0.9, 0.95, 0.5e-6)
WORST = TpuRates(1.21, 0.36, 0.68, 0.65, 0.5, 0.6, 2e-6)

# The operations for each byte that a grouped product reads, in blocks of 512 x 1,024 of bfloat16
# (`ops/kernels`): its rows once for 1,024 columns, its weights once for 512 rows.
_FLOPS_PER_BYTE = 2 / (2 / 512 + 2 / 1024)

CYCLES, ATTENTION, KERNELS = "instructions", "attention", "other kernels"


class TpuClock(Clock):
    """A run of a TPU's schedule. slices, places: of each device of the program, in its order: its
    slice, and its coordinates in the torus of that."""

    constants: ClassVar = {
        CYCLES: ("cycles",),
        ATTENTION: ("attention",),
        KERNELS: (),
        WAITING["ici"]: ("link", "hop"),
        WAITING["dcn"]: (),
        HOST: (),
        STAGES: (),
    }

    def __init__(
        self,
        module: Module,
        chip: Chip,
        slices: tuple[int, ...],
        places: Sequence[tuple[int, ...]],
        rates: TpuRates,
    ):
        super().__init__(module, chip, rates.host)
        self.slices, self.places, self.rates = slices, places, rates
        self.torus = tuple(max(column) + 1 for column in zip(*places, strict=True))
        # lines of each collective that are still to come
        self.left: Counter[str] = links_of(module)

    def compute(self, computation: Computation, line: Instruction) -> None:
        if line.opcode == "send" and (kind := kind_between_slices(line)) is not None:
            return self.start(("", _rendezvous(line)), computation, line, kind)
        if line.opcode == "recv":
            self.ends[computation.name, line.name] = self.ends.pop(
                ("", _rendezvous(line)), (0.0, "dcn", None)
            )
            return None
        inside = [*collectives_within(self.module, line)] if line.opcode == "fusion" else []
        for inner, collective, kind in inside:
            if (key := key_of(inner, collective)) not in self.ends:
                self.start(key, inner, collective, kind)
        assert self.chip.clock is not None, "a TPU's"
        self.spend(CYCLES, line_cycles(line) / self.chip.clock * self.rates.cycles)
        self._kernels(computation, line)
        for inner, collective, _ in inside:
            chain = chain_of(collective)
            self.left[chain] -= 1
            if not chain or not self.left[chain]:
                self.wait(key_of(inner, collective))
        return None

    def _kernels(self, computation: Computation, line: Instruction) -> None:
        """Spends the time of a kernel, and of those in a fusion, as with the write of its result
        into a stack."""
        for _, name in line.called if line.opcode == "fusion" else ():
            for part in self.module.computations[name].lines:
                self._kernels(self.module.computations[name], part)
        flops = kernel_flops(self.module, computation, line)
        if is_attention(line):
            self.spend(ATTENTION, flops / self.chip.peak_flops / self.rates.attention)
        else:
            peak = min(self.chip.peak_flops, self.chip.bandwidth * _FLOPS_PER_BYTE)
            self.spend(KERNELS, flops / peak / self.rates.kernels)

    def seconds_of(self, line: Instruction, kind: str, data: int) -> tuple[float, str]:
        if line.opcode == "send":
            size = len(set(self.slices))
            moved = ring_bytes(kind, size, data)
            return moved / (self.chip.network_bytes * self.rates.network), "dcn"
        devices = groups_of(line, len(self.slices))
        if kind == "collective-permute":
            return data / (
                self.chip.link_bytes / self.chip.links * self.rates.link
            ) + self.rates.hop, "ici"
        size = len(devices[0])
        if size < 2:
            return 0.0, "ici"
        # A ring sends both ways at once; a line, whose ends are not linked, takes twice as long.
        rings = self._rings(line, devices[0])
        share = sum(1.0 if is_closed else 0.5 for _, is_closed in rings) * 2 / self.chip.links
        hops = sum(length / 2 for length, _ in rings)
        # the rings of a SparseCore, each by one link
        if one_way := line.tail.count('"phase_rings"'):
            share, hops = min(share, one_way / self.chip.links), float(size - 1)
        moved = ring_bytes(kind, size, data)
        return moved / (
            self.chip.link_bytes * share * self.rates.link
        ) + self.rates.hop * hops, "ici"

    def _rings(self, line: Instruction, group: Sequence[int]) -> list[tuple[int, bool]]:
        """The rings of chips that a collective uses at once: the length of each, and whether its
        ends are linked."""
        sides = [
            len({self.places[device][dim] for device in group}) for dim in range(len(self.torus))
        ]
        sides = [side for side in sides if side > 1]
        named, active = _EMITTER.search(line.tail), _ACTIVE.search(line.tail)
        num_dims = (
            int(named[1])
            if named is not None
            else active[1].count("1")
            if active is not None
            else len(sides)
        )
        if num_dims < len(sides):
            return [(math.prod(sides), True)] * num_dims
        # the sides whose ends are linked are multiples of it
        wrapped = 16 if self.chip.links == 4 else 4
        return [(side, side % wrapped == 0) for side in sides] or [(len(group), False)]


# The algorithm of a collective in the compiler's result: "1DAllGatherOnMajorDim" is one ring
# through all its devices, and an all-reduce lists the dims that are used at once.
_EMITTER = re.compile(r'"emitter":"(\d)D')
_ACTIVE = re.compile(r"active_dims:([01]+)")
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')


def _rendezvous(line: Instruction) -> str:
    match = _RENDEZVOUS.search(line.tail)
    return "" if match is None else match[1]

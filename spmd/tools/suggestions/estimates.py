"""Estimates of layouts from sums of operations and bytes, corrected by those that were compiled, and the integer
program that chooses what is saved of the blocks."""

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .candidates import SAVED, Layout, Model, Saved

# A block's estimated seconds and bytes, by what is saved of it.
Costs = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Rates:
    """The rates of a device. width: bytes of a number in compute. memory_bytes: of its memory per second; 0: reads and
    writes of memory are not in the measure of the search. is_torus: a collective over a part of the devices uses a part
    of the links. host_bytes: per second to the host's memory; 0: values cannot be saved there."""

    peak_flops: float
    link_bytes: float
    width: int
    memory_bytes: float = 0.0
    is_torus: bool = True
    host_bytes: float = 0.0


@dataclass(frozen=True)
class Observed:
    """A layout with the figures of its plan: seconds (None where it was not compiled to the end) and peak."""

    layout: Layout
    figures: tuple[float | None, float]


class Estimates:
    """The seconds of a step and the peak bytes of a device, before a layout is compiled.

    Both are sums of a part that does not depend on what is saved, and one for each word of `SAVED`; what is compiled
    corrects the factor of each part. The constants are those of Llama-8B on v5p:2x2x2 and 70B on v5p:4x8x8.
    """

    def __init__(self, model: Model, rates: Rates):
        self.model, self.rates = model, rates
        self.observed: list[Observed] = []
        self._factors = np.ones(1 + len(SAVED)), np.ones(1 + len(SAVED))

    @property
    def words(self) -> list[str]:
        """The words of `SAVED` that this device offers."""
        return [word for word in SAVED if self.rates.host_bytes or "offload" not in word]

    def learn(self, layout: Layout, seconds: float | None, peak: float) -> None:
        """Corrects the factors by the figures of a plan."""
        self.observed.append(Observed(layout, (seconds, peak)))
        self._factors = self._fitted(0), self._fitted(1)

    def seconds(self, layout: Layout) -> float:
        return self._value(layout, 0)

    def peak(self, layout: Layout) -> float:
        return self._value(layout, 1)

    def state(self, layout: Layout) -> float:
        """The bytes of parameters and optimizer, a lower bound of the peak."""
        return self.model.state / layout.tensor / layout.fsdp

    def chosen(self, placement: Layout, memory: float | None) -> Layout:
        """The placement with what is best saved of each kind of blocks, by an integer program: the least seconds whose
        peak is below `memory`; the least peak where none is."""
        if self.model.recomputes or not self.model.kinds:
            return placement
        if memory is None:
            return self.uniform(placement, "everything")
        costs = [self._corrected(placement, number) for number in range(len(self.model.kinds))]
        least = self.uniform(placement, "nothing")
        spare = memory - self.peak(least) + sum(self._saved_bytes(least, costs))
        return Layout(**vars(placement) | {"saved": self._solved(costs, spare) or least.saved})

    def uniform(self, placement: Layout, word: str) -> Layout:
        """The placement with the same saved of all blocks."""
        if self.model.recomputes:
            return placement
        return Layout(**vars(placement) | {"saved": tuple(kind.uniform(word) for kind in self.model.kinds)})

    def _solved(self, costs: Sequence[Costs], spare: float) -> tuple[Saved, ...] | None:
        """The numbers of blocks that minimise the seconds within so many bytes; None where there are none."""
        kinds, words = self.model.kinds, self.words
        seconds = np.array([cost[word][0] for cost in costs for word in words])
        sizes = np.array([cost[word][1] for cost in costs for word in words])
        each = np.kron(np.eye(len(kinds)), np.ones(len(words)))
        counts = np.array([len(kind.paths) for kind in kinds])
        optimize: Any = importlib.import_module("scipy.optimize")
        found = optimize.milp(
            seconds / max(seconds.max(), 1e-30),
            integrality=np.ones(len(seconds)),
            bounds=optimize.Bounds(0, np.repeat(counts, len(words))),
            constraints=[
                optimize.LinearConstraint(each, counts, counts),
                optimize.LinearConstraint(sizes[None] / max(abs(spare), 1.0), -np.inf, math.copysign(1.0, spare)),
            ],
        )
        if found.x is None:
            return None
        numbers = np.rint(found.x).astype(int).reshape(len(kinds), len(words))
        return tuple(
            Saved(kind.pattern, tuple(int(row[words.index(word)]) if word in words else 0 for word in SAVED))
            for kind, row in zip(kinds, numbers, strict=True)
        )

    def _saved_bytes(self, layout: Layout, costs: Sequence[Costs]) -> list[float]:
        return [
            sum(count * cost.get(word, (0.0, 0.0))[1] for word, count in zip(SAVED, one.counts, strict=True))
            for one, cost in zip(layout.saved, costs, strict=True)
        ]

    # -- Sums.

    def _value(self, layout: Layout, which: int) -> float:
        """The corrected sum of the parts; next to a compiled layout of the same placement, its figure and the
        difference."""
        factors = self._factors[which]
        own = float(self._parts(layout)[which] @ factors)
        near = [
            (abs(own - float(self._parts(one.layout)[which] @ factors)), number)
            for number, one in enumerate(self.observed)
            if one.layout.placement == layout.placement and one.figures[which] is not None
        ]
        if not near:
            return own
        one = self.observed[min(near)[1]]
        return (one.figures[which] or 0.0) + own - float(self._parts(one.layout)[which] @ factors)

    def _corrected(self, placement: Layout, number: int) -> Costs:
        costs = self._block_costs(placement, number)
        return {
            word: (costs[word][0] * self._factors[0][1 + index], costs[word][1] * self._factors[1][1 + index])
            for index, word in enumerate(SAVED)
        }

    def _parts(self, layout: Layout) -> tuple["np.ndarray", "np.ndarray"]:
        """The seconds and the bytes: what does not depend on what is saved, then by word of `SAVED`."""
        seconds, peak = np.zeros(1 + len(SAVED)), np.zeros(1 + len(SAVED))
        seconds[0], peak[0] = self._rest(layout)
        for number, kind in enumerate(self.model.kinds):
            costs = self._block_costs(layout, number)
            counts = layout.saved[number].counts if layout.saved else kind.uniform("everything").counts
            for index, (word, count) in enumerate(zip(SAVED, counts, strict=True), 1):
                seconds[index] += count * costs[word][0]
                peak[index] += count * costs[word][1]
        return seconds, peak

    def _rest(self, layout: Layout) -> tuple[float, float]:
        """The seconds with all saved, and the bytes besides what is saved of blocks."""
        model, rates = self.model, self.rates
        devices = layout.data * layout.fsdp * layout.tensor
        flow = model.flow.cost()
        held = model.numel / layout.tensor * rates.width
        compute = flow.flops * 3 / devices / rates.peak_flops * self._share(layout)
        # Every chip writes and reads all weights that it gathers, whatever its part of the batch: twice six passes, as
        # 70B over 256 and over 32 x 8 chips differ. The update reads and writes state.
        passes = self._passes(12 * held + 28 * model.numel / layout.tensor / layout.fsdp)
        # Over all of a torus a TPU's compiler has no reduce-scatter, and from 64 chips on no gather (benchmarks.md).
        is_all = rates.is_torus and layout.fsdp == devices
        gathers = (2 if layout.reshard else 1) * (2 if is_all and devices >= 64 else 1)
        split = held * (gathers + (2 if is_all else 1)) * (1 - 1 / layout.fsdp)
        copies = 2 * held / layout.fsdp * (1 - 1 / layout.data)
        hidden = self._waiting(split, layout.fsdp, layout) + self._waiting(copies, layout.data, layout)
        # The exchanges of a tensor axis are between products that wait for each other.
        exposed = self._waiting(self._num_second * 4 * self._stream(layout), layout.tensor, layout)
        seconds = max(compute, hidden) + 0.05 * hidden + exposed + passes
        blocks = sum(kind.cost.bytes * len(kind.paths) for kind in model.kinds)
        gradients = 4 * model.numel / layout.tensor / layout.fsdp
        kept = 0.0 if layout.reshard else held * (1 - 1 / layout.fsdp)
        rest = self._shard(flow.bytes - blocks, layout) * _KEPT
        return seconds, self.state(layout) + gradients + kept + rest + self._working_set(layout)

    def _working_set(self, layout: Layout) -> float:
        """The bytes of one block while it is computed: gathered parameters with their gradients, as much as some five
        of its largest, and activations, of which some are unsharded along the sequence in every layout."""
        largest = max((kind.largest for kind in self.model.kinds), default=0)
        # Both factors are fitted to the checkpointed layouts of Llama-70B by hand (docs/benchmarks.md): 13.7 GiB at
        # fsdp=256, 29.4 at fsdp=16, tensor=16. By them 8B and Mixtral have their least memory where plans have it.
        gathered = 4.7 * largest * self.rates.width / layout.tensor if layout.fsdp > 1 and layout.reshard else 0.0
        return gathered + 18 * self.model.flow.stream * self.rates.width / (layout.data * layout.fsdp)

    def _block_costs(self, layout: Layout, number: int) -> Costs:
        """The seconds that a block of a kind takes more than with all saved, and the bytes saved of it."""
        model, rates, kind = self.model, self.rates, self.model.kinds[number]
        devices, cost = layout.data * layout.fsdp * layout.tensor, kind.cost
        part = cost.flops / max(model.flow.cost().flops, 1)
        again = cost.flops / devices / rates.peak_flops * self._share(layout)
        held = model.numel / layout.tensor * rates.width * part
        moved = self._waiting(self._num_second * 2 * self._stream(layout) * part, layout.tensor, layout)
        passes = self._passes(4 * held)
        rest = self._shard(cost.bytes - cost.dots, layout)
        # Attention is no product of the policies; it and what is only read and written are computed again.
        others = 0.1 * again + self._passes(2 * rest)
        dots, inputs = self._shard(cost.dots, layout), self._shard(kind.inputs, layout)
        to_host = 2 * dots / rates.host_bytes if rates.host_bytes else 0.0
        return {
            "everything": (0.0, self._shard(cost.bytes, layout) * _KEPT),
            "dots": (others, dots + inputs),
            "offload_dot_with_no_batch_dims": (others + to_host, inputs),
            # Never less than with products saved: what has no products of parameters is read and written again, too.
            "nothing": (max(again + moved + passes, others + again / 2), inputs),
        }

    def _fitted(self, which: int) -> "np.ndarray":
        """The factors of the parts: of what is saved by the differences of layouts with the same placement, of the rest
        by what then remains."""
        known = [
            (one.layout, self._parts(one.layout)[which], value)
            for one in self.observed
            if (value := one.figures[which])
        ]
        rows, goals = [_TRUST * np.eye(len(SAVED))], [np.full(len(SAVED), _TRUST)]
        for number, (layout, parts, value) in enumerate(known):
            for other, others, before in known[:number]:
                if other.placement == layout.placement:
                    rows.append((parts - others)[None, 1:] / value)
                    goals.append(np.array([(value - before) / value]))
        saved, _ = importlib.import_module("scipy.optimize").nnls(np.vstack(rows), np.concatenate(goals))
        rest = [(value - parts[1:] @ saved) / parts[0] for _, parts, value in known if parts[0]]
        return np.array([max(float(np.median(rest)), 0.1) if rest else 1.0, *saved])

    def _waiting(self, count: float, size: int, layout: Layout) -> float:
        """The seconds of collectives of so many bytes over so many devices."""
        devices = layout.data * layout.fsdp * layout.tensor
        dims = math.log(size) / math.log(devices) if self.rates.is_torus and 1 < size < devices else 1.0
        return count / (self.rates.link_bytes * dims)

    def _passes(self, count: float) -> float:
        """The seconds to read and write so many bytes of a device's memory."""
        return count / self.rates.memory_bytes if self.rates.memory_bytes else 0.0

    @property
    def _num_second(self) -> int:
        return sum(use.kind == "second" for use in self.model.flow.uses.values())

    def _stream(self, layout: Layout) -> float:
        """The bytes of a residual that a tensor axis exchanges."""
        ways = layout.data * layout.fsdp
        return self.model.flow.stream * self.rates.width / ways * (1 - 1 / layout.tensor)

    def _shard(self, count: float, layout: Layout) -> float:
        """The bytes of one device, of so many in float32."""
        ways = layout.data * layout.fsdp * (layout.tensor if layout.sequence else math.sqrt(layout.tensor))
        return count * self.rates.width / 4 / ways

    def _share(self, layout: Layout) -> float:
        """The factor of narrow products, of norms that each device computes, and of weights kept unsharded, which are
        written into the stack of a scanned loop and read again."""
        return 1 + (0.02 if layout.sequence else 0.05) * math.log2(layout.tensor) + (0 if layout.reshard else 0.12)


# The part of forward's results that backward reads: 31 GiB of Llama-8B's 43, 118 of 70B's 106 with half of the blocks.
_KEPT = 0.9
_TRUST = 0.02  # in the own constants of what is saved, against a difference of figures as a part of them

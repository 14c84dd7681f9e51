"""Chips, and the clock of an estimated run on one: a schedule line after line, with the transfers
next to it."""

import json
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...core import Collective, config, ends_at_user_line, variables
from ...core.extend import Computation, Instruction, Module, hlo_text
from ...mesh.gpus import GPUS, add_description
from ..hlo.hlo_collectives import Key, collective_kind, collectives_within, key_of, operands_of

# --- chips ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chip:
    """One TPU chip (of a TPU7x half of one) or GPU, which is one device of a mesh.

    Attributes:
        name: as in a target, "v5p". peak_flops: bfloat16 operations per second, of dense products.
            memory_bytes: a TPU's: the compiler's limit for a program; a GPU's: all that it has.
            link_bytes: per second, of a TPU over all links to other chips, of a GPU to the others
            of its node, in one direction. source: of these constants.
        flops_per_cycle: of all matrix units of a TPU. links: of a TPU to its neighbours, two for
            each dim of the torus.
        bandwidth: of the memory, in bytes per second. f32_flops: a GPU's float32 operations per
            second outside of matrix units. f64_flops: the float64 ones. cores: its streaming
            multiprocessors. network_bytes: per second, in one direction, of the network between
            nodes or slices, for each device. host_bytes: per second, in one direction, to the
            host's memory, for each device; 0: not known.
    """

    name: str
    peak_flops: float
    memory_bytes: int
    link_bytes: float
    source: str
    flops_per_cycle: int = 0
    bandwidth: float = 0.0
    f32_flops: float = 0.0
    f64_flops: float = 0.0
    cores: int = 0
    network_bytes: float = 0.0
    links: int = 0
    host_bytes: float = 0.0

    @property
    def is_gpu(self) -> bool:
        return not self.flops_per_cycle

    @property
    def usable_bytes(self) -> int:
        """The memory for programs: of a GPU what the allocator of jax takes."""
        return (
            int(self.memory_bytes * variables.gpu_memory_fraction())
            if self.is_gpu
            else self.memory_bytes
        )

    @property
    def clock(self) -> float | None:
        """Cycles per second, at which a TPU's matrix units reach the peak; None for a GPU."""
        return self.peak_flops / self.flops_per_cycle if self.flops_per_cycle else None


def _tpu(
    name: str, peak: float, num_units: int, width: int, gib: float, links: int, *rates: float
) -> Chip:
    """The chip with so many matrix units of width x width, each of which makes a product and a sum
    in a cycle. rates: bits per second over all links and over the network, bytes per second of the
    memory and to the host."""
    link_bits, network_bits, bandwidth, host = rates
    source = f"peak, links, bandwidth: cloud.google.com/tpu/docs/{name}"
    return Chip(
        name,
        peak,
        int(gib * (1 << 30)),
        link_bits / 8,
        f"{source}; memory: what libtpu 0.0.42's compiler calls available",
        flops_per_cycle=2 * num_units * width**2,
        links=links,
        network_bytes=network_bits / 8,
        bandwidth=bandwidth,
        host_bytes=host,
    )


def _gpu(
    name: str, peak: float, link: float, network_bits: float, f32: float, f64: float, host: float
) -> Chip:
    gpu = GPUS[name]
    source = f"data sheet of {gpu.kind}; network: {network_bits / 1e9:.0f} Gb/s a GPU"
    return Chip(
        name,
        peak,
        gpu.memory_bytes,
        link,
        source,
        bandwidth=gpu.bandwidth,
        f32_flops=f32,
        f64_flops=f64,
        cores=gpu.cores,
        network_bytes=network_bits / 8,
        host_bytes=host,
    )


# The networks between slices are those of a host's network cards, shared by its chips (a pod of v5e
# has 6.4 Tb/s, one of v6e 25.6 Tb/s, by the same pages). The way to the host is PCIe, 16 GB/s, of a
# v6e 32 GB/s (jax-ml.github.io/scaling-book/tpus); of a GPU by its generation.
# By jax's `device_kind`. The clock that follows agrees with those published (v4: 1.05 GHz,
# arXiv:2304.01433).
CHIPS = {
    "TPU v4": _tpu("v4", 275e12, 8, 128, 30.75, 6, 2400e9, 50e9, 1.2e12, 16e9),
    "TPU v5 lite": _tpu("v5e", 197e12, 4, 128, 15.75, 4, 1600e9, 25e9, 0.82e12, 16e9),
    "TPU v5": _tpu("v5p", 459e12, 8, 128, 95.74, 6, 4800e9, 50e9, 2.765e12, 16e9),
    "TPU v6 lite": _tpu("v6e", 918e12, 4, 256, 31.25, 4, 3584e9, 100e9, 1.64e12, 32e9),
    # Two devices a chip: half of its peak and links each.
    "TPU7x": _tpu("tpu7x", 2307e12 / 2, 4, 256, 94.75, 6, 9600e9 / 2, 50e9, 7.38e12 / 2, 16e9),
    # Links: NVLink, half of the data sheet's sum of both directions; of an L4 PCIe of the fourth
    # generation. Networks: those of NVIDIA's DGX nodes; of L4s what the clouds offer.
    GPUS["a100"].kind: _gpu("a100", 312e12, 300e9, 200e9, 19.5e12, 19.5e12, 32e9),
    GPUS["h100"].kind: _gpu("h100", 989.4e12, 450e9, 400e9, 66.9e12, 66.9e12, 64e9),
    GPUS["h200"].kind: _gpu("h200", 989.4e12, 450e9, 400e9, 66.9e12, 66.9e12, 64e9),
    GPUS["b200"].kind: _gpu("b200", 2250e12, 900e9, 400e9, 75e12, 37e12, 64e9),
    GPUS["l4"].kind: _gpu("l4", 121e12, 32e9, 12.5e9, 30.3e12, 0.49e12, 32e9),
}


def chip_of(device: Any) -> Chip | None:
    """The chip of a jax device; None for one that `CHIPS` does not have."""
    return CHIPS.get(device.device_kind)


@ends_at_user_line
def describe_gpu(
    name: str,
    description: str | Path,
    *,
    peak_flops: float,
    link_bytes: float,
    network_bytes: float | None = None,
    host_bytes: float = 0.0,
) -> None:
    """Adds a kind of GPU that targets of plans may name.

    Args:
        name: as a target is to have it, "mygpu" in `target="mygpu:8"`.
        description: XLA's `GpuTargetConfigProto` as text, or a file of it, as XLA writes on a
            machine with that GPU (`XLA_FLAGS=--xla_dump_to=FOLDER`:
            FOLDER/*gpu_target_config.pbtxt). Its `device_description_str` names the kind, and must
            be one of its own.
        peak_flops: bfloat16 operations per second, of dense products.
        link_bytes: bytes per second to the other GPUs of a node, in one direction.
        network_bytes: bytes per second of the network between nodes, for each GPU; `link_bytes` by
            default.
        host_bytes: bytes per second to the host's memory, in one direction, for each GPU; 0: not
            known, so that copies to it count no time and `spmd.suggest` proposes none.

    Raises ValueError for a name or a kind that another GPU has, and for a text without one of the
    fields that an estimate reads.

    >>> import spmd
    >>> from spmd.mesh.gpus import GPUS
    >>> text = (
    ...     GPUS["h100"]
    ...     .description.replace("NVIDIA H100 80GB HBM3", "H100 at 0.99 GHz")
    ...     .replace("1.98", "0.99")
    ... )
    >>> spmd.describe_gpu(
    ...     "h100_slow", text, peak_flops=495e12, link_bytes=450e9, network_bytes=50e9
    ... )
    """
    text = description.read_text() if isinstance(description, Path) else description
    matches = {field: re.search(rf"\b{field}:\s*([\d.]+)", text) for field in _READ}
    matches["device_description_str"] = re.search(r'device_description_str:\s*"([^"]+)"', text)
    values = {field: match[1] for field, match in matches.items() if match is not None}
    missing = [field for field in matches if field not in values]
    if missing:
        raise ValueError(
            "describe_gpu: expected the text of a GpuTargetConfigProto, which has "
            f"{', '.join(missing)}; got {text[:80]!r}. Give a file as pathlib.Path"
        )
    kind, read = (
        values.pop("device_description_str"),
        {field: float(value) for field, value in values.items()},
    )
    f32 = 2e9 * read["core_count"] * read["fpus_per_core"] * read["clock_rate_ghz"]
    chip = Chip(
        name,
        peak_flops,
        int(read["device_memory_size"]),
        link_bytes,
        f"given to spmd.describe_gpu for {kind}",
        bandwidth=read["memory_bandwidth"],
        f32_flops=f32,
        f64_flops=f32 / 64,
        cores=int(read["core_count"]),
        network_bytes=link_bytes if network_bytes is None else network_bytes,
        host_bytes=host_bytes,
    )
    if CHIPS.get(kind, chip) != chip:
        raise ValueError(
            f"describe_gpu: {kind!r} is another GPU already; give device_description_str a name "
            "of its own"
        )
    add_description(name, text)
    CHIPS[kind] = chip


_READ = ("device_memory_size", "memory_bandwidth", "core_count", "fpus_per_core", "clock_rate_ghz")


# --- measured constants ---------------------------------------------------------------------------


def calibration_file() -> Path:
    """The file of `config.calibration_file`, which `python -m spmd calibrate` writes."""
    return Path(config.calibration_file).expanduser()


def calibrated(kind: str) -> dict[str, float]:
    """The measured constants of a kind of device, by name; {} where there are none."""
    path = calibration_file()
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text()).get(kind, {}).get("rates", {}))
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{path}: expected what `python -m spmd calibrate` writes; delete it ({error})"
        ) from error


# --- the clock ------------------------------------------------------------------------------------


HOST = "waiting for the host"
STAGES = "waiting for other stages"
WAITING = {
    "ici": "waiting for collectives (ici)",
    "dcn": "waiting for collectives (dcn)",
    "to host": HOST,
    "from host": HOST,
}


class Clock(ABC):
    """A run of the schedule, on a stream that computes, one of collectives, and one for each way to
    and from the host.

    spent: the seconds by name. times: of each collective the seconds of its transfers, and those of
    them that nothing covers. now: of the run; free: the end of the last transfer of each stream.
    """

    # The names of what a run spends its time on, in the order of a table, with the constants that
    # each depends on.
    constants: ClassVar[dict[str, tuple[str, ...]]]

    def __init__(self, module: Module, chip: Chip, host: float):
        self.module, self.chip = module, chip
        # bytes per second to or from the host's memory; 0: not known
        self.host_rate = chip.host_bytes * host
        self.now = 0.0
        self.free: defaultdict[str, float] = defaultdict(float)
        # of a started transfer, with its link and collective
        self.ends: dict[Key, tuple[float, str, Key | None]] = {}
        self.spent = dict.fromkeys(self.constants, 0.0)
        # of collectives: begin and end, which may be to come
        self.transfers: list[tuple[float, float, Key]] = []
        self.times: defaultdict[Key, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        # of a loop that ends by its data, one iteration
        self.rounds: defaultdict[str, float] = defaultdict(float)

    def run(self) -> dict[str, float]:
        """Returns the seconds by name."""
        self.computation(self.module.computations[self.module.entry])
        return self.spent

    @abstractmethod
    def compute(self, computation: Computation, line: Instruction) -> None:
        """Spends the time of a line that is no collective."""

    @abstractmethod
    def seconds_of(self, line: Instruction, kind: str, data: int) -> tuple[float, str]:
        """The time of a collective of so many bytes of operands, and its link; 0 for one of a
        single device."""

    def computation(self, computation: Computation) -> None:
        """Runs the lines of a computation."""
        for line in computation.lines:
            if line.opcode == "while":
                self._loop(computation, line)
            elif line.opcode.endswith("-start") and (
                within := [*collectives_within(self.module, line)]
            ):
                for inner, collective, of_kind in within:  # one after the other, on their stream
                    self.start((computation.name, line.name), inner, collective, of_kind)
            elif line.opcode in ("call", "conditional", "async-start"):
                called = [self.module.computations[name] for _, name in line.called]
                if called:  # of a conditional the longest branch stands for all
                    before = self.spent.copy()
                    self.computation(max(called, key=lambda branch: len(branch.lines)))
                    self._idle(line, before)
            elif (kind := collective_kind(line)) is not None:
                self.start((computation.name, line.name), computation, line, kind)
                if not line.opcode.endswith("-start"):
                    self.wait((computation.name, line.name))
            elif (copied := host_copy(line)) is not None:
                link, data = copied
                seconds = data / self.host_rate if self.host_rate else 0.0
                self._start((computation.name, line.name), link, seconds)
            elif (
                line.opcode.endswith("-update")
                and (computation.name, line.operands[0]) in self.ends
            ):
                self.ends[computation.name, line.name] = self.ends.pop(
                    (computation.name, line.operands[0])
                )
            elif line.opcode.endswith("-done"):
                self.wait((computation.name, line.operands[0]))
            else:
                self.compute(computation, line)

    def _idle(self, line: Instruction, before: Mapping[str, float]) -> None:
        """Counts the runs of a conditional in which other devices compute, as its scope states
        them, as waiting."""
        runs, of_runs = hlo_text.stated_runs(line) or (1, 1)
        for name in self.constants if runs < of_runs else ():
            idle = (self.spent[name] - before[name]) * (of_runs - runs) / of_runs
            self.spent[name] -= idle
            self.spent[STAGES] += idle

    def spend(self, name: str, seconds: float) -> None:
        """Computes for some time."""
        self.spent[name] += seconds
        self.now += seconds

    def _loop(self, computation: Computation, line: Instruction) -> None:
        """One iteration in full, and the others like it."""
        iterations = self.module.iterations(computation, line)
        spent, times, started = self.spent.copy(), self.times.copy(), self.now
        for _, name in line.called:
            self.computation(self.module.computations[name])
        if line.name in self.module.unknown:
            self.rounds[line.name] += self.now - started
        more = iterations - 1
        for name in self.constants:
            self.spent[name] += (self.spent[name] - spent[name]) * more
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
        operands = operands_of(computation, line)
        data = sum(hlo_text.num_bytes(operand.shape) for operand in operands)
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
        # Transfers in front of it are waited for as well, each during its own transfer.
        for begin, stop, of in self.transfers if collective is not None else ():
            self._count(of, 0.0, max(0.0, min(stop, end) - max(begin, self.now)))
        self.spend(WAITING[link], max(0.0, end - self.now))
        self.transfers = [transfer for transfer in self.transfers if transfer[1] > self.now]

    def _count(self, collective: Key, seconds: float, waiting: float) -> None:
        earlier = self.times[collective]
        self.times[collective] = earlier[0] + seconds, earlier[1] + waiting


# The copies that XLA starts and waits for: (result, operand, ...), and ((operands), result, ...) of
# slices.
_COPIES = ("copy-start", "dynamic-slice-start", "dynamic-update-slice-start")
_HOST = re.compile(r"\bS\(5\)")
_PLACED = re.compile(r"\w+\[[\d,]+\]\{[^}]*\}")


def host_copy(line: Instruction) -> tuple[str, int] | None:
    """The way and the bytes of a copy between the memory of the device and that of the host (XLA's
    memory space 5); None for another line."""
    if line.opcode not in _COPIES:
        return None
    places = [
        (placed_shape, _HOST.search(placed_shape) is not None)
        for placed_shape in _PLACED.findall(line.shape)
    ]
    if len({is_host for _, is_host in places}) < 2:
        return None
    is_to_host = (
        places[0][1] if line.opcode == "copy-start" else line.opcode == "dynamic-update-slice-start"
    )
    return "to host" if is_to_host else "from host", min(
        hlo_text.num_bytes(placed_shape) for placed_shape, _ in places
    )


def ring_bytes(kind: str, size: int, data: int) -> int:
    """The bytes that a device sends in a collective of so many devices and bytes of operands."""
    return Collective(kind, (), size, data * size if kind == "all-gather" else data, 1).moved_bytes

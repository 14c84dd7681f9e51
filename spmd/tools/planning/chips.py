"""Chips: the constants of an estimated step time and a utilisation, of data sheets and as measured here."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core import config, topology, variables


@dataclass(frozen=True, slots=True)
class Chip:
    """One TPU chip (of a TPU7x half of one) or GPU, which is one device of a mesh.

    Attributes:
        name: as in a target, "v5p". peak_flops: bfloat16 operations per second, of dense products. memory_bytes: a
            TPU's: the compiler's limit for a program; a GPU's: all that it has. link_bytes: per second, of a TPU over
            all links to other chips, of a GPU to the others of its node, in one direction. source: of these constants.
        flops_per_cycle: of all matrix units of a TPU. links: of a TPU to its neighbours, two for each dim of the
            torus.
        bandwidth: of the memory, in bytes per second. f32_flops: a GPU's float32 operations per second outside of
            matrix units. f64_flops: the float64 ones. cores: its streaming multiprocessors. network_bytes: per second,
            in one direction, of the network between nodes or slices, for each device. host_bytes: per second, in one
            direction, to the host's memory, for each device; 0: not known.
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
        return int(self.memory_bytes * variables.gpu_memory_fraction()) if self.is_gpu else self.memory_bytes

    @property
    def clock(self) -> float | None:
        """Cycles per second, at which a TPU's matrix units reach the peak; None for a GPU."""
        return self.peak_flops / self.flops_per_cycle if self.flops_per_cycle else None


_GIB = 1 << 30
_DOCS = "peak, links, bandwidth: cloud.google.com/tpu/docs/"
_MEMORY = "; memory: what libtpu 0.0.42's compiler calls available"


def _matrix_units(count: int, width: int) -> int:
    """The operations of this number of matrix units of width x width in a cycle: a product and a sum each."""
    return 2 * count * width * width


def _tpu(
    name: str,
    peak: float,
    units: int,
    gib: float,
    links: int,
    link_bits: float,
    network_bits: float,
    bandwidth: float,
    host: float = 16e9,
) -> Chip:
    return Chip(
        name, peak, int(gib * _GIB), link_bits / 8, f"{_DOCS}{name}{_MEMORY}", flops_per_cycle=units, links=links,
        network_bytes=network_bits / 8, bandwidth=bandwidth, host_bytes=host,
    )  # fmt: skip


def _gpu(name: str, peak: float, link: float, network_bits: float, f32: float, f64: float, host: float) -> Chip:
    gpu = topology.GPUS[name]
    source = f"data sheet of {gpu.kind}; network: {network_bits / 1e9:.0f} Gb/s a GPU"
    return Chip(
        name, peak, gpu.memory_bytes, link, source, bandwidth=gpu.bandwidth, f32_flops=f32, f64_flops=f64,
        cores=gpu.cores, network_bytes=network_bits / 8, host_bytes=host,
    )  # fmt: skip


# The networks between slices are those of a host's network cards, shared by its chips (a pod of v5e has 6.4 Tb/s, one
# of v6e 25.6 Tb/s, by the same pages). The way to the host is PCIe, 16 GB/s, of a v6e 32 GB/s
# (jax-ml.github.io/scaling-book/tpus); of a GPU by its generation.
# By jax's `device_kind`. The clock that follows agrees with those published (v4: 1.05 GHz, arXiv:2304.01433).
CHIPS = {
    "TPU v4": _tpu("v4", 275e12, _matrix_units(8, 128), 30.75, 6, 2400e9, 50e9, 1.2e12),
    "TPU v5 lite": _tpu("v5e", 197e12, _matrix_units(4, 128), 15.75, 4, 1600e9, 25e9, 0.82e12),
    "TPU v5": _tpu("v5p", 459e12, _matrix_units(8, 128), 95.74, 6, 4800e9, 50e9, 2.765e12),
    "TPU v6 lite": _tpu("v6e", 918e12, _matrix_units(4, 256), 31.25, 4, 3584e9, 100e9, 1.64e12, 32e9),
    # Two devices a chip: half of its peak and links each.
    "TPU7x": _tpu("tpu7x", 2307e12 / 2, _matrix_units(4, 256), 94.75, 6, 9600e9 / 2, 50e9, 7.38e12 / 2),
    # Links: NVLink, half of the data sheet's sum of both directions; of an L4 PCIe of the fourth generation. Networks:
    # those of NVIDIA's DGX nodes; of L4s what the clouds offer.
    topology.GPUS["a100"].kind: _gpu("a100", 312e12, 300e9, 200e9, 19.5e12, 19.5e12, 32e9),
    topology.GPUS["h100"].kind: _gpu("h100", 989.4e12, 450e9, 400e9, 66.9e12, 66.9e12, 64e9),
    topology.GPUS["h200"].kind: _gpu("h200", 989.4e12, 450e9, 400e9, 66.9e12, 66.9e12, 64e9),
    topology.GPUS["b200"].kind: _gpu("b200", 2250e12, 900e9, 400e9, 75e12, 37e12, 64e9),
    topology.GPUS["l4"].kind: _gpu("l4", 121e12, 32e9, 12.5e9, 30.3e12, 0.49e12, 32e9),
}


def chip_of(device: Any) -> Chip | None:
    """The chip of a jax device; None for one that `CHIPS` does not have."""
    return CHIPS.get(device.device_kind)


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
        description: XLA's `GpuTargetConfigProto` as text, or a file of it, as XLA writes on a machine with that GPU
            (`XLA_FLAGS=--xla_dump_to=FOLDER`: FOLDER/*gpu_target_config.pbtxt). Its `device_description_str` names
            the kind, and must be one of its own.
        peak_flops: bfloat16 operations per second, of dense products.
        link_bytes: bytes per second to the other GPUs of a node, in one direction.
        network_bytes: bytes per second of the network between nodes, for each GPU; `link_bytes` by default.
        host_bytes: bytes per second to the host's memory, in one direction, for each GPU; 0: not known, so that copies
            to it count no time and `spmd.suggest` proposes none.

    Raises ValueError for a name or a kind that another GPU has, and for a text without one of the fields that an
    estimate reads.

    >>> import spmd
    >>> from spmd.core.sharding.gpus import GPUS
    >>> text = GPUS["h100"].description.replace("NVIDIA H100 80GB HBM3", "H100 at 0.99 GHz").replace("1.98", "0.99")
    >>> spmd.describe_gpu("h100_slow", text, peak_flops=495e12, link_bytes=450e9, network_bytes=50e9)
    """
    text = description.read_text() if isinstance(description, Path) else description
    found = {field: _number(text, field) for field in _READ}
    kind = re.search(r'device_description_str:\s*"([^"]+)"', text)
    missing = [
        *(field for field, value in found.items() if value is None),
        *(["device_description_str"] * (kind is None)),
    ]
    if missing or kind is None:
        raise ValueError(
            f"describe_gpu: expected the text of a GpuTargetConfigProto, which has {', '.join(missing)}; got "
            f"{text[:80]!r}. Give a file as pathlib.Path"
        )
    read = {field: value or 0.0 for field, value in found.items()}
    f32 = 2e9 * read["core_count"] * read["fpus_per_core"] * read["clock_rate_ghz"]
    chip = Chip(
        name, peak_flops, int(read["device_memory_size"]), link_bytes, f"given to spmd.describe_gpu for {kind[1]}",
        bandwidth=read["memory_bandwidth"], f32_flops=f32, f64_flops=f32 / 64, cores=int(read["core_count"]),
        network_bytes=link_bytes if network_bytes is None else network_bytes, host_bytes=host_bytes,
    )  # fmt: skip
    if CHIPS.get(kind[1], chip) != chip:
        raise ValueError(
            f"describe_gpu: {kind[1]!r} is another GPU already; give device_description_str a name of its own"
        )
    topology.add_description(name, text)
    CHIPS[kind[1]] = chip


_READ = ("device_memory_size", "memory_bandwidth", "core_count", "fpus_per_core", "clock_rate_ghz")


def _number(text: str, field: str) -> float | None:
    found = re.search(rf"\b{field}:\s*([\d.]+)", text)
    return None if found is None else float(found[1])


# --- measured constants -----------------------------------------------------------------------------------------------


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
        raise ValueError(f"{path}: expected what `python -m spmd calibrate` writes; delete it ({error})") from error

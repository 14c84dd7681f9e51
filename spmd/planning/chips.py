"""Chips: the constants of an estimated step time and a utilisation."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Chip:
    """One chip of a TPU slice, which is one device of a mesh.

    Attributes:
        name: as in a target, "v5p". peak_flops: bfloat16 operations per second. flops_per_cycle: of all its matrix
            units. memory_bytes: the compiler's limit for a program. link_bytes: per second, over all links to other
            chips. source: of these constants.
    """

    name: str
    peak_flops: float
    flops_per_cycle: int
    memory_bytes: int
    link_bytes: float
    source: str

    @property
    def clock(self) -> float:
        """Cycles per second, at which the matrix units reach the peak."""
        return self.peak_flops / self.flops_per_cycle


_GIB = 1 << 30
_DOCS = "peak, links: cloud.google.com/tpu/docs/"
_MEMORY = "; memory: what libtpu 0.0.42's compiler calls available"


def _matrix_units(count: int, width: int) -> int:
    """The operations of this number of matrix units of width x width in a cycle: a product and a sum each."""
    return 2 * count * width * width


# By jax's `device_kind`. The clock that follows agrees with those published (v4: 1.05 GHz, arXiv:2304.01433).
CHIPS = {
    "TPU v4": Chip("v4", 275e12, _matrix_units(8, 128), int(30.75 * _GIB), 2400e9 / 8, f"{_DOCS}v4{_MEMORY}"),
    "TPU v5 lite": Chip("v5e", 197e12, _matrix_units(4, 128), int(15.75 * _GIB), 1600e9 / 8, f"{_DOCS}v5e{_MEMORY}"),
    "TPU v5": Chip("v5p", 459e12, _matrix_units(8, 128), int(95.74 * _GIB), 4800e9 / 8, f"{_DOCS}v5p{_MEMORY}"),
    "TPU v6 lite": Chip("v6e", 918e12, _matrix_units(4, 256), int(31.25 * _GIB), 3584e9 / 8, f"{_DOCS}v6e{_MEMORY}"),
}


def chip_of(device: Any) -> Chip | None:
    """The chip of a jax device; None for a device that is not a TPU of `CHIPS`."""
    return CHIPS.get(device.device_kind)

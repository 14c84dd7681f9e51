"""The constants of an estimated step time, measured on a device that is here, and the file that
keeps them.

`python -m spmd calibrate` writes the file; plans for that kind of device read it, here or on
another machine.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import torch
from torch.nn.functional import conv2d, scaled_dot_product_attention

from ...core import topology
from ...manual import all_reduce, shard_map
from ...mesh.mesh import Mesh
from ...mesh.partition_spec import PartitionSpec as P
from ...steps.replay.compiled_function import compile as compiled
from ...tensors.runtime import sync
from ..planning.clock import Chip, calibration_file, chip_of, ring_bytes
from ..planning.planner import plan

Step = Callable[..., torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of what is measured: the side of a square product, the sequence of attention, the images of a
    convolution, the bytes of a collective, and how often an op is repeated."""

    product: int = 8192
    sequence: int = 4096
    images: int = 128
    collective: int = 1 << 28
    times: int = 16


def calibrate(file: Path | None = None, sizes: Sizes | None = None) -> dict[str, float]:
    """Measures the device that is here and adds its constants to a file, by default
    `config.calibration_file`.

    Returns the constants: the part of its peak that each unit of the chip reaches, and seconds of a
    launch and of a collective's latency (`planning/gpu_clock.py`, `tpu_clock.py`). Collectives need
    several devices. Raises RuntimeError for a device whose peaks are not known, such as a CPU.
    """
    kind = topology.all_devices()[0].device_kind
    chip = chip_of(topology.all_devices()[0])
    if chip is None:
        raise RuntimeError(
            f"calibrate: expected a TPU or a GPU whose peaks are known, got {kind!r} "
            "(spmd.describe_gpu)"
        )
    rates = _measured(chip, sizes or Sizes())
    path = calibration_file() if file is None else file
    kinds = json.loads(path.read_text()) if path.exists() else {}
    kinds[kind] = {
        "rates": rates,
        "jax": jax.__version__,
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kinds, indent=1))
    return rates


def _measured(chip: Chip, sizes: Sizes) -> dict[str, float]:
    """The constants of a GPU's clock, or of a TPU's."""
    timer = _Timer(sizes.times)
    side, low = sizes.product, torch.bfloat16
    matrix, vector = timer.random(side, side, dtype=low), timer.random(side, 1, dtype=low)
    query = timer.random(4, 16, sizes.sequence, 128, dtype=low)
    product = timer.seconds(_product, matrix, matrix)
    pairs = 4 * 16 * sizes.sequence**2 // 2
    attention = 4 * pairs * 128 / timer.seconds(_attention, query, query, query) / chip.peak_flops
    if chip.is_gpu:
        image, kernel = (
            timer.random(sizes.images, 256, 28, 28, dtype=low),
            timer.random(256, 256, 3, 3, dtype=low),
        )
        convolution = (
            2
            * image.numel()
            * 256
            * 9
            / timer.seconds(_convolution, image, kernel)
            / chip.peak_flops
        )
        tiny, row = timer.random(64, 64, dtype=low), timer.random(64, 1, dtype=low)
        rates = {
            "product": 2 * side**3 / product / chip.peak_flops,
            "attention": attention,
            "convolution": convolution,
            "memory": 2 * side**2 / timer.seconds(_by_vector, vector, matrix) / chip.bandwidth,
            "launch": timer.seconds(_by_vector, row, tiny),
        }
    else:
        assert chip.clock is not None, "a TPU's"
        rates = {
            "cycles": product * chip.clock / plan(_product, matrix, matrix).cycles,
            "attention": attention,
        }
    count = len(topology.all_devices())
    if count > 1:
        mesh = Mesh(range(count), (count,), ("all",))
        latency = timer.seconds(_sum_over(mesh), timer.random(count, 64, dtype=low))
        data = sizes.collective // 2
        whole = timer.seconds(_sum_over(mesh), timer.random(count, data, dtype=low))
        rates["link"] = ring_bytes("all-reduce", count, 2 * data) / whole / chip.link_bytes
        rates |= {"latency": latency} if chip.is_gpu else {"hop": latency / count}
    return rates


class _Timer:
    """The seconds of an op, by programs that run it so many and twice as many times, each on the
    result of the last."""

    def __init__(self, times: int):
        self.times = times
        self.generator = torch.Generator().manual_seed(0)

    def random(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return (torch.randn(shape, generator=self.generator) / shape[-1] ** 0.5).to(dtype).to("xla")

    def seconds(self, op: Step, first: torch.Tensor, *operands: torch.Tensor) -> float:
        few, many = (
            self._run(op, times, first, operands) for times in (self.times, 2 * self.times)
        )
        return max(many - few, 1e-9) / self.times

    def _run(
        self, op: Step, times: int, first: torch.Tensor, operands: Sequence[torch.Tensor]
    ) -> float:
        def repeated(x: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
            for _ in range(times):
                x = op(x, *operands)
            return x

        step: Any = compiled(repeated)
        durations = []
        with torch.no_grad():
            for _ in range(6):
                sync(wait=True)
                started = time.perf_counter()
                output = step(first, *operands)
                sync(wait=True)
                durations.append(time.perf_counter() - started)
                del output
        return min(durations)


def _product(lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    return lhs @ rhs


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def _convolution(image: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    return conv2d(image, kernel, padding=1)


def _by_vector(vector: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    return matrix @ vector


def _sum_over(mesh: Mesh) -> Step:
    """A sum over all devices of rows of one each."""
    rows = P("all", None)
    return shard_map(
        lambda x: all_reduce(x, axis="all") / 2, mesh=mesh, in_specs=rows, out_specs=rows
    )

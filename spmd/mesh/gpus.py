"""GPUs as XLA's compiler takes them: the description by which it compiles for one that is not
here."""

import re
from dataclasses import dataclass

from ..core import topology


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        name: as in a target, "h100". kind: jax's `device_kind`. cores: streaming multiprocessors.
            threads: of a core, at most. lanes: float32 units of a core. clock: in GHz.
            memory_bytes, bandwidth: of the device's memory, in bytes and bytes per second.
            l2_bytes: of the second-level cache. shared_bytes: shared memory of a core. block_bytes:
            of it, for one block at most. capability: the compute capability, (major, minor).
    """

    name: str
    kind: str
    cores: int
    threads: int
    lanes: int
    clock: float
    memory_bytes: int
    bandwidth: float
    l2_bytes: int
    shared_bytes: int
    block_bytes: int
    capability: tuple[int, int]

    @property
    def description(self) -> str:
        """XLA's `GpuTargetConfigProto` of this GPU, as text."""
        major, minor = self.capability
        return _DESCRIPTION.format(
            gpu=self,
            major=major,
            minor=f" minor: {minor}" if minor else "",
            bandwidth=int(self.bandwidth),
        )


# Source of the fields: xla/stream_executor/device_description.proto. The last three hold for all of
# these GPUs.
_DESCRIPTION = """\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {gpu.shared_bytes}
  threads_per_core_limit: {gpu.threads}
  core_count: {gpu.cores}
  fpus_per_core: {gpu.lanes}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}
  l2_cache_size: {gpu.l2_bytes}
  clock_rate_ghz: {gpu.clock}
  device_memory_size: {gpu.memory_bytes}
  shared_memory_per_block_optin: {gpu.block_bytes}
  cuda_compute_capability {{ major: {major}{minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
device_description_str: "{gpu.kind}"
"""

_KIB, _MIB = 1 << 10, 1 << 20

# NVIDIA's data sheets and the CUDA C++ programming guide, "compute capabilities"; the memory as the
# driver reports it.
_GPUS = (
    Gpu("a100", "NVIDIA A100-SXM4-80GB", 108, 2048, 64, 1.41, 81_152 * _MIB, 2.039e12, 40 * _MIB,
        164 * _KIB, 163 * _KIB, (8, 0)),
    Gpu("h100", "NVIDIA H100 80GB HBM3", 132, 2048, 128, 1.98, 81_008 * _MIB, 3.35232e12, 50 * _MIB,
        228 * _KIB, 227 * _KIB, (9, 0)),
    Gpu("h200", "NVIDIA H200", 132, 2048, 128, 1.98, 143_167 * _MIB, 4.8e12, 50 * _MIB, 228 * _KIB,
        227 * _KIB, (9, 0)),
    Gpu("b200", "NVIDIA B200", 148, 2048, 128, 1.965, 182_642 * _MIB, 7.7e12, 126 * _MIB,
        228 * _KIB, 227 * _KIB, (10, 0)),
    Gpu("l4", "NVIDIA L4", 58, 1536, 128, 2.04, 22_478 * _MIB, 3e11, 48 * _MIB, 100 * _KIB,
        99 * _KIB, (8, 9)),
)  # fmt: skip

GPUS = {gpu.name: gpu for gpu in _GPUS}
topology.GPU_DESCRIPTIONS.update((name, gpu.description) for name, gpu in GPUS.items())

_NAME = re.compile(r"[a-z][a-z_]*\d*[a-z\d_]*")


def add_description(name: str, text: str) -> None:
    """Adds a GPU to those that a target may name.

    Raises ValueError for a name that is none, or is another GPU's.
    """
    if not _NAME.fullmatch(name) or name == "cpu":
        raise ValueError(
            'describe_gpu: expected a name of letters, digits and underscores such as "mygpu", '
            f"got {name!r}"
        )
    if topology.GPU_DESCRIPTIONS.setdefault(name, text) != text:
        raise ValueError(f"describe_gpu: {name!r} is another GPU already; choose another name")

"""`torch_xla._internal.tpu`: a host's TPU chips, and its place in a slice, by the environment or
Google's metadata server. No device is touched.

Functions read each other's results by the names of this module, which a script may replace.
"""

import glob
import math
import os
import re
import urllib.request
from pathlib import Path

from ...core import variables
from .script_tools import getenv_as

_METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/attributes/"
_GOOGLE_PCI_VENDOR_ID = "0x1ae0"
# v2 and v3, v4, v5e, v6e, 7x, and two that have no name
_TPU_PCI_DEVICE_IDS = ["0x0027", "0x005e", "0x0063", "0x006f", "0x0076", "0x0056", "0x0062"]
# Chips of a host of v2 and v3, whose metadata has no bounds, and hosts of a slice by its cores.
_CHIPS_OF_HOST = (2, 2, 1)
_HOSTS = {
    "v2": {8: (1, 1), 32: (2, 2), 128: (4, 4), 256: (4, 8), 512: (8, 8)},
    "v3": {
        **{8: (1, 1), 32: (2, 2), 64: (2, 4), 128: (4, 4), 256: (4, 8), 512: (8, 8)},
        **{1024: (8, 16), 2048: (16, 16)},
    },
}


def _skips_metadata() -> bool:
    """True where the user's variables say what the metadata server knows."""
    # Where there is no TPU, jax sets the first one at its import, and this library all.
    is_ours = variables.WITHOUT_TPU.items() <= os.environ.items()
    return {"TPU_SKIP_MDS_QUERY", "TPU_ACCELERATOR_TYPE"} <= os.environ.keys() and not is_ours


def _bounds(text: str) -> tuple[int, ...]:
    """The sizes of a text such as "2,2,1".

    Raises ValueError for another number of sizes.
    """
    sizes = tuple(map(int, text.split(",")))
    if len(sizes) != 3:
        raise ValueError(f"torch_xla._internal.tpu: expected three sizes as '2,2,1', got {text!r}")
    return sizes


def _get_metadata(key: str) -> str:
    request = urllib.request.Request(_METADATA + key, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return str(response.read().decode())
    except OSError as error:
        raise OSError(
            f"torch_xla._internal.tpu: Google's metadata server gives no {key!r} here ({error}); "
            "with TPU_SKIP_MDS_QUERY=1 the variables TPU_ACCELERATOR_TYPE, TPU_PROCESS_BOUNDS, "
            "TPU_CHIPS_PER_PROCESS_BOUNDS, TPU_WORKER_ID and TPU_WORKER_HOSTNAMES answer"
        ) from error


def process_bounds_size() -> int | None:
    """The number of processes of all hosts, by TPU_PROCESS_BOUNDS; None where that is not set.

    >>> from spmd.torch_xla import tpu_host
    >>> tpu_host.process_bounds_size()
    """
    bounds = os.environ.get("TPU_PROCESS_BOUNDS")
    return math.prod(_bounds(bounds)) if bounds else None


def num_available_chips() -> int:
    """The number of TPU chips on this host's PCI bus.

    >>> from spmd.torch_xla import tpu_host
    >>> tpu_host.num_available_chips()
    0
    """
    vendors = map(Path, glob.glob("/sys/bus/pci/devices/*/vendor"))
    return sum(
        vendor.read_text().strip() == _GOOGLE_PCI_VENDOR_ID
        and vendor.with_name("device").read_text().strip() in _TPU_PCI_DEVICE_IDS
        for vendor in vendors
    )


def num_logical_cores_per_chip() -> int:
    """The number of devices of a chip: 2 of TPU v2 and v3, else 1. Raises OSError as `version`.

    >>> import os
    >>> from spmd.torch_xla import tpu_host
    >>> os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v3-8"}
    >>> tpu_host.num_logical_cores_per_chip()
    2
    >>> del os.environ["TPU_SKIP_MDS_QUERY"], os.environ["TPU_ACCELERATOR_TYPE"]
    """
    return 2 if version() <= 3 else 1


def num_available_devices() -> int:
    """The number of TPU devices of this host. Raises OSError as `version`, where there is a chip.

    >>> from spmd.torch_xla import tpu_host
    >>> tpu_host.num_available_devices()
    0
    """
    chips = num_available_chips()
    return chips and chips * num_logical_cores_per_chip()


def num_expected_global_devices() -> int:
    """The number of TPU devices of all hosts of the slice. Raises OSError as `version`, where there
    is a chip.

    >>> from spmd.torch_xla import tpu_host
    >>> tpu_host.num_expected_global_devices()
    0
    """
    devices = num_available_devices()
    return devices and devices * num_tpu_workers()


def num_local_processes() -> int:
    """The number of processes, one a chip, that a script of PyTorch/XLA has on this host.

    >>> from spmd.torch_xla import tpu_host
    >>> tpu_host.num_local_processes()
    0
    """
    chips = num_available_chips()
    return min(chips, process_bounds_size() or chips)


def task_id() -> int | None:
    """The number of this process among those of all hosts, by CLOUD_TPU_TASK_ID, or None.

    >>> from spmd.torch_xla import tpu_host
    >>> tpu_host.task_id()
    """
    return getenv_as("CLOUD_TPU_TASK_ID", int)


def worker_id() -> int:
    """The number of this host in its slice. Raises OSError as `get_tpu_env`."""
    return int(get_tpu_env()["WORKER_ID"] or 0)


def build_tpu_env_from_vars() -> dict[str, str | None]:
    """What `get_tpu_env` returns, by the variables of the environment; None for one not set.

    >>> from spmd.torch_xla import tpu_host
    >>> tpu_host.build_tpu_env_from_vars()["ACCELERATOR_TYPE"]
    """

    def first(*names: str) -> str | None:
        return next((os.environ[name] for name in names if name in os.environ), None)

    return {
        "ACCELERATOR_TYPE": first("TPU_ACCELERATOR_TYPE"),
        "TPU_PROCESS_BOUNDS": first("TPU_PROCESS_BOUNDS", "TPU_HOST_BOUNDS"),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": first(
            "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS"
        ),
        "WORKER_ID": first("CLOUD_TPU_TASK_ID", "TPU_WORKER_ID"),
    }


def get_tpu_env() -> dict[str, str | None]:
    """What a host knows of its slice: ACCELERATOR_TYPE, WORKER_ID, TPU_PROCESS_BOUNDS and further
    keys of its metadata, or with TPU_SKIP_MDS_QUERY `build_tpu_env_from_vars`.

    Raises OSError where no metadata server answers.
    """
    if _skips_metadata():
        return build_tpu_env_from_vars()
    rows = (line.partition(":") for line in _get_metadata("tpu-env").splitlines())
    return {key.strip(): value.strip().strip("'\"") for key, colon, value in rows if colon}


def version() -> int:
    """The generation of this host's TPU: 5 of "v5litepod-16". Raises OSError where there is none.

    >>> import os
    >>> from spmd.torch_xla import tpu_host
    >>> os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-16"}
    >>> tpu_host.version(), tpu_host.get_tpu_type()
    (5, 'v5litepod')
    >>> del os.environ["TPU_SKIP_MDS_QUERY"], os.environ["TPU_ACCELERATOR_TYPE"]
    """
    kind = get_tpu_env()["ACCELERATOR_TYPE"]
    match = re.match(r"(?:v|tpu)(\d)[A-Za-z]{0,7}-\d+$", kind or "")
    if match is None:
        raise OSError(
            f"torch_xla._internal.tpu.version: expected a type as 'v5litepod-16', got {kind!r}"
        )
    return int(match[1])


def get_tpu_type() -> str:
    """The type of this host's TPU without its size: "v6e" of "v6e-8". Raises OSError as
    `get_tpu_env`."""
    return (get_tpu_env()["ACCELERATOR_TYPE"] or "").partition("-")[0]


def get_worker_ips() -> list[str]:
    """The addresses of the hosts of the slice, in order; ["localhost"] of one. Raises OSError as
    `get_tpu_env`."""
    if _skips_metadata():
        hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    else:  # a worker is name:number:address
        endpoints = _get_metadata("worker-network-endpoints")
        hosts = [worker.split(":")[2] for worker in endpoints.split(",")]
    return hosts if len(hosts) > 1 else ["localhost"]


def num_tpu_workers() -> int:
    """The number of hosts of the slice. Raises OSError as `get_tpu_env`."""
    return len(get_worker_ips())


def configure_one_chip_topology() -> None:
    """Sets the variables by which libtpu takes one chip, where they are not set; before the first
    device."""
    for name, value in {
        "TPU_VISIBLE_CHIPS": "0",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
    }.items():
        os.environ.setdefault(name, value)


def configure_topology(local_rank: int, local_world_size: int, base_port: int = 8476) -> None:
    """Sets the variables by which libtpu runs a process for each chip, where they are not set;
    before the first device. A script of this library needs one process a host.

    Args:
        local_rank: of this process on its host. local_world_size: processes of a host. base_port:
            the first of as many ports.

    Raises OSError as `version`.
    """
    values, generation = get_tpu_env(), version()
    kind, _, cores = str(values["ACCELERATOR_TYPE"]).partition("-")
    if generation > 3:
        hosts = _bounds(str(values["TPU_PROCESS_BOUNDS"]))
        chips = _bounds(str(values["TPU_CHIPS_PER_PROCESS_BOUNDS"]))
    else:
        hosts, chips = (*_HOSTS[kind][int(cores)], 1), _CHIPS_OF_HOST
    processes = [outer * inner for outer, inner in zip(hosts, chips, strict=True)]
    ports = range(base_port, base_port + local_world_size)
    for name, value in {
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        # a chip of 7x has two cores
        "TPU_PROCESS_BOUNDS": ",".join(map(str, [*processes, *[2] * (generation == 7)])),
        "CLOUD_TPU_TASK_ID": str(int(str(values["WORKER_ID"])) * local_world_size + local_rank),
        "TPU_PROCESS_ADDRESSES": ",".join(f"{ip}:{n}" for ip in get_worker_ips() for n in ports),
        "TPU_VISIBLE_CHIPS": str(local_rank),
        "TPU_PROCESS_PORT": str(ports[local_rank]),
    }.items():
        os.environ.setdefault(name, value)

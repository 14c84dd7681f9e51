"""Several processes that run one program: their rendezvous, number and index."""

# Why every mesh holds all processes' devices: jax moves nothing between meshes of different processes, and a program
# that only some processes launch waits forever in its first collective.

import gc
import itertools
import socket
from typing import Any, NamedTuple

import jax
from torch.distributed import PrefixStore, TCPStore

from ...base.config import launched
from ...base.jax_private import ClusterEnv, distributed_state


def several() -> bool:
    """True if this is one process of several; starts no device."""
    return distributed_state.num_processes > 1


def count() -> int:
    """Returns the number of processes."""
    return distributed_state.num_processes


def index() -> int:
    """Returns the index of this process."""
    return distributed_state.process_id


def client() -> Any:
    """Returns jax's client of the key-value store that all processes share; None when it has ended."""
    return distributed_state.client


def polled(key: str, seconds: float) -> str | None:
    """Waits until a key of that store is set; returns its text, or None after so many seconds."""
    try:
        return client().blocking_key_value_get(key, int(seconds * 1000))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
    return None


class Place(NamedTuple):
    """The address of the first process, the number of processes, the index of this one; and its accelerators, where a
    launcher gives each process its own."""

    address: str
    num_processes: int
    process_id: int
    local_device_ids: tuple[int, ...] | None


def find_place(address: str | None, num_processes: int | None, process_id: int | None) -> Place:
    """Returns the place of this process. An argument that is None is taken from torchrun's environment, else from the
    launchers that jax detects (SLURM, Open MPI, TPU pods). Without any of these a process is a job of one.

    Raises ValueError that names the missing ones.
    """
    launcher, local = launched(), None
    num_processes = launcher.num_processes if num_processes is None else num_processes
    process_id = launcher.process_id if process_id is None else process_id
    if address is None and launcher.address is not None and None not in (num_processes, process_id):
        address = (
            launcher.address
            if launcher.restart is None
            else _port_from_store(launcher.address, launcher.restart, process_id)
        )
    if address is None or num_processes is None or process_id is None:
        address, num_processes, process_id, local = ClusterEnv.auto_detect_unset_distributed_params(
            address, num_processes, process_id, None, None, _DETECTION_SECONDS
        )
    values = {"coordinator_address": address, "num_processes": num_processes, "process_id": process_id}
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == len(values):
        return Place(f"127.0.0.1:{_free_port()}", 1, 0, None)
    if missing or address is None or num_processes is None or process_id is None:
        raise ValueError(
            f"initialize: {', '.join(missing)} is not given and no launcher says it. Start the script with "
            "`python -m spmd launch` (one machine), torchrun (MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK), srun or "
            'mpirun, or call spmd.initialize("host:port", num_processes, process_id) in each process.'
        )
    if ":" not in address:
        raise ValueError(f'initialize: expected coordinator_address as "host:port", got {address!r}')
    if not 0 <= process_id < num_processes:
        raise ValueError(f"initialize: expected process_id of 0 to {num_processes - 1}, got {process_id}")
    return Place(address, num_processes, process_id, None if local is None else tuple(local))


_DETECTION_SECONDS = 60


def _port_from_store(address: str, restart: int, process_id: int | None) -> str:
    """Returns the address for jax, whose port the first process publishes in torchrun's own store at this address."""
    host, port = address.rsplit(":", 1)
    store = PrefixStore(f"spmd/{restart}", TCPStore(host, int(port), is_master=False))
    if process_id == 0:
        store.set("port", str(_free_port()))
    return f"{host}:{store.get('port').decode()}"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def start(place: Place, *, heartbeat_timeout_seconds: int, initialization_timeout_seconds: int) -> None:
    """Connects to the other processes; returns when all have come."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        place.address,
        place.num_processes,
        place.process_id,
        place.local_device_ids,
        cluster_detection_method="deactivate",
        initialization_timeout=initialization_timeout_seconds,
        heartbeat_timeout_seconds=heartbeat_timeout_seconds,
    )
    gc.freeze()  # imported modules are no garbage, and `collect_garbage` need not look at them


def reached_preemption(step: int) -> bool:
    """Returns True at the step that the processes have agreed on after one of them got SIGTERM or its cluster's notice;
    all call it with each step."""
    manager = distributed_state.preemption_sync_manager
    return manager is not None and bool(manager.reached_sync_point(step))


# --- garbage ----------------------------------------------------------------------------------------------------------

_syncs = itertools.count(1)
_FULL_EVERY = 64  # syncs


def collect_garbage() -> None:
    """Collects garbage at each sync, so that in all processes the same tensors are alive there.

    Python's collector runs by counts of allocations, which differ between processes; a dead tensor in a reference cycle
    would be a result of one process's program and not of another's. With several processes it runs here alone: a
    generation is then the objects made between the same two syncs in all of them.
    """
    gc.disable()
    gc.collect(2 if next(_syncs) % _FULL_EVERY == 1 else 0)  # the first sync is a full collection

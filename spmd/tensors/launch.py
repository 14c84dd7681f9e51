"""Several processes of one program: initialization, a batch from each, and full values on the
CPU."""

import socket
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed import PrefixStore, TCPStore

from ..core import (
    XlaTensor,
    abstract,
    dense_meta,
    ends_at_user_line,
    hardware,
    host_copy,
    jax_facts,
    processes,
    recording,
    tensor_meta,
    transfer,
    user_line,
    variables,
)
from ..mesh.mesh import Mesh
from .annotate import on_device
from .shards import tensor_of
from .simulated import simulate


@ends_at_user_line
def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    local_device_count: int | None = None,
    heartbeat_timeout_seconds: int = 30,
    initialization_timeout_seconds: int = 300,
) -> None:
    """Makes this process one of several that run the same script; before the first use of a device,
    in each of them.

    `spmd.device_ids()` then counts the devices of all processes, and each program runs on all of
    them. Missing arguments come from torchrun's environment (MASTER_ADDR, MASTER_PORT, WORLD_SIZE,
    RANK), from SLURM, Open MPI or a TPU pod; without any of these the process is a job of one. A
    second call with the same arguments does nothing.

    Args:
        coordinator_address: "host:port" at which the first process listens. num_processes,
            process_id: the number of processes, and the index of this one.
        local_device_count: as `spmd.simulate`, that many CPU devices in this process.
        heartbeat_timeout_seconds: a process that is silent for this time is taken for dead, and
            ends the others.
        initialization_timeout_seconds: the time to wait until all processes have joined.

    Raises ValueError that names the missing argument, RuntimeError when a device was used before or
    for a second, different call. Source: `jax.distributed.initialize`.

    >>> import subprocess, sys
    >>> script = "import spmd; spmd.initialize(local_device_count=8); print(spmd.process_count())"
    >>> subprocess.run(
    ...     [sys.executable, "-c", script], capture_output=True, text=True
    ... ).stdout.strip()  # a job of one
    '1'
    """
    if processes.client() is not None:
        arguments = {
            "num_processes": (num_processes, processes.count()),
            "process_id": (process_id, processes.index()),
        }
        for name, (requested, present) in arguments.items():
            if requested not in (None, present):
                raise RuntimeError(
                    f"initialize: this process has joined others already, with {name}={present}"
                )
        return
    if hardware.is_running():
        raise RuntimeError(
            "initialize came too late: call it before the first tensor, mesh or jax.devices()"
        )
    address = find_rendezvous(coordinator_address, num_processes, process_id)
    if local_device_count is not None:
        simulate(local_device_count)
    hardware.prepare()
    processes.start(
        address,
        heartbeat_timeout_seconds=heartbeat_timeout_seconds,
        initialization_timeout_seconds=initialization_timeout_seconds,
    )
    processes.join()


def find_rendezvous(
    address: str | None, num_processes: int | None, process_id: int | None
) -> processes.Rendezvous:
    """Returns the rendezvous of this process. An argument that is None is taken from torchrun's
    environment, else from the launchers that jax detects (SLURM, Open MPI, TPU pods). Without any
    of these a process is a job of one.

    Raises ValueError that names the missing ones.
    """
    launcher, local = variables.launched(), None
    num_processes = launcher.num_processes if num_processes is None else num_processes
    process_id = launcher.process_id if process_id is None else process_id
    if address is None and launcher.address is not None and None not in (num_processes, process_id):
        address = (
            launcher.address
            if launcher.restart is None
            else _port_from_store(launcher.address, launcher.restart, process_id)
        )
    if address is None or num_processes is None or process_id is None:
        address, num_processes, process_id, local = (
            jax_facts.ClusterEnv.auto_detect_unset_distributed_params(
                address, num_processes, process_id, None, None, _DETECTION_SECONDS
            )
        )
    values = {
        "coordinator_address": address,
        "num_processes": num_processes,
        "process_id": process_id,
    }
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == len(values):
        return processes.Rendezvous(f"127.0.0.1:{_free_port()}", 1, 0, None)
    if missing or address is None or num_processes is None or process_id is None:
        raise ValueError(
            f"initialize: {', '.join(missing)} is not given and no launcher says it. Start the "
            "script with `python -m spmd launch` (one machine), torchrun (MASTER_ADDR, "
            "MASTER_PORT, WORLD_SIZE, RANK), srun or "
            'mpirun, or call spmd.initialize("host:port", num_processes, process_id) in each '
            "process."
        )
    if ":" not in address:
        raise ValueError(
            f'initialize: expected coordinator_address as "host:port", got {address!r}'
        )
    if not 0 <= process_id < num_processes:
        raise ValueError(
            f"initialize: expected process_id of 0 to {num_processes - 1}, got {process_id}"
        )
    return processes.Rendezvous(
        address, num_processes, process_id, None if local is None else tuple(local)
    )


_DETECTION_SECONDS = 60


def _port_from_store(address: str, restart: int, process_id: int | None) -> str:
    """Returns the address for jax, whose port the first process publishes in torchrun's own store
    at this address."""
    host, port = address.rsplit(":", 1)
    store = PrefixStore(f"spmd/{restart}", TCPStore(host, int(port), is_master=False))
    if process_id == 0:
        store.set("port", processes.seal("port", str(_free_port())))
    return f"{host}:{processes.unsealed('port', store.get('port').decode())}"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def process_index() -> int:
    """The index of this process, from 0 on.

    >>> import spmd
    >>> spmd.process_index()
    0
    """
    return processes.index()


def process_count() -> int:
    """The number of processes that run this program.

    >>> import spmd
    >>> spmd.process_count()
    1
    """
    return processes.count()


@ends_at_user_line
def from_process_local(
    data: torch.Tensor, mesh: Mesh, partition_spec: Sequence[Any]
) -> torch.Tensor:
    """Returns a tensor on xla, sharded as by `mark_sharding`, from each process's own part; all
    must call it.

    Args:
        data: a CPU tensor, of the same shape and dtype in every process. Along a dim that the spec
            splits over processes it is this process's part, in order of devices; along any other
            dim it has all elements.
        mesh, partition_spec: as in `mark_sharding`.

    Returns a tensor of the global shape: with two processes of four devices, parts (8, 128) under
    P("fsdp", None) make (16, 128). With one process the part is the full tensor.

    Raises ValueError for a part that its devices do not divide, `ProcessError` where the parts
    differ in shape or dtype.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh(spmd.device_ids(), (len(spmd.device_ids()),), ("data",))
    >>> spmd.from_process_local(torch.ones(16, 2), mesh, ("data", None)).shape
    torch.Size([16, 2])
    """
    if not isinstance(data, torch.Tensor) or data.device.type != "cpu":
        is_tensor = isinstance(data, torch.Tensor)
        raise TypeError(
            f"from_process_local: expected a CPU tensor, got one on {data.device}; a tensor there "
            "is the global one already: write spmd.mark_sharding(tensor, mesh, spec)"
            if is_tensor
            else f"from_process_local: expected a CPU tensor, got {type(data).__name__}; write "
            "torch.as_tensor(data)"
        )
    sharding = mesh.sharding(partition_spec, data.dim(), "from_process_local")
    if processes.several():
        call = f"from_process_local of {dense_meta(data.shape, data.dtype)!r} as {sharding!r}"
        processes.agree_once(call, call.encode(), user_line())
    meta = dense_meta(transfer.global_shape(tuple(data.shape), sharding), data.dtype)
    if recording.value is not None:
        return abstract(meta, sharding)
    # A snapshot: the CPU's devices read the host's memory in place, and the caller may write into
    # the part again.
    part = transfer.host_array(data.detach().clone(memory_format=torch.contiguous_format))
    return tensor_of(meta, transfer.upload_part(part, meta.shape, sharding), sharding)


@ends_at_user_line
def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The full value as a CPU tensor, in every process; all must call it. A sync.

    With several processes `.cpu()`, `print` and saving read only values of which each process has
    all shards; `full_tensor` reads the others.

    >>> import torch, spmd
    >>> spmd.full_tensor(torch.ones(2, device="xla") * 3)
    tensor([3., 3.])
    """
    target = on_device(tensor, "full_tensor")
    if processes.several():
        call = f"full_tensor of {tensor_meta(target)!r}"
        processes.agree(call, call.encode(), user_line())
    return host_copy(target, "full_tensor", together=True)


@ends_at_user_line
def full_state_dict(module: nn.Module) -> dict[str, Any]:
    """The module's state dict with full tensors on the CPU (see `full_tensor`), in every process;
    all must call it.

    >>> import torch, spmd
    >>> list(spmd.full_state_dict(torch.nn.Linear(2, 1, device="xla")))
    ['weight', 'bias']
    """
    return {
        name: full_tensor(value) if isinstance(value, XlaTensor) else value
        for name, value in module.state_dict().items()
    }

"""Several processes that run one program: their rendezvous, number and index."""

# Why every mesh holds all processes' devices: jax moves nothing between meshes of different
# processes, and a program that only some processes launch waits forever in its first collective.

import gc
import hmac
import itertools
import re
import zlib
from typing import Any, NamedTuple, Protocol

import jax

from ...base import messages
from ...base.config import config, job_secret
from ...base.jax_private import distributed_state
from ...base.tables import Bounded
from ...graph.source import Line


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
    """Returns jax's client of the key-value store that all processes share; None when it has
    ended."""
    return distributed_state.client


# --- the store ------------------------------------------------------------------------------------

# Any client of jax's coordinator may write into its store. So each text there begins with a digest
# of itself and its key, for which the job's secret is needed.


def seal(key: str, text: str) -> str:
    """Returns a text behind its digest, which only processes of this job can compute."""
    return hmac.new(job_secret(), f"{len(key)} {key} {text}".encode(), "sha256").hexdigest() + text


def unsealed(key: str, sealed: str) -> str:
    """Returns the text of a sealed one without its digest; raises ProcessError if the digest is
    wrong."""
    text = sealed[_SEAL:]
    if not hmac.compare_digest(seal(key, text).encode(), sealed.encode()):
        raise ProcessError(
            f"expected a text of this job's processes under {key!r}, got one without their "
            "secret: a stranger has written it, or SPMD_JOB_SECRET differs between the processes; "
            "set it to the same in all, and keep the coordinator's port inside of a network of "
            "yours"
        )
    return text


_SEAL = 64  # characters of a digest


def publish(key: str, text: str, *, allow_overwrite: bool = False) -> None:
    """Stores a text, sealed, under a key of the store."""
    client().key_value_set(key, seal(key, text), allow_overwrite=allow_overwrite)


def polled(key: str, seconds: float) -> str | None:
    """Waits for a key of the store, at most this long; returns its text, or None if unset."""
    try:
        return unsealed(key, client().blocking_key_value_get(key, int(seconds * 1000)))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
    return None


def published(folder: str) -> dict[str, str]:
    """Returns the texts in a folder of the store by key; leaves out texts with a wrong digest, with
    a message."""
    texts = {}
    for key, sealed in client().key_value_dir_get(folder):
        try:
            texts[key] = unsealed(key, sealed)
        except ProcessError as error:
            messages.say(f"a text is left out: {error}", "strangers", is_error=True)
    return texts


# --- the rendezvous -------------------------------------------------------------------------------


class Rendezvous(NamedTuple):
    """The address of the first process, the number of processes, the index of this one; and its
    accelerators, where a launcher gives each process its own."""

    address: str
    num_processes: int
    process_id: int
    local_device_ids: tuple[int, ...] | None


def start(
    rendezvous: Rendezvous, *, heartbeat_timeout_seconds: int, initialization_timeout_seconds: int
) -> None:
    """Connects to the other processes; returns when all are connected."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        rendezvous.address,
        rendezvous.num_processes,
        rendezvous.process_id,
        rendezvous.local_device_ids,
        cluster_detection_method="deactivate",
        initialization_timeout=initialization_timeout_seconds,
        heartbeat_timeout_seconds=heartbeat_timeout_seconds,
        coordinator_bind_address=rendezvous.address if is_loopback(rendezvous.address) else None,
    )
    gc.freeze()  # imported modules are no garbage, and `collect_garbage` need not look at them


def is_loopback(address: str) -> bool:
    """True if an address, host:port, is reachable from its own machine alone."""
    return re.match(r"(localhost|127\.[\d.]+|\[?::1\]?):\d+$", address) is not None


def is_local() -> bool:
    """True if all processes are on this machine, by the address at which they meet."""
    return not several() or is_loopback(distributed_state.coordinator_address or "")


def reached_preemption(step: int) -> bool:
    """Returns True at the step that the processes agreed on, after one of them got SIGTERM or a
    notice of its cluster. Every process calls it at each step."""
    manager = distributed_state.preemption_sync_manager
    return manager is not None and bool(manager.reached_sync_point(step))


# --- events ---------------------------------------------------------------------------------------


class ProcessError(RuntimeError):
    """The processes do not do the same, or some have not arrived; the message says what each does,
    and where.

    It cannot be mended inside of the process: let it end, and restore the last checkpoint in all.

    >>> import torch, spmd
    >>> loss = torch.ones(2, device="xla").sum()
    >>> try:
    ...     spmd.sync()
    ... except spmd.ProcessError as error:  # of several processes, one at another line
    ...     raise SystemExit(str(error))
    """


class EventComparison(Protocol):
    """A module or object that compares the events of all processes (`spmd/tools/processes`)."""

    def join(self) -> None: ...
    def note(self, event: str, mark: bytes, line: Line) -> int: ...
    def agree(self, event: str, mark: bytes, line: Line) -> None: ...


comparisons: list[EventComparison] = []  # the last one takes the events; without any, none compares
_barriers = itertools.count()


def join() -> None:
    """Starts the comparison, as the processes are connected."""
    if comparisons:
        comparisons[-1].join()


def note(event: str, mark: bytes, line: Line) -> int:
    """Notes an event of all processes, such as a run; returns its number.

    event: its description, which differs wherever the mark does (see `digest`). mark: the bytes by
    which processes compare it. Raises ProcessError where the processes were found to differ.
    """
    return comparisons[-1].note(event, mark, line) if comparisons else 0


def agree(event: str, mark: bytes, line: Line) -> None:
    """Notes an event, and waits until every process has come to it; raises ProcessError where one
    does something else."""
    if comparisons:
        comparisons[-1].agree(event, mark, line)
    else:  # nothing compares the events: the processes only wait for each other
        client().wait_at_barrier(
            f"spmd/agree/{next(_barriers)}", config.process_timeout_seconds * 1000
        )


_agreed_marks: Bounded[bytes, bool] = Bounded(1024)


def agree_once(event: str, mark: bytes, line: Line) -> None:
    """Agrees on the first event with this mark; later ones are only noted."""
    if _agreed_marks.get(mark):
        note(event, mark, line)
    else:
        agree(event, mark, line)
        _agreed_marks.keep(mark, True)


def digest(name: str, content: bytes) -> str:
    """Returns a name with a checksum of its content, for an event's text: a mismatch names the
    contents that differ."""
    return f"{name} #{zlib.crc32(content):08x}"


# --- garbage --------------------------------------------------------------------------------------

_syncs = itertools.count(1)
_FULL_EVERY = 64  # syncs


def collect_garbage() -> None:
    """Collects garbage at each sync, so that in all processes the same tensors are alive there.

    Python's collector runs by counts of allocations, which differ between processes; a dead tensor
    in a reference cycle would be a result of one process's program and not of another's. With
    several processes it runs here alone: a generation is then the objects made between the same two
    syncs in all of them.
    """
    gc.disable()
    gc.collect(2 if next(_syncs) % _FULL_EVERY == 1 else 0)  # the first sync is a full collection

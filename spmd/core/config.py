"""Every flag of the library, declared once; the only file that reads the environment."""

import functools
import importlib.util
import mmap
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its name, type, default, the values it may take (all when empty) and one line of help."""

    name: str
    type: type
    default: Any
    help: str
    choices: tuple[Any, ...] = ()

    @property
    def variable(self) -> str:
        return f"SPMD_{self.name.upper()}"

    def parse(self, text: str) -> Any:
        """The value that an environment variable's text means."""
        if self.type is bool:
            return self.check({"1": True, "true": True, "0": False, "false": False}.get(text.lower(), text))
        try:
            return self.check(self.type(text))
        except ValueError as error:
            raise ValueError(f"{self.variable}={text!r}: {error}") from None

    def check(self, value: Any) -> Any:
        """`value`, or an error that says what the flag takes."""
        if type(value) is not self.type:
            raise TypeError(f"config.{self.name}: expected {self.type.__name__}, got {value!r}")
        if self.choices and value not in self.choices:
            raise ValueError(f"config.{self.name}: expected one of {', '.join(map(repr, self.choices))}, got {value!r}")
        return value


FLAGS = (
    Flag("partitioner", str, "gspmd", "who partitions the program; results are the same", ("gspmd", "shardy")),
    Flag(
        "sync_on_read",
        str,
        "all",
        "what a read (item, cpu, print) runs: everything pending, or only what it needs",
        ("all", "needed"),
    ),
    Flag(
        "max_pending_ops",
        int,
        100_000,
        "a graph that nobody syncs is run by itself at this many ops (counted from the next barrier on)",
    ),
    Flag(
        "loop_search_ops",
        int,
        1_024,
        "at this many ops without a barrier, the finished turns of a loop are run; 0: never",
    ),
    Flag(
        "max_program_ops",
        int,
        2_048,
        "a longer graph, equal layers counted once, is cut into programs of at most this many ops",
    ),
    Flag("program_cache", bool, True, "keep compiled programs on disk, so that a second start compiles nothing"),
    Flag(
        "program_cache_dir",
        str,
        str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "spmd"),
        "where they are kept: a folder of the user's that nobody else may enter; empty: nowhere",
    ),
    Flag("program_cache_bytes", int, 2 << 30, "what they may take; the least recently used go first"),
    Flag("slow_compile_seconds", int, 2, "what compiles for longer is announced on stderr; 0: never"),
    Flag("program_cache_size", int, 512, "compiled programs kept; the least recently used is dropped"),
    Flag("entry_cache_size", int, 16_384, "rows of one op's shape-and-dtype table; a full one drops the older half"),
    Flag(
        "fallback",
        str,
        "error",
        "an op without a lowering rule: raises, or runs on the CPU and is counted",
        ("error", "cpu"),
    ),
    Flag(
        "compiler_options",
        str,
        "auto",
        "options of XLA's for each compile, as name=value separated by blanks; auto: what the program is in need of",
    ),
    Flag(
        "pad_lengths",
        bool,
        True,
        "take a slice whose length changes from run to run whole, the length an operand, where every op behind it can",
    ),
    Flag(
        "roll_turns",
        bool,
        True,
        "run turns whose number differs from run to run (RNN cells, episodes) as a loop, their number an operand",
    ),
    Flag(
        "roll_layers",
        str,
        "auto",
        "whether equal layers become one loop of the program: where it costs nothing, wherever it can be, or never",
        ("auto", "always", "never"),
    ),
    Flag(
        "max_logits_bytes",
        int,
        4 << 30,
        "logits that only a cross entropy reads, where a device's would take more, are made in pieces; 0: never",
    ),
    Flag(
        "num_slices",
        int,
        0,
        "take the devices for so many slices with a network between them (`HybridMesh`); 0: as many as there are",
    ),
    Flag("check_shardings", bool, True, "after each compile, compare the shardings asked for with those chosen"),
    Flag(
        "process_timeout_seconds",
        int,
        300,
        "so long a process waits for others that do not come to a new program (or another call for all); then an error",
    ),
)


class Config:
    """The flags' current values: `config.partitioner = "shardy"`; the environment's SPMD_PARTITIONER sets the start.

    >>> from spmd import config
    >>> config.sync_on_read
    'all'
    """

    def __init__(self) -> None:
        for flag in FLAGS:
            text = os.environ.get(flag.variable)
            object.__setattr__(self, flag.name, flag.default if text is None else flag.parse(text))

    if TYPE_CHECKING:  # flags are declared in FLAGS alone, which a type checker cannot read

        def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: Any) -> None:
        for flag in FLAGS:
            if flag.name == name:
                object.__setattr__(self, name, flag.check(value))
                return
        raise AttributeError(f"config has no flag {name!r} (flags: {', '.join(flag.name for flag in FLAGS)})")

    def __repr__(self) -> str:
        return "\n".join(f"{flag.name} = {getattr(self, flag.name)!r}  # {flag.help}" for flag in FLAGS)


config = Config()

# Devices wait on each other in collectives. With more simulated devices than cores the waits are long and normal, so
# XLA's rendezvous must not abort the process; XLA reads these flags once, when its first client starts. A name that it
# does not know would abort the process there, and such names come and go: only those that stand in its library are set.
XLA_DEFAULTS = {
    "xla_cpu_collective_call_warn_stuck_timeout_seconds": 600,
    "xla_cpu_collective_call_terminate_timeout_seconds": 7200,
    "xla_cpu_collective_timeout_seconds": 7200,
}


def add_xla_defaults() -> None:
    """Says it to XLA, before its first client starts; what the user says stays."""
    given = os.environ.get("XLA_FLAGS", "")
    known = _known_to("jaxlib", [name for name in XLA_DEFAULTS if name not in given])
    added = [f"--{name}={value}" for name, value in XLA_DEFAULTS.items() if name in known]
    os.environ["XLA_FLAGS"] = " ".join([given, *added]).strip()


_THREADS_OF_A_DEVICE = 2  # of several simulated devices
_own_pool_width: str | None = None


def set_pool_width(num_devices: int) -> None:
    """Tells XLA's CPU client, before it starts, how many threads its pools need; a width that the user gave stays.

    A program over several devices holds one thread for each until it ends, and a second one where a device waits in a
    collective of a loop and in one behind it (docs/decisions/thread-pools.md). XLA itself takes the number of cores or
    of devices, the larger one; one device computes on the calling thread.
    """
    global _own_pool_width
    if os.environ.get("PJRT_NPROC", _own_pool_width) != _own_pool_width or "NPROC" in os.environ:
        return
    reset_pool_width()
    width = _THREADS_OF_A_DEVICE * num_devices
    if num_devices > 1 and width > _num_cores():
        _own_pool_width = os.environ["PJRT_NPROC"] = str(width)


def reset_pool_width() -> None:
    """Takes `set_pool_width` back once the client has started: child processes have devices of their own."""
    global _own_pool_width
    if _own_pool_width is not None and os.environ.get("PJRT_NPROC") == _own_pool_width:
        del os.environ["PJRT_NPROC"]
    _own_pool_width = None


def _num_cores() -> int:
    """The cores that this process may use, as XLA counts them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def forced_cpu_devices() -> int | None:
    """The number of CPU devices that XLA_FLAGS asks for, or None."""
    found = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(found[-1]) if found else None


def _known_to(package: str, names: Sequence[str]) -> set[str]:
    """Those of these flags that stand, as whole texts, in a package's library; nothing of it is loaded or started."""
    found = importlib.util.find_spec(package) if names else None
    known: set[str] = set()
    for folder in (found.submodule_search_locations or ()) if found else ():
        for path in Path(folder).iterdir():
            if path.suffix in (".so", ".dylib", ".dll", ".pyd") and path.stat().st_size > 1 << 24:
                with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
                    known |= {name for name in names if library.find(b"\0" + name.encode() + b"\0") >= 0}
    return known


@functools.cache
def is_known_to_libtpu(option: str) -> bool:
    """Tells whether the libtpu that is installed has an option; it raises for one that it has not."""
    return option in _known_to("libtpu", [option])


def prepare_libtpu(*, has_tpu: bool) -> None:
    """Says to libtpu, on a machine without a TPU, not to ask the network for one, nor to be the only process that has
    it; what the user says stays."""
    for name, value in _WITHOUT_TPU.items() if not has_tpu else ():
        os.environ.setdefault(name, value)


# The last three are what libtpu asks the network for: without them it writes errors, though a slice that is only
# described has no use for them.
_WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0", "TPU_ACCELERATOR_TYPE": "v5litepod-8",
}  # fmt: skip


def compiler_flags() -> tuple[str | None, ...]:
    """What the environment tells XLA's compilers."""
    return tuple(os.environ.get(name) for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"))


def wants_color(file: Any) -> bool:
    """Whether what is printed to a file may be coloured: it is a terminal, and the user has not said otherwise."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and bool(file.isatty())


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the environment asks for: a JAX platform name or None, and a number of CPU devices or None."""

    platform: str | None
    num_cpu_devices: int | None


def requested_hardware() -> Hardware:
    """Reads PJRT_DEVICE and CPU_NUM_DEVICES as PyTorch/XLA's users set them; where both are set, jax's own win."""
    kind = os.environ.get("PJRT_DEVICE")
    platforms = {"CPU": "cpu", "GPU": "cuda", "CUDA": "cuda", "TPU": "tpu"}
    if kind is not None and kind.upper() not in platforms:
        raise ValueError(f"PJRT_DEVICE={kind!r}: expected one of {', '.join(platforms)}")
    count = os.environ.get("CPU_NUM_DEVICES")
    if count is not None and not (count.isdigit() and int(count) > 0):
        raise ValueError(f"CPU_NUM_DEVICES={count!r}: expected a positive integer")
    forced = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    return Hardware(
        platform=None if os.environ.get("JAX_PLATFORMS") or kind is None else platforms[kind.upper()],
        num_cpu_devices=None if forced or os.environ.get("JAX_NUM_CPU_DEVICES") or count is None else int(count),
    )


@dataclass(frozen=True, slots=True)
class Launched:
    """What torchrun's environment says of this process; None where it says nothing.

    address: where the first process listens. restart: which attempt this is, where torchrun's own store listens there;
    None where the port is free.
    """

    address: str | None
    num_processes: int | None
    process_id: int | None
    restart: int | None


def launched() -> Launched:
    """Reads what torchrun sets: MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Launched(
        address=None if host is None or port is None else f"{host}:{port}",
        num_processes=_whole_number("WORLD_SIZE"),
        process_id=_whole_number("RANK"),
        restart=(_whole_number("TORCHELASTIC_RESTART_COUNT") or 0) if has_store else None,
    )


def _whole_number(variable: str) -> int | None:
    text = os.environ.get(variable)
    if text is not None and not text.isdigit():
        raise ValueError(f"{variable}={text!r}: expected a whole number")
    return None if text is None else int(text)


def log_level() -> int:
    """The least of what XLA logs: 0 for everything, 1 for warnings (jax's default), 2 for errors."""
    text = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")
    return int(text) if text.isdigit() else 1

"""The flags of the library, each declared once; the only file that reads the environment."""

import contextlib
import functools
import importlib.util
import mmap
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

Setting = bool | int | str


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its name, its default, one line of help, and its permitted values (empty: all of
    the default's type)."""

    name: str
    default: Setting
    help: str
    choices: tuple[Setting, ...] = ()

    @property
    def variable(self) -> str:
        return f"SPMD_{self.name.upper()}"

    def parse(self, text: str) -> Setting:
        """Returns the value of an environment variable's text."""
        kind = type(self.default)
        if kind is bool:
            return self.check(
                {"1": True, "true": True, "0": False, "false": False}.get(text.lower(), text)
            )
        return self.check(kind(text))

    def check(self, value: Setting) -> Setting:
        """Returns `value`, or raises an error that names the permitted values."""
        kind = type(self.default)
        if type(value) is not kind:
            raise TypeError(f"config.{self.name}: expected {kind.__name__}, got {value!r}")
        if self.choices and value not in self.choices:
            raise ValueError(
                f"config.{self.name}: expected one of {', '.join(map(repr, self.choices))}, got "
                f"{value!r}"
            )
        return value


EXCHANGES = ("auto", "off", "ring", "gathered", "all-to-all")
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
FLAGS = (
    Flag("partitioner", "gspmd", "the partitioner of XLA; results are the same",
        ("gspmd", "shardy")),
    Flag("sync_on_read", "all",
        "the ops that a read (item, cpu, print) runs: everything pending, or only those that it "
        "needs", ("all", "needed")),
    Flag("max_pending_ops", 100_000,
        "an unsynced graph runs by itself at this many ops (counted from the next sync on)"),
    Flag("loop_search_ops", 1_024,
        "at this many ops without a sync, the finished iterations of a loop are run; 0: never"),
    Flag("max_program_ops", 2_048,
        "a longer graph, equal layers counted once, is cut into programs of at most this many ops"),
    Flag("program_cache", True,
        "keep compiled programs on disk, so that a second start compiles nothing"),
    Flag("program_cache_dir", str(_CACHE / "spmd"),
        "the folder of these programs, which only the user may enter; empty: none"),
    Flag("program_cache_bytes", 2 << 30,
        "their largest size on disk; the least recently used are deleted first"),
    Flag("calibration_file", str(_CACHE / "spmd-calibration.json"),
        "constants of devices, measured by `python -m spmd calibrate`, by which plans estimate "
        "times"),
    Flag("slow_compile_seconds", 2,
        "compiling or planning for longer is said on stderr, in a line; 0: never"),
    Flag("program_cache_size", 512, "compiled programs kept; the least recently used is dropped"),
    Flag("op_table_size", 16_384,
        "rows of one op's shape-and-dtype table; a full one drops the older half"),
    Flag("fallback", "error",
        "an op without a lowering rule: raises, or runs on the CPU and is counted",
        ("error", "cpu")),
    Flag("compiler_options", "auto",
        "options of XLA's for each compile, name=value separated by blanks; auto: those that the "
        "program needs, too"),
    Flag("pad_lengths", True,
        "take a slice whose length changes from run to run padded, its length an operand, where "
        "all its users can"),
    Flag("scan_layers", "auto",
        "scan over equal layers: where it costs nothing, wherever possible, or never",
        ("auto", "always", "never")),
    Flag("micro_batches", 0,
        "micro-batches of a device's rows of the batch in a pipeline, at most; 0: four a stage"),
    Flag("parallel", "auto",
        "how keys reach queries over a sharded sequence; off: as the core does", EXCHANGES),
    Flag("document_length", 0,
        "tokens of a document, by which plans for TPUs count attention within documents whose ids "
        "are data; 0: a sequence is one document"),
    Flag("record_modules", True,
        "replay a module's call without gradients that writes a cache in place"),
    Flag("replay_steps", False,
        "replay the call of a module with its backward, and an optimizer's step, in a loop that "
        "repeats them"),
    Flag("check_replays", 1_000,
        "at least one in so many replayed calls runs as Python, and is compared with the "
        "recording; 0: none"),
    Flag("max_logits_bytes", 4 << 30,
        "logits that only a cross entropy reads, where a device's would take more, are computed "
        "in chunks; 0: never"),
    Flag("num_slices", 0,
        "take the devices for this many slices with a network between them (`HybridMesh`); 0: "
        "the slices that exist"),
    Flag("check_graphs", False,
        "check after each pass that its graph is legal, to find an error of this library"),
    Flag("print_graphs", False, "print each graph that a pass has changed, on stderr, in short"),
    Flag("traceback_filtering", True,
        "an error's traceback ends at your line, without the frames inside this library"),
    Flag("module_paths", False,
        "note the module that records each op, for traces of steps that run without being "
        "recorded (spmd.compile)"),
    Flag("hints", 0,
        "lines on stderr: 1: each compile, and reads and fallbacks that recur; 2: each run",
        (0, 1, 2)),
    Flag("graphs_file", "",
        "append each graph that gets a program to this file, as text with your lines"),
    Flag("moves_above", 1 << 16,
        "say which values the partitioner moved unrequested, where a collective of it has more "
        "than this many bytes"),
    Flag("check_shardings", True,
        "after each compile, compare the requested shardings with the chosen ones"),
    Flag("process_timeout_seconds", 300,
        "time for which a process waits for others at a new program (or another collective "
        "call); then an error"),
    Flag("hang_seconds", 120,
        "after this time each of several processes says which program has not ended, and which "
        "have not come; 0: never"),
)  # fmt: skip

# Flags by their former names: a program that still sets one gets an error with the new name.
RENAMED = {"roll_layers": "scan_layers", "entry_cache_size": "op_table_size"}


# Variables of PyTorch/XLA that set a flag whose own variable is not set.
_XLA_VARIABLES = {
    "hints": ("PT_XLA_DEBUG_LEVEL", "PT_XLA_DEBUG"),
    "module_paths": ("XLA_IR_DEBUG", "XLA_HLO_DEBUG"),
    "graphs_file": ("XLA_SAVE_TENSORS_FILE",),
}


def _initial_value(flag: Flag) -> Setting:
    """The initial value of a flag: from its environment variable, else from PyTorch/XLA's, else its
    default."""
    for variable in (flag.variable, *_XLA_VARIABLES.get(flag.name, ())):
        text = os.environ.get(variable)
        if text is not None:
            # PyTorch/XLA's debug level has no upper bound (`hints` ends at 2), and may be a word.
            if flag.name == "hints" and variable != flag.variable:
                text = {"true": "1", "false": "0"}.get(
                    text.lower(), "2" if text.isdigit() and int(text) > 2 else text
                )
            try:
                return flag.parse(text)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{variable}={text!r}: {error}") from None
    return flag.default


def has_variable(name: str) -> bool:
    """True where a flag's variable is set."""
    return f"SPMD_{name.upper()}" in os.environ


class Config:
    """The flags' current values: `config.partitioner = "shardy"`; SPMD_PARTITIONER in the
    environment sets the start.

    >>> from spmd import config
    >>> config.sync_on_read
    'all'
    """

    def __init__(self) -> None:
        for old, new in RENAMED.items():
            if f"SPMD_{old.upper()}" in os.environ:
                raise ValueError(f"SPMD_{old.upper()} is now SPMD_{new.upper()}: set that instead")
        for flag in FLAGS:
            object.__setattr__(self, flag.name, _initial_value(flag))

    if TYPE_CHECKING:  # flags are declared only in FLAGS, which a type checker cannot read

        def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: Setting) -> None:
        for flag in FLAGS:
            if flag.name == name:
                object.__setattr__(self, name, flag.check(value))
                for follow in WHEN_SET.get(name, ()):
                    follow(value)
                return
        if name in RENAMED:
            raise AttributeError(f"config.{name} is now config.{RENAMED[name]}")
        raise AttributeError(
            f"config has no flag {name!r} (flags: {', '.join(flag.name for flag in FLAGS)})"
        )

    def __repr__(self) -> str:
        return "\n".join(
            f"{flag.name} = {getattr(self, flag.name)!r}  # {flag.help}" for flag in FLAGS
        )


config = Config()
# by a flag's name, what is called with its new value
WHEN_SET: dict[str, list[Callable[[Setting], None]]] = {}
_F = TypeVar("_F")


def join_while(flag: str, point: list[_F], function: _F) -> None:
    """Keeps a function in a list of registered functions while a flag is on, or always ("")."""

    def follow(value: Setting) -> None:
        if function in point:
            point.remove(function)
        if value:
            point.append(function)

    WHEN_SET.setdefault(flag, []).append(follow)
    follow(getattr(config, flag, True))


# Devices wait on each other in collectives. With more simulated devices than cores the waits are
# long and normal, so XLA's rendezvous must not abort the process; XLA reads these flags once, when
# its first client starts. An unknown name would abort the process there, and such names come and
# go: only those found in its library are set.
XLA_DEFAULTS = {
    "xla_cpu_collective_call_warn_stuck_timeout_seconds": 600,
    "xla_cpu_collective_call_terminate_timeout_seconds": 7200,
    "xla_cpu_collective_timeout_seconds": 7200,
}


def add_xla_defaults() -> None:
    """Adds the defaults to XLA_FLAGS, before XLA's first client starts; flags that the user has set
    stay."""
    flags = os.environ.get("XLA_FLAGS", "")
    names = _flags_in_library("jaxlib", [name for name in XLA_DEFAULTS if name not in flags])
    added = [f"--{name}={value}" for name, value in XLA_DEFAULTS.items() if name in names]
    os.environ["XLA_FLAGS"] = " ".join([flags, *added]).strip()


_THREADS_OF_A_DEVICE = 2  # of several simulated devices
_own_pool_width: str | None = None


def set_pool_width(num_devices: int) -> None:
    """Sets the number of threads of XLA's CPU client's pools, before it starts; a width that the
    user has set stays.

    A program over several devices occupies a thread per device until it ends, and two while a
    device waits in two collectives, of a loop and after it (docs/decisions/thread-pools.md). XLA's
    own width is the larger of the numbers of cores and of devices; one device computes on the
    calling thread.
    """
    global _own_pool_width
    if os.environ.get("PJRT_NPROC", _own_pool_width) != _own_pool_width or "NPROC" in os.environ:
        return
    reset_pool_width()
    width = _THREADS_OF_A_DEVICE * num_devices
    if num_devices > 1 and width > _num_cores():
        _own_pool_width = os.environ["PJRT_NPROC"] = str(width)


def reset_pool_width() -> None:
    """Undoes `set_pool_width` once the client has started: child processes have devices of their
    own."""
    global _own_pool_width
    if _own_pool_width is not None and os.environ.get("PJRT_NPROC") == _own_pool_width:
        del os.environ["PJRT_NPROC"]
    _own_pool_width = None


def _num_cores() -> int:
    """The cores that this process may use, as XLA counts them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def forced_cpu_devices() -> int | None:
    """The number of CPU devices that XLA_FLAGS requests, or None."""
    counts = re.findall(
        r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", "")
    )
    return int(counts[-1]) if counts else None


def requested_cpu_devices() -> dict[str, int]:
    """The number of CPU devices of a process by each variable that sets one."""
    counts = {
        name: _whole_number(name, least=1) for name in ("CPU_NUM_DEVICES", "JAX_NUM_CPU_DEVICES")
    }
    counts["XLA_FLAGS"] = forced_cpu_devices()
    return {name: count for name, count in counts.items() if count is not None}


def _flags_in_library(package: str, names: Sequence[str]) -> set[str]:
    """Returns the names that occur as full strings in a package's libraries; loads and starts
    nothing."""
    spec = importlib.util.find_spec(package) if names else None
    flags: set[str] = set()
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in Path(folder).iterdir():
            if path.suffix in (".so", ".dylib", ".dll", ".pyd") and path.stat().st_size > 1 << 24:
                with (
                    path.open("rb") as file,
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library,
                ):
                    flags |= {
                        name for name in names if library.find(b"\0" + name.encode() + b"\0") >= 0
                    }
    return flags


@functools.cache
def is_known_to_libtpu(option: str) -> bool:
    """True if the installed libtpu has an option; libtpu raises for an unknown one."""
    return option in _flags_in_library("libtpu", [option])


def prepare_libtpu(*, has_tpu: bool) -> None:
    """Keeps libtpu, where there is no TPU, from querying the network for a TPU and from taking
    libtpu's lock; the user's variables stay."""
    for name, value in WITHOUT_TPU.items() if not has_tpu else ():
        os.environ.setdefault(name, value)


# libtpu queries the network for the last three: without them it writes errors, though a slice that
# is only described has no use for them.
WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
}


def prepare_cuda() -> None:
    """Keeps jax's CUDA plugin from looking for driver libraries on a machine without a GPU, where
    it only compiles."""
    if not has_gpu():
        os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")


# The least severity that XLA logs, which it reads when it is loaded: 0: everything, 1: warnings
# (jax's default), 2: errors.
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
LOGS_WARNINGS = os.environ.get(_LOG_LEVEL, "1") == "1"


@contextlib.contextmanager
def loading_plugins() -> Iterator[None]:
    """Context: plugins of jax loaded inside, on a machine without a GPU, log only errors.

    CUDA's has a log of its own, whose level it reads when it is loaded: it would write XLA's notice
    on GSPMD at each compile. A level that the user has set stays.
    """
    level = os.environ.get(_LOG_LEVEL)
    if not has_gpu() and LOGS_WARNINGS:
        os.environ[_LOG_LEVEL] = "2"
    try:
        yield
    finally:
        os.environ.pop(_LOG_LEVEL, None)
        if level is not None:
            os.environ[_LOG_LEVEL] = level


def has_gpu() -> bool:
    """True if this machine has a GPU and its driver."""
    return Path("/dev/nvidiactl").exists()


def gpu_memory_fraction() -> float:
    """The part of a GPU's memory that jax's allocator takes for arrays and programs."""
    return float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION") or 0.75)


# Variables of other libraries that decide the platform, the devices or the compiler.
_FOREIGN_VARIABLES = (
    "JAX_PLATFORMS",
    "XLA_FLAGS",
    "LIBTPU_INIT_ARGS",
    "PJRT_DEVICE",
    "CPU_NUM_DEVICES",
    "GPU_NUM_DEVICES",
    "ACCELERATE_TORCH_DEVICE",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "JAX_ENABLE_X64",
    "TF_CPP_MIN_LOG_LEVEL",
)
_OWN = "SPMD_"
_SECRET = "SPMD_JOB_SECRET"  # no flag: flags are printed


def known_variables() -> dict[str, str]:
    """The variables that are set and that this library, or jax, reads."""
    names = (*(flag.variable for flag in FLAGS), *_FOREIGN_VARIABLES)
    return {name: os.environ[name] for name in names if name in os.environ}


def unknown_variables() -> dict[str, list[str]]:
    """The set variables with the prefix of this library's flags that name no flag; each with the
    names of all flags."""
    names = [flag.variable for flag in FLAGS]
    declared_names = (*names, _SECRET)
    return {
        name: names for name in os.environ if name.startswith(_OWN) and name not in declared_names
    }


# The variables of the environment by encoded names, how a path to one begins, and the function that
# reads one.
VARIABLES: dict[Any, Any] = vars(os.environ)["_data"]
PATH_OF_VARIABLES = "os.environ"
READ = type(os.environ).__getitem__.__code__


def encoded_name(name: Any) -> Any:
    """Returns the key of a variable among `VARIABLES`."""
    return os.environ.encodekey(name)


def compiler_flags() -> tuple[str | None, ...]:
    """The flags of XLA's compilers in the environment."""
    return tuple(os.environ.get(name) for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"))


def is_terminal(file: TextIO) -> bool:
    """True if a file is a terminal whose last line can be written over."""
    return os.environ.get("TERM") != "dumb" and bool(file.isatty())


def wants_color(file: TextIO) -> bool:
    """True if text printed to a file may be coloured: it is a terminal, and the environment does
    not forbid it."""
    return not os.environ.get("NO_COLOR") and is_terminal(file)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The requested hardware, None where nothing is: a JAX platform, a number of CPU devices, this
    process's GPUs."""

    platform: str | None
    num_cpu_devices: int | None
    gpus: tuple[int, ...] | None


def requested_hardware() -> Hardware:
    """Reads PJRT_DEVICE, CPU_NUM_DEVICES and GPU_NUM_DEVICES as PyTorch/XLA's users set them; jax's
    own variables win.

    With several processes on a machine (LOCAL_RANK), GPU_NUM_DEVICES is the number of each.
    """
    kind = os.environ.get("PJRT_DEVICE")
    platforms = {"CPU": "cpu", "GPU": "cuda", "CUDA": "cuda", "TPU": "tpu"}
    if kind is not None and kind.upper() not in platforms:
        raise ValueError(f"PJRT_DEVICE={kind!r}: expected one of {', '.join(platforms)}")
    count, num_gpus = (_whole_number(f"{name}_NUM_DEVICES", least=1) for name in ("CPU", "GPU"))
    first = (_whole_number("LOCAL_RANK") or 0) * (num_gpus or 0)
    return Hardware(
        platform=None
        if os.environ.get("JAX_PLATFORMS") or kind is None
        else platforms[kind.upper()],
        num_cpu_devices=None
        if forced_cpu_devices() is not None or os.environ.get("JAX_NUM_CPU_DEVICES")
        else count,
        gpus=None
        if num_gpus is None or os.environ.get("JAX_CUDA_VISIBLE_DEVICES")
        else (*range(first, first + num_gpus),),
    )


@dataclass(frozen=True, slots=True)
class Launched:
    """torchrun's environment of this process; None where a variable is not set.

    address: of the first process. restart: the number of the attempt, where torchrun's own store
    listens at the address; None where the port is free.
    """

    address: str | None
    num_processes: int | None
    process_id: int | None
    restart: int | None


def launched() -> Launched:
    """Reads the variables that torchrun sets: MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK.

    In a pod of an indexed job of Kubernetes, JOB_COMPLETION_INDEX is the rank.
    """
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Launched(
        address=None if host is None or port is None else f"{host}:{port}",
        num_processes=_whole_number("WORLD_SIZE"),
        process_id=_whole_number("RANK" if "RANK" in os.environ else "JOB_COMPLETION_INDEX"),
        restart=(_whole_number("TORCHELASTIC_RESTART_COUNT") or 0) if has_store else None,
    )


def job_secret() -> bytes:
    """The secret of a job's processes, by which they prove their messages; empty where its launcher
    sets none."""
    return os.environ.get(_SECRET, "").encode()


def variables_of_process(
    index: int, count: int, port: int, devices: int | None, secret: str
) -> dict[str, str]:
    """Returns the environment of one of several processes on this machine, which `launched` reads
    there.

    devices: the number of CPU devices, or of GPUs, of each process. secret: see `job_secret`.
    """
    variables = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": count,
        "RANK": index,
        _SECRET: secret,
    }
    variables |= {"LOCAL_RANK": index, "LOCAL_WORLD_SIZE": count}
    variables |= {} if devices is None else {"CPU_NUM_DEVICES": devices, "GPU_NUM_DEVICES": devices}
    inherited_variables = {
        name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")
    }
    return inherited_variables | {name: str(value) for name, value in variables.items()}


def _whole_number(variable: str, *, least: int = 0) -> int | None:
    """The value of a variable as an integer of at least `least`, 0 or 1; None if it is not set."""
    text = os.environ.get(variable)
    if text is not None and not (text.isdigit() and int(text) >= least):
        raise ValueError(
            f"{variable}={text!r}: expected a {'positive integer' if least else 'whole number'}"
        )
    return None if text is None else int(text)


def names_xla_for_frameworks() -> bool:
    """True if ACCELERATE_TORCH_DEVICE, which sets accelerate's device, names xla."""
    return os.environ.get("ACCELERATE_TORCH_DEVICE", "").partition(":")[0] == "xla"

"""Every flag of the library, declared once; the only file that reads the environment."""

import os
from dataclasses import dataclass
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
        200_000,
        "a graph that nobody syncs is run by itself at this many ops (counted from the next barrier on)",
    ),
    Flag(
        "loop_search_ops",
        int,
        1_024,
        "at this many ops without a barrier, the finished turns of a loop are run; 0: never",
    ),
    Flag("program_cache_size", int, 512, "compiled programs kept; the least recently used is dropped"),
    Flag("entry_cache_size", int, 100_000, "shape-and-dtype table entries kept before the table is emptied"),
    Flag(
        "fallback",
        str,
        "error",
        "an op without a lowering rule: raises, or runs on the CPU and is counted",
        ("error", "cpu"),
    ),
    Flag("check_shardings", bool, True, "after each compile, compare the shardings asked for with those chosen"),
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
# XLA's rendezvous must not abort the process; XLA reads these flags once, when its first client starts.
XLA_DEFAULTS = {
    "xla_cpu_collective_call_warn_stuck_timeout_seconds": 600,
    "xla_cpu_collective_call_terminate_timeout_seconds": 7200,
    "xla_cpu_collective_timeout_seconds": 7200,
}


def _add_xla_flags(names: dict[str, int]) -> None:
    given = os.environ.get("XLA_FLAGS", "")
    added = [f"--{name}={value}" for name, value in names.items() if name not in given]
    os.environ["XLA_FLAGS"] = " ".join([given, *added]).strip()


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


# XLA warns on every compile that GSPMD propagation will go away; it reads this before jaxlib is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
_add_xla_flags(XLA_DEFAULTS)

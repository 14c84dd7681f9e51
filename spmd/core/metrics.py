"""Counters, timers and the compile ledger: what the library did, and why it compiled."""

import contextlib
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import jax

from . import pace
from .forking import survives_fork


@dataclass(frozen=True, slots=True)
class Collective:
    """One row of a program's table of collectives.

    Attributes:
        kind: XLA's name of it: "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", ...
        axes: the mesh axes along which it goes. devices: how many exchange data with each other.
        bytes: of what they gather, reduce or exchange, as one device has it: the gathered, the unreduced array.
        count: how often a run does it; one inside a loop counts for each turn.
        op: the recorded op that it came from; line: the user's line of that op; path: the module or parameter it
            belongs to, as `named_modules` names it ("" where only `spmd.plan`, which asks the modules, would know).
        is_sliced: of this all-reduce each device keeps a piece alone. On the CPU, which has no other, that is what a
            reduce-scatter becomes.
        link: over what it goes, where the devices are several slices: "ici" inside of a slice, "dcn" between slices.
    """

    kind: str
    axes: tuple[str, ...]
    devices: int
    bytes: int
    count: int
    op: str = ""
    line: str = ""
    path: str = ""
    is_sliced: bool = False
    link: str = ""

    @property
    def moved_bytes(self) -> int:
        """What each device sends in one run, all counts together, by a ring: (n - 1) / n of the bytes, of an all-reduce
        twice that, of a permutation all."""
        share = {"all-reduce": 2 * (self.devices - 1), "collective-permute": self.devices}
        return self.count * self.bytes * share.get(self.kind, self.devices - 1) // self.devices

    def __str__(self) -> str:
        kind = f"{self.kind} and slice" if self.is_sliced else self.kind
        where = f" | {self.path}" if self.path else ""
        link = f", {self.link}" if self.link else ""
        return (
            f"{self.count:,} x {kind} of {self.bytes:,} B over {' x '.join(self.axes)} ({self.devices}{link}), "
            f"moves {self.moved_bytes:,} B{where} | {self.op}, {self.line}"
        )


@dataclass(frozen=True, slots=True)
class CompileRecord:
    """One compiled program: a line of the ledger. Bytes are per device.

    Attributes:
        name: "step", "init" or what else the program is. cause: why it was compiled, or loaded from the disk, in words.
        line: the user's line whose barrier needed it. seconds: tracing, lowering and XLA together, or loading.
        nodes: recorded ops in it. loops: where equal layers became a loop of the program, (turns, ops of a turn), which
        were lowered once instead of once a turn (`config.roll_layers`). flops: XLA's own count, per device, products in
        loops by their turns (0 where the backend gives none).
        collectives: kind -> number in the text of the optimized program. traffic: the same as a table, with mesh axes,
            bytes, how often and from which line (see `Collective`); what moves most comes first.
    """

    name: str
    cause: str
    line: str
    seconds: float
    nodes: int
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    flops: float
    collectives: dict[str, int] = field(default_factory=dict)
    traffic: tuple[Collective, ...] = ()
    loops: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        moved = ", ".join(f"{count} {kind}" for kind, count in sorted(self.collectives.items())) or "no collectives"
        turns = ", ".join(f"{turns} times {ops}" for turns, ops in self.loops)
        spared = sum((turns - 1) * ops for turns, ops in self.loops)
        rolled = f" ({self.nodes - spared} lowered: {turns} in loops)" if self.loops else ""
        return (
            f"{self.name}: {self.cause} | {self.line} | {self.seconds:.2f} s, {self.nodes} ops{rolled}, {moved} | "
            f"per device: arguments {self.argument_bytes:,} B, results {self.output_bytes:,} B "
            f"({self.alias_bytes:,} B in place), temporary {self.temp_bytes:,} B"
        )


_forgotten_ops = 0  # recorded before the last `clear`

_lock = survives_fork(threading.Lock())
_counters: Counter[str] = Counter()
_timers: defaultdict[str, float] = defaultdict(float)
_ledger: deque[CompileRecord] = deque(maxlen=10_000)
_fallbacks: Counter[str] = Counter()


def add(name: str, amount: int = 1) -> None:
    """Adds to a counter."""
    with _lock:
        _counters[name] += amount


def add_time(name: str, seconds: float) -> None:
    """Adds to a timer."""
    with _lock:
        _timers[name] += seconds


def add_fallback(op: str) -> None:
    """Counts an op without a rule that ran on the CPU (`config.fallback`)."""
    with _lock:
        _counters["fallbacks"] += 1
        _fallbacks[op] += 1


def fallback_ops() -> dict[str, int]:
    """The ops without a lowering rule that ran on the CPU, and how often (see `config.fallback`); most often first.

    >>> import spmd
    >>> spmd.metrics.clear()
    >>> spmd.metrics.fallback_ops()
    {}
    """
    return dict(_fallbacks.most_common())


def record_compile(record: CompileRecord) -> None:
    """Writes a line of the ledger."""
    with _lock:
        _ledger.append(record)


def counter(name: str) -> int:
    """The value of a counter, 0 when nothing was counted: "recorded_ops", "syncs", "runs", "host_reads", ..."""
    return pace.recorded_ops - _forgotten_ops if name == "recorded_ops" else _counters[name]


def counter_names() -> list[str]:
    """The counters that have counted something."""
    return sorted([*_counters, "recorded_ops"])


def timer(name: str) -> float:
    """Total seconds of a timer: "key" (graph key at a barrier), "dispatch" (handing a program to PJRT), "compile", of
    which "lower" (to StableHLO), "roll" (finding equal layers), "load" (of programs kept on disk)."""
    return _timers[name]


def compiles() -> list[CompileRecord]:
    """The compile ledger, oldest first."""
    return list(_ledger)


def num_compiles() -> int:
    """How many times XLA's backend compiled in this process, counted by `jax.monitoring`, not by our own cache; what
    `spmd.plan` asks of it aside."""
    return _counters["backend_compiles"]


def clear() -> None:
    """Empties counters, timers and ledger."""
    global _forgotten_ops
    _forgotten_ops = pace.recorded_ops
    with _lock:
        _counters.clear()
        _timers.clear()
        _ledger.clear()
        _fallbacks.clear()


def explain() -> str:
    """The program that was compiled last, in words: its line of the ledger, then its collectives, a line each.

    >>> import torch, spmd
    >>> y = torch.ones(2, device="xla") + 1
    >>> spmd.sync()
    >>> "per device" in spmd.metrics.explain()
    True
    """
    if not _ledger:
        return "nothing was compiled"
    return "\n".join([str(_ledger[-1]), *(f"    {row}" for row in _ledger[-1].traffic)])


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """Counters, timers, ledger and fallbacks are at the end what they were."""
    kept = [(box, box.copy()) for box in (_counters, _timers, _fallbacks)]
    lines = list(_ledger)
    try:
        yield
    finally:
        with _lock:
            for box, before in kept:
                box.clear()
                box.update(before)
            _ledger.clear()
            _ledger.extend(lines)


def report() -> str:
    """Counters, timers and the ledger as text."""
    lines = [f"{name}: {counter(name):,}" for name in counter_names()]
    lines += [f"{name}: {seconds:.4f} s" for name, seconds in sorted(_timers.items())]
    lines += [str(record) for record in _ledger]
    return "\n".join(lines)


_thread = threading.local()  # .silent: what this thread compiles is not counted


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """What this thread compiles inside is not counted."""
    _thread.silent = True
    try:
        yield
    finally:
        _thread.silent = False


def _on_duration(event: str, duration_secs: float, **_: object) -> None:
    if event == "/jax/core/compile/backend_compile_duration" and not getattr(_thread, "silent", False):
        add("backend_compiles")


jax.monitoring.register_event_duration_secs_listener(_on_duration)

now = time.perf_counter

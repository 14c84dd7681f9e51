"""Plan: the figures of a step, as a value, their differences, and advice where it does not fit."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch

try:
    import resource
except ImportError:  # Windows has not
    resource = None  # type: ignore[assignment]

from ...core import Collective, Move, ends_at_user_line
from ...core.extend import Graph
from .layout import LayoutRow, PlanFinding, Recordings, Term

VERSION = 2  # of the JSON


@dataclass(frozen=True, repr=False)
class Plan:
    """The figures of one steady step on its devices, by their own compiler. All bytes and
    operations are per device.

    Attributes:
        target: the devices ("v5p:2x2x2"; None: those here). chip: their kind. num_devices: their
            number. mesh: axis -> size.
        parameters, gradients, optimizer_state, inputs: the bytes of the values kept between steps,
            and of the other values that the step reads. arguments: the bytes of all arguments of
            the program, in the device's layout. results: of all results, of which in_place is
            written over arguments.
        temporaries: the bytes needed while it runs. peak: the most at any time; XLA's own figure on
            a TPU, elsewhere arguments, results and temporaries together.
        host: the bytes in the host's memory for each device (see `Sharding.memory`), which none of
            the above count.
        memory: the bytes that a device has for programs; None where devices share the host's.
        verdict: the compiler's message where the program does not fit; largest: its largest values,
            then. advice: ways to make it smaller.
        flops: floating-point operations. cycles: estimated by the TPU's compiler, loops by their
            trip counts (0 elsewhere); cycles_once: each loop's body once. kernel_flops: those of
            `flops` that are in kernels (Pallas), which have no estimated cycles.
        collectives: the table, most moved bytes first (see `spmd.metrics.Collective`).
        num_programs, num_ops: the programs of a step, and the ops recorded in them. num_lowered:
            those that are compiled: of a loop of equal layers, the ops of one iteration.
        compile_seconds: the time of compiling. planning_seconds: of all that the plan did,
            compiling among it. planning_bytes: the most memory of the host that the process has had
            by then. line: the user's line that made the plan.
        peak_flops, clock, constants: of the chip, and their source. terms: the parts of a step's
            time (see `seconds`), each with its range and source.
        notes: remarks on the figures.
        compiler_options: the options of XLA that were given to the plan.
        recorded: what `save_program` compiles; None for a plan that was read from JSON.
        layout: the spec of each parameter and buffer of the reachable models. findings: notes on
            it: idle rules, shadowed rules, large replicated parameters, padded dims, values that
            the partitioner moved by itself, with the annotation that removes the move.

    >>> import torch, spmd
    >>> model = torch.nn.Linear(4, 2, device="meta")
    >>> plan = spmd.plan(lambda x: model(x).sum().backward(), torch.ones(3, 4))
    >>> plan.parameters, plan.gradients, plan.fits
    (40, 40, True)
    """

    target: str | None
    chip: str | None
    num_devices: int
    mesh: dict[str, int]
    parameters: int
    gradients: int
    optimizer_state: int
    inputs: int
    arguments: int
    results: int
    in_place: int
    temporaries: int
    peak: int
    host: int
    memory: int | None
    flops: float
    cycles: int
    cycles_once: int
    collectives: tuple[Collective, ...]
    num_programs: int
    num_ops: int
    compile_seconds: float
    line: str
    verdict: str = ""
    largest: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    peak_flops: float | None = None
    clock: float | None = None
    constants: str = ""
    notes: tuple[str, ...] = ()
    layout: tuple[LayoutRow, ...] = ()
    findings: tuple[PlanFinding, ...] = ()
    kernel_flops: float = 0.0
    compiler_options: dict[str, str] = field(default_factory=dict)
    recorded: Recordings | None = field(default=None, repr=False, compare=False)
    terms: tuple[Term, ...] = ()
    num_lowered: int = 0
    planning_seconds: float = 0.0
    planning_bytes: int = 0

    @property
    def fits(self) -> bool:
        """True if the devices have the memory: by the compiler's message, else the peak against
        `memory`, if known."""
        return not self.verdict and (self.memory is None or self.peak <= self.memory)

    @property
    def state(self) -> int:
        """The bytes of parameters, gradients and optimizer state."""
        return self.parameters + self.gradients + self.optimizer_state

    @property
    def moved_bytes(self) -> int:
        """The bytes that a device sends in all collectives of a step (see
        `Collective.moved_bytes`)."""
        return sum(row.moved_bytes for row in self.collectives)

    @property
    def hidden_bytes(self) -> int:
        """The part of `moved_bytes` that the program's schedule overlaps with computation."""
        return sum(row.moved_bytes for row in self.collectives if row.is_async)

    @property
    def seconds(self) -> float | None:
        """The step time, the sum of `terms`: what is computed, and the waiting for collectives.
        None for a device of unknown constants, such as a CPU."""
        return sum(term.seconds for term in self.terms) if self.terms else None

    @property
    def seconds_range(self) -> tuple[float, float] | None:
        """The range of `seconds`, which is computed and not measured; None without them."""
        return (
            (sum(term.low for term in self.terms), sum(term.high for term in self.terms))
            if self.terms
            else None
        )

    @property
    def utilisation(self) -> float | None:
        """The fraction of the chip's peak that a step of `seconds` reaches; None without such an
        estimate."""
        return (
            self.flops / (self.seconds * self.peak_flops)
            if self.seconds and self.peak_flops
            else None
        )

    @property
    def bottleneck(self) -> str:
        """The parts of `seconds` from 5 % on in words, with what hides the longest wait; "" without
        `seconds`."""
        terms = sorted(self.terms, key=lambda term: -term.seconds)
        shares = [(term, term.seconds / (self.seconds or 1.0)) for term in terms]
        return "; ".join(
            f"{share:.0%} {self._in_words(term)}" for term, share in shares if share >= 0.05
        )

    def _in_words(self, term: Term) -> str:
        links = [
            row for row in self.collectives if row.waiting and (row.link or "ici") in term.name
        ]
        if not term.name.startswith("waiting") or not links:
            return term.name
        longest = max(links, key=lambda row: row.waiting)
        of_weights = longest.kind == "all-gather" and longest.op == "spmd.gather"
        advice = ": a larger batch a device hides them" if of_weights else ""
        return (
            f"waiting for collectives, most for {longest.kind}s over "
            f"{' x '.join(longest.axes)}{advice}"
        )

    @property
    def formula(self) -> str:
        """The computation of `seconds` and `utilisation` from the terms and operations, as text
        with the numbers."""
        if self.seconds is None or self.utilisation is None or self.seconds_range is None:
            return ""
        low, high = self.seconds_range
        cycles = f" ({self.cycles:,} cycles at {self.clock / 1e9:.3f} GHz)" if self.clock else ""
        return (
            f"step time = {self.seconds:.4g} s{cycles}, from {low:.4g} to {high:.4g} s by the "
            f"chip's constants; utilisation = {self.flops:.4g} operations / ({self.seconds:.4g} s "
            f"x {self.peak_flops:.4g} a second) = {self.utilisation:.1%} ({self.constants})"
        )

    def to_json(self) -> str:
        """Returns all figures as JSON, for a golden file; `Plan.from_json` reads it back."""
        figures = asdict(replace(self, recorded=None))
        del figures["recorded"]
        return json.dumps({"version": VERSION, **figures}, indent=1)

    @classmethod
    @ends_at_user_line
    def from_json(cls, text: str) -> "Plan":
        """Reads a plan that `to_json` wrote. Raises ValueError for another text or version."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"Plan.from_json: expected JSON, got {text[:40]!r} ({error}); of a file write "
                "Plan.from_json(Path(file).read_text())"
            ) from None
        version = values.pop("version", None) if isinstance(values, dict) else None
        if version not in (1, VERSION):  # version 1 has no times, of collectives and of planning
            raise ValueError(
                f"Plan.from_json: expected a plan of version {VERSION}, got {version!r}; plan the "
                "step again"
            )
        return _read(cls, values, "the plan")

    def diff(self, other: "Plan") -> "Difference":
        """Compares with another plan, this one being the one before. An empty difference is false.

        >>> import torch, spmd
        >>> one, two = (
        ...     spmd.plan(torch.nn.Linear(4, n, device="meta"), torch.ones(3, 4)) for n in (2, 3)
        ... )
        >>> [change.name for change in one.diff(two).changes][:1], bool(one.diff(one))
        (['parameters'], False)
        """
        return Difference(tuple(_changes(self, other)))

    def save(self, path: str | Path) -> None:
        """Writes the page that `page` returns."""
        Path(path).write_text(self.page(), encoding="utf-8")

    def page(self) -> str:
        """Returns one self-contained HTML page with pictures (SVG) and the full tables."""
        return str(VIEWS["page"]().page_of(self))

    def save_program(self, path: str | Path) -> int:
        """Writes the step's compiled programs to a folder, with those of its initial values, for
        the job that runs it; returns the number of files. The job takes them by
        `spmd.load_programs`.

        The folder holds a readable manifest, `programs.json`: versions, devices and flags, and the
        ops, lines, inputs and shardings of each program.

        Raises ValueError for a plan that was read from JSON, for programs that cannot be files (a
        user's function in one, devices that are not here), and for a folder with other contents.
        """
        if self.recorded is None:
            raise ValueError(
                "save_program: expected a plan of a step that this process made; call spmd.plan "
                "again"
            )
        files: Any = import_module("spmd.tools.planning.program_files")
        return int(files.save(self.recorded, self.compiler_options, path))

    def __rich__(self) -> Any:
        return VIEWS["table"]().table_of(self)

    def __repr__(self) -> str:
        return text_of(self)


def timed(plan: Plan, started: float) -> Plan:
    """Adds what the plan took from a time of `time.monotonic` until now."""
    unit = 1 if sys.platform == "darwin" else 1024  # of the kernel's figure, in bytes
    num_bytes = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit if resource is not None else 0
    )
    return replace(plan, planning_seconds=time.monotonic() - started, planning_bytes=num_bytes)


def _read(kind: Any, value: Any, name: str) -> Any:
    """Returns the value of an annotated type that JSON has; raises ValueError for another one."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return None if value is None else _read(inner[0], value, name)
    if origin is tuple and isinstance(value, list):
        return tuple(_read(inner[0], item, name) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: _read(inner[1], item, name) for key, item in value.items()}
    if kind in _HINTS and isinstance(value, dict):
        try:
            return kind(
                **{
                    key: _read(_HINTS[kind].get(key), item, f"{name}.{key}")
                    for key, item in value.items()
                }
            )
        except TypeError as error:
            raise ValueError(f"Plan.from_json: {name}: {error}") from None
    is_number = type(value) is int and abs(value) < 1 << 63
    if (type(value) is kind and (kind is not int or is_number)) or (kind is float and is_number):
        return value
    raise ValueError(
        f"Plan.from_json: expected {name} as {getattr(kind, '__name__', kind)}, got "
        f"{str(value)[:80]!r}"
    )


_HINTS = {
    kind: get_type_hints(kind) for kind in (Plan, Collective, LayoutRow, PlanFinding, Term, Move)
}


# The modules that print results, by name, imported at their first use: see `spmd.packages`.
VIEWS: dict[str, Callable[[], Any]] = {}


def text_of(result: Any) -> str:
    """The table of a result, as text."""
    return str(VIEWS["table"]().text_of(result))


@dataclass(frozen=True)
class FigureChange:
    """One figure that differs between two plans; collectives are named by kind, axes, module and
    op."""

    name: str
    before: float
    after: float

    def __str__(self) -> str:
        share = f" ({self.after / self.before - 1:+.1%})" if self.before else ""
        return f"{self.name}: {self.before:,.10g} -> {self.after:,.10g}{share}"


@dataclass(frozen=True)
class Difference:
    """The figures that differ between two plans, in the order of `Plan`'s attributes, then
    collectives by bytes."""

    changes: tuple[FigureChange, ...]

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        return "\n".join(map(str, self.changes)) or "no difference"


# The figures that the same code gives each time; seconds and lines are not among them.
COMPARED = (
    "num_devices", "parameters", "gradients", "optimizer_state", "inputs", "arguments", "results",
    "in_place", "temporaries", "peak", "host", "flops", "cycles", "moved_bytes", "hidden_bytes",
    "num_programs",
)  # fmt: skip


def _changes(old_plan: Plan, new_plan: Plan) -> Iterable[FigureChange]:
    for name in COMPARED:
        old, new = getattr(old_plan, name), getattr(new_plan, name)
        if old != new:
            yield FigureChange(name, old, new)
    yield from _moved_rows(old_plan, new_plan)
    totals = [_totals(plan) for plan in (old_plan, new_plan)]
    moved = [
        FigureChange(name, totals[0].get(name, 0), totals[1].get(name, 0))
        for name in totals[0] | totals[1]
    ]
    changed = [change for change in moved if change.before != change.after]
    yield from sorted(changed, key=lambda change: -abs(change.after - change.before))


def _moved_rows(old_plan: Plan, new_plan: Plan) -> Iterable[FigureChange]:
    """The parameters whose specs differ, with the bytes of one device's shard."""
    olds, news = ({row.path: row for row in plan.layout} for plan in (old_plan, new_plan))
    for path in olds | news:
        old, new = olds.get(path), news.get(path)
        specs = [row.spec if row is not None else "not there" for row in (old, new)]
        if specs[0] != specs[1]:
            sizes = [row.bytes if row is not None else 0 for row in (old, new)]
            yield FigureChange(f"{path}, {specs[0]} -> {specs[1]} (bytes)", *sizes)


def _totals(plan: Plan) -> dict[str, int]:
    """The bytes that collectives move, by kind, axes, op and module; not by line, which an edit
    above it changes."""
    totals: dict[str, int] = {}
    for row in plan.collectives:
        name = (
            f"{row.kind} over {' x '.join(row.axes)}, "
            f"{row.op}{f' in {row.path}' if row.path else ''} (bytes moved)"
        )
        totals[name] = totals.get(name, 0) + row.moved_bytes
    return totals


def advice(plan: Plan, programs: Sequence[Graph]) -> Plan:
    """Adds advice to the plan of these programs, if the plan does not fit: by the largest part of
    its memory and the measures that the step takes already."""
    if plan.fits:
        return plan
    measures = []
    nodes = [node for graph in programs for node in graph.nodes]
    state = plan.state + plan.inputs
    if plan.temporaries >= state:
        if all(node.op.name != "spmd.loops.recompute" for node in nodes):
            measures.append(
                "activation checkpointing of each layer (torch.utils.checkpoint), which keeps "
                "only its input"
            )
        measures.append(
            "a smaller batch per device, or a mesh axis that also splits the sequence or the "
            "features"
        )
    if state > plan.temporaries or (plan.memory is not None and 2 * state > plan.memory):
        measures.append(
            f"more devices on the axis that shards parameters: state takes {state / 2**30:,.2f} "
            f"GiB of each device, {state * plan.num_devices / 2**30:,.2f} GiB in all"
        )
    if plan.num_devices == 1:
        measures.append("a mesh of more devices, and fsdp.FullyShardedDataParallel over it")
    if not any(
        torch.bfloat16 in {meta.dtype for meta in node.op.metas}
        for node in nodes
        if node.op.name in _PRODUCTS
    ):
        measures.append(
            "bfloat16 compute (torch.autocast), which halves the tensors kept between forward and "
            "backward"
        )
    return replace(plan, advice=tuple(measures))


_PRODUCTS = frozenset(
    {"aten.linear", "aten.mm", "aten.bmm", "aten.addmm", "aten.matmul", "aten.convolution"}
)

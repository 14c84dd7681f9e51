"""A planned step: names, roles and shardings of its tensors, findings on these, its status."""

import contextlib
import itertools
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as hooks

from ...core import (
    DEVICE,
    DeviceData,
    Meta,
    Move,
    Sharding,
    Storage,
    XlaTensor,
    hardware,
    storage_of,
)
from ...core.extend import (
    Graph,
    Line,
    Node,
    Objects,
    Recording,
    Target,
    Value,
    reached,
    state_names,
    store,
    user_lines,
    walks,
)
from ...rules.patterns import matches
from ...rules.rules import ShardingRules
from ...tensors.annotate import get_sharding
from ..explain.status import status
from ..hlo.unrequested_moves import spec_text


class _ProgressThread(threading.local):
    def __init__(self) -> None:
        self.stages: list[str] = []  # the outermost first


_thread = _ProgressThread()


@contextlib.contextmanager
def stage(text: str, *, is_shown: bool = True) -> Iterator[None]:
    """Shows the text while the context is open, after the texts of the enclosing stages (see
    `messages.status`), or hides it and the stages inside."""
    stages, started = _thread.stages, time.monotonic()

    def describe() -> str:
        return f"{': '.join(stages)}, {time.monotonic() - started:.0f} s"

    stages.append(text)
    try:
        with (
            status("planning", describe)
            if is_shown and len(stages) == 1
            else contextlib.nullcontext()
        ):
            yield
    finally:
        stages.pop()


# --- names ----------------------------------------------------------------------------------------


# the bits of a node's sequence that are autograd's number (see `ir.source`)
_SEQUENCE = (1 << 48) - 1


class Span(NamedTuple):
    """One call of a module: the ops that it recorded, and autograd's numbers of those with a
    backward."""

    ops: tuple[int, int]
    numbers: tuple[int, int]
    module: nn.Module


class Calls:
    """The calls of modules while a step is recorded. paths: of the modules, by id, from the
    outermost ones and without wrappers of one `module`; the calls of others have none."""

    def __init__(self, modules: Sequence[nn.Module]):
        self.paths: dict[int, str] = {}
        for root in reached.outermost(modules):
            for name, module in root.named_modules():
                self.paths.setdefault(id(module), user_lines.plain_name(root, name))
        self.spans: list[Span] = []
        self._open: list[tuple[int, int]] = []

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Records the calls of modules inside the context."""
        with (
            hooks.register_module_forward_pre_hook(self._begin),
            hooks.register_module_forward_hook(self._end, always_call=True),
        ):
            yield

    def _begin(self, module: nn.Module, args: Any) -> None:
        self._open.append((store.next_serial(), torch._C._autograd._get_sequence_nr()))

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        serial, number = self._open.pop()
        end = store.next_serial(), torch._C._autograd._get_sequence_nr()
        self.spans.append(Span((serial, end[0]), (number, end[1]), module))

    def path_of(self, node: Node) -> str:
        """The innermost module whose call recorded the op, or its forward op for a backward op; ""
        for none."""
        by_number = node.sequence >= 0
        position = node.sequence & _SEQUENCE if by_number else node.serial
        calls = (
            (span.numbers if by_number else span.ops, self.paths.get(id(span.module)))
            for span in self.spans
        )
        around = [
            (end - start, path)
            for (start, end), path in calls
            if start <= position < end and path is not None
        ]
        return min(around, key=lambda call: call[0])[1] if around else ""


# The roles of which a plan has figures; what else a program reads are inputs.
ROLES = {"parameter": "parameters", "gradient": "gradients", "optimizer state": "optimizer state"}


def role_and_name(names: state_names.StateNames, device_data: DeviceData) -> tuple[str, str]:
    """The role of an input of a program, and its name if it is a module's parameter or buffer, else
    ""."""
    named = names.of(device_data.holder() if device_data.holder is not None else None)
    if named is None:
        return "inputs", ""
    return ROLES.get(named.role, "inputs"), named.name if named.role in (
        "parameter",
        "buffer",
    ) else ""


def path_of(node: Node, calls: Calls, data_names: dict[DeviceData, str]) -> str:
    """The parameter that an op shards, casts or renews, else the module that it belongs to."""
    if node.op.sharding is not None or node.op.name in _SAME:
        names = [
            name for operand in node.operands if (name := data_names.get(_stored(operand), ""))
        ]
        if names:
            return names[0] if len(names) == 1 else _shared(names)
    return calls.path_of(user_lines.source_of(node))


# The ops of an FSDP unit on a parameter before a layer reads it.
_SAME = frozenset({"spmd.renew", "mark_sharding", "aten._to_copy", "aten.detach", "aten.alias"})


def _stored(value: Value) -> Any:
    """The value before its renewals, annotations and casts."""
    while (maker := walks.origin(value)) is not None and maker.op.name in _SAME:
        value = maker.operands[walks.result_index(value)]
    return value


def _shared(names: Sequence[str]) -> str:
    """The common prefix of several names, and their number."""
    columns = zip(*(name.split(".") for name in names), strict=False)
    common = [
        column[0] for column in itertools.takewhile(lambda column: len(set(column)) == 1, columns)
    ]
    return f"{'.'.join([*common, '*'])} ({len(names)})"


# --- shardings ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LayoutRow:
    """One parameter or buffer: its path, dtype and shape, the spec that it is stored by, the bytes
    of one device's shard, and the pattern of the rule that matched ("" for none)."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    spec: str
    bytes: int
    rule: str = ""
    is_buffer: bool = False


@dataclass(frozen=True, slots=True)
class PlanFinding:
    """A note on a rule, a parameter or an activation.

    kind: "idle rule" (matches nothing in the model), "shadowed rule" (earlier rules match all of
    its paths), "whole" (a large parameter that is replicated), "uneven" (a dim that is padded),
    "unused axis" (a mark over an axis that an op cannot use), "exchange" (how keys reach queries
    over a sharded sequence), "schedule" (of layers in stages), "kernel" (why attention leaves its
    kernel), "precision" (the cycles of exact float32 products on a TPU), "reshard" (a value that
    the partitioner moved without an annotation), "given up" (the same, gathered and cut again).
    subject: the rule or the path.
    line: the user's line. move: of the last two, as data (`spmd.metrics.Move`).
    """

    kind: str
    subject: str
    text: str
    line: str = ""
    move: Move | None = None

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.kind, self.subject, self.text)))


NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # of a layer, in a path
LARGE = 1 << 20  # bytes from which on a replicated parameter is a finding


def shard_bytes(meta: Meta, sharding: Sharding) -> int:
    """The bytes of one device's shard of an array with this meta."""
    return math.prod(sharding.shard_shape(meta.shape)) * meta.struct.dtype.itemsize


def bytes_of(names: state_names.StateNames) -> Counter[str]:
    """The bytes of each role in a device's own memory after the step, and its bytes in the host's
    memory."""
    sizes = Counter[str]()
    for storage, named in names.named.items():
        device_data = storage.value
        if named.role in ROLES and type(device_data) is DeviceData:
            sharding = device_data.sharding or storage.sharding or hardware.default_sharding()
            sizes[ROLES[named.role] if sharding.memory == DEVICE else "host"] += shard_bytes(
                device_data.meta, sharding
            )
    return sizes


def roots_of(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """The outermost of these modules that have tensors on xla."""
    return [root for root in reached.outermost(modules) if any(True for _ in tensors_of(root))]


def tensors_of(root: nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Yields (path, tensor, is_buffer) of each parameter and buffer on xla; tied ones once."""
    for is_buffer, named in ((False, root.named_parameters()), (True, root.named_buffers())):
        for path, tensor in named:
            if isinstance(tensor, XlaTensor):
                yield path, tensor, is_buffer


def refuse_sharded(root: nn.Module, caller: str, instead: str) -> None:
    """Raises ValueError for a module that is sharded already. instead: the call's own way to give
    shardings."""
    for path, tensor, _ in tensors_of(root):
        sharding = get_sharding(tensor)
        if sharding is not None:
            raise ValueError(
                f"{caller}: expected a model without shardings, but {path} of the "
                f"{type(root).__name__} has {spec_text(sharding.partition_spec(tensor.dim()))}; "
                f"call {caller} before FSDP, rules or annotations, and {instead}"
            )


def rows_of(
    roots: Iterable[nn.Module], rules: dict[str, str]
) -> tuple[list[LayoutRow], list[PlanFinding]]:
    """A row for each tensor, and the findings on single tensors. rules: path -> pattern."""
    rows, findings = [], []
    for root in roots:
        for path, tensor, is_buffer in tensors_of(root):
            assert isinstance(tensor, XlaTensor)
            value: Any = storage_of(tensor).value
            of_data = value.sharding if type(value) is DeviceData else None
            sharding = of_data or storage_of(tensor).sharding or hardware.default_sharding()
            rank, shape = tensor.dim(), tuple(tensor.shape)
            spec = sharding.partition_spec(rank)
            size, dtype = (
                shard_bytes(value.meta, sharding),
                str(tensor.dtype).removeprefix("torch."),
            )
            rows.append(
                LayoutRow(path, dtype, shape, spec_text(spec), size, rules.get(path, ""), is_buffer)
            )
            ways = math.prod(sharding.mesh_axes().values())
            if size >= LARGE and ways > 1 and not is_buffer and sharding.is_replicated():
                findings.append(
                    PlanFinding(
                        "whole", path, f"each of {ways} devices holds all of its {size:,} bytes"
                    )
                )
            for dim, (length, padded) in enumerate(
                zip(shape, sharding.padded_shape(shape), strict=True)
            ):
                if padded != length:
                    parts = sharding.tiles(rank)[dim]
                    text = (
                        f"dim {dim} of {length} is padded to {padded} for {parts} shards "
                        f"({spec_text(spec)})"
                    )
                    findings.append(PlanFinding("uneven", path, text))
    return rows, findings


def rules_of_nothing(
    rules: ShardingRules, roots: Sequence[nn.Module], line: str
) -> Iterator[PlanFinding]:
    """Findings on the rules that match nothing, and those whose paths are all matched by earlier
    rules."""
    paths = [path for root in roots for path, *_ in tensors_of(root)]
    modules = [path for root in roots for path, _ in root.named_modules()]
    # (rule, pattern of paths, the tensors that the rule is for: of parameters, or a part of a
    # module's activations)
    table: list[tuple[str, str, Any]] = [
        (pattern, pattern, None) for pattern, _ in rules.of_parameters()
    ]
    table += [(rule, site.path, site.part(spec)) for rule, site, spec in rules.of_activations()]
    for rule, pattern, part in table:
        same = [(candidate, of) for candidate, of, its in table if its == part]
        mine = [path for path in (paths if part is None else modules) if matches(pattern, path)]
        takers = dict.fromkeys(
            next(candidate for candidate, of in same if matches(of, path)) for path in mine
        )
        if not mine:
            yield PlanFinding("idle rule", rule, "it matches nothing in the model", line)
        elif rule not in takers:
            text = f"earlier rules match all of its paths: {', '.join(map(repr, takers))}"
            yield PlanFinding("shadowed rule", rule, text, line)


def unused_axes(notes: Iterable[tuple[str, str]]) -> Iterator[PlanFinding]:
    """Findings on marks over an axis that an op cannot use, and on exchanges. notes: (kind,
    sentence)."""
    for kind, sentence in dict.fromkeys(notes):
        words, _, op = sentence.partition(" at ")
        yield PlanFinding(kind, op.partition("(")[0], words, op.rpartition("), ")[2])


def reshards(moves: Iterable[Move], sites: Container[str]) -> Iterator[PlanFinding]:
    """Findings on the values that the partitioner moved by itself, most bytes first. sites: modules
    that have a rule, whose gathers are requested."""
    for move in sorted(moves, key=lambda move: -move.bytes):
        if move.kind == "given up" or move.path not in sites or move.collectives != ("all-gather",):
            kind = "reshard" if move.kind == "move" else move.kind
            yield PlanFinding(kind, f"{move.path} {move.op}".strip(), move.text, move.line, move)


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a step's time. seconds: expected; low, high: the range. source: "measured" where
    its constants are (`python -m spmd calibrate`), "compiler", from its own cycles, or "analytic",
    from counts and the chip's data sheet."""

    name: str
    seconds: float
    low: float
    high: float
    source: str


# --- the recorded step ----------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedStep:
    """The second of two steps. state: the bytes per device of each role, other inputs among them,
    and on the host; paths: the module of an op.

    rows, findings: the shardings of the models, and notes on them. sites: the modules whose
    activations have a rule; None: there are no rules. earlier: all programs of the recording. mesh:
    None: that of the programs. storages: those of the inputs, kept alive: which of these are state
    decides what is compiled, when the modules have their own tensors again.
    """

    programs: list[Graph]
    earlier: list[Graph]
    state: Counter[str]
    paths: Callable[[Node], str]
    rows: list[LayoutRow]
    findings: list[PlanFinding]
    sites: set[str] | None
    mesh: Sharding | None = None
    storages: Sequence[Storage | None] = ()


def recorded_step(
    recording: Recording,
    programs: list[Graph],
    results: Set[DeviceData],
    reachable: Objects,
    calls: Calls,
    layout: tuple[list[LayoutRow], list[PlanFinding]],
    sites: set[str] | None = None,
) -> PlannedStep:
    """The programs of a step, with their results, by what is reachable at the end of it."""
    names, (rows, findings) = state_names.StateNames(reachable), layout
    state, paths = bytes_of(names), dict[DeviceData, str]()
    shardings = {
        data: input_sharding
        for graph in programs
        for data, input_sharding in zip(graph.inputs, graph.shardings, strict=True)
    }
    for data, sharding in shardings.items():
        role, paths[data] = role_and_name(names, data)
        if role == "inputs" and data not in results:
            state["inputs" if sharding.memory == DEVICE else "host"] += shard_bytes(
                data.meta, sharding
            )
    return PlannedStep(
        programs,
        recording.programs,
        state,
        lambda node: path_of(node, calls, paths),
        rows,
        [replace(finding, line=_read_at(finding.subject, paths, programs)) for finding in findings],
        sites,
        storages=[data.holder and data.holder() for data in shardings],
    )


def _read_at(path: str, names: dict[DeviceData, str], programs: Sequence[Graph]) -> str:
    """The line of the first op that reads a parameter."""
    for graph in programs:
        for node in graph.nodes:
            if any(
                names.get(operand) == path
                for operand in node.operands
                if type(operand) is DeviceData
            ):
                return str(user_lines.line_of(node, graph.nodes))
    return ""


# --- the programs as they were recorded -----------------------------------------------------------


@dataclass(frozen=True)
class Recordings:
    """The graphs of a planned step and of its initial values, and the devices that they are
    compiled for. why_not: the reason for which they were not kept."""

    graphs: Sequence[Graph]
    target: Target
    line: Line
    why_not: str = ""


def recordings(
    graphs: Sequence[Graph], step: Sequence[Graph], target: Target, line: Line
) -> Recordings:
    """Returns the graphs of a plan, if they hold no data on the devices, which would stay there as
    long as the plan.

    graphs: of both calls of the step and of all initial values that were pending, those of models
    on other devices among them, which are left out; step: of the steady step.
    """
    targets = {graph.mesh.target for graph in step}
    graphs = [graph for graph in graphs if graph.mesh.target in targets]
    if any(data.is_on_devices() for graph in graphs for data in graph.inputs):
        why_not = (
            "the step reads data that is on the devices already; plan before the first step, or "
            "on meta"
        )
        return Recordings((), target, line, why_not)
    return Recordings(graphs, target, line)

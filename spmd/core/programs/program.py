"""A compiled program: XLA's options for it, the facts that are kept of its graph, and the check of
its shardings."""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from ..base.compile_record import Collective, CompileRecord, Move
from ..base.config import config, is_known_to_libtpu
from ..base.state import held
from ..graph.graph import (
    SETTINGS,
    Graph,
    Node,
    Port,
    Region,
    TupleElement,
    Value,
    origin,
    pack_numbers,
    settings,
    walk,
)
from ..graph.meta import Meta
from ..graph.op import OpSpec
from ..graph.source import Line, describe, lines_of, node_line
from ..lower.lower import FOUND_LOOP, LoweringError
from ..sharding.topology import stand_in
from ..sharding.value import Sharding

Exchanges = tuple[tuple[Collective, int | None], ...]
Moves = tuple[tuple[Move, int], ...]
Tables = tuple[tuple[Collective, ...], tuple[Move, ...]]


class ProgramFacts(NamedTuple):
    """Facts read in the text of a program.

    flops: XLA's count, products in loops times their trip counts. collectives: their number, by
    kind. exchanges: a row for each collective, with the index of its op. moves: a row for each
    `Move`, with the index of its op.
    """

    flops: float
    collectives: dict[str, int]
    exchanges: Exchanges = ()
    moves: Moves = ()


class Program:
    """A compiled graph: the executable, the results' shardings, and enough of the graph to describe
    later changes.

    inputs, outputs: the ports of a run. donated: per input, whether a run takes its buffer;
    foreign: the inputs whose mesh has the devices in another order than the program, with their
    sharding in its order; respelled: the outputs on such a mesh, with their own sharding.
    calls_host: whether a run calls Python, which may raise. smallest: the output with fewest bytes.
    bytes_needed: the bytes that a run allocates on the devices of this process, over all of them.
    is_planned: it was compiled for a plan, and no run has needed it yet. is_loaded: it was not
    compiled here, but read from the disk. is_unrolled: XLA would copy the stacks of its layers,
    which therefore are no loops. made_by: for each result the index of its op in `entries` and
    `lines`, -1 for an input. fingerprint: the digest that several processes compared. loops: (first
    op, trip count, ops of an iteration) of each. requested: the graph, for the description of later
    changes (see `Requested`). numbers: for the floats and the integers, the order in which the
    program takes the scalar arguments of the recorded ops; None: as they were recorded. graph: as
    it was recorded, without data (see `without_data`). num_notes: how often `run.known_graphs` has
    noted it. scalars: the last scalar arguments (see `transfer.placed`). paths: the module of each
    op, where they were noted (`config.module_paths`).
    """

    def __init__(
        self, name: str, line: Line, graph: Graph, executable: Any, results: list[Sharding]
    ):
        self.name = name
        self.line = line
        self.executable = executable
        self.results = results
        recorded = graph.recorded or graph
        self.graph = without_data(recorded)
        self.entries = list(map(attrgetter("op"), recorded.nodes))
        index_of: dict[Node | None, int] = {
            node: index for index, node in enumerate(recorded.nodes)
        }
        self.made_by = [index_of.get(origin(root), -1) for root in recorded.roots]
        self.numbers: tuple[np.ndarray, ...] | None = None
        if graph.recorded is not None:
            self.numbers = tuple(
                np.array(indices, np.int64) for indices in pack_numbers(graph.nodes)
            )
        self.donated = graph.donated
        self.requested: Requested
        self.inputs = graph.arguments()
        self.outputs = graph.results()
        self.loops = tuple(
            (
                index_of[graph.sources[node][0]],
                node.op.lowering.iterations,  # type: ignore[attr-defined]
                len(graph.sources[node]),
            )
            for node in graph.nodes
            if node.op.name == FOUND_LOOP
        )
        order = graph.mesh.device_ids
        self.foreign = [
            (i, port.sharding.over(order))
            for i, port in enumerate(self.inputs)
            if port.sharding is not None and port.sharding.device_ids != order
        ]
        self.respelled = [
            (i, sharding.jax)
            for i, port in enumerate(self.outputs if results else ())
            if (sharding := self._sharding(port)).device_ids != order
        ]
        self.smallest = min(range(len(self.outputs)), key=lambda i: self.outputs[i].meta.nbytes)
        self.scalars: list[tuple[bytes, Any]] = []
        self.calls_host = False
        self.is_planned = self.is_loaded = self.is_unrolled = False
        self.bytes_needed = self.num_notes = 0
        self.fingerprint = b""
        self.record: CompileRecord | None = None
        self.paths: tuple[str, ...] = ()

    def _sharding(self, port: Port) -> Sharding:
        """Returns the sharding of an output: the requested one, else the one that the compiler
        chose."""
        return (
            self.results[port.indices]
            if isinstance(port.indices, int)
            else self.results[max(port.indices)].behind_rows()
        )

    @property
    def lines(self) -> list[Line]:
        """The user's line of each op."""
        return lines_of(self.graph.nodes)

    @functools.cached_property
    def facts(self) -> ProgramFacts:
        """The facts in the program's text, read at their first use: a compilation needs none."""
        return PROGRAM_READERS.facts(self)

    def is_at(self, line: Line) -> bool:
        """True if the program was compiled for the sync at this line."""
        return self.line.code is line.code and self.line.number == line.number


@dataclass
class Readers:
    """The readers of programs, which packages replace (`spmd.packages`).

    facts: the facts in a program's text. tables: the collectives, and the moves above a number of
    bytes. difference: how a graph differs from a program, in words; the arguments after these are
    the line of the sync (for a program of another sync, the line of that), and the number of
    programs of the sync that have the graph's ops on any shapes.
    """

    facts: Callable[[Program], ProgramFacts] = lambda program: ProgramFacts(
        num_flops(program.executable), {}
    )
    tables: Callable[[Program, int], Tables] = lambda program, above: ((), ())
    difference: Callable[[Program, Graph, Line, int], str] = (
        lambda program, graph, line, num_equal: (
            f"another graph than before, of {len(graph.nodes):,} ops"
        )
    )


PROGRAM_READERS = Readers()


def num_flops(executable: Any) -> float:
    """Returns XLA's own count of floating-point operations per device, the body of a loop counted
    once; 0 if XLA gives none."""
    costs = executable.cost_analysis() or {}
    costs = costs[0] if isinstance(costs, list) else costs
    return float(costs.get("flops", 0.0))


def without_data(graph: Graph) -> Graph:
    """Returns a copy of a recorded graph that keeps no buffer: its inputs are abstract.

    Each op has its line.
    """
    region = Region.of(graph.roots, graph.inputs, graph.nodes)
    for node, copy in zip(graph.nodes, region.nodes, strict=True):
        line = node_line(node)  # the line of a forward op is not known for long
        copy.code, copy.instruction = line.code, line.instruction
    return dataclasses.replace(
        graph, nodes=region.nodes, inputs=region.inputs, roots=region.roots, free=()
    )


ValueIndex = tuple[int, int]  # (op, result of it) of a value; (~i, 0) for input i


class Requested:
    """The graph for which a program was compiled, as facts that are compared with those of another
    graph: ops and their lines, inputs (meta, sharding), the indices of each op's operands and of
    the results (roots), the flags.

    run: the number of the run that needed it first.
    """

    def __init__(self, graph: Graph, run: int):
        self.graph = graph
        self.run = run
        self.settings = dict(zip(SETTINGS, settings(config), strict=True))

    @functools.cached_property
    def entries(self) -> list[OpSpec]:
        return list(map(attrgetter("op"), self.graph.nodes))

    @functools.cached_property
    def lines(self) -> list[Line]:
        return lines_of(self.graph.nodes)

    @functools.cached_property
    def inputs(self) -> list[tuple[Meta, Sharding]]:
        return list(
            zip((data.meta for data in self.graph.inputs), self.graph.shardings, strict=True)
        )

    @functools.cached_property
    def wiring(self) -> list[tuple[ValueIndex, ...]]:
        return [tuple(map(self._value_index, node.operands)) for node in self.graph.nodes]

    @functools.cached_property
    def roots(self) -> list[ValueIndex]:
        return list(map(self._value_index, self.graph.roots))

    @functools.cached_property
    def _positions(self) -> dict[Value, int]:
        positions: dict[Value, int] = {data: ~i for i, data in enumerate(self.graph.inputs)}
        return positions | {node: i for i, node in enumerate(self.graph.nodes)}

    def _value_index(self, value: Value) -> ValueIndex:
        if type(value) is TupleElement:
            return self._positions[value.node], value.index
        return self._positions[value], 0

    def value(self, value_index: ValueIndex) -> str:
        """Returns a value as text for messages: an input, or the result of an op at its line."""
        index, _ = value_index
        if index < 0:
            return f"input {~index} ({self.inputs[~index][0]!r})"
        return f"the result of {self.entries[index].name} at {self.lines[index]}"


def listing(requested: Requested, program: Program | None = None) -> dict[str, Any]:
    """Returns the graph as lists and text: inputs, ops with their lines, results, donation,
    flags."""
    facts: dict[str, Any] = {
        "flags": {name: str(value) for name, value in requested.settings.items()},
        "inputs": [[repr(meta), repr(sharding)] for meta, sharding in requested.inputs],
        "ops": [_op(op) for op in requested.entries],
        "lines": [str(line) for line in requested.lines],
        "wiring": [[list(operand) for operand in operands] for operands in requested.wiring],
        "results": [
            [list(root), None if sharding is None else repr(sharding)]
            for root, sharding in zip(requested.roots, requested.graph.pinned, strict=True)
        ],
        "donated": list(requested.graph.donated),
    }
    if program is not None and program.record is not None:
        facts["bytes"] = {
            "arguments": program.record.argument_bytes,
            "temporaries": program.record.temp_bytes,
        }
    return facts


def _op(op: OpSpec) -> list[str]:
    statics = f"({op.statics})" if op.statics else ""
    sharded = "" if op.sharding is None else f" as {op.sharding!r}"
    return [
        op.name,
        f"{op.name}{statics} -> {', '.join(map(repr, op.metas))}{sharded}",
        op.encoded[:16],
    ]


def chosen_shardings(graph: Graph, executable: Any) -> list[Sharding]:
    """Returns the results' shardings; raises LoweringError if the compiler chose another than the
    requested one (both partitioners may). Called inside `program_devices`, like `compare`."""
    outputs = list(zip(graph.results(), executable.output_shardings, strict=True))
    if config.check_shardings:
        for port, actual_sharding in zip(
            graph.arguments(), executable.input_shardings[0], strict=False
        ):
            assert port.sharding is not None, "every input has a sharding"
            compare(graph, lambda: "argument", port.meta, port.sharding, actual_sharding)
        for port, actual_sharding in outputs:
            if port.sharding is not None:
                # Any root of a stack group: inputs among its rows have indices below 0.
                root = graph.roots[
                    port.indices if isinstance(port.indices, int) else max(port.indices)
                ]
                compare(
                    graph,
                    partial(_label, root),
                    port.meta,
                    port.sharding,
                    actual_sharding,
                    origin(root),
                )
    unrequested = {
        port.indices: chosen_sharding for port, chosen_sharding in outputs if port.sharding is None
    }
    meshes = graph.meshes() if unrequested else []
    return [
        Sharding.from_jax(unrequested[index], len(root.meta.shape), meshes)
        if pinned is None
        else pinned
        for index, (root, pinned) in enumerate(zip(graph.roots, graph.pinned, strict=True))
    ]


def compare(
    graph: Graph,
    label: Callable[[], str],
    meta: Meta,
    requested: Sharding,
    actual_sharding: jax.sharding.Sharding,
    node: Node | None = None,
) -> None:
    """Raises LoweringError if the compiler chose another sharding than the requested one."""
    if not requested.allows(actual_sharding, len(meta.shape)):
        raise LoweringError(
            f"the partitioner ({config.partitioner}) sharded the {label()} {meta!r} as "
            f"{actual_sharding} instead of {requested!r}",
            node,
        )


def _label(root: Value) -> str:
    node = origin(root)
    return f"result of {'an input' if node is None else describe(node)}"


# By default XLA's CPU compiler combines all reductions into one, which waits for every gradient,
# and removes optimization barriers before it decides on recompute and on the sharding of gradients:
# memory that a program would free in between is then allocated all at once.
_KEEPING_BARRIERS = {"xla_disable_hlo_passes": "cpu-all-reduce-combiner,cse_barrier_expander"}
# It also runs gathers as early as it can. With recomputed activations its default order still needs
# least memory, and the memory-optimized one defers every product that makes a weight's gradient.
_BY_MEMORY = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
FREEING = {**_BY_MEMORY, **_KEEPING_BARRIERS}


# For an exact float32 product the TPU's compiler generates code of many windows, in 7 to 17 s of
# processor time. With this target it takes 1 to 4 s, and the window has at most 2 % more cycles
# (libtpu 0.0.42, v5e; docs/planning.md); of products in one pass it has up to 15 % more. A run is
# compiled with the compiler's own default.
_TARGET = "xla_jf_convolution_performance_target"
PLANNED = {_TARGET: "0.97"}


# Options by which a TPU's compiler hides collectives behind computation. That of gathers is for a
# v5e alone: of other chips libtpu 0.0.42 warns of wrong results and hangs, and 0.0.50 refuses it
# (docs/decisions/overlap.md).
_OVERLAPPED = (
    "xla_tpu_enable_async_collective_fusion",
    "xla_tpu_enable_async_collective_fusion_multiple_steps",
    "xla_tpu_overlap_compute_collective_tc",
    "xla_enable_async_all_gather",
)
_OVERLAPPED_OF_V5E = "xla_tpu_enable_async_collective_fusion_fuse_all_gather"

# Options by which collectives run on the SparseCore of the chips that have one, next to the other
# cores (docs/decisions/overlap.md; the fastest published steps of MaxText set them).
_OFFLOAD = "xla_tpu_enable_sparse_core_collective_offload_"
_SPARSE_CORE = {
    **{
        _OFFLOAD + name: "True"
        for name in (
            "all_gather",
            "2d_all_gather",
            "3d_all_gather",
            "reduce_scatter",
            "nd_reduce_scatter",
            "all_reduce",
        )
    },
    "xla_tpu_enable_sparse_core_reduce_scatter_v2": "True",
    "xla_tpu_prefer_async_allgather_to_allreduce": "True",
    "xla_tpu_enable_all_gather_offload_tracing": "True",
    "xla_tpu_enable_reduce_scatter_offload_tracing": "True",
    "xla_tpu_use_tc_device_shape_on_sc": "True",
    "xla_sc_disable_megacore_partitioning": "True",
    _OVERLAPPED_OF_V5E: "False",
}
_WITH_SPARSE_CORE = ("TPU v5", "TPU v6 lite", "TPU7x")

# The compiler of GPUs that are not here cannot measure kernels to choose one.
_WITHOUT_GPU = {"xla_gpu_autotune_level": "0"}


def unknown_options(options: Mapping[str, object]) -> dict[str, object]:
    """Returns options that neither this library nor `config.compiler_options` sets: some of XLA's
    options write or run files."""
    option_texts = config.compiler_options.split()
    configured_options = {
        *_OWN_OPTIONS,
        *(_parsed(word) for word in option_texts if word != _NEEDED),
    }
    return {
        name: value for name, value in options.items() if (name, value) not in configured_options
    }


_OWN_OPTIONS = {
    option
    for table in (
        dict.fromkeys(_OVERLAPPED, "True"),
        {_OVERLAPPED_OF_V5E: "True"},
        _SPARSE_CORE,
        PLANNED,
        _WITHOUT_GPU,
        FREEING,
        _KEEPING_BARRIERS,
    )
    for option in table.items()
}


def options_of(graph: Graph) -> dict[str, str | float]:
    """Returns the options of `config.compiler_options`: 'auto' expands to the options the program
    needs; explicit options override it."""
    option_texts = config.compiler_options.split()
    options = dict(_parsed(word) for word in option_texts if word != _NEEDED)
    return {**_needed_options(graph), **options} if _NEEDED in option_texts else options


_NEEDED = "auto"


def _needed_options(graph: Graph) -> dict[str, str | float]:
    """Returns the options that 'auto' expands to: by platform, and by a CPU program's barriers."""
    platform = graph.mesh.platform
    if platform == "tpu":
        options = of_tpus(_kind(graph)) if len(graph.mesh.device_ids) > 1 else {}
        if not is_here(graph) and _is_exact(graph) and is_known_to_libtpu(_TARGET):
            options |= PLANNED
        return options
    if platform == "gpu" and not is_here(graph):
        return {**_WITHOUT_GPU}
    if platform != "cpu":
        return {}
    names = {node.op.name for node in graph.nodes}
    # Recompute and `renew` hold values back by optimization barriers.
    if "spmd.loops.recompute" in names:
        return {**_KEEPING_BARRIERS}
    if "spmd.renew" in names:
        return {**FREEING}
    # In the bodies of loops there is no optimization barrier to keep.
    return {**_BY_MEMORY} if "spmd.renew" in {node.op.name for node in walk(graph.nodes)} else {}


def of_tpus(kind: str) -> dict[str, str | float]:
    """Returns the options of the installed libtpu for programs over several TPUs of a kind."""
    options = dict.fromkeys(_OVERLAPPED, "True") | (
        _SPARSE_CORE if kind in _WITH_SPARSE_CORE else {}
    )
    if kind == "TPU v5 lite":
        options[_OVERLAPPED_OF_V5E] = "True"
    return {name: value for name, value in options.items() if is_known_to_libtpu(name)}


def _kind(graph: Graph) -> str:
    """Returns the kind of the devices, as jax names it."""
    device: Any = next(iter(graph.mesh.jax.device_set))
    return str(device.device_kind)


def _is_exact(graph: Graph) -> bool:
    """True if all products of a graph are in exact float32, not in fewer passes."""
    nodes = [*walk(graph.nodes)]
    dtypes = {meta.dtype for node in nodes for meta in node.op.metas}
    return dtypes.isdisjoint(_FEW_BITS) and not any(":precision_" in node.op.name for node in nodes)


_FEW_BITS = (torch.bfloat16, torch.float16)


def is_here(graph: Graph) -> bool:
    """True if a graph is compiled for the devices of this machine, where it can run."""
    return graph.mesh.target is None and stand_in.value is None


# The options of jax that are numbers, not text.
_NUMBERS = ("exec_time_optimization_effort", "memory_fitting_effort")
_TRUTHS = {"true": "True", "false": "False"}  # as XLA's options take them: not "true"


def _parsed(option: str) -> tuple[str, str | float]:
    name, equals, value = option.partition("=")
    if not equals:
        raise ValueError(f"config.compiler_options: expected name=value, got {option!r}")
    return name, float(value) if name in _NUMBERS else _TRUTHS.get(value, value)


def text_of(options: Mapping[str, object]) -> str:
    """Returns XLA options, name -> value, as text for `config.compiler_options`, in addition to the
    options that a program needs.

    Raises TypeError or ValueError for an impossible name or value. XLA refuses unknown options when
    it compiles (see `refusal`).
    """
    return " ".join([_NEEDED, *(_text(name, value) for name, value in options.items())])


_NAME = re.compile(r"\w+")


def _text(name: object, value: object) -> str:
    """Returns an option as `name=value`; raises TypeError or ValueError for an impossible name or
    value."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            "compiler_options: expected the name of an option of XLA's, such as 'xla_dump_to', "
            f"got {name!r}"
        )
    if not isinstance(value, (bool, int, float, str)):
        raise TypeError(
            f"compiler_options: expected text, a number or a bool for {name!r}, got {value!r}"
        )
    if not str(value) or len(str(value).split()) != 1:
        raise ValueError(
            f"compiler_options: the value of {name!r} must have no blank and must not be empty: "
            f"{value!r}"
        )
    return f"{name}={value}"


@contextlib.contextmanager
def compiled_with(options: Mapping[str, object] | None) -> Iterator[None]:
    """Sets XLA options, part of a program's key in this process and on disk, inside and for all
    threads; None or {}: the options of the process."""
    with held(config, compiler_options=text_of(options)) if options else contextlib.nullcontext():
        yield


_REFUSED = re.compile(
    r"No such compile option: '(?P<unknown>\w+)'|While setting option (?P<set>\w+), .*"
)


def refusal(error: Exception, platform: str) -> ValueError | None:
    """Returns the error in the user's terms if XLA refuses an option or its value; else None."""
    match = _REFUSED.search(str(error))
    if match is None:
        return None
    if match["unknown"] is None:
        return ValueError(
            f"compiler_options: XLA refuses the value of an option on {platform}: {match[0]}"
        )
    return ValueError(
        f"compiler_options: XLA has no option {match['unknown']!r} on {platform}: check the name, "
        "and that it is an option of this platform's compiler (xla_tpu_..., xla_gpu_..., "
        "xla_cpu_...) and of this version of jaxlib"
    )


def has_complex(graph: Graph) -> bool:
    """True if a program is over several devices and has a complex array."""
    if len(graph.mesh.device_ids) == 1:
        return False
    return any(
        meta.dtype.is_complex
        for node in walk(graph.nodes)
        for meta in (*node.op.metas, *node.op.operands)
    )

"""The figures of the programs of a plan: memory, operations, collectives, and the estimated time of
a step."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import torch

from ...core import DEVICE, Collective, Meta, Move, counters, hardware, topology, variables
from ...core.extend import Graph, Line, Module, Node, Program, Target, executables, user_lines
from ..hlo.hlo_collectives import Exchanges, collectives, node_index, scope_of
from ..hlo.program_facts import (
    cycles,
    exact_cycles,
    exchanges,
    kernels,
    kernels_in_full,
    listed,
    table,
)
from ..hlo.unrequested_moves import Placement
from .layout import Term, shard_bytes, stage

if TYPE_CHECKING:  # a plan for CPU devices imports no clock
    from .clock import Chip


@dataclass(frozen=True, slots=True)
class Figures:
    """The memory, operations and collectives of one program, per device, by the names of `Plan`.
    host: its temporaries. error: the compiler's message where it does not fit, else "".

    loops: (first op, iterations, ops) of each loop of scanned layers; no_loops: the reason if there
    is none. unknown_loops: the user's line of each loop that ends by its data, the seconds of one
    iteration, and how many count.
    """

    arguments: int = 0
    results: int = 0
    in_place: int = 0
    temporaries: int = 0
    peak: int = 0
    host: int = 0
    flops: float = 0.0
    cycles: int = 0
    cycles_once: int = 0
    kernel_flops: int = 0
    compile_seconds: float = 0.0
    error: str = ""
    unknown_loops: tuple[tuple[str, float, int], ...] = ()
    unknown_kernels: int = 0
    kernels_in_full: int = 0
    loops: tuple[tuple[int, int, int], ...] = ()
    no_loops: str = ""
    collectives: tuple[Collective, ...] = ()
    terms: tuple[Term, ...] = ()
    moves: tuple[Move, ...] = ()
    unused_axes: tuple[tuple[str, str], ...] = ()  # exchanges, kernels: (kind, sentence)


# The kinds of notes of a program that a plan lists.
FINDINGS = ("unused axis", "exchange", "kernel", "schedule")
# The figures of a plan of several programs: of the one with the largest peak, and sums over all.
OF_LARGEST = ("arguments", "results", "in_place", "peak")
SUMMED = ("flops", "cycles", "cycles_once", "kernel_flops", "compile_seconds")


def figures_of(
    graphs: Sequence[Graph],
    paths: Callable[[Node], str],
    line: Line,
    above: int,
    *,
    check: bool = False,
) -> list[Figures]:
    """The figures of each graph, of the program that a run has, over the devices that replace its
    mesh. A program of several graphs is read once, and its seconds count once.

    above: the bytes of a collective from which on its move is listed; check: compile with
    annotations that remove it.
    """
    read: dict[int, tuple[Program, Figures, Exchanges]] = {}
    result = []
    for graph in graphs:
        started = counters.now()
        try:
            with stage(f"compiling {len(graph.nodes):,} ops"):
                program = executables.planned_for(graph, line)
        except torch.OutOfMemoryError as error:
            result.append(_does_not_fit(graph, error_text(error), counters.now() - started))
            continue
        is_new = id(program) not in read
        if is_new:
            read[id(program)] = program, *_figures_of_program(program, graph.recorded or graph)
        _, figures, exchanged = read[id(program)]
        result.append(
            replace(
                figures,
                compile_seconds=figures.compile_seconds if is_new else 0.0,
                collectives=table(exchanged, graph, paths),
                moves=listed(_moves(program, graph, above, line, check=check), graph, above, paths),
            )
        )
    return result


def _figures_of_program(program: Program, graph: Graph) -> tuple[Figures, Exchanges]:
    """The figures that do not depend on the place of the program in the step, and its collectives
    with their times."""
    record = program.record
    assert record is not None, "it was compiled"
    memory = program.executable.memory_analysis()
    module = Module.of(program.executable)
    iterations, once = cycles(module)
    kernel_flops, unknown_kernels = kernels(module)
    mesh = graph.mesh
    chip = chip_of(next(iter(mesh.jax.device_set)))
    target = mesh.target if mesh.target is not None else topology.stand_in.value
    of_device = tuple(map(topology.slices(target).__getitem__, mesh.device_ids))
    terms: tuple[Term, ...] = ()
    clock, exchanged = None, program.facts.exchanges
    if chip is not None and (once or chip.is_gpu):
        devices = [*map(topology.all_devices(target).__getitem__, mesh.device_ids)]
        terms, clock = _step_time().terms_of(module, chip, of_device, devices)
        exchanged = exchanges(collectives(module, graph), graph, clock.times) if exchanged else ()
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    peak = _peak(memory, used, is_reported=bool(once))
    figures = Figures(
        arguments=record.argument_bytes,
        results=record.output_bytes,
        in_place=record.alias_bytes,
        temporaries=min(record.temp_bytes, peak - used),
        peak=peak,
        host=memory.host_temp_size_in_bytes,
        flops=program.facts.flops,
        cycles=iterations,
        cycles_once=once,
        compile_seconds=record.seconds,
        unknown_loops=tuple(_unknown(module, graph, {} if clock is None else clock.rounds)),
        kernel_flops=kernel_flops,
        unknown_kernels=unknown_kernels,
        kernels_in_full=kernels_in_full(module),
        loops=program.loops,
        no_loops=next(
            (words for name, words in record.passes if name == "scan layers" and not program.loops),
            "",
        ),
        terms=terms,
        unused_axes=(
            *(note for note in record.passes if note[0] in FINDINGS),
            *_exact_products(exact_cycles(module), iterations),
        ),
    )
    return figures, exchanged


def _exact_products(exact: int, all_cycles: int) -> Iterator[tuple[str, str]]:
    """A note on exact float32 products that take a quarter of a program's cycles."""
    if exact and exact >= all_cycles / 4:
        yield (
            "precision",
            f"exact float32 products take {exact:,} of {all_cycles:,} cycles, six passes of a "
            "bfloat16 product each; torch.set_float32_matmul_precision('high') takes three, "
            "'medium' and autocast one",
        )


def _step_time() -> ModuleType:
    return import_module("spmd.tools.planning.step_time")


def chip_of(device: jax.Device) -> "Chip | None":
    """The chip of a device; None for one of unknown constants, such as a CPU."""
    return None if device.platform == "cpu" else _step_time().chip_of(device)


def _unknown(
    module: Module, graph: Graph, rounds: Mapping[str, float]
) -> Iterator[tuple[str, float, int]]:
    """The user's line of each loop that ends by its data, the seconds of an iteration, and how many
    figures count."""
    for computation in module.computations.values() if module.unknown else ():
        for line in computation.lines:
            if line.opcode == "while" and line.name in module.unknown:
                index = node_index(scope_of(computation, line), len(graph.nodes))
                line_text = (
                    ""
                    if index is None
                    else str(user_lines.line_of(graph.nodes[index], graph.nodes))
                )
                yield line_text, rounds.get(line.name, 0.0), module.iterations(computation, line)


def _moves(
    program: Program, graph: Graph, above: int, line: Line, *, check: bool
) -> tuple[Placement, ...]:
    if not check:
        return program.facts.moves
    # for `check_marks=True` alone
    checked_marks = import_module("spmd.tools.planning.checked_marks")
    with stage("compiling with other annotations"):
        moves: tuple[Placement, ...] = checked_marks.checked(graph, program, above, line)
        return moves


def _peak(memory: Any, used: int, *, is_reported: bool) -> int:
    """The peak bytes of a device. used: those of arguments and results. is_reported: True if the
    compiler has a figure of its own; the CPU's figure omits the temporaries.

    The TPU's figure includes bytes on the host (libtpu 0.0.42): for a program with such bytes it is
    only a bound, and so is the sum of all arguments, results and temporaries, which counts what a
    loop carries once for each loop that it passes through.
    """
    together: int = used + memory.temp_size_in_bytes
    if not is_reported:
        return together
    on_host = (
        memory.host_argument_size_in_bytes
        + memory.host_output_size_in_bytes
        + memory.host_temp_size_in_bytes
    )
    return min(memory.peak_memory_in_bytes, together) if on_host else memory.peak_memory_in_bytes


_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT])\b")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def error_text(error: torch.OutOfMemoryError) -> str:
    """The compiler's own words."""
    text = str(error.__cause__)
    return text.partition("RESOURCE_EXHAUSTED:")[2].strip() or text


def _does_not_fit(graph: Graph, error: str, seconds: float) -> Figures:
    """The figures where the compiler raised out of memory: the inputs, and the bytes in its
    message."""
    size = _SIZE.search(error)
    inputs = zip(graph.inputs, graph.shardings, strict=True)
    arguments = sum(
        shard_bytes(data.meta, sharding) for data, sharding in inputs if sharding.memory == DEVICE
    )
    needed = int(float(size[1]) * _UNITS[size[2]]) if size is not None else 0
    return Figures(
        arguments, temporaries=needed, peak=arguments + needed, compile_seconds=seconds, error=error
    )


def memory_of(target: Target, device: Any, chip: "Chip | None") -> int | None:
    """The memory of one device; simulated devices share the host's. None: not known."""
    if chip is not None and not (chip.is_gpu and target is None):
        return chip.usable_bytes
    if target is not None:
        return None
    host = hardware.host_memory()
    if host is not None:
        return host // len(topology.all_devices())
    stats = device.memory_stats() or {}
    return stats.get("bytes_limit")


def notes_on(
    figures: Sequence[Figures], device: Any, chip: "Chip | None", target: Target
) -> Iterator[str]:
    """Remarks on what the figures count."""
    if chip is not None and chip.is_gpu and target is not None:
        fraction = variables.gpu_memory_fraction()
        yield (
            f"memory: {fraction:.0%} of the GPU's {chip.memory_bytes / 2**30:.1f} GiB, which is "
            "what the allocator of jax takes; XLA_PYTHON_CLIENT_MEM_FRACTION=0.92 gives it more."
        )
    if any(row.is_sliced for program_figures in figures for row in program_figures.collectives):
        reason = (
            "which the CPU lacks" if device.platform == "cpu" else "which the compiler did not form"
        )
        yield (
            "all-reduce + slice: each device keeps only its shard of the sum, as by a "
            f"reduce-scatter, {reason}."
        )
    for line, seconds, counted in (
        loop for program_figures in figures for loop in program_figures.unknown_loops
    ):
        more = (
            f", which takes {seconds:.3g} s; k iterations take k times as long" if seconds else ""
        )
        count_text = {0: "no", 1: "one"}.get(counted, str(counted))
        yield (
            f"a loop ends by its data ({line or 'of XLA'}): all figures count {count_text} "
            f"iteration of it{more}."
        )
    unknown = sum(program_figures.unknown_kernels for program_figures in figures)
    if unknown:
        yield (
            f"{unknown} runs of kernels (attention) are in no estimate: operations and step time "
            "are of the rest."
        )
    if in_full := sum(program_figures.kernels_in_full for program_figures in figures):
        yield (
            f"{in_full} runs of kernels count all scores or rows, where they may compute fewer: "
            "attention with a mask that the program computes, or grouped products (gmm, tgmm) "
            "outside of jax.named_scope('rows=COMPUTED')."
        )
    if len(figures) > 1:
        yield (
            f"the step is {len(figures)} programs: memory is of the largest, all other figures "
            "are sums."
        )


def largest(graph: Graph, paths: Callable[[Node], str], count: int = 8) -> tuple[str, ...]:
    """The largest values of a graph, with the user's lines; a value without an annotation counts as
    unsharded."""
    sizes = [
        (
            meta.nbytes if node.op.sharding is None else shard_bytes(meta, node.op.sharding),
            node,
            meta,
        )
        for node in graph.nodes
        for meta in node.op.metas
    ]
    sizes.sort(key=lambda entry: -entry[0])
    shown: Counter[tuple[int, str]] = Counter()
    for size, node, meta in sizes:
        if len(shown) >= count and size < min(shown)[0]:
            break
        value = size, _reported(graph, node, meta, paths(node))
        if value in shown or len(shown) < count:
            shown[value] += 1
    return tuple(
        f"{size / 2**30:,.2f} GiB{f' x {times}' if times > 1 else ''}: {text}"
        for (size, text), times in shown.items()
    )


def _reported(graph: Graph, node: Node, meta: Meta, path: str) -> str:
    """The text of a value: meta, sharding, op, module and line."""
    sharding, where = node.op.sharding, user_lines.line_of(node, graph.nodes)
    spec = None if sharding is None else sharding.partition_spec(len(meta.shape))
    how = "unsharded, unless the compiler shards it" if spec is None else f"as {spec}"
    return f"{meta!r} ({how}) of {node.op.name}{f' in {path}' if path else ''}, {where}"


def summed(programs: Sequence[tuple[Term, ...]]) -> tuple[Term, ...]:
    """The terms of several programs, one after the other."""
    sums: dict[str, Term] = {}
    for term in itertools.chain.from_iterable(programs):
        total = sums.get(term.name, Term(term.name, 0.0, 0.0, 0.0, term.source))
        seconds, low, high = (
            total.seconds + term.seconds,
            total.low + term.low,
            total.high + term.high,
        )
        sums[term.name] = Term(term.name, seconds, low, high, term.source)
    return tuple(sums.values())

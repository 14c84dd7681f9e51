"""A graph is lowered and compiled; its line of the ledger."""

import contextlib
import dataclasses
import hashlib
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from .. import interrupt, metrics
from ..config import config
from ..ir.graph import Graph, Node
from ..ir.source import Line, describe
from ..pjrt import agreement, processes
from ..sharding.partitioner import as_chosen, compiler_context
from ..sharding.tracing import program_devices
from . import failing
from .aliases import alias_by_memory
from .constants import hide_complex_constants
from .filled_products import WITHOUT_FUSIONS, has_filled_product
from .ledger import record
from .lower import argument_struct, build
from .numbers import pack_numbers
from .options import is_here, options_of, platform_of
from .program import Program
from .verdict import chosen_shardings, compare


def lower_graph(graph: Graph, chosen: list[tuple[Node, Any]] | None = None) -> Any:
    """The graph as a `jax.stages.Lowered`: StableHLO with the sharding attributes in it, before XLA has seen it.

    chosen: see `lower.build`.
    """
    function = build(graph, describe, chosen)
    function.__name__ = "spmd"
    several = len(graph.meshes()) > 1
    with program_devices(graph.mesh.device_ids if several else None), compiler_context(), _first_lowering():
        inputs = graph.inputs()
        jitted = jax.jit(
            function,
            donate_argnums=tuple(i for i, port in enumerate(inputs) if port.is_donated),
            out_shardings=tuple(
                None if port.sharding is None else port.sharding.in_program() for port in graph.outputs()
            ),
            keep_unused=True,
        )
        floats, integers = pack_numbers(graph.nodes)
        arguments = list(map(argument_struct, inputs))
        vectors = [jax.ShapeDtypeStruct((len(floats),), np.float64), jax.ShapeDtypeStruct((len(integers),), np.int64)]
        lowered = jitted.lower(*arguments, *vectors)
        hide_complex_constants(graph, lowered.compiler_ir())
        alias_by_memory(graph, lowered.compiler_ir())
        return lowered


_has_lowered = False


@contextlib.contextmanager
def _first_lowering() -> Iterator[None]:
    """jax loads its dialects in the midst of its first lowering; left half loaded by a Ctrl-C they never load again."""
    global _has_lowered
    with contextlib.nullcontext() if _has_lowered else interrupt.later():
        yield
    _has_lowered = True


def compile_graph(graph: Graph, name: str, line: Line, cause: str, *, is_planned: bool = False) -> Program:
    """Lowers and compiles a graph, for the reason `cause`, with its line of the ledger.

    The mesh need not be here, nor the leaves be data. is_planned: no run needs it yet: other processes are not asked
    whether they do the same.
    """
    started = metrics.now()
    chosen: list[tuple[Node, Any]] = []
    # Of compilers for devices that are not here only the CPU's can be asked how it laid out a value.
    asks = config.check_shardings and (is_here(graph) or platform_of(graph) == "cpu")
    with interrupt.soon():
        lowered = lower_graph(graph, chosen if asks else None)
    metrics.add_time("lower", metrics.now() - started)
    calls_host = bool(lowered._lowering.compile_args["host_callbacks"])
    if calls_host and any(graph.donated):
        # What Python raises in the midst of a run must leave the inputs there: they are not donated.
        graph = dataclasses.replace(graph, donated=(False,) * len(graph.donated))
        return compile_graph(graph, name, line, cause, is_planned=is_planned)
    mark = fingerprint(lowered) if processes.several() else b""
    if not is_planned:
        agree_on(graph, name, line, cause, mark)
    try:
        with interrupt.soon(), compiler_context():
            options = options_of(graph)
            executable = lowered.compile(compiler_options=options)
            if platform_of(graph) == "cpu" and has_filled_product(executable):
                executable = lowered.compile(compiler_options={**options, **WITHOUT_FUSIONS})
    except jax.errors.JaxRuntimeError as error:
        raise failing.not_compiled(Program(name, line, graph, None, []), graph, error) from error
    except ValueError as error:
        if type(error).__name__ != "IndivisibleError":
            raise
        return compile_graph(_evenly(graph), name, line, cause, is_planned=is_planned)
    for node, sharding in chosen:
        asked = node.entry.sharding
        assert asked is not None, "annotated ops have one"
        if node.meta.numel:  # else nothing lies anywhere
            compare(graph, partial(describe, node), node.meta, asked, as_chosen(sharding, graph.mesh), node)
    program = Program(name, line, graph, executable, chosen_shardings(graph, executable))
    program.calls_host = calls_host
    program.fingerprint = mark
    program.record = record(program, graph, name, cause, line, metrics.now() - started)
    if is_here(graph):
        needed = program.record.temp_bytes + program.record.output_bytes - program.record.alias_bytes
        program.bytes_needed = needed * len(executable.runtime_executable().local_devices())
    metrics.record_compile(program.record)
    metrics.add_time("compile", program.record.seconds)
    return program


def agree_on(graph: Graph, name: str, line: Line, cause: str, mark: bytes) -> None:
    """Several processes wait until each is about to run a new program with this fingerprint; ProcessError where one is
    not."""
    if processes.several():
        with interrupt.soon():
            agreement.agree(f"a new program ({name}: {cause}; {len(graph.nodes):,} ops)", mark, line)


# Where the partitioner's report goes is an address of this process (see `sharding.partitioner.report_sharding`).
_ADDRESS = re.compile(r"(@InspectSharding\(.*?backend_config = )\"[^\"]*\"")


def fingerprint(lowered: Any) -> bytes:
    """What is the same in two processes where they lower the same program."""
    return hashlib.sha256(_ADDRESS.sub(r"\1", lowered.as_text()).encode()).digest()


def _evenly(graph: Graph) -> Graph:
    """The graph, results that the mesh does not divide kept whole: XLA may cut them, jax takes no such array."""
    devices = len(graph.mesh.device_ids)
    pinned = [
        graph.mesh if asked is None and any(dim % devices for dim in root.meta.shape) else asked
        for root, asked in zip(graph.roots, graph.pinned, strict=True)
    ]
    return dataclasses.replace(graph, pinned=pinned)

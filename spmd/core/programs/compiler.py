"""Lowers and compiles a graph, and adds its line to the compile log."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from ..base import counters, interrupt
from ..base.config import config
from ..base.jax_private import compile_lowered
from ..graph.graph import Graph, Node, pack_numbers
from ..graph.source import Line, describe
from ..lower.build import argument_struct, build
from ..lower.constants import hide_complex_constants
from ..ops import sharded
from ..run.pjrt import agreement, processes
from ..sharding.partitioner import as_chosen, compiler_context, mark_manual_sorts
from ..sharding.tracing import program_devices
from . import failing
from .compile_log import record
from .donation import alias_by_memory
from .options import is_here, options_of, refusal
from .program import Program, Requested, listing
from .sharding_check import chosen_shardings, compare

Compiled = tuple[Any, tuple[tuple[str, str], ...]]  # an executable, and notes on it for the compile log


def _compile(lowered: Any, options: dict[str, str | float], platform: str) -> Compiled:
    return compile_lowered(lowered, options), ()


# What compiles a lowered program with XLA's options for a platform; the last one is called.
compile_by: list[Callable[[Any, dict[str, str | float], str], Compiled]] = [_compile]


def lower_graph(graph: Graph, chosen: list[tuple[Node, Any]] | None = None) -> Any:
    """Returns the graph as a `jax.stages.Lowered`: StableHLO with the sharding attributes, before XLA's passes.

    chosen: see `lower.build`.
    """
    function = build(graph, describe, chosen)
    function.__name__ = "spmd"
    several = len(graph.meshes()) > 1
    with program_devices(graph.mesh.device_ids if several else None), compiler_context():
        inputs = graph.arguments()
        jitted = jax.jit(
            function,
            donate_argnums=tuple(i for i, port in enumerate(inputs) if port.is_donated),
            out_shardings=tuple(
                None if port.sharding is None else port.sharding.in_program() for port in graph.results()
            ),
            keep_unused=True,
        )
        floats, integers = pack_numbers(graph.nodes)
        arguments = list(map(argument_struct, inputs))
        vectors = [jax.ShapeDtypeStruct((len(floats),), np.float64), jax.ShapeDtypeStruct((len(integers),), np.int64)]
        lowered = jitted.lower(*arguments, *vectors)
        hide_complex_constants(graph, lowered.compiler_ir())
        alias_by_memory(graph, lowered.compiler_ir())
        if config.partitioner == "gspmd":
            mark_manual_sorts(lowered.compiler_ir())
        return lowered


def compile_graph(graph: Graph, name: str, line: Line, cause: str, *, is_planned: bool = False) -> Program:
    """Lowers and compiles a graph, for the reason `cause`; adds its line to the compile log.

    Neither the mesh nor the data of the inputs need be on this machine. is_planned: no run needs it yet, so that it is
    not compared with the programs of the other processes.
    """
    started = counters.now()
    chosen: list[tuple[Node, Any]] = []
    # For devices that are not on this machine only the CPU's compiler reports how it sharded a value.
    is_checked = config.check_shardings and (is_here(graph) or graph.mesh.platform == "cpu")
    with interrupt.between_ops(), sharded.unused_axes() as unused:
        lowered = lower_graph(graph, chosen if is_checked else None)
    if unused:
        found = ((kind, f"{words} at {place}") for (kind, words), place in unused.items())
        graph = dataclasses.replace(graph, notes=(*graph.notes, *found))
    counters.add_time("lower", counters.now() - started)
    calls_host = bool(lowered._lowering.compile_args["host_callbacks"])
    if calls_host and any(graph.donated):
        # An exception that Python raises during the run must not cost the inputs: they are not donated.
        graph = dataclasses.replace(graph, donated=(False,) * len(graph.donated))
        return compile_graph(graph, name, line, cause, is_planned=is_planned)
    mark = fingerprint(lowered) if processes.several() else b""
    if not is_planned:
        agree_on(graph, name, line, cause, mark)
    try:
        with interrupt.later(), compiler_context():
            options = options_of(graph.recorded or graph)
            executable, miscompiles = compile_by[-1](lowered, options, graph.mesh.platform)
    except jax.errors.JaxRuntimeError as error:
        refused = refusal(error, graph.mesh.platform)
        if refused is not None:
            raise refused from error
        raise failing.not_compiled(Program(name, line, graph, None, []), graph.recorded or graph, error) from error
    with program_devices(graph.mesh.device_ids):
        for node, sharding in chosen:
            requested = node.op.sharding
            assert requested is not None, "annotated ops have one"
            if node.meta.numel:  # else there is nothing to shard
                compare(graph, partial(describe, node), node.meta, requested, as_chosen(sharding, graph.mesh), node)
        results = chosen_shardings(graph, executable)
    program = Program(name, line, graph, executable, results)
    program.calls_host = calls_host
    program.fingerprint = mark
    program.record = record(program, graph, name, cause, line, counters.now() - started, miscompiles)
    if is_here(graph):
        needed = program.record.temp_bytes + program.record.output_bytes - program.record.alias_bytes
        program.bytes_needed = needed * len(executable.runtime_executable().local_devices())
    counters.record_compile(program.record)
    counters.add_time("compile", program.record.seconds)
    counters.add_sample("InputOutputAliasCount", sum(graph.donated))
    return program


def agree_on(graph: Graph, name: str, line: Line, cause: str, mark: bytes) -> None:
    """Waits until each of several processes is about to run a new program with this fingerprint, else ProcessError."""
    if processes.several():
        with interrupt.soon():
            agreement.agree(f"a new program ({name}: {cause}; {_digests(graph)})", mark, line)


def _digests(graph: Graph) -> str:
    """Returns the parts of a graph, each by its digest, for processes to see in which theirs differ."""
    found = listing(Requested(graph.recorded or graph, 0))
    del found["lines"]  # they are no part of the program
    parts = (agreement.digest(name, json.dumps(part).encode()) for name, part in found.items())
    return f"{len(graph.nodes):,} ops; its {', '.join(parts)}"


# The partitioner reports to an address of this process (see `sharding.partitioner.report_sharding`).
_ADDRESS = re.compile(r"(@InspectSharding\(.*?backend_config = )\"[^\"]*\"")


def fingerprint(lowered: Any) -> bytes:
    """Returns a digest that is equal in two processes that lower the same program."""
    return hashlib.sha256(_ADDRESS.sub(r"\1", lowered.as_text()).encode()).digest()

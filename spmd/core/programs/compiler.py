"""The compiler of graphs: lowers and compiles one, donates its inputs, and adds its line to the
compile log."""

import dataclasses
import hashlib
import json
import re
from functools import partial
from typing import Any

import jax
import numpy as np

from ...ops import sharded
from ..base import compile_log, counters, interrupt, messages
from ..base.config import config
from ..base.jax_private import ir
from ..graph.graph import Graph, Port, pack_numbers
from ..graph.source import Line, describe, node_line
from ..graph.store import StackGroup
from ..lower.build import argument_struct, build
from ..lower.lower import Choices
from ..run.pjrt import processes
from ..sharding.partitioner import (
    by_shardy_where_needed,
    compiler_context,
    hide,
    mark_manual_sorts,
    partitioner,
    reported_sharding,
)
from ..sharding.topology import program_devices
from ..sharding.uneven_writes import pad_scatters
from ..sharding.value import DEVICE
from . import failing, miscompiles
from .log_entry import record
from .program import (
    Program,
    Requested,
    chosen_shardings,
    compare,
    has_complex,
    is_here,
    listing,
    options_of,
    refusal,
)
from .stack_reads import rows_read


def lower_graph(graph: Graph, choices: Choices | None = None) -> jax.stages.Lowered:
    """Returns the graph as a `jax.stages.Lowered`: StableHLO with the sharding attributes, before
    XLA's passes.

    choices: a list for the shardings of annotated values (see `lower.build`).
    """
    function = build(graph, describe, choices)
    function.__name__ = "spmd"
    has_several_meshes = len(graph.meshes()) > 1
    with program_devices(graph.mesh.device_ids if has_several_meshes else None), compiler_context():
        inputs = graph.arguments()
        jitted = jax.jit(
            function,
            donate_argnums=tuple(i for i, port in enumerate(inputs) if port.is_donated),
            out_shardings=tuple(
                None if port.sharding is None else port.sharding.in_program()
                for port in graph.results()
            ),
            keep_unused=True,
        )
        floats, integers = pack_numbers(graph.nodes)
        arguments = list(map(argument_struct, inputs))
        # Of a program whose inputs and results name no devices, jax would take the first one.
        is_nowhere = not inputs and all(port.sharding is None for port in graph.results())
        place = graph.mesh.in_program() if is_nowhere else None
        vectors = [
            jax.ShapeDtypeStruct((len(floats),), np.float64, sharding=place),
            jax.ShapeDtypeStruct((len(integers),), np.int64, sharding=place),
        ]
        lowered = jitted.lower(*arguments, *vectors)
        module = lowered.compiler_ir()
        assert module is not None, "it is StableHLO"
        if has_complex(graph):
            hide(module)
        # Rewrites of the module around miscompilations of the partitioners and of XLA.
        pad_scatters(module, len(graph.mesh.device_ids))
        alias_by_memory(graph, module)
        if partitioner() == "gspmd":
            mark_manual_sorts(module)
        return lowered


@by_shardy_where_needed
def compile_graph(
    graph: Graph, name: str, line: Line, cause: str, *, is_planned: bool = False
) -> Program:
    """Lowers and compiles a graph, for the reason `cause`; adds its line to the compile log.

    Neither the mesh nor the data of the inputs need be on this machine. is_planned: no run needs it
    yet, so processes do not compare it.
    """
    started = counters.now()
    choices: Choices = []
    # For devices that are not on this machine only the CPU's compiler reports how it sharded a
    # value.
    is_checked = config.check_shardings and (is_here(graph) or graph.mesh.platform == "cpu")
    with interrupt.between_ops(), sharded.unused_axes() as place_of_note:
        lowered = lower_graph(graph, choices if is_checked else None)
    for sentence, node in rows_read(graph):
        place_of_note["unused axis", sentence] = describe(node)
        if not is_planned:
            messages.say(f"{sentence} ({node_line(node)})", "stack reads")
    if place_of_note:
        notes = (
            (kind, f"{text} at {location}") for (kind, text), location in place_of_note.items()
        )
        graph = dataclasses.replace(graph, notes=(*graph.notes, *notes))
    counters.add_time("lower", counters.now() - started)
    calls_host = bool(lowered._lowering.compile_args["host_callbacks"])
    if calls_host and any(graph.donated):
        # An exception that Python raises during the run must not cost the inputs: they are not
        # donated.
        graph = dataclasses.replace(graph, donated=(False,) * len(graph.donated))
        return compile_graph(graph, name, line, cause, is_planned=is_planned)
    mark = fingerprint(lowered) if processes.several() else b""
    if not is_planned:
        agree_on(graph, name, line, cause, mark)
    try:
        with interrupt.later(), compiler_context():
            options = options_of(graph.recorded or graph)
            executable, miscompile_notes = miscompiles.compile_right(
                lowered, options, graph.mesh.platform
            )
    except jax.errors.JaxRuntimeError as error:
        refused = refusal(error, graph.mesh.platform)
        if refused is not None:
            raise refused from error
        raise failing.not_compiled(
            Program(name, line, graph, None, []), graph.recorded or graph, error
        ) from error
    with program_devices(graph.mesh.device_ids):
        for node, sharding in choices:
            requested = node.op.sharding
            assert requested is not None, "annotated ops have one"
            if node.meta.numel:  # else there is nothing to shard
                compare(
                    graph,
                    partial(describe, node),
                    node.meta,
                    requested,
                    reported_sharding(sharding, graph.mesh),
                    node,
                )
        results = chosen_shardings(graph, executable)
    program = Program(name, line, graph, executable, results)
    program.calls_host = calls_host
    program.fingerprint = mark
    program.record = record(
        program, graph, name, cause, line, counters.now() - started, miscompile_notes
    )
    if is_here(graph):
        bytes_per_device = (
            program.record.temp_bytes + program.record.output_bytes - program.record.alias_bytes
        )
        program.bytes_needed = bytes_per_device * len(
            executable.runtime_executable().local_devices()
        )
    compile_log.add(program.record)
    counters.add_time("compile", program.record.seconds)
    counters.add_sample("InputOutputAliasCount", sum(graph.donated))
    return program


def agree_on(graph: Graph, name: str, line: Line, cause: str, mark: bytes) -> None:
    """Waits until each of several processes is about to run a new program with this fingerprint;
    raises ProcessError if one is not."""
    if processes.several():
        with interrupt.soon():
            processes.agree(f"a new program ({name}: {cause}; {_digests(graph)})", mark, line)


def _digests(graph: Graph) -> str:
    """Returns the digests of a graph's parts, as text: an error of processes that disagree shows
    which part differs."""
    facts = listing(Requested(graph.recorded or graph, 0))
    del facts["lines"]  # they are no part of the program
    parts = (processes.digest(name, json.dumps(part).encode()) for name, part in facts.items())
    return f"{len(graph.nodes):,} ops; its {', '.join(parts)}"


# The partitioner reports to an address of this process (see
# `sharding.partitioner.report_sharding`).
_ADDRESS = re.compile(r"(@InspectSharding\(.*?backend_config = )\"[^\"]*\"")


def fingerprint(lowered: jax.stages.Lowered) -> bytes:
    """Returns a digest that is equal in two processes that lower the same program."""
    return hashlib.sha256(_ADDRESS.sub(r"\1", lowered.as_text()).encode()).digest()


_ALIAS, _DONOR = "tf.aliasing_output", "jax.buffer_donor"


def alias_by_memory(graph: Graph, module: ir.Module) -> None:
    """Aliases each donated argument with the result that is written over it, and with no other.

    jax pairs donated arguments with results by shape and dtype, in order, and ignores their
    memories if the compiler chooses the sharding. Programs with device memory alone stay as jax
    makes them.
    """
    inputs, outputs = graph.arguments(), graph.results()
    if all(port.sharding is None or port.sharding.memory == DEVICE for port in (*inputs, *outputs)):
        return
    output_index_of: dict[object, int] = {port.indices: i for i, port in enumerate(outputs)}
    main = next(
        op
        for op in module.body.operations
        if ir.StringAttr(op.attributes["sym_name"]).value == "main"
    )
    # Removes jax's own choices, and aliases each donated argument with the result written over it.
    arguments = list(ir.ArrayAttr(main.attributes["arg_attrs"]))
    with module.context:
        int32 = ir.IntegerType.get_signless(32)
        for i, port in enumerate(inputs):
            attributes: Any = ir.DictAttr(arguments[i])  # jaxlib's stubs omit that it is iterable
            by_name = {named.name: named.attr for named in attributes}
            by_name.pop(_ALIAS, None)
            by_name.pop(_DONOR, None)
            result_index = (
                output_index_of.get(_aliased_roots(graph, port)) if port.is_donated else None
            )
            if result_index is not None:
                by_name[_ALIAS] = ir.IntegerAttr.get(int32, result_index)
            arguments[i] = ir.DictAttr.get(by_name)
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(arguments)


def _aliased_roots(graph: Graph, port: Port) -> object:
    """Returns the index, or the stack group, of the roots that take an argument's memory."""
    if isinstance(port.indices, int):
        return graph.onto[port.indices]
    return aliasing_stack(graph, port.indices)


def aliasing_stack(graph: Graph, group: StackGroup) -> StackGroup | None:
    """Returns the stack that takes a group's memory (see `Graph.stacked`): for each row the root
    index of its replacement, or ~i for input i itself; None if a donated row has no replacement."""
    root_indices = [graph.onto[i] if graph.donated[i] else ~i for i in group]
    return None if None in root_indices else tuple(root_indices)  # type: ignore[arg-type]

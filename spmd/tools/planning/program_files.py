"""The programs of a plan as files, for the job that runs them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from ...core import DEVICE, compiled_with, options, persistent, topology
from ...core.extend import Graph, Program, executables, store, stored
from ..explain import program_folder
from .layout import Recordings


def save(recorded: Recordings, compiler_options: Mapping[str, str], path: str | Path) -> int:
    """Compiles what has no program yet and writes all to a folder; returns the number of files.

    Raises ValueError where a program cannot be a file.
    """
    if recorded.why_not:
        raise ValueError(f"save_program: {recorded.why_not}")
    files: dict[str, bytes] = {}
    listings: dict[str, dict[str, Any]] = {}
    with topology.standing_in(recorded.target), compiled_with(compiler_options):
        for graph in recorded.graphs:
            program = executables.planned_for(graph, recorded.line)
            formed = executables.compiled_graph(graph, may_scan=not program.is_unrolled)
            why_not = stored.reason_not_stored(formed) or (
                "it calls Python while it runs" if program.calls_host else ""
            )
            if why_not:
                raise ValueError(
                    f"save_program: a program of {len(graph.nodes):,} ops cannot be a file: "
                    f"{why_not}"
                )
            digest, content = stored.file_of(program, formed)
            if digest not in files:
                files[digest] = content
                listings[digest] = options.listing(options.Requested(graph, 0), program)
                files |= _stacks(program, formed)
        setting = persistent.readable_setting()
    program_folder.write(
        Path(path) / persistent.process(),
        files,
        setting,
        [{"file": name, **listings[name]} for name in listings],
    )
    return len(files)


def _stacks(program: Program, graph: Graph) -> dict[str, bytes]:
    """The files of the small programs that stack a program's inputs before its first run."""
    files = {}
    for port in program.inputs:
        if isinstance(port.indices, int):
            continue
        first = port.indices[0]
        data, sharding = (
            (graph.recorded or graph).inputs[first],
            (graph.recorded or graph).shardings[first],
        )
        if sharding.memory == DEVICE:
            shape = sharding.padded_shape(data.meta.shape)
            row = jax.ShapeDtypeStruct(shape, data.meta.struct.dtype, sharding=sharding.jax)
            digest, content = store.stack_program(len(port.indices), sharding).file_for(
                *[row] * len(port.indices)
            )
            files[digest] = content
    return files

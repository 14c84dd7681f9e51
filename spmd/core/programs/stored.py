"""Compiled programs on disk: written after a compilation, loaded instead of one in a later process.

A file holds XLA's executable and, as plain data, the other facts of a Program; its shardings were
checked before it was written. A program that holds a user's function, or calls Python while it
runs, is not stored: no text determines the behaviour of such a program. (jax's own compilation
cache, if the user has set one, is keyed by StableHLO.)
"""

import dataclasses
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..base import counters
from ..base.compile_record import CompileRecord
from ..base.jax_private import dump_executable, initialize_lapack
from ..files import disk
from ..files.disk import executable_of, setting
from ..graph.graph import Graph, walk
from ..graph.op import digest
from ..graph.source import Line
from ..sharding.partitioner import compiler_context
from ..sharding.topology import grid
from ..sharding.value import Dim, Sharding, Spec
from .log_entry import assign
from .program import Program, is_here


def reason_not_stored(graph: Graph) -> str:
    """Returns why the program of a graph cannot be stored in a file; "" if it can be."""
    opaque = next((node.op.name for node in walk(graph.nodes) if node.op.is_opaque), None)
    if opaque is not None:
        return f"it holds a user's function ({opaque}), whose behaviour no key can name"
    return (
        ""
        if is_here(graph)
        else "its devices are not here, so that it has other keys than the job's"
    )


def load(graph: Graph, name: str, line: Line, cause: str) -> Program | None:
    """Returns the program of a graph from the disk and adds its line to the compile log; None if
    there is no usable one."""
    if not disk.is_read() or reason_not_stored(graph):
        return None
    started = counters.now()
    header = setting(graph.mesh.device_ids)
    key = digest((graph, sorted(header.items())))
    program = disk.loaded(key, header, lambda body: _decoded(body, graph, name, line))
    if program is None:
        return None
    assert program.record is not None
    seconds = counters.now() - started
    program.record, program.is_loaded = dataclasses.replace(program.record, seconds=seconds), True
    assign(program, graph, name, f"loaded from disk; {cause}", line)
    counters.add_time("load", seconds)
    return program


def keep(program: Program, graph: Graph) -> None:
    """Writes a program that was just compiled for a graph to the disk, if it may be stored."""
    if not disk.is_on() or reason_not_stored(graph) or program.calls_host:
        return
    header = setting(graph.mesh.device_ids)
    disk.keep(digest((graph, sorted(header.items()))), header, partial(_encoded, program))


def file_of(program: Program, graph: Graph) -> tuple[str, bytes]:
    """Returns the digest and the content of the file of a program; graph: as it was compiled."""
    header = setting(graph.mesh.device_ids)
    key = digest((graph, sorted(header.items())))
    return key, disk.content_of(key, header, _encoded(program))


# The executable has the text of the program, in which the others are read.
_FIELDS = [field.name for field in dataclasses.fields(CompileRecord) if field.name != "read"]


def _encoded(program: Program) -> bytes:
    """Returns a line of plain data, then the executable as jax pickles it."""
    assert program.record is not None
    facts = {
        "record": {name: getattr(program.record, name) for name in _FIELDS},
        "results": [sharding.__reduce__()[1] for sharding in program.results],
        "bytes_needed": program.bytes_needed,
        "fingerprint": program.fingerprint.hex(),
    }
    return json.dumps(facts).encode() + b"\n" + dump_executable(program.executable)


def _decoded(body: bytes, graph: Graph, name: str, line: Line) -> Program:
    """Loads a program from the body of its file: a line of JSON, then the pickled executable."""
    plain, _, pickled = body.partition(b"\n")
    facts = json.loads(plain)
    num_inputs = len(graph.arguments()) + 2  # the vectors of scalar arguments
    if b"lapack_" in pickled:
        initialize_lapack()
    with compiler_context():
        devices = list(grid(graph.mesh.device_ids, (len(graph.mesh.device_ids),)))
        executable = executable_of(pickled, num_inputs, (0,) * len(graph.results()), devices)
    program = Program(
        name, line, graph, executable, [_sharding(parts) for parts in facts["results"]]
    )
    passes = tuple(map(tuple, facts["record"]["passes"]))  # JSON has made lists of them
    program.record = CompileRecord(**facts["record"] | {"passes": passes})
    program.bytes_needed = facts["bytes_needed"]
    program.fingerprint = bytes.fromhex(facts["fingerprint"])
    return program


def _sharding(parts: Any) -> Sharding:
    """Returns the sharding of these parts, whose tuples JSON has turned into lists."""
    ids, shape, names, spec, *memory_and_target = parts
    return Sharding.of(tuple(ids), tuple(shape), tuple(names), _spec(*spec), *memory_and_target)


def _spec(
    dims: Sequence[tuple[Sequence[str], bool]], unreduced: Sequence[str], stack: Sequence[str]
) -> Spec:
    return Spec(
        tuple(Dim(tuple(axes), is_open) for axes, is_open in dims), tuple(unreduced), tuple(stack)
    )

"""Errors in the user's terms: a program that does not fit, an error that XLA raises, at once or
late."""

import re
from collections.abc import Iterator

import jax
import torch

from ..base import in_flight
from ..graph.graph import Graph, walk
from ..graph.source import node_line
from ..lower.lower import LoweringError
from ..run.pjrt import devices
from .program import Program

_NODE_MARK = re.compile(r"(?:aten|spmd|mark)[\w.:]*#(\d+)")
# In the name of an op of a loop's body: the number of the loop's region, and the op's index there.
_INSIDE = re.compile(r"[^\s\"']*?/region(\d+)/[^\s\"']*?(?:aten|spmd|mark)[\w.:]*#(\d+)")
_NO_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|[Oo]ut of memory|Ran out of memory")
# A kernel's blocks exceed a core's own memory: neither the devices' memory nor the size of the step
# matters.
_KERNEL = re.compile(
    r"memory space (?!hbm)\w+ while allocating|[Ss]hared memory size limit exceeded"
)
# XLA repeats the prefix for each program between the failure and the read.
_NESTED = re.compile(r"(?:Error (?:dispatching|preparing) computation: )+")

# Programs that need fewer bytes are not checked.
SMALL = 1 << 28


class RunError(RuntimeError):
    """A program failed while it ran, or its results failed later."""


def explain(program: Program, error: Exception) -> RuntimeError:
    """Returns the error of a run, with the recorded op and the user's line to which its text
    points; with the largest values if memory ran out."""
    text = _NESTED.sub("", str(error))
    if _NO_MEMORY.search(text):
        return _out_of_memory(program, _location(program, text), text)
    return RunError(f"XLA failed in {_location(program, text)}: {text}")


def with_nodes(graph: Graph, program: Program, error: RuntimeError) -> RuntimeError:
    """Returns the error with `node`, the op that failed (None: unknown), and `nodes`, the ops that
    may have failed.

    XLA does not report which callback raised: it may be any op with one.
    """
    index = _index(program, str(error))
    calling = [
        node
        for node in (graph.nodes if program.calls_host else ())
        if any(inner.op.name.startswith("spmd.call_jax") for inner in walk([node]))
    ]
    error.nodes = calling or graph.nodes  # type: ignore[attr-defined]
    error.node = None if index is None else graph.nodes[index]  # type: ignore[attr-defined]
    return error


def not_compiled(program: Program, graph: Graph, error: Exception) -> RuntimeError:
    """Returns the error for an exception of XLA during compilation, as `explain` does for a run."""
    text = str(error)
    # Out of a core's memory in a kernel's compiler; else the program may be too large.
    is_kernel = _KERNEL.search(text) is not None
    if not is_kernel and _NO_MEMORY.search(text):
        return with_nodes(graph, program, _out_of_memory(program, _location(program, text), text))
    index = _index(program, text)
    node = None if index is None else graph.nodes[index]
    if is_kernel:
        return LoweringError(
            f"a kernel of {_location(program, text)} does not compile: its blocks need more than "
            f"the memory of one core, which more devices or a smaller batch do not change. {text}",
            node,
        )
    return LoweringError(f"XLA failed in {_location(program, text)}: {text}", node)


def _index(program: Program, text: str) -> int | None:
    """Returns the index of the recorded op that an error's text names, or None."""
    match = _NODE_MARK.search(text)
    return int(match[1]) if match is not None and int(match[1]) < len(program.entries) else None


def _location(program: Program, text: str) -> str:
    """Returns the op named in an error's text, also one in a loop's body, and its line; else the
    line of the program's run."""
    index = _index(program, text)
    if index is None:
        return f"the program run at {program.line}"
    op, line = program.entries[index], program.lines[index]
    suffix = text[_NODE_MARK.search(text).end() :]  # type: ignore[union-attr]  # there is an index
    while (inner_op := _INSIDE.match(suffix)) is not None and op.lowering.regions:
        node = op.lowering.regions[int(inner_op[1])].nodes[int(inner_op[2])]
        op, line, suffix = node.op, node_line(node), suffix[inner_op.end() :]
    return f"{op.name}, recorded at {line}"


def _out_of_memory(program: Program, location: str, reason: str) -> torch.OutOfMemoryError:
    """Returns the error of a program that does not fit, with its largest values."""
    largest = "; ".join(_largest(program))
    return torch.OutOfMemoryError(
        f"out of memory in {location}: {reason}. Its largest values (unsharded, before they are "
        f"split over devices): {largest}. Tensors that had data before this program still have "
        "it: split what is large over more devices with mark_sharding, or make the step smaller."
    )


def _largest(program: Program) -> Iterator[str]:
    """Yields the three largest values of a program, in words."""
    values = [(meta, i) for i, op in enumerate(program.entries) for meta in op.metas]
    yielded_texts = set()
    for meta, i in sorted(values, key=lambda value: -value[0].nbytes):
        text = (
            f"{meta!r} of {meta.nbytes / 2**30:,.2f} GiB, made by {program.entries[i].name} at "
            f"{program.lines[i]}"
        )
        if text not in yielded_texts:
            yielded_texts.add(text)
            yield text
        if len(yielded_texts) == 3:
            return


def check_memory(program: Program, graph: Graph) -> None:
    """Raises OutOfMemoryError for a program that this machine cannot hold, before it runs and takes
    its inputs.

    XLA's CPU client finds out only after its inputs were given up; and if the system promises more
    memory than it has, it kills the process.
    """
    limit = devices.host_memory()
    if limit is not None and program.bytes_needed > limit:
        reason = (
            f"it needs {program.bytes_needed / 2**30:,.2f} GiB on the devices of this process in "
            f"addition to its inputs, which share {limit / 2**30:,.2f} GiB of memory"
        )
        raise with_nodes(
            graph, program, _out_of_memory(program, f"the program run at {program.line}", reason)
        )


def late(program: Program | None, error: Exception) -> RuntimeError:
    """Returns the error of a read, blamed on the first program in flight with the same failure,
    else on `program`, which computes the value."""
    text = _NESTED.sub("", str(error))
    for run in in_flight.started():
        program_in_flight = run.maker()
        if program_in_flight is None or run.result.is_deleted():
            continue
        try:
            run.result.block_until_ready()
        except jax.errors.JaxRuntimeError as error_in_flight:
            if _NESTED.sub("", str(error_in_flight)) == text:
                program = program_in_flight
                break
    return RunError(f"XLA failed: {text}") if program is None else explain(program, error)

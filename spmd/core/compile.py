"""Graph key -> executable: the program cache, the words for why a program was compiled, and running it on PJRT."""

import contextlib
import dataclasses
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any

import jax
import numpy as np

from . import interrupt, metrics
from .config import config
from .ir import Leaf, Line, Node, Pick, Value, origin
from .lower import Graph, LoweringError, argument_struct, build, pack_numbers
from .program import MANY, Program, changed_input, difference
from .sharding import Sharding, compiler_context
from .source import describe

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
_COLLECTIVE = re.compile(rf"= .*? ({'|'.join(COLLECTIVES)})(-start)?\(")
_NODE_MARK = re.compile(r"(?:aten|spmd|mark)[\w.:]*#(\d+)")


_programs: "OrderedDict[Hashable, Program]" = OrderedDict()
_lock = threading.RLock()
_last: Program | None = None


def graph_key(graph: Graph) -> Hashable:
    """What makes two graphs the same program: ops with their static parts, wiring, layouts, donation, partitioner.

    The lifted numbers are not in it. Entries and metas are interned, so the key compares by identity.
    """
    position: dict[Value, int] = {}
    key: list[Any] = [config.partitioner, len(graph.leaves), graph.donated]
    for i, leaf in enumerate(graph.leaves):
        position[leaf] = ~i
        key.append(leaf.meta)
        key.append(leaf.sharding)
    for i, node in enumerate(graph.nodes):
        position[node] = i
        key.append(node.entry)
        for operand in node.operands:
            if type(operand) is Pick:
                key.append(position[operand.node] + (operand.index + 1 << 40))
            else:
                key.append(position[operand])
    key.append(tuple([_place(root, position) for root in graph.roots]))
    key.append(tuple(graph.pinned))
    return tuple(key)


def _place(value: Value, position: dict[Value, int]) -> int:
    return position[value.node] + (value.index + 1 << 40) if isinstance(value, Pick) else position[value]


def find(graph: Graph) -> Program | None:
    """The compiled program of a graph, where the cache has it."""
    global _last
    started = metrics.now()
    key = graph_key(graph)
    with _lock:
        found = _programs.get(key)
        if found is not None:
            _programs.move_to_end(key)
            _last = found
    metrics.add_time("key", metrics.now() - started)
    return found


def program_for(graph: Graph, name: str, line: Line) -> Program:
    """The compiled program of a graph, from the cache or made now."""
    global _last
    found = find(graph)
    if found is not None:
        return found
    metrics.add("programs_compiled")
    program = _compile(graph, name, line)
    with _lock:
        _programs[graph_key(graph)] = program
        while len(_programs) > config.program_cache_size:
            _programs.popitem(last=False)
            metrics.add("programs_evicted")
        _last = program
    return program


def lower_graph(graph: Graph, chosen: list[tuple[Node, Any]] | None = None) -> Any:
    """The graph as a `jax.stages.Lowered`: StableHLO with the sharding attributes in it, before XLA has seen it.

    chosen: see `lower.build`.
    """
    function = build(graph, describe, chosen)
    function.__name__ = "spmd"
    jitted = jax.jit(
        function,
        donate_argnums=tuple(i for i, donated in enumerate(graph.donated) if donated),
        out_shardings=tuple(None if pinned is None else pinned.jax for pinned in graph.pinned),
        keep_unused=True,
    )
    floats, integers = pack_numbers(graph.nodes)
    arguments = [argument_struct(leaf) for leaf in graph.leaves]
    vectors = [jax.ShapeDtypeStruct((len(floats),), np.float64), jax.ShapeDtypeStruct((len(integers),), np.int64)]
    with compiler_context(), _first_lowering():
        return jitted.lower(*arguments, *vectors)


_has_lowered = False


@contextlib.contextmanager
def _first_lowering() -> Iterator[None]:
    """jax loads its dialects in the midst of its first lowering; left half loaded by a Ctrl-C they never load again."""
    global _has_lowered
    with contextlib.nullcontext() if _has_lowered else interrupt.later():
        yield
    _has_lowered = True


def run(program: Program, graph: Graph) -> list[Leaf]:
    """Hands a program to PJRT, which runs it asynchronously; returns a leaf per root.

    When the run fails, donated buffers may be gone; their leaves then say so at the next use.
    """
    started = metrics.now()
    floats, integers = pack_numbers(graph.nodes)
    vectors = (np.array(floats, np.float64), np.array(integers, np.int64))
    buffers = [leaf.buffer for leaf in graph.leaves]
    try:
        with jax.enable_x64(True):
            made = program.executable(*buffers, *vectors)
    except jax.errors.JaxRuntimeError as error:
        raise explain_failure(program, error) from error
    leaves = [
        Leaf(root.meta, buffer=buffer, sharding=sharding)
        for root, buffer, sharding in zip(graph.roots, made, program.results, strict=True)
    ]
    metrics.add_time("dispatch", metrics.now() - started)
    metrics.add("runs")
    return leaves


def explain_failure(program: Program, error: Exception) -> RuntimeError:
    """XLA's late error with the recorded op and the user's line that its text points at."""
    found = _NODE_MARK.search(str(error))
    where = f"the program run at {program.line}"
    if found is not None and int(found[1]) < len(program.entries):
        index = int(found[1])
        where = f"{program.entries[index].name}, recorded at {Line(*program.lines[index])}"
    return RuntimeError(f"XLA failed in {where}: {error}")


def _compile(graph: Graph, name: str, line: Line) -> Program:
    cause = _cause(graph, line)
    started = metrics.now()
    chosen: list[tuple[Node, Any]] = []
    lowered = lower_graph(graph, chosen if config.check_shardings else None)
    try:
        with compiler_context():
            executable = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        raise explain_failure(Program(name, line, graph, None, []), error) from error
    except ValueError as error:
        if type(error).__name__ != "IndivisibleError":
            raise
        return _compile(_evenly(graph), name, line)
    nameless = _nameless(graph, executable)
    if any(nameless):
        return _compile(_kept_whole(graph, nameless), name, line)
    for node, sharding in chosen:
        _compare(describe(node), node.meta, node.entry.sharding, sharding)
    results = _chosen(graph, executable)
    program = Program(name, line, graph, executable, results)
    program.record = _record(program, name, cause, line, metrics.now() - started)
    metrics.record_compile(program.record)
    metrics.add_time("compile", program.record.seconds)
    return program


def _evenly(graph: Graph) -> Graph:
    """The graph, results that the mesh does not divide kept whole: XLA may cut them, jax takes no such array."""
    devices = len(_mesh(graph).device_ids)
    return _kept_whole(graph, [any(dim % devices for dim in root.meta.shape) for root in graph.roots])


def _nameless(graph: Graph, executable: Any) -> list[bool]:
    """Which results the compiler laid out as no mesh axes can say (a reversed dim: on the devices in reverse)."""
    known = (jax.sharding.NamedSharding, jax.sharding.SingleDeviceSharding)
    return [
        pinned is None and not isinstance(chosen, known)
        for pinned, chosen in zip(graph.pinned, executable.output_shardings, strict=True)
    ]


def _kept_whole(graph: Graph, which: list[bool]) -> Graph:
    """The graph with these results, where nothing is asked of them, whole on every device."""
    mesh = _mesh(graph)
    pinned = [mesh if asked is None and whole else asked for asked, whole in zip(graph.pinned, which, strict=True)]
    return dataclasses.replace(graph, pinned=pinned)


def _mesh(graph: Graph) -> Sharding:
    return next(s for s in (*graph.pinned, *(leaf.sharding for leaf in graph.leaves)) if s is not None).replicated()


def _chosen(graph: Graph, executable: Any) -> list[Sharding]:
    """The results' shardings; raises when the compiler chose other than what was asked for (both partitioners may)."""
    if config.check_shardings:
        for leaf, chosen in zip(graph.leaves, executable.input_shardings[0], strict=False):
            _compare("argument", leaf.meta, leaf.sharding, chosen)
        for root, pinned, chosen in zip(graph.roots, graph.pinned, executable.output_shardings, strict=True):
            if pinned is not None:
                _compare(f"result of {_label(root)}", root.meta, pinned, chosen)
    return [
        Sharding.from_jax(chosen) if pinned is None else pinned
        for pinned, chosen in zip(graph.pinned, executable.output_shardings, strict=True)
    ]


def _compare(what: str, meta: Any, asked: Sharding | None, chosen: Any) -> None:
    assert asked is not None, "annotated ops and placed leaves have one"
    if not asked.jax.is_equivalent_to(chosen, len(meta.shape)):
        raise RuntimeError(
            f"the partitioner ({config.partitioner}) laid out the {what} {meta!r} as {chosen} instead of {asked!r}"
        )


def _label(root: Value) -> str:
    node = origin(root)
    return "a leaf" if node is None else describe(node)


def _record(program: Program, name: str, cause: str, line: Line, seconds: float) -> metrics.CompileRecord:
    memory = program.executable.memory_analysis()
    costs = program.executable.cost_analysis() or {}
    costs = costs[0] if isinstance(costs, list) else costs
    text = program.executable.as_text()
    collectives = Counter(match[1] for match in _COLLECTIVE.finditer(text))
    return metrics.CompileRecord(
        name=name,
        cause=cause,
        line=str(line),
        seconds=seconds,
        nodes=len(program.entries),
        argument_bytes=getattr(memory, "argument_size_in_bytes", 0),
        output_bytes=getattr(memory, "output_size_in_bytes", 0),
        temp_bytes=getattr(memory, "temp_size_in_bytes", 0),
        alias_bytes=getattr(memory, "alias_size_in_bytes", 0),
        flops=float(costs.get("flops", 0.0)),
        collectives=dict(collectives),
    )


def _cause(graph: Graph, line: Line) -> str:
    before = most_alike(graph, line)
    if before is None:
        return "first program of this barrier"
    names = [node.entry.name for node in graph.nodes]
    family = [program for program in _programs_at(line) if names == [entry.name for entry in program.entries]]
    if len(family) == MANY:
        _hint(line, graph, before)
    return difference(before, graph, num_alike=len(family))


def _hint(line: Line, graph: Graph, before: Program) -> None:
    """Says once, of a barrier whose programs differ by their shapes alone, that they are many."""
    changed = changed_input(before, graph)
    if changed is not None:
        print(
            f"spmd: {MANY} programs were compiled at {line} and another one is, only because shapes change: {changed}. "
            "XLA compiles a program per shape: pad to a few sizes, or write into a tensor of the full size. "
            "`spmd.metrics.report()` lists all programs and why each was compiled."
        )


def _programs_at(line: Line) -> list[Program]:
    return [p for p in _programs.values() if p.line.code is line.code and p.line.number == line.number]


def most_alike(graph: Graph, line: Line) -> Program | None:
    """Of the programs that this barrier has run, the one that shares most ops with a graph; of equals the newest."""
    same_line = _programs_at(line)
    return max(reversed(same_line), key=lambda program: _likeness(program, graph)) if same_line else None


def _likeness(program: Program, graph: Graph) -> int:
    """How much of a program's ops a graph repeats: the same entry counts two, the same op with other operands one."""
    pairs = [(old, node.entry) for old, node in zip(program.entries, graph.nodes, strict=False)]
    return sum((old is new) + (old.name == new.name) for old, new in pairs)


def clear_cache() -> None:
    """Forgets every compiled program."""
    global _last
    with _lock:
        _programs.clear()
        _last = None


def last_program() -> Program | None:
    """The program that ran last."""
    return _last


def trivial_dispatch_seconds(repeats: int = 21) -> float:
    """Median seconds of dispatching a trivial program with the last step's signature: same arguments, same donation.

    On CPU the dispatch of a real step contains device work, so the host's own cost is timed on a program that only
    adds one.
    """
    program = _last
    if program is None:
        raise RuntimeError("trivial_dispatch_seconds: no program has run yet")
    with compiler_context():
        arguments = [
            jax.ShapeDtypeStruct(s.padded_shape(m.shape), m.struct.dtype, sharding=s.jax) for m, s in program.leaves
        ]
        donated = tuple(range(len(arguments)))
        bump = jax.jit(
            lambda *arrays: tuple(array ^ True if array.dtype == bool else array + 1 for array in arrays[:-1]),
            donate_argnums=donated,
            keep_unused=True,
        )
        size = sum(len(entry.numbers) for entry in program.entries)
        executable = bump.lower(*arguments, jax.ShapeDtypeStruct((size,), np.float64)).compile()
        state = tuple(jax.device_put(np.zeros(a.shape, a.dtype), a.sharding) for a in arguments)
        seconds = []
        for _ in range(repeats):
            jax.block_until_ready(state)
            started = metrics.now()
            state = executable(*state, np.ones(size))
            seconds.append(metrics.now() - started)
        jax.block_until_ready(state)
    return sorted(seconds)[repeats // 2]


__all__ = [
    "LoweringError",
    "Program",
    "clear_cache",
    "explain_failure",
    "find",
    "graph_key",
    "last_program",
    "lower_graph",
    "most_alike",
    "program_for",
    "run",
    "trivial_dispatch_seconds",
]

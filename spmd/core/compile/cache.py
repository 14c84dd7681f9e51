"""Graph key -> executable, and the words for why a program was compiled."""

import gc
import itertools
import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import jax
import numpy as np

from .. import metrics
from ..config import config
from ..ir.graph import Graph
from ..ir.op import Entry
from ..ir.source import Line
from ..ir.store import Family, whole_stores
from ..sharding.partitioner import compiler_context
from . import copies, families, memory_maps, notice, recompile, stored
from .compiler import agree_on, compile_graph
from .difference import Asked, changed_input, difference
from .families import Form
from .garbage import collected_later
from .ledger import taken
from .program import MANY, Program


@dataclass(slots=True)
class _Known:
    """The programs of one graph as it is recorded. They differ in which of its leaves are taken as whole stores, as
    they happen to be that: those of a model that was trained are, not those of its average, which runs the same graph.

    programs: by the places of the leaves that are no rows of a stack otherwise, and by these whole stores; some may be
    compiled for a plan and not needed by a run yet. is_given_up: XLA would copy the stacks of one of them, so that no
    further one is rolled.
    """

    programs: dict[tuple[int, ...], dict[tuple[Family, ...], Program]] = field(default_factory=dict)
    is_given_up: bool = False

    def program_of(self, graph: Graph) -> Program | None:
        """The program for a graph whose leaves lie as they do."""
        for single, programs in self.programs.items():
            found = programs.get(whole_stores(graph.leaves, single))
            if found is not None:
                return found
        return None

    def all_programs(self) -> list[Program]:
        """Every one of them that a run has needed."""
        found = [program for programs in self.programs.values() for program in programs.values()]
        return [program for program in found if not program.is_planned]


_MOVED = "the same ops, on data that lies in other stores"
_programs: "OrderedDict[Hashable, _Known]" = OrderedDict()
_count = itertools.count(1)
_ASKED_EVERY = 8  # programs after which the memory maps are counted: some 30 ms where there are many
_lock = threading.RLock()
_last: Program | None = None


def find(graph: Graph) -> Program | None:
    """The program of a graph, where the cache has it and a run has needed it before."""
    global _last
    started = metrics.now()
    key = graph.key()
    with _lock:
        known = _programs.get(key)
        found = None if known is None else known.program_of(graph)
        if found is not None and found.is_planned:
            found = None
        if found is not None:
            _programs.move_to_end(key)
            _last = found
    metrics.add_time("key", metrics.now() - started)
    return found


@collected_later()
def program_for(graph: Graph, name: str, line: Line, form: Form = families.none, why_not: str = "") -> Program:
    """The compiled program of a graph: from the cache, from the disk, or made now.

    form: before the graph is compiled, puts leaves and results together that are to be rows of a stack. why_not: why a
    length that differs has a program of its own (see `passes.lengths`), for the ledger.
    """
    global _last
    found = find(graph)
    if found is not None:
        return found
    known = _programs.get(graph.key())
    is_known = known is not None and bool(known.all_programs())
    cause, is_first = (_MOVED, False) if is_known else _cause(graph, name, line)
    if why_not:
        cause = f"{cause}; the length is no operand because {why_not}"
    recompile.refuse(graph, name, line, cause, is_first=is_first)
    program = None if known is None else known.program_of(graph)  # no run has needed it, or `find` had found it
    if program is None:
        with notice.while_compiling(graph.nodes, line, cause):
            program = _formed_and_made(graph, name, line, form, cause)
    else:
        agree_on(graph, name, line, cause, program.fingerprint)
        taken(program, graph, name, f"compiled by the plan at {program.line}; {cause}", line)
    program.asked = Asked(graph, recompile.num_runs)
    with _lock:
        _last = program
    return program


@collected_later()
def planned_for(graph: Graph, line: Line, form: Form = families.none) -> Program:
    """The program that a run of a graph has, or would have: compiled where the cache and the disk do not have it, and
    kept for that run. No counter, and not the ledger, knows of it until then. The mesh need not be here.

    Raises what a run would: `torch.OutOfMemoryError`, LoweringError.
    """
    with _lock:
        known = _programs.get(graph.key())
        found = None if known is None else known.program_of(graph)
    if found is None:
        with metrics.silent():
            found = _formed_and_made(graph, "plan", line, form, "it is planned", is_planned=True)
    return found


# So many programs that no run has needed are kept: the layouts that one script asks for are many, and large.
_PLANNED = 16


def _formed_and_made(
    graph: Graph, name: str, line: Line, form: Form, cause: str, *, is_planned: bool = False
) -> Program:
    """A program that the cache does not have, rolled where that costs no copies; the cache keeps it."""
    key = graph.key()
    is_given_up = _programs[key].is_given_up if key in _programs else _is_rolled_in_vain(graph, line)
    formed, single, stores = families.formed(graph, form, may_roll=not is_given_up)
    program = _made(formed, name, line, cause + families.told(formed), is_planned=is_planned)
    if config.roll_layers == "auto" and copies.costs_more(program.executable, formed):
        metrics.add("loops_given_up")
        is_given_up = True
        formed, single, stores = families.formed(graph, form, may_roll=False)
        cause = f"{cause}; its layers are not rolled, as XLA would copy their stacks"
        program = _made(formed, name, line, cause, is_planned=is_planned)
    program.is_planned, program.is_unrolled = is_planned, is_given_up
    with _lock:
        known = _programs.setdefault(key, _Known())
        known.is_given_up = is_given_up
        known.programs.setdefault(tuple(single), {})[stores] = program
        planned = [key for key, known in _programs.items() if not known.all_programs()]
        for key in planned[:-_PLANNED]:
            del _programs[key]
        _drop(len(_programs) - config.program_cache_size)
        if next(_count) % _ASKED_EVERY == 0 and memory_maps.are_scarce():
            _drop(len(_programs) // 2)
            gc.collect()
            if memory_maps.are_scarce():
                jax.clear_caches()  # jax 0.12 keeps programs over several devices by itself
    return program


def _drop(count: int) -> None:
    """Forgets so many programs, the least recently used first."""
    for _ in range(count):
        _programs.popitem(last=False)
        metrics.add("programs_evicted")


def _made(graph: Graph, name: str, line: Line, cause: str, *, is_planned: bool) -> Program:
    """The program of a graph: from the disk, or compiled."""
    program = stored.load(graph, name, line, cause)
    if program is None:
        metrics.add("programs_compiled")
        program = compile_graph(graph, name, line, cause, is_planned=is_planned)
        stored.keep(program, graph)
    return program


def _is_rolled_in_vain(graph: Graph, line: Line) -> bool:
    """Whether XLA would copy the stacks of the program of this barrier that has most ops in common with a graph, and at
    least half: a layer more or less changes nothing there."""
    here = [(known, program) for known in _programs.values() for program in known.all_programs() if program.is_at(line)]
    before = _nearest(graph, [program for _, program in here]) if here else None
    return (
        before is not None
        and any(known.is_given_up for known, program in here if program is before)
        and 2 * _common(before, _ops(graph)) >= max(len(before.entries), len(graph.nodes))
    )


def cause(graph: Graph, line: Line) -> str:
    """The difference of a graph from the programs that its barrier has run, in words."""
    return _cause(graph, "step", line)[0]


def _all_programs() -> Iterator[Program]:
    """Those that a run has needed."""
    return (program for known in _programs.values() for program in known.all_programs())


def _cause(graph: Graph, name: str, line: Line) -> tuple[str, bool]:
    """Why a graph has no program, and whether it is among the first of its barrier."""
    earlier = [p for p in _all_programs() if p.name == name and p.asked.run != recompile.num_runs]
    here = [program for program in earlier if program.is_at(line)]
    if not here:
        return f"first program of this barrier{_elsewhere(graph, earlier[-_LATEST:])}", True
    before, count = _nearest(graph, here), sum(_has_names(program, graph) for program in here)
    if count == MANY:
        _hint(line, graph, before)
    return difference(before.asked, graph, num_alike=count), False


_LATEST = 32  # so many programs of other barriers are looked at


def _elsewhere(graph: Graph, programs: Sequence[Program]) -> str:
    """What differs from the most alike of the programs of other barriers, where that has most of the ops."""
    before = _nearest(graph, programs) if programs else None
    if before is None or 2 * _common(before, _ops(graph)) < max(len(before.entries), len(graph.nodes)):
        return ""
    return f"; from the nearest, of {before.line}, it differs so: {difference(before.asked, graph)}"


def _nearest(graph: Graph, programs: Sequence[Program]) -> Program:
    """Of some programs the one that shares most ops with a graph; of equals the newest."""
    ops = _ops(graph)
    return max(reversed(programs), key=lambda program: (_has_names(program, graph), _common(program, ops)))


def _ops(graph: Graph) -> Counter[Entry]:
    return Counter(node.entry for node in graph.nodes)


def _common(program: Program, ops: Counter[Entry]) -> int:
    """How many of these ops a program has, wherever they stand."""
    return (Counter(program.entries) & ops).total()


def _has_names(program: Program, graph: Graph) -> bool:
    """Whether a program has the same ops, on whatever operands."""
    return len(program.entries) == len(graph.nodes) and all(
        old.name == node.entry.name for old, node in zip(program.entries, graph.nodes, strict=True)
    )


def _hint(line: Line, graph: Graph, before: Program) -> None:
    """Says once, of a barrier whose programs differ by their shapes alone, that they are many."""
    changed = changed_input(before.asked, graph)
    if changed is not None:
        notice.say(
            f"{MANY} programs were compiled at {line} and another one is, only because shapes change: {changed}. "
            "XLA compiles a program per shape: pad to a few sizes, or write into a tensor of the full size. "
            "`spmd.metrics.report()` lists all programs and why each was compiled."
        )


def most_alike(graph: Graph, line: Line) -> Program | None:
    """Of the programs that this barrier has run, the one that shares most ops with a graph; of equals the newest."""
    here = [program for program in _all_programs() if program.is_at(line)]
    return _nearest(graph, here) if here else None


def num_alike(graph: Graph, line: Line) -> int:
    """How many programs of this barrier have a graph's ops, on whatever operands."""
    return sum(program.is_at(line) and _has_names(program, graph) for program in _all_programs())


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
            jax.ShapeDtypeStruct(s.padded_shape(port.meta.shape), port.meta.struct.dtype, sharding=s.jax)
            for port in program.inputs
            if (s := port.sharding) is not None
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

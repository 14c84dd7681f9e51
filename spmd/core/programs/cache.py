"""Maps graph keys to executables, groups inputs into stacks, and states why a program was compiled.

Not here: the search for inputs that belong together (`passes`), the stacks at a run
(`run.executables`).
"""

import contextlib
import dataclasses
import gc
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

import jax

from ..base import counters, trace_rows
from ..base.config import config
from ..base.state import PerThread
from ..graph.graph import Graph
from ..graph.op import OpSpec
from ..graph.source import Line
from ..graph.store import StackGroup, full_stores
from . import stored
from .compiler import agree_on, aliasing_stack, compile_graph
from .log_entry import assign
from .program import PROGRAM_READERS, Program, Requested


@contextlib.contextmanager
def collected_later() -> Iterator[None]:
    """Turns garbage collection off inside, in all threads, unless it is off already: compiling a
    graph makes little garbage, and each full collection scans all objects of a model."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_MAPS, _LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_SCARCE_SHARE = 0.75


def are_maps_scarce() -> bool:
    """True if three quarters of the memory maps that this process may have are in use; never
    outside of Linux."""
    if not (_MAPS.exists() and _LIMIT.exists()):
        return False
    return _MAPS.read_bytes().count(b"\n") > _SCARCE_SHARE * int(_LIMIT.read_text())


# Adds the stack groups to a graph, and its loops if it may be scanned.
Form = Callable[[Graph, bool], Graph]


def grouped(
    graph: Graph, form: Form, *, may_scan: bool = True
) -> tuple[Graph, list[int], tuple[StackGroup, ...]]:
    """Returns the graph with its stack groups; the indices of the inputs that `form` leaves alone;
    and the groups of these inputs that are full stores."""
    grouped_graph = form(graph, may_scan)
    grouped_indices = set().union(*grouped_graph.stack_groups)
    single_indices = [index for index in range(len(graph.inputs)) if index not in grouped_indices]
    full_store_groups = full_stores(graph.inputs, single_indices)
    if full_store_groups or grouped_graph.stack_groups or grouped_graph.stacked:
        grouped_graph = _complete(
            dataclasses.replace(
                grouped_graph, stack_groups=(*grouped_graph.stack_groups, *full_store_groups)
            )
        )
    return grouped_graph, single_indices, full_store_groups


def _complete(graph: Graph) -> Graph:
    """Returns the graph with each stack group donated as a whole or not at all. Its memory goes to
    the stack of its new rows, unchanged rows included. Stacked results are in the order of these
    groups, as jax pairs by order. A result that takes the memory of a single input is in no stack.
    """
    donated = list(graph.donated)
    paired_stacks: list[StackGroup] = []
    for group in graph.stack_groups:
        # A group is donated if each of its donated rows has a replacement.
        kinds = {(graph.inputs[i].meta.struct, graph.shardings[i]) for i in group}
        assert len(kinds) == 1, "rows have one meta and one sharding"
        result_stack = aliasing_stack(graph, group) if any(donated[i] for i in group) else None
        if result_stack is None:
            for i in group:
                donated[i] = False
        else:
            paired_stacks.append(result_stack)
    # Those of rows are in the stacks, too.
    single_targets = {graph.onto[i] for i, is_donated in enumerate(donated) if is_donated}
    aliased_indices = single_targets.union(
        index for root_indices in paired_stacks for index in root_indices
    )
    unpaired_stacks = [
        root_indices
        for root_indices in graph.stacked
        if aliased_indices.isdisjoint(root_indices) and graph.pinned[root_indices[0]] is not None
    ]
    stacked = (*paired_stacks, *unpaired_stacks)
    _undonate_unusable(
        graph,
        donated,
        single_targets.union(index for root_indices in stacked for index in root_indices),
    )
    return dataclasses.replace(graph, donated=tuple(donated), stacked=stacked)


def _undonate_unusable(graph: Graph, donated: list[bool], aliased_indices: set[int | None]) -> None:
    """Clears `donated` for inputs that no result overwrites and no unaliased result of their kind
    can use."""
    unaliased_results = Counter(
        (root.meta.struct, sharding)
        for index, (root, sharding) in enumerate(zip(graph.roots, graph.pinned, strict=True))
        if index not in aliased_indices
    )
    # A donated row has a replacement (see `_complete`), and is none of these.
    for i, is_donated in enumerate(donated):
        if is_donated and graph.onto[i] is None:
            kind = graph.inputs[i].meta.struct, graph.shardings[i]
            donated[i] = unaliased_results[kind] > 0
            unaliased_results[kind] -= 1


def _group_summary(graph: Graph) -> str:
    """Returns the numbers of stacked inputs and of stores, in words for the compile log; "" for
    none."""
    rows = sum(map(len, graph.stack_groups))
    return (
        f"; {rows} of {len(graph.inputs)} inputs are rows of {len(graph.stack_groups)} stores"
        if rows
        else ""
    )


_uses = itertools.count().__next__


@dataclass(slots=True)
class GraphPrograms:
    """The programs of one recorded graph, one for each choice of inputs that are rows of full
    stores. The weights of a trained model are such rows; the weights of its average, with the same
    graph, are not.

    programs: by the indices of the inputs outside of stack groups, then by the full stores among
    these inputs; one compiled for a plan may not have run yet. used: rises with each use.
    """

    programs: dict[tuple[int, ...], dict[tuple[StackGroup, ...], Program]] = field(
        default_factory=dict
    )
    used: int = field(default_factory=_uses)

    def program_of(self, graph: Graph) -> Program | None:
        """Returns the program for the stores that hold a graph's inputs now, or None."""
        for single_inputs, programs in self.programs.items():
            program = programs.get(full_stores(graph.inputs, single_inputs))
            if program is not None:
                return program
        return None

    def __iter__(self) -> Iterator[Program]:
        return itertools.chain.from_iterable(map(dict.values, self.programs.values()))

    def is_run(self) -> bool:
        """True if a run has needed one of the programs."""
        return not all(map(attrgetter("is_planned"), self))


# Called before a compilation with (graph, program name, user's line, cause, True for the first
# program of the sync), may raise RefusedError; before a compilation without a file on disk, with
# (graph, line); as a context around one, with (number of ops, line, cause); after one, with
# (program, graph, headline).
before_compiling: list[Callable[[Graph, str, Line, str, bool], None]] = []
before_making: list[Callable[[Graph, Line], None]] = []
while_compiling: list[Callable[[int, Line, str], AbstractContextManager[None]]] = []
after_compiling: list[Callable[[Program, Graph, str], None]] = []


# Return True, for an executable and its graph, to compile the program again without its loops.
refuse_loops: list[Callable[[jax.stages.Compiled, Graph], bool]] = []

_MOVED = "the same ops, on data in other stores"
_NONE = GraphPrograms()
_programs: dict[Hashable, GraphPrograms] = {}
_count = itertools.count(1)
# Programs compiled between two counts of the memory maps; a count of many takes some 30 ms.
_MAPS_COUNTED_EVERY = 8
_lock = threading.RLock()
_last_program: Program | None = None
_num_runs = 0  # so far; the programs of one run are compiled together


def next_run() -> None:
    """Counts a run."""
    global _num_runs
    _num_runs += 1


# The number of the program that the thread compiles among those of its sync, and how many these
# are.
part = PerThread((1, 1))


def programs_of(graph: Graph) -> GraphPrograms:
    """Returns the programs of a graph, perhaps none."""
    return _programs.get(graph.key(), _NONE)


def find(graph: Graph, programs: GraphPrograms | None = None) -> Program | None:
    """Returns the program of a graph if the cache has it and a run has needed it before; else
    None. programs: those of the graph, where they are known."""
    global _last_program
    started = counters.now()
    with _lock:
        programs = programs_of(graph) if programs is None else programs
        program = programs.program_of(graph)
        if program is not None and not program.is_planned:
            programs.used = _uses()
            _last_program = program
    counters.add_time("key", counters.now() - started)
    return None if program is None or program.is_planned else program


@collected_later()
def program_for(graph: Graph, name: str, line: Line, form: Form, why_not: str = "") -> Program:
    """Returns the compiled program of a graph: from the cache, from the disk, or compiled now.

    form: called before the compilation; groups inputs and results into stacks. why_not: for the
    compile log, the reason why another length needs another program (see `spmd.adaptive`).
    """
    global _last_program
    cached = find(graph)
    if cached is not None:
        return cached
    # A miss: the programs of this graph over other stores, if any.
    programs = programs_of(graph)
    cause, is_first = (_MOVED, False) if programs.is_run() else _cause(graph, name, line)
    if why_not:
        cause = f"{cause}; the length is no operand because {why_not}"
    for announce in before_compiling:
        announce(graph, name, line, cause, is_first)
    # Only a plan's program is found here: `find` has looked for those that a run has needed.
    program = programs.program_of(graph)
    if program is None:
        with (
            contextlib.ExitStack() as contexts,
            trace_rows.span(
                "compile", lambda: {"cause": cause, "line": str(line), "ops": str(len(graph.nodes))}
            ),
        ):
            for context in while_compiling:
                contexts.enter_context(context(len(graph.nodes), line, cause))
            program = _form_and_compile(graph, name, line, form, cause)
    else:
        agree_on(graph, name, line, cause, program.fingerprint)
        origin_text = "loaded from disk" if program.is_loaded else "compiled"
        assign(program, graph, name, f"{origin_text} by the plan at {program.line}; {cause}", line)
        if program.is_loaded:  # the plan's own work is not counted
            counters.add("programs_loaded")
    program.requested = Requested(
        dataclasses.replace(program.graph, donated=graph.donated), _num_runs
    )
    for report in after_compiling:
        report(program, graph, f"{name} at {line}, {cause}")
    with _lock:
        _last_program = program
    return program


@collected_later()
def planned_for(graph: Graph, line: Line, form: Form) -> Program:
    """Returns the program that a run of a graph has or would have: compiled if neither the cache
    nor the disk has it, and kept for that run. No counter and no line of the compile log mentions
    it until then. The mesh need not be on this machine.

    Raises the errors of a run: `torch.OutOfMemoryError`, LoweringError.
    """
    with _lock:
        program = programs_of(graph).program_of(graph)
    if program is None:
        with counters.silent():
            program = _form_and_compile(graph, "plan", line, form, "it is planned", is_planned=True)
    return program


# The programs of plans that are kept without a run: one script may request many layouts, and they
# are large.
_PLANNED = 16


def _form_and_compile(
    graph: Graph, name: str, line: Line, form: Form, cause: str, *, is_planned: bool = False
) -> Program:
    """Returns a program that the cache did not have, compiled or loaded, its layers scanned unless
    that costs copies."""
    key = graph.key()
    # Scanning was given up before, for this graph or for the most similar one.
    is_unrolled = any(map(attrgetter("is_unrolled"), _programs.get(key, _NONE)))
    is_unrolled = is_unrolled or (key not in _programs and _is_scanned_in_vain(graph, line))
    grouped_graph, single_indices, full_store_groups = grouped(
        graph, form, may_scan=not is_unrolled
    )
    program = _load_or_compile(
        grouped_graph, name, line, cause + _group_summary(grouped_graph), is_planned=is_planned
    )
    # Without its loops a longer graph would compile for minutes, which spares few bytes.
    may_refuse = config.scan_layers == "auto" and len(graph.nodes) <= config.max_program_ops
    refusals = (
        refuse_loops
        if may_refuse and (grouped_graph.recorded or grouped_graph.stack_groups)
        else ()
    )
    if any(refuse(program.executable, grouped_graph) for refuse in refusals):
        counters.add("loops_given_up")
        _read_log([program])
        is_unrolled = True
        grouped_graph, single_indices, full_store_groups = grouped(graph, form, may_scan=False)
        cause = f"{cause}; its layers are not scanned, as XLA would copy their stacks"
        program = _load_or_compile(grouped_graph, name, line, cause, is_planned=is_planned)
    program.is_planned, program.is_unrolled = is_planned, is_unrolled
    with _lock:
        programs_of_stores = _programs.setdefault(key, GraphPrograms()).programs.setdefault(
            tuple(single_indices), {}
        )
        # Another thread may have compiled the same program meanwhile; this one replaces it.
        _read_log(filter(None, [programs_of_stores.get(full_store_groups)]))
        programs_of_stores[full_store_groups] = program
        if is_planned:
            planned = [key for key, entry in _programs.items() if not entry.is_run()]
            for key in planned[:-_PLANNED]:
                del _programs[key]
        _drop(len(_programs) - config.program_cache_size)
        if next(_count) % _MAPS_COUNTED_EVERY == 0 and are_maps_scarce():
            _drop(len(_programs) // 2)
            gc.collect()
            if are_maps_scarce():
                jax.clear_caches()  # jax 0.12 itself caches programs over several devices
    return program


def _drop(count: int) -> None:
    """Removes `count` programs, the least recently used first."""
    for key in sorted(_programs, key=lambda key: _programs[key].used)[: max(count, 0)]:
        programs = _programs.pop(key)
        _read_log(programs)
        programs.programs.clear()  # known graphs refer to `programs`, and must find none there
        counters.add("programs_evicted")


def _read_log(programs: Iterable[Program]) -> None:
    """Reads the text of programs that leave the cache, which completes their lines of the log."""
    for program in programs:
        if program.record is not None and not program.is_planned:
            program.record.read()


def _load_or_compile(
    graph: Graph, name: str, line: Line, cause: str, *, is_planned: bool
) -> Program:
    """Returns the program of a graph: from the disk, or compiled."""
    program = stored.load(graph, name, line, cause)
    if program is None:
        for announce in before_making:
            announce(graph.recorded or graph, line)
        counters.add("programs_compiled")
        program = compile_graph(graph, name, line, cause, is_planned=is_planned)
        stored.keep(program, graph)
    elif not is_planned:
        agree_on(graph, name, line, cause, program.fingerprint)
    return program


def _is_scanned_in_vain(graph: Graph, line: Line) -> bool:
    """True if the most similar program of this sync was unrolled, as XLA would copy its stacks, and
    shares half of its ops: a layer more or less does not change the copies."""
    program = most_similar(graph, line)
    return program is not None and program.is_unrolled and _has_most(program, graph)


def cause(graph: Graph, line: Line) -> str:
    """Returns the difference between a graph and the programs that its sync has run, in words."""
    return _cause(graph, "step", line)[0]


def _all_programs() -> Iterator[Program]:
    """Yields the programs that a run has needed."""
    return (program for entry in _programs.values() for program in entry if not program.is_planned)


def _cause(graph: Graph, name: str, line: Line) -> tuple[str, bool]:
    """Returns why a graph has no program, and whether its sync has run no program before."""
    earlier_programs = [
        p for p in _all_programs() if p.name == name and p.requested.run != _num_runs
    ]
    at_line = [program for program in earlier_programs if program.is_at(line)]
    nearest, num_equal_programs = (
        _nearest(graph, at_line),
        sum(_has_names(program, graph) for program in at_line),
    )
    if nearest is None:
        return f"first program of this sync{_elsewhere(graph, earlier_programs[-_LATEST:])}", True
    return PROGRAM_READERS.difference(nearest, graph, line, num_equal_programs), False


_LATEST = 32  # the newest programs of other syncs that are compared


def _elsewhere(graph: Graph, programs: Sequence[Program]) -> str:
    """Returns the difference from the most similar of the programs of other syncs, if the two have
    most of the ops in common; else ""."""
    nearest = _nearest(graph, programs)
    if nearest is None or not _has_most(nearest, graph):
        return ""
    difference = PROGRAM_READERS.difference(nearest, graph, nearest.line, 0)
    return f"; compared with the nearest program, of {nearest.line}: {difference}"


def _nearest(graph: Graph, programs: Sequence[Program]) -> Program | None:
    """Returns the program nearest to a graph: with the same op names in order if there is one, then
    with most ops in common, of equals the newest."""
    ops = _ops(graph)
    return max(
        reversed(programs),
        key=lambda program: (_has_names(program, graph), _common(program, ops)),
        default=None,
    )


def _ops(graph: Graph) -> Counter[OpSpec]:
    return Counter(map(attrgetter("op"), graph.nodes))


def _has_most(program: Program, graph: Graph) -> bool:
    """True if a program and a graph have at least half of their ops in common."""
    return 2 * _common(program, _ops(graph)) >= max(len(program.entries), len(graph.nodes))


def _common(program: Program, ops: Counter[OpSpec]) -> int:
    """Counts the ops that a program has in common with these, in any order."""
    return (Counter(program.entries) & ops).total()


def _has_names(program: Program, graph: Graph) -> bool:
    """True if a program has the same ops in the same order, on any operands."""
    return len(program.entries) == len(graph.nodes) and all(
        entry.name == node.op.name for entry, node in zip(program.entries, graph.nodes, strict=True)
    )


def most_similar(graph: Graph, line: Line) -> Program | None:
    """Returns the program of this sync that shares most ops with a graph, of equals the newest;
    None if there is none."""
    return _nearest(graph, [program for program in _all_programs() if program.is_at(line)])


def num_equal(graph: Graph, line: Line) -> int:
    """Counts the programs of this sync that have the ops of a graph, on any operands."""
    return sum(program.is_at(line) and _has_names(program, graph) for program in _all_programs())


def clear_cache() -> None:
    """Removes every compiled program from the cache."""
    global _last_program
    with _lock:
        for programs in _programs.values():
            _read_log(programs)
            programs.programs.clear()
        _programs.clear()
        _last_program = None


def last_program() -> Program | None:
    """Returns the program that ran last, or None."""
    return _last_program

"""Runs a schedule: one program for each piece of the graph; what nobody reads any more gives its memory to results."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .. import metrics
from ..compile import cache, recompile
from ..ir.graph import Graph, Leaf, Node, Value, origin, results, topological, value_name
from ..ir.source import Line
from ..lazy import recorders
from ..lazy.annotate import ask_again
from ..lazy.cell import ASIDE, READ, Cell, pending_elsewhere
from ..passes import again, changing, dynamic, lengths, nans, rolling
from ..pjrt import processes, transfer
from ..pjrt.host import is_forbidden
from ..sharding.value import Sharding
from . import launch
from .abstract import recording
from .cutting import cut_before, cut_changing, finer, steps_written
from .init import give_birth
from .placement import bring, check_here, lies_in, pinned_sharding, written_over
from .schedule import Flow, Piece, Root, beside_host, by_mesh


def run(cells: Iterable[Cell], line: Line, *, donate: bool = True, for_read: bool = False) -> int:
    """Runs these cells: as one program, or several where they lie on different devices, or where there is no program
    and more, shorter ones do. What they overwrite is donated where `donate` allows it. for_read: see `give_birth`.

    Returns the number of their ops.
    """
    own = list(cells)
    others = pending_elsewhere(own) if recorders.is_several else []
    needed = _needed_of(others, own)
    if donate and not _watches():  # a guard must see initial values made, too
        give_birth(own, line, for_read=for_read, needed=needed, others=others)
    roots = roots_of([*own, *_completed(needed)])
    nodes, leaves = topological([value for value, _ in roots])
    if roots:
        run_schedule(by_mesh(roots, nodes, leaves), (), roots, line, donate=donate)
    return len(nodes)


def _needed_of(others: Sequence[Cell], own: Sequence[Cell]) -> list[Cell]:
    """Other threads' cells whose values these cells need."""
    if not others:
        return []
    nodes = set(topological([cell.value for cell in own])[0])
    return [cell for cell in others if origin(cell.value) in nodes]


def _completed(needed: Sequence[Cell]) -> list[Cell]:
    """Which of other threads' cells whose values are needed take them.

    A thread that has written over data is in the midst of a step. With some of its values there, what is left of the
    step would be another program: so its cells stay as they are, unless their values are needed again and again, when
    the thread is idle.
    """
    waiting = [cell for cell in needed if type(cell.value) is not Leaf]
    in_step = {cell.recorder for cell in waiting if cell.data is not None}
    for cell in waiting:
        stamp, times = cell.needed
        cell.needed = cell.stamp, times + 1 if stamp == cell.stamp else 1
    return [cell for cell in waiting if cell.recorder not in in_step or cell.needed[1] > _OFTEN]


_OFTEN = 8


def roots_of(cells: Iterable[Cell]) -> list[Root]:
    """What is to be computed of these cells, as they are now."""
    return [(ask_again(cell), cell) for cell in cells if type(cell.value) is not Leaf]


def run_schedule(
    pieces: Sequence[Piece], rest: Sequence[Node], roots: Sequence[Root], line: Line, *, donate: bool
) -> None:
    """Runs the pieces of a graph in turn, each of which needs only those before it; `rest`, which reads what they make,
    stays recorded."""
    recompile.next_run()
    changing.note_run(line)
    todo, left = list(pieces), list(roots)
    passed: set[Leaf] = set()
    done: set[Node | None] = set()
    kept: set[Node] | None = None  # where it is cut: the ops that others may yet run
    flow, here = _flow(todo, rest, left, passed), 0
    try:
        while here < len(todo):
            piece = todo[here]
            cut = (
                _run_on_host(piece, left, flow)
                if piece.where is None
                else _run_piece(piece, here, left, flow, line, donate=donate)
            )
            if cut:
                kept = _kept(left) if donate and kept is None else kept
                left = [root for root in left if origin(root[0]) not in done]
                todo, here = [*cut, *todo[here + 1 :]], 0
                flow = _flow(todo, rest, left, passed)
            else:
                done.update(piece.nodes)
                if kept is not None and recording() is None:  # what is only recorded is compiled later
                    flow.release(here, kept)
                here += 1
    finally:
        for _, cell in roots:
            if cell.past:
                cell.past = [value for value in cell.past if origin(value) not in done]


def _kept(roots: Sequence[Root]) -> set[Node]:
    """The ops behind what may be run another time: what was set aside, what other threads have recorded, and what views
    keep of their cells."""
    aside = [cell.value for ref in ASIDE if (cell := ref()) is not None]
    views = [view.value for view, *_ in READ if view.value is not None]
    return set(topological([*aside, *views, *_recorded_elsewhere(roots)])[0])


def _flow(todo: Sequence[Piece], rest: Sequence[Node], left: Sequence[Root], passed: set[Leaf]) -> Flow:
    """The readers of each value, other threads' recorded ops included."""
    flow = Flow(todo, rest, left, passed)
    if recorders.is_several:
        flow.add_others(_recorded_elsewhere(left))
    return flow


def _run_on_host(piece: Piece, roots: Sequence[Root], flow: Flow) -> list[Piece]:
    """Gives the ops of a piece their results without a program; what reads them finds data."""
    made: dict[Any, Leaf] = {}
    for node in piece.nodes:
        node.operands = tuple(made.get(value_name(operand), operand) for operand in node.operands)
        leaves = [operand for operand in node.operands if type(operand) is Leaf]
        made |= zip(map(value_name, results(node)), dynamic.compute(node, leaves), strict=True)
    flow.give(made)
    for value, cell in roots:
        leaf = made.get(value_name(value))
        if leaf is not None:
            _take(cell, value, leaf)
    return []


def _run_piece(piece: Piece, here: int, left: list[Root], flow: Flow, line: Line, *, donate: bool) -> list[Piece]:
    """Runs one piece, or returns the finer ones to be run in its place."""
    roots = flow.roots_of(here)
    if _watches():
        _run_watched(piece, roots, flow, line, nans.looked_for())
        return []

    def dies(leaf: Leaf) -> bool:
        return donate and not flow.is_read_after(leaf, here)

    def graph_now() -> Graph:
        return graph_of(roots, piece.where, dies=dies, passed=flow.passed)

    graph = graph_now()
    check_here(graph.mesh)
    abstractly = recording()
    if abstractly is not None:
        pieces = [] if piece.is_whole or not donate else finer(piece, graph, [cell for _, cell in left])
        if not pieces:
            _take_all(roots, abstractly.run(graph), flow)
        return pieces
    program, why_not, is_rolled = cache.find(graph), "", False
    key = graph.key() if program is None else None  # as it was recorded
    if program is None and donate and (cut := cut_before(piece, graph, key, left, flow)):
        return cut
    if program is None and not piece.is_whole and not processes.several():
        known = again.again(graph)
        graph, program = (graph, None) if known is None else known
    if program is None and not piece.is_whole and donate and not processes.several():
        turned = rolling.rolled(graph, line, written=steps_written([cell for _, cell in left]))
        if isinstance(turned, Graph):
            graph, is_rolled = turned, turned is not graph
            program = cache.find(graph) if is_rolled else None
        else:
            why_not = str(turned)
    if program is None and not piece.is_whole and not is_rolled:
        pieces = finer(piece, graph, [cell for _, cell in left]) if donate else []
        if pieces:
            return pieces
        # What is learnt of runs before may differ between processes: with several every graph runs as it is.
        if not processes.several():
            adapted = dynamic.adapt(graph, line)
            if adapted.hosted and not is_forbidden():
                return beside_host(Piece(adapted.graph.nodes, piece.where), adapted.hosted)
            is_padded = adapted.graph is not graph
            graph, why_not, program = adapted.graph, why_not or adapted.why_not, adapted.program or cache.find(graph)
            if program is None and not is_padded and donate:
                cut = cut_changing(piece, graph, key, left, flow, line)
                if cut:
                    return cut
        program = program or cache.find(graph)
    if program is None:
        launch.compile_unlocked(graph, "step", line, why_not)
        # Others have recorded and annotated meanwhile: what they read stays, what they say of layouts holds.
        flow.add_others(_recorded_elsewhere([*left, *roots]))
        graph = _like(graph, graph_now(), line, is_rolled=is_rolled)
        program = launch.program_for(graph, "step", line)
    bring(graph.leaves, graph.lies)
    _take_all(roots, _run_program(program, _spared(graph, program.donated, flow), line), flow)
    return []


def _watches() -> bool:
    """Whether a NaN guard looks at what is run."""
    return bool(nans.looked_for()) and recording() is None


def _take_all(roots: Sequence[Root], leaves: Sequence[Leaf], flow: Flow) -> None:
    """Gives cells and later pieces the results of a run."""
    made = [lengths.unpadded(leaf, value) for (value, _), leaf in zip(roots, leaves, strict=True)]
    flow.give({value_name(value): data for (value, _), data in zip(roots, made, strict=True)})
    for (value, cell), data, leaf in zip(roots, made, leaves, strict=True):
        _take(cell, value, data, leaf.sharding)


def _like(before: Graph, graph: Graph, line: Line, *, is_rolled: bool) -> Graph:
    """A graph made what it was made before it was compiled."""
    if is_rolled:
        again = rolling.rolled(graph, line)
        return again if isinstance(again, Graph) else graph
    return graph if before.roots == graph.roots else dynamic.padded(graph).graph


def _spared(graph: Graph, donated: Sequence[bool], flow: Flow) -> Graph:
    """The graph with copies of what its program writes over and others still read: other threads' ops, and those who
    read outside the lock. Which these are is chance, so that they must not make it another program."""
    leaves = list(graph.leaves)
    for place, (leaf, is_donated) in enumerate(zip(graph.leaves, donated, strict=True)):
        if is_donated and (leaf.is_held() or flow.is_read_by_others(leaf)):
            leaves[place] = _copy_of(leaf)
    return graph if leaves == graph.leaves else dataclasses.replace(graph, leaves=leaves)


def _copy_of(leaf: Leaf) -> Leaf:
    """A leaf with the same data, to be donated in its place: in the same row, where it is one of a store."""
    metrics.add("buffers_spared")
    copy = Leaf(leaf.meta, sharding=leaf.sharding)
    if leaf.store is not None:
        leaf.store.pass_on(leaf.row, copy)
    else:
        buffer, lies = leaf.placed()
        copy.take(transfer.copied(buffer, lies), lies)
    return copy


def _recorded_elsewhere(roots: Sequence[Root]) -> list[Value]:
    """The values that wait to be run and are not of this run."""
    own = {value_name(value) for value, _ in roots}
    return [cell.value for cell in pending_elsewhere(()) if value_name(cell.value) not in own]


def _take(cell: Cell, value: Value, made: Leaf | Node, lies: Sharding | None = None) -> None:
    """Gives a cell what was computed of it. One that has been written since keeps it for the case that this fails."""
    if type(made) is Node:
        if cell.value is value:
            cell.rest(made, lies)
        return
    assert type(made) is Leaf
    if cell.value is value:
        cell.settle(made)
    elif type(cell.value) is not Leaf:
        cell.home, cell.data, made.holder = made.sharding, made, cell.ref


def _run_program(program: cache.Program, graph: Graph, line: Line) -> list[Leaf]:
    """Runs a graph. Signals wait for its end (see `barrier.sync`): from the moment that the program has the donated
    buffers until the cells have its results, the state is in nobody's hands."""
    try:
        leaves = launch.run(program, graph)
    except BaseException:
        for leaf in graph.leaves:
            if leaf.is_lost():
                leaf.give_up(f"its buffer was donated to the run at {line}, which did not finish")
        raise
    for leaf, donated in zip(graph.leaves, program.donated, strict=True):
        if donated:
            leaf.give_up("it was overwritten in place")
    return leaves


def _run_watched(piece: Piece, roots: list[Root], flow: Flow, line: Line, kinds: int) -> None:
    """Runs a piece inside a NaN guard: nothing is donated, and no cell takes its result where an op has made a NaN."""
    graph = graph_of(roots, piece.where)
    watched, values = nans.watch(graph)
    program = launch.program_for(watched, "step", line)
    bring(graph.leaves, graph.lies)
    leaves = launch.run(program, watched)
    if values:
        nans.blame(graph, values, np.asarray(leaves.pop().placed()[0]), kinds, [cell for _, cell in roots])
    _take_all(roots, leaves, flow)


# --- graphs -----------------------------------------------------------------------------------------------------------


def _nothing_dies(leaf: Leaf) -> bool:
    return False


def graph_of(
    roots: Sequence[Root],
    mesh: Sharding | None,
    *,
    dies: Callable[[Leaf], bool] = _nothing_dies,
    passed: Iterable[Leaf] = (),
) -> Graph:
    """The graph of these values over a mesh. Of its inputs, those that `dies` says nobody reads afterwards give their
    memory to a result, where they are overwritten or were `passed` on by an earlier piece."""
    assert mesh is not None, "the host has no programs"
    values, cells = [value for value, _ in roots], [cell for _, cell in roots]
    nodes, leaves = topological(values)
    for leaf in leaves:
        if leaf.gone is not None:
            leaf.check()
    aside = _read_aside()
    leaves += _unread(cells, {*leaves, *aside}, mesh, dies)
    lies = [lies_in(leaf, mesh) for leaf in leaves]
    pinned = [pinned_sharding(cell, mesh) for cell in cells]
    asked = {cell: (place, lie) for place, (cell, lie) in enumerate(zip(cells, pinned, strict=True))}
    onto = [
        written_over(leaf, to, asked) if dies(leaf) and leaf not in aside else None
        for leaf, to in zip(leaves, lies, strict=True)
    ]
    donated = [place is not None for place in onto]
    _donate_passed(donated, leaves, lies, {leaf for leaf in passed if dies(leaf)}, values, pinned)
    free = {leaf for leaf in leaves if leaf.is_unheld() and dies(leaf) and leaf not in aside}
    return Graph(nodes, leaves, lies, values, pinned, tuple(donated), mesh, onto=onto, free=free)


def _donate_passed(
    donated: list[bool],
    leaves: Sequence[Leaf],
    lies: Sequence[Sharding],
    dead: set[Leaf],
    values: Sequence[Value],
    pinned: Sequence[Sharding | None],
) -> None:
    """Donates what nothing but this piece holds, to results of the same shape and layout that have no memory yet."""
    if dead.isdisjoint(leaves):
        return
    free = [(value.meta.struct, sharding) for value, sharding in zip(values, pinned, strict=True)]
    for leaf, to, is_taken in zip(leaves, lies, donated, strict=True):
        if is_taken:
            free.remove((leaf.meta.struct, to))
    for i, (leaf, to) in enumerate(zip(leaves, lies, strict=True)):
        if not donated[i] and leaf in dead and not leaf.is_held() and (leaf.meta.struct, to) in free:
            free.remove((leaf.meta.struct, to))
            donated[i] = True


def _read_aside() -> set[Leaf]:
    """The data behind what was set aside: it may yet be run."""
    aside = [cell.value for ref in ASIDE if (cell := ref()) is not None]
    return set(topological(aside)[1]) if aside else set()


def _unread(cells: list[Cell], read: set[Leaf], mesh: Sharding, dies: Callable[[Leaf], bool]) -> list[Leaf]:
    """The data of cells that were overwritten and not read: kept until now should the program fail, it gives its memory
    to the new value."""
    found = {
        data: None
        for cell in cells
        if (data := cell.data) is not None
        and data not in read
        and data.host is None
        and data.gone is None
        and data.sharding is pinned_sharding(cell, mesh)
        and data.meta.struct == cell.meta.struct
        and dies(data)
    }
    return list(found)

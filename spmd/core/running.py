"""Running what a barrier has chosen: whole, turn by turn, beside the host, or one program per mesh."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from . import compile as compiling
from . import interrupt, loops, metrics, nans, varying
from .birth import give_birth
from .config import config
from .host import is_forbidden
from .ir import Leaf, Line, Node, Pick, Value, origin, results, topological
from .lower import Graph
from .placement import (
    MeshesError,
    assign,
    common_mesh,
    crosses,
    is_overwritten,
    mesh_homes,
    moved,
    pinned_sharding,
    upload_leaves,
)
from .sharding import Sharding
from .tensor import Cell, value_serial

# Programs run so far: what was read before the last run is not in the graph that is recorded now.
RUNS = 0


# What a program computes: a value, and the cell that takes it. A value from a cell's past leaves the cell as it is.
_Root = tuple[Value, Cell]


def values_of(cells: list[Cell]) -> list[_Root]:
    return [(cell.value, cell) for cell in cells]


def graph_of(roots: list[_Root], *, donate: bool, kept: Callable[[Leaf], bool] = lambda leaf: False) -> Graph:
    """The graph of these values; of its inputs, those to be `kept` are not donated."""
    values, cells = [value for value, _ in roots], [cell for _, cell in roots]
    nodes, leaves = topological(values)
    for leaf in leaves:
        if leaf.gone is not None:
            leaf.check()
    mesh = common_mesh(cells, nodes, leaves)
    for leaf in leaves:
        assign(leaf, mesh)
    pinned = [pinned_sharding(cell, mesh) for cell in cells]
    asked = dict(zip(cells, pinned, strict=True))
    donated = tuple(donate and not kept(leaf) and is_overwritten(leaf, asked) for leaf in leaves)
    return Graph(nodes, leaves, values, pinned, donated)


def run(cells: list[Cell], line: Line) -> None:
    """Runs these cells as one program; as several where they lie on several meshes. What they overwrite is donated."""
    try:
        _run_part(cells, line, donate=True)
    except MeshesError:
        _run_in_parts(cells, line)


def _run_part(cells: list[Cell], line: Line, *, donate: bool) -> None:
    if not nans.looked_for():  # a guard must see initial values made, too
        give_birth(cells, line)
    run_whole([cell for cell in cells if type(cell.value) is not Leaf], line, donate=donate)


def _run_in_parts(cells: list[Cell], line: Line) -> None:
    """One program per mesh. A value that `mark_sharding` takes to another mesh is computed on its own and then moved.

    Nothing is donated: what one program overwrites another may still read.
    """
    cells = [cell for cell in cells if type(cell.value) is not Leaf]
    nodes, _ = topological([cell.value for cell in cells])
    homes = mesh_homes(nodes)
    waiting: set[Node] = set()  # nodes at or behind a crossing
    first: list[Node] = []
    for node in nodes:
        behind = any(origin(operand) in waiting for operand in node.operands)
        if behind or crosses(node, homes):
            waiting.add(node)
            if not behind:
                first.append(node)
    for node in first:
        if type(node.operands[0]) is Leaf:
            node.operands = (moved(node.operands[0], _target(node)),)
    sources = {
        node: Cell(node.operands[0], node.operands[0].meta) for node in first if type(node.operands[0]) is not Leaf
    }
    groups: dict[Any, list[Cell]] = {}
    for cell in [*(cell for cell in cells if origin(cell.value) not in waiting), *sources.values()]:
        maker = origin(cell.value)
        groups.setdefault(None if maker is None else homes.get(maker), []).append(cell)
    for group in groups.values():
        _run_part(group, line, donate=False)
    for node, source in sources.items():
        assert isinstance(source.value, Leaf), "it has run"
        node.operands = (moved(source.value, _target(node)),)
    rest = [cell for cell in cells if type(cell.value) is not Leaf]
    if rest:
        _run_in_parts(rest, line)


def _target(crossing: Node) -> Sharding:
    """Where an annotation takes its value."""
    assert crossing.entry.sharding is not None
    return crossing.entry.sharding


def run_whole(cells: list[Cell], line: Line, *, donate: bool) -> None:
    """Runs the cells' values as one program; what varies from run to run is first taken out of it."""
    if not cells:
        return
    kinds = nans.looked_for()
    if kinds:
        return _run_watched(cells, line, kinds)
    graph = graph_of(values_of(cells), donate=donate)
    program = compiling.find(graph)
    if program is None:
        may_cut = donate and config.loop_search_ops
        cuts = loops.cuts(graph.nodes, written=_steps_of(cells, graph), goes_on=False) if may_cut else []
        if cuts:
            run_between(cuts, graph.nodes, cells, line)
            return run_whole([cell for cell in cells if type(cell.value) is not Leaf], line, donate=donate)
        hosted = varying.adapt(graph, line)
        if hosted and not is_forbidden():
            return _run_beside_host(cells, hosted, line, donate=donate)
    program = _prepared(graph, line, program)
    with interrupt.later():
        _run_program(program, graph, values_of(cells), line)


def _steps_of(cells: list[Cell], graph: Graph) -> set[Node] | None:
    """What a loop must write to be cut out of a graph: state, as the steps of a training loop do, where it is not long
    (a short loop inside a step is as well off in the step's program); nothing (None) where it is long."""
    if len(graph.nodes) >= config.loop_search_ops:
        return None
    values = [value for cell in cells if cell.is_state and cell.past for value in (*cell.past, cell.value)]
    return {made for value in values if (made := origin(value)) is not None}


def _run_beside_host(cells: list[Cell], hosted: set[Node], line: Line, *, donate: bool) -> None:
    """Runs cells some of whose values the host computes, in turn: what waits for no such value, and those now ready."""
    while True:
        nodes, _ = topological([cell.value for cell in cells])
        waiting: set[Node] = set()
        for node in nodes:
            if any(origin(operand) in waiting for operand in node.operands):
                waiting.add(node)
            elif node in hosted:
                leaves = [operand for operand in node.operands if type(operand) is Leaf]
                if len(leaves) < len(node.operands):
                    waiting.add(node)
                else:
                    made = varying.compute(node, leaves)
                    _replace(nodes, cells, dict(zip(map(_name, results(node)), made, strict=True)))
        if not waiting:
            break
        ready = [node for node in nodes if node not in waiting]
        hosted |= _run_pieces([ready], nodes, cells, line, donate=donate, adapt=varying.adapt)
    run_whole([cell for cell in cells if type(cell.value) is not Leaf], line, donate=donate)


def _run_pieces(
    pieces: Sequence[Sequence[Node]],
    nodes: Sequence[Node],
    cells: list[Cell],
    line: Line,
    *,
    donate: bool,
    adapt: Callable[..., set[Node]],
) -> set[Node]:
    """Runs pieces of the graph behind these cells in turn, each of which needs only those before it; the rest of the
    nodes stays recorded. What a later node reads of a piece becomes data.

    Where `adapt` finds that the host must first compute some of a piece, those are returned and the piece is not run.
    """
    part: dict[Node | None, int] = {node: i for i, piece in enumerate(pieces) for node in piece}
    carried: list[list[Value]] = [[] for _ in pieces]  # of each piece, what later ones read
    readers: dict[Any, list[Node]] = {}
    last: dict[Any, int] = {}  # the last piece that reads a value
    for node in nodes:
        here = part.get(node, len(pieces))
        for operand in node.operands:
            maker = origin(operand)
            origin_part = -1 if maker is None else part.get(maker, here)
            if origin_part == here:
                continue
            name = _name(operand)
            last[name] = max(here, last.get(name, 0))
            if maker is not None:
                if name not in readers:
                    carried[origin_part].append(operand)
                readers.setdefault(name, []).append(node)
    owners = {_name(value): cell for cell in cells for value in (*(cell.past or ()), cell.value)}
    done = 0
    try:
        for done, own in enumerate(carried):
            roots: list[_Root] = [(cell.value, cell) for cell in cells if part.get(origin(cell.value)) == done]
            known = {_name(value) for value, _ in roots}
            for value in own:
                if _name(value) not in known:
                    roots.append((value, owners.get(_name(value)) or Cell(value, value.meta)))
            roots.sort(key=lambda root: value_serial(root[0]))

            def is_read_later(leaf: Leaf, done: int = done) -> bool:
                return last.get(leaf, -1) > done

            graph = graph_of(roots, donate=donate, kept=is_read_later)
            hosted = adapt(graph, line)
            if hosted:
                return hosted
            program = _prepared(graph, line)
            with interrupt.later():
                leaves = _run_program(program, graph, roots, line)
                made = dict(zip([_name(value) for value, _ in roots], leaves, strict=True))
                for name, leaf in made.items():
                    last[leaf] = last.get(name, -1)
                _replace({node: None for name in made for node in readers.get(name, ())}, (), made)
        done = len(pieces)
    finally:
        for cell in cells:
            if cell.past:
                cell.past = [value for value in cell.past if part.get(origin(value), done) >= done]
    return set()


def _name(value: Value) -> Any:
    """A value's name: results of one node are new Picks each time they are asked for."""
    return (value.node, value.index) if type(value) is Pick else value


def _replace(nodes: Iterable[Node], cells: Sequence[Cell], made: dict[Any, Leaf]) -> None:
    """Puts data in the place of values that have been computed."""
    for node in nodes:
        for operand in node.operands:
            if (operand.node, operand.index) in made if type(operand) is Pick else operand in made:
                node.operands = tuple(made.get(_name(operand), operand) for operand in node.operands)
                break
    for cell in cells:
        leaf = made.get(_name(cell.value))
        if leaf is not None:
            cell.settle(leaf)


def _prepared(graph: Graph, line: Line, found: compiling.Program | None = None) -> compiling.Program:
    """The program of a graph, which the caller may have found already, its data now on the devices."""
    global RUNS
    RUNS += 1
    upload_leaves(graph)
    return found or compiling.program_for(graph, "step", line)


def _run_program(program: compiling.Program, graph: Graph, roots: list[_Root], line: Line) -> list[Leaf]:
    """Runs a graph and gives its results to the cells. Ctrl-C waits for its end: from the moment that the program has
    the donated buffers until the cells have its results, the state is in nobody's hands."""
    try:
        leaves = compiling.run(program, graph)
    except BaseException:
        for leaf, donated in zip(graph.leaves, graph.donated, strict=True):
            if donated and leaf.buffer is not None and leaf.buffer.is_deleted():
                leaf.gone = f"its buffer was donated to the run at {line}, which did not finish"
        raise
    for leaf, donated in zip(graph.leaves, graph.donated, strict=True):
        if donated:
            leaf.gone, leaf.buffer = "it was overwritten in place", None
    for (value, cell), leaf in zip(roots, leaves, strict=True):
        if cell.value is value:
            cell.settle(leaf)
        else:
            cell.home, leaf.holder = leaf.sharding, weakref.ref(cell)
    return leaves


def _run_watched(cells: list[Cell], line: Line, kinds: int) -> None:
    """`run_whole` inside a NaN guard: nothing is donated, and no cell takes its result where an op has made a NaN."""
    global RUNS
    RUNS += 1
    graph = graph_of(values_of(cells), donate=False)
    upload_leaves(graph)
    watched, values = nans.watch(graph)
    leaves = compiling.run(compiling.program_for(watched, "step", line), watched)
    if values:
        nans.blame(graph, values, np.asarray(leaves.pop().buffer), kinds)
    for cell, leaf in zip(cells, leaves, strict=True):
        cell.settle(leaf)


def run_between(cuts: list[int], nodes: list[Node], cells: list[Cell], line: Line) -> None:
    """One program for each stretch of the graph that ends at a cut."""
    metrics.add("loop_turns", len(cuts))
    pieces = [nodes[start:cut] for start, cut in zip([0, *cuts], cuts, strict=False)]
    _run_pieces(pieces, nodes, cells, line, donate=True, adapt=_only_positions)


def _only_positions(graph: Graph, line: Line) -> set[Node]:
    varying.apply(graph)
    return set()

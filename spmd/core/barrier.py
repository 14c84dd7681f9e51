"""The barrier: what is pending becomes a program and runs; reads of values wait for it. Failed barriers give up no more than they must."""

import weakref
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from . import compile as compiling
from . import metrics, nans, runtime
from .birth import give_birth
from .config import config
from .ir import Leaf, Line, Node, origin, topological
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
    wanted,
)
from .source import user_line
from .tensor import LIVE, LOCK, Cell, pending

# Programs run so far: what was read before the last run is not in the graph that is recorded now.
RUNS = 0


def sync(*, wait: bool = False) -> None:
    """Runs everything that is pending, as one program, and returns at once unless `wait`.

    State that depends on constants and random keys alone (initialisation) runs first, as a program of its own. With
    `wait` it returns when the devices are done. Errors: see `spmd.sync`.
    """
    with LOCK:
        cells = pending()
        if cells:
            line = user_line()
            metrics.add("syncs")
            _barrier(cells, line)
        for ref in LIVE:
            if (cell := ref()) is not None:
                cell.listed = False
        LIVE.clear()
        metrics.synced_ops = metrics.recorded_ops
    if wait:
        for device_array in [cell.value.buffer for cell in cells if cell.value.buffer is not None]:
            device_array.block_until_ready()


def materialise(cell: Cell) -> Leaf:
    """The cell's value as a leaf: at once when it has one, else after a barrier."""
    if type(cell.value) is not Leaf:
        if config.sync_on_read == "needed":
            with LOCK:
                _run([cell], user_line(), donate=False)
        else:
            sync()
    leaf = cell.value
    assert type(leaf) is Leaf
    leaf.check()
    return leaf


def placed(cell: Cell) -> Leaf:
    """The cell's value as a device buffer; host data is uploaded now."""
    leaf = materialise(cell)
    with LOCK:
        if leaf.host is not None:
            leaf.sharding = wanted(leaf) or runtime.default_sharding()
            leaf.buffer, leaf.host = runtime.upload(leaf.host, leaf.sharding), None
            cell.home = leaf.sharding
    return leaf


def host_value(cell: Cell) -> np.ndarray:
    """The whole value of a cell as a host array of the logical shape."""
    with LOCK:
        leaf = materialise(cell)
        if leaf.host is not None:
            return leaf.host
        leaf.shared += 1  # another thread's barrier must not donate what this one waits for
    metrics.add("host_reads")
    try:
        return runtime.download(leaf.buffer, leaf.meta.shape)
    except jax.errors.JaxRuntimeError as error:
        program = compiling.last_program()
        raise (compiling.explain_failure(program, error) if program else error) from error
    finally:
        with LOCK:
            leaf.shared -= 1


def pending_stablehlo(cells: Sequence[Cell] | None = None) -> str:
    """The StableHLO that the next barrier would compile, with its sharding attributes; nothing runs."""
    with LOCK:
        chosen = [cell for cell in (pending() if cells is None else cells) if type(cell.value) is not Leaf]
        if not chosen:
            return ""
        return str(compiling.lower_graph(_graph(chosen, donate=cells is None)).as_text())


def _run(cells: list[Cell], line: Line, *, donate: bool, name: str = "step") -> None:
    global RUNS
    if not cells:
        return
    RUNS += 1
    kinds = nans.looked_for()
    if kinds:
        return _run_watched(cells, line, name, kinds)
    graph = _graph(cells, donate=donate)
    upload_leaves(graph)
    program = compiling.program_for(graph, name, line)
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
    for cell, leaf in zip(cells, leaves, strict=True):
        cell.settle(leaf)


def _run_watched(cells: list[Cell], line: Line, name: str, kinds: int) -> None:
    """`_run` inside a NaN guard: nothing is donated, and no cell takes its result where an op has made a NaN."""
    graph = _graph(cells, donate=False)
    upload_leaves(graph)
    watched, values = nans.watch(graph)
    leaves = compiling.run(compiling.program_for(watched, name, line), watched)
    if values:
        nans.blame(graph, values, np.asarray(leaves.pop().buffer), kinds)
    for cell, leaf in zip(cells, leaves, strict=True):
        cell.settle(leaf)


def _barrier(cells: list[Cell], line: Line) -> None:
    """Runs these cells as one program; as several where they lie on different meshes."""
    try:
        try:
            _run_part(cells, line, donate=True)
        except MeshesError:
            _run_in_parts(cells, line)
    except Exception as error:
        _abandon(cells, error)
        raise


def _run_part(cells: list[Cell], line: Line, *, donate: bool) -> None:
    if not nans.looked_for():  # a guard must see initial values made, too
        give_birth(cells, line)
    _run([cell for cell in cells if type(cell.value) is not Leaf], line, donate=donate)


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
            node.operands = (moved(node.operands[0], node.entry.sharding),)
    sources = {
        node: Cell(node.operands[0], node.operands[0].meta) for node in first if type(node.operands[0]) is not Leaf
    }
    groups: dict[Any, list[Cell]] = {}
    for cell in [*(cell for cell in cells if origin(cell.value) not in waiting), *sources.values()]:
        groups.setdefault(homes.get(origin(cell.value)), []).append(cell)
    for group in groups.values():
        _run_part(group, line, donate=False)
    for node, source in sources.items():
        node.operands = (moved(source.value, node.entry.sharding),)
    rest = [cell for cell in cells if type(cell.value) is not Leaf]
    if rest:
        _run_in_parts(rest, line)


def _abandon(cells: list[Cell], error: Exception) -> None:
    """After a failed barrier: a tensor that had data before keeps that data, one that had none says what failed.

    Where the error names the op that failed, only what depends on it is given up; the rest stays pending.
    """
    nodes, leaves = topological([cell.value for cell in cells])
    failed = getattr(error, "node", None)
    gone = {leaf for leaf in leaves if leaf.gone is not None}
    everything = failed is None and not gone
    lost: set[Node] = set()
    for node in nodes:
        if everything or node is failed or any(value in gone or origin(value) in lost for value in node.operands):
            lost.add(node)
    before = {leaf.holder(): leaf for leaf in leaves if leaf.holder is not None and leaf.gone is None}
    for cell in cells:
        if origin(cell.value) not in lost:
            continue
        old = before.get(cell)
        if old is None:
            old = Leaf(cell.meta)
            old.gone = str(error)
        cell.value, cell.past = old, None
        cell.stamp += 1
        old.holder = weakref.ref(cell)


def _graph(cells: list[Cell], *, donate: bool) -> Graph:
    roots = [cell.value for cell in cells]
    nodes, leaves = topological(roots)
    for leaf in leaves:
        if leaf.gone is not None:
            leaf.check()
    mesh = common_mesh(cells, nodes, leaves)
    for leaf in leaves:
        assign(leaf, mesh)
    pinned = [pinned_sharding(cell, mesh) for cell in cells]
    asked = {cell: sharding for cell, sharding in zip(cells, pinned, strict=True)}
    donated = tuple(donate and is_overwritten(leaf, asked) for leaf in leaves)
    return Graph(nodes, leaves, roots, pinned, donated)

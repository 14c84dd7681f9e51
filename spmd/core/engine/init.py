"""The birth of state: initial values run first, sharded, so that the first step is the same program as all others."""

import math
import weakref
from collections.abc import Sequence
from types import CodeType
from typing import Any

from ..compile import cache
from ..ir.graph import Graph, Leaf, Node, Pick, Value, origin, topological
from ..ir.source import Line
from ..lazy.cell import Cell
from ..pjrt import transfer
from ..sharding.value import Sharding
from . import launch
from .abstract import recording
from .placement import check_here, lies_in, mesh_homes, meshes_met, pinned_sharding

Born = tuple[Cell, Value]


def give_birth(
    cells: Sequence[Cell],
    line: Line,
    *,
    for_read: bool = False,
    needed: Sequence[Cell] = (),
    others: Sequence[Cell] = (),
) -> bool:
    """Gives state its initial value before the step runs, so that the first step is the same program as all others.

    Constants become buffers without compiling; what depends on constants and random keys alone, and is held by a
    parameter or buffer, runs as one program, or several of which equal layers share one. True where there was any.

    for_read: the barrier is there to read a value, perhaps in the middle of a step. New constants that nothing reads
    yet are born, too: the state that an optimizer makes at its first step and reads numbers before it writes it.
    needed, others: other threads' cells, those whose values the cells need and all. Their initial values are born, too.
    """
    cells = [*cells, *(cell for cell in needed if cell.data is None)]
    initial = initial_values(cells, _unused(cells) if for_read else ())
    if not initial:
        return False
    born: dict[Value, Leaf] = {}
    abstractly = recording()
    for mesh, here in _by_mesh(initial, cells):
        check_here(mesh)
        rest: list[Born] = []
        for cell, node in here.items():
            constant = _constant(node)
            if constant is None:
                rest.append((cell, node))
                continue
            sharding = (cell.sharding or mesh).closed()
            if abstractly is not None:
                born[node] = Leaf(node.meta, sharding=sharding, is_abstract=True)
                continue
            buffer = transfer.filled(node.meta.shape, node.meta.struct.dtype, constant, sharding)
            born[node] = Leaf(node.meta, buffer=buffer, sharding=sharding, source=_source(node))
        if rest and abstractly is not None:
            born |= zip([node for _, node in rest], abstractly.run(_graph_of(rest, mesh)), strict=True)
        for part in _programs(rest, mesh) if abstractly is None else ():
            graph = _graph_of(part, mesh)
            launch.compile_unlocked(graph, "init", line)  # what others record meanwhile reads the same values
            for (_, node), leaf in zip(part, launch.run(cache.program_for(graph, "init", line), graph), strict=True):
                born[node] = leaf
    for node in topological([cell.value for cell in (*cells, *others)])[0]:
        node.operands = tuple(born.get(operand, operand) for operand in node.operands)
    for cell, node in initial.items():
        if node not in born:
            continue  # nothing says on which of several meshes
        leaf = born[node]
        cell.lie(leaf.sharding)
        if cell.value is node:
            # The stamp stays: what was read of the value reads the leaf by now, in the order of every later step.
            cell.value, cell.past = leaf, None
        else:
            cell.data = leaf  # the step that has overwritten it may fail; its result is pinned to this layout
        leaf.holder = weakref.ref(cell)
    for cell in needed:  # their own thread's barrier finds data that the step has written over
        first = next((born[value] for value in cell.past or () if value in born), None)
        if first is not None:
            cell.past, cell.data = [], first
    return True


def initial_values(cells: list[Cell], unused: Sequence[Cell] = ()) -> dict[Cell, Value]:
    """Of each cell that was made since the last barrier, the value with which it begins: a constant or, of parameters
    and buffers, what depends on constants and random keys alone. unused: cells whose value is one, as it is."""
    known: dict[Value, bool] = {}
    fixed: dict[Cell, list[Value]] = {cell: [cell.value] for cell in unused}
    for cell in cells:
        history = [*(cell.past or ()), cell.value] if cell.is_state else cell.past or ()
        for value in history:
            if type(value) is not Leaf and (_constant(value) is not None or (cell.is_state and is_pure(value, known))):
                fixed.setdefault(cell, []).append(value)
    if not fixed:
        return {}
    # An optimizer's decay of the weights and the counter of batches depend on constants alone, too: the initial value
    # is the one that the rest of the step reads first; where nothing reads it, the last from before the step.
    read = _first_read(cells, {value for values in fixed.values() for value in values}, known)
    begins = _first_impure(cells, known)
    initial = {}
    for cell, values in fixed.items():
        before = [value for value in values if _serial(value) < begins]
        initial[cell] = next((value for value in values if value in read), (before or values)[-1])
    return initial


def _source(value: Value) -> tuple[CodeType | None, int] | None:
    maker = origin(value)
    return None if maker is None else (maker.code, maker.instruction)


def _unused(cells: Sequence[Cell]) -> list[Cell]:
    """The cells that hold a constant, have held nothing else, and that no other is made of."""
    filled = [cell for cell in cells if not cell.is_state and not cell.past and _constant(cell.value) is not None]
    if not filled:
        return []
    read = {operand for node in topological([cell.value for cell in cells])[0] for operand in node.operands}
    return [cell for cell in filled if cell.value not in read]


def _by_mesh(initial: dict[Cell, Value], cells: Sequence[Cell]) -> list[tuple[Sharding, dict[Cell, Value]]]:
    """The meshes on which values are born, each with those of its own: where there are several, a cell without an
    annotation is of the mesh on which it is written first."""
    meshes = meshes_met(initial, topological(list(initial.values()))[0], ())
    if len(meshes) == 1:
        return [(mesh, initial) for mesh in meshes.values()]
    homes = mesh_homes(topological([cell.value for cell in cells])[0])

    def is_of(cell: Cell, devices: frozenset[int]) -> bool:
        maker = origin(cell.value)
        home = cell.sharding.devices if cell.sharding is not None else homes.get(maker) if maker is not None else None
        return home == devices

    return [
        (mesh, {cell: value for cell, value in initial.items() if is_of(cell, ids)}) for ids, mesh in meshes.items()
    ]


# How many ops more than one of each kind a program may have. Compiling takes longer than in proportion to a program's
# ops (12 layers in one program: 8 s, in five: 0.7), but each program is a line in the ledger and a start of XLA.
_FEW = 48


def _programs(initial: Sequence[Born], mesh: Sharding) -> list[list[Born]]:
    """What is born, cut into programs: many equal layers run the program of one of them, which XLA compiles in a
    fraction of the time; what occurs once is one program."""
    kinds: dict[Any, list[Born]] = {}
    ops = fewest = 0
    seen: set[Node] = set()
    for cell, value in initial:
        nodes, leaves = topological([value])
        if leaves or not seen.isdisjoint(nodes):
            return [list(initial)]
        seen.update(nodes)
        places = {node: place for place, node in enumerate(nodes)}
        wiring = tuple((node.entry, tuple(_place(operand, places) for operand in node.operands)) for node in nodes)
        kind = wiring, _place(value, places), pinned_sharding(cell, mesh)
        fewest += 0 if kind in kinds else len(nodes)
        ops += len(nodes)
        kinds.setdefault(kind, []).append((cell, value))
    if ops - fewest <= _FEW:
        return [list(initial)] if initial else []
    by_number: dict[int, list[list[Born]]] = {}
    for alike in kinds.values():
        by_number.setdefault(len(alike), []).append(alike)
    return [list(part) for alike in by_number.values() for part in zip(*alike, strict=True)]


def _place(value: Value, places: dict[Node, int]) -> tuple[int, int]:
    """Which result of which op a value is."""
    return (places[value.node], value.index) if type(value) is Pick else (places[value], 0)  # type: ignore[index]


def _graph_of(initial: Sequence[Born], mesh: Sharding) -> Graph:
    roots = [value for _, value in initial]
    nodes, leaves = topological(roots)
    pinned = [pinned_sharding(cell, mesh) for cell, _ in initial]
    lies = [lies_in(leaf, mesh) for leaf in leaves]
    return Graph(nodes, leaves, lies, roots, pinned, (False,) * len(leaves), mesh)


def _first_impure(cells: Sequence[Cell], known: dict[Value, bool]) -> float:
    """The number of the first op that depends on more than constants and random keys: there the step has begun."""
    nodes, _ = topological([cell.value for cell in cells])
    return next((node.serial for node in nodes if not is_pure(node, known)), math.inf)


def _serial(value: Value) -> float:
    maker = origin(value)
    assert maker is not None, "data is born"
    return maker.serial


def _first_read(cells: Sequence[Cell], candidates: set[Value], known: dict[Value, bool]) -> set[Value]:
    """The candidates that are read, at first hand or through other pure values, by what is not pure."""
    read: set[Value] = set()
    seen: set[Value] = set()
    stack = [cell.value for cell in cells if not is_pure(cell.value, known)]
    while stack:
        value = stack.pop()
        if value in candidates:
            read.add(value)
        elif type(value) is Pick:
            stack.append(value.node)
        elif type(value) is Node and value not in seen:
            seen.add(value)
            stack.extend(value.operands)
    return read


def _constant(value: Value) -> Any:
    """The number that fills a value, wherever that was said to lie, or None where it is more than that."""
    while type(value) is Node and value.entry.name == "mark_sharding":
        value = value.operands[0]
    if type(value) is not Node or value.entry.constant is None:
        return None
    return value.numbers[0] if value.entry.constant == "lifted" else value.entry.constant


def is_pure(value: Value, known: dict[Value, bool]) -> bool:
    """Whether a value depends on constants and random keys alone."""
    stack = [value]
    while stack:
        top = stack[-1]
        if top in known:
            stack.pop()
        elif isinstance(top, Leaf):
            known[top] = False
        else:
            operands: Sequence[Value] = (top.node,) if isinstance(top, Pick) else top.operands
            waiting = [operand for operand in operands if operand not in known]
            if waiting:
                stack.extend(waiting)
            else:
                known[top] = all(known[operand] for operand in operands)
    return known[value]

"""Initialization of state: initial values run first, sharded, and the first step shares its program
with later ones."""

import itertools
import math
import weakref
from collections.abc import Collection, Hashable, Sequence
from types import CodeType

from ..base.state import active_observation
from ..graph.graph import (
    DeviceData,
    Name,
    Node,
    Value,
    depending,
    origin,
    topological,
    up_to,
    value_name,
    wiring,
)
from ..graph.source import Line
from ..record.storage import Storage, value_serial
from ..sharding.value import Sharding
from . import executables
from .pjrt import transfer
from .recording import recording
from .schedule import check_here, home_of, mesh_homes, meshes_met, pinned_sharding

Initial = tuple[Storage, Value]


def initialize_state(
    storages: Sequence[Storage],
    line: Line,
    *,
    for_read: bool = False,
    needed: Sequence[Storage] = (),
    foreign_storages: Sequence[Storage] = (),
) -> bool:
    """Computes initial values before the step, which then shares its program with later steps.

    Constants become buffers without a program. Values of parameters and buffers that depend on
    constants and random keys alone run as one program, or as one for each kind of layer. Returns
    True if there was any such value.

    for_read: the sync is for a read, perhaps within a step. Unread constants are initialized, too:
    an optimizer creates its state in its first step, and reads numbers before it writes that state.
    foreign_storages: of other threads. needed: those of them that `storages` depend on, whose
    initial values run as well.
    """
    # Values of other threads that this sync needs are initial ones, too, if they overwrite no data.
    storages = [*storages, *(storage for storage in needed if storage.data is None)]
    initial = initial_values(storages, _unused(storages) if for_read else ())
    if not initial:
        return False
    initialized: dict[Value, DeviceData] = {}
    plan = recording.value
    for mesh, values_here in _by_mesh(initial, storages):
        check_here(mesh)
        computed: list[Initial] = []
        for storage, node in values_here.items():
            # By far the most common initial value (zeros of an optimizer's state): a buffer of it
            # needs no program.
            constant = _constant(node)
            if constant is None:
                computed.append((storage, node))
                continue
            sharding = (storage.sharding or mesh).closed()
            if plan is not None:
                initialized[node] = DeviceData(node.meta, sharding=sharding, is_abstract=True)
                continue
            buffer = transfer.filled(node.meta.shape, node.meta.struct.dtype, constant, sharding)
            initialized[node] = DeviceData(
                node.meta, buffer=buffer, sharding=sharding, source=_source(node)
            )
            observing = active_observation.value
            if observing is not None:
                observing.filled[initialized[node]] = constant
        for part in _programs(computed, mesh):
            graph = executables.graph_of([(value, storage) for storage, value in part], mesh)
            if plan is not None:
                # A plan compiles the program of initial values as a run does, and has no data of
                # it.
                outputs = plan.run(graph)
            else:
                # Other threads may record meanwhile: their ops still read the recorded values.
                executables.compile_unlocked(graph, "init", line)
                outputs = executables.run(executables.program_for(graph, "init", line), graph)
            initialized.update(zip((node for _, node in part), outputs, strict=True))
    for node in topological([storage.value for storage in (*storages, *foreign_storages)])[0]:
        node.operands = tuple(initialized.get(operand, operand) for operand in node.operands)
    for storage, node in initial.items():
        if node not in initialized:
            continue  # nothing names its mesh, and there are several
        device_data = initialized[node]
        # Later values of this state are pinned to the layout in which its first one was made.
        storage.set_home(device_data.sharding)
        if storage.value is node:
            # The stamp stays: ops that read the value read the device data by now, in the order of
            # every later step.
            storage.value, storage.past = device_data, None
        else:
            # The former data, in case the step that has overwritten the value fails; it also pins
            # the layout of the step's result.
            storage.data = device_data
        device_data.holder = weakref.ref(storage)
    for storage in needed:  # as if an earlier sync of its own thread had initialized it
        initial_data = next(
            (initialized[value] for value in storage.past or () if value in initialized), None
        )
        if initial_data is not None:
            storage.past, storage.data = [], initial_data
    return True


def initial_values(storages: list[Storage], unused: Sequence[Storage] = ()) -> dict[Storage, Value]:
    """The initial value of each storage that was made since the last sync: a constant or, for
    parameters and buffers, a value that depends on constants and random keys alone. unused:
    storages whose present value is an initial one."""
    candidates: dict[Storage, list[Value]] = {storage: [storage.value] for storage in unused}
    histories = [
        (storage, value)
        for storage in storages
        for value in (
            [*(storage.past or ()), storage.value] if storage.is_state else storage.past or ()
        )
        if type(value) is not DeviceData
    ]
    # Only state may be computed: other values of a step that depend on constants alone are cheap,
    # and stay in the step.
    impure_nodes = impure([value for storage, value in histories if storage.is_state])
    for storage, value in histories:
        if _constant(value) is not None or (storage.is_state and origin(value) not in impure_nodes):
            candidates.setdefault(storage, []).append(value)
    if not candidates:
        return {}
    # An optimizer's decay of the weights and the counter of batches depend on constants alone, too:
    # the initial value is the one that the rest of the step reads first; where nothing reads it,
    # the last from before the step.
    step = impure([storage.value for storage in storages])
    names = set(map(value_name, itertools.chain(*candidates.values())))
    read = _first_read(storages, names, step)
    step_begin = next(map(value_serial, step), (math.inf, 0))
    initial = {}
    for storage, values in candidates.items():
        before_step = [value for value in values if value_serial(value) < step_begin]
        initial[storage] = next(
            (value for value in values if value_name(value) in read), (before_step or values)[-1]
        )
    return initial


def _source(value: Value) -> tuple[CodeType | None, int] | None:
    """The line of the user's code that made a value, as (code, instruction)."""
    maker = origin(value)
    return None if maker is None else (maker.code, maker.instruction)


def _unused(storages: Sequence[Storage]) -> list[Storage]:
    """The storages that hold a constant, have held nothing else, and that no op reads."""
    filled = [
        storage
        for storage in storages
        if not storage.is_state and not storage.past and _constant(storage.value) is not None
    ]
    if not filled:
        return []
    read = {
        operand
        for node in topological([storage.value for storage in storages])[0]
        for operand in node.operands
    }
    return [storage for storage in filled if storage.value not in read]


def _by_mesh(
    initial: dict[Storage, Value], storages: Sequence[Storage]
) -> list[tuple[Sharding, dict[Storage, Value]]]:
    """Groups initial values by mesh. Among several meshes, an unannotated storage belongs to the
    mesh on which its value is computed."""
    meshes = meshes_met(initial, topological(list(initial.values()))[0], ())
    if len(meshes) == 1:
        return [(mesh, initial) for mesh in meshes.values()]
    homes = mesh_homes(topological([storage.value for storage in storages])[0])
    device_ids = {
        storage: home_of(storage.value, homes)
        if storage.sharding is None
        else storage.sharding.devices
        for storage in initial
    }
    return [
        (mesh, {storage: value for storage, value in initial.items() if device_ids[storage] == ids})
        for ids, mesh in meshes.items()
    ]


# The most ops in excess of one of each kind that a program may have. Compiling takes longer than in
# proportion to a program's ops (12 layers in one program: 8 s, in five: 0.7), but each program is a
# line in the compile log and a start of XLA.
_MOST_EXCESS_OPS = 48


def _programs(initial: Sequence[Initial], mesh: Sharding) -> list[list[Initial]]:
    """The initial values, divided into programs: equal layers share the program of one, which
    compiles faster; values that occur once are one program."""
    kinds: dict[Hashable, list[Initial]] = {}
    num_distinct = 0  # ops of one value of each kind
    visited: set[Node] = set()
    for storage, value in initial:
        nodes, inputs = topological([value])
        # Values that share ops must be made by one program, or the ops would be computed twice.
        if inputs or not visited.isdisjoint(nodes):
            return [list(initial)]
        visited.update(nodes)
        # Equal wiring and sharding, other draws: the key of a draw is a number of the op, and no
        # part of the program.
        kind = (*wiring(nodes, (), [value]), pinned_sharding(storage, mesh))
        num_distinct += 0 if kind in kinds else len(nodes)
        kinds.setdefault(kind, []).append((storage, value))
    if len(visited) - num_distinct <= _MOST_EXCESS_OPS:
        return [list(initial)] if initial else []
    # Kinds with equally many values: the n-th program makes the n-th value of each kind.
    by_number: dict[int, list[list[Initial]]] = {}
    for values in kinds.values():
        by_number.setdefault(len(values), []).append(values)
    return [list(row) for columns in by_number.values() for row in zip(*columns, strict=True)]


def _first_read(
    storages: Sequence[Storage], candidates: Collection[Name], step: dict[Node, None]
) -> set[Name]:
    """The names of the values that ops of the step read, directly or through initial values other
    than the candidates."""
    # From the step's values back to the candidates, and not behind these.
    values = [storage.value for storage in storages if origin(storage.value) in step]
    operands = [node.operands for node in up_to(values, candidates)]
    return set(map(value_name, itertools.chain(values, *operands)))


def _constant(value: Value) -> float | None:
    """The number that fills a value, whatever its annotations, or None where it is no constant."""
    while type(value) is Node and value.op.name == "mark_sharding":
        value = value.operands[0]
    if type(value) is not Node or value.op.constant is None:
        return None
    return value.numbers[0] if value.op.constant == "lifted" else value.op.constant


def impure(values: Sequence[Value]) -> dict[Node, None]:
    """The ops behind these values that depend on more than constants and random keys: on data."""
    return depending(
        values, lambda node: any(type(operand) is DeviceData for operand in node.operands)
    )

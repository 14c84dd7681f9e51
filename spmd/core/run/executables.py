"""The graph of some values, its compilation, and the hand-over of its program to PJRT."""

# Why a program's numbers travel as two small vectors: an argument for each number would cost a
# buffer and its transfer for every learning rate and every draw of a step.

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from weakref import ref

import jax
import numpy as np

from ..base import counters, in_flight, state, trace_rows
from ..graph import buffer_leases, store
from ..graph.graph import DeviceData, Graph, Value, pack_numbers, topological
from ..graph.source import Line
from ..graph.store import Replaced, Store, refill, store_of
from ..programs import cache, failing
from ..programs.program import Program
from ..record.storage import ASIDE, Storage, unlocked
from ..sharding.value import Sharding
from . import prepare
from .pjrt import processes, transfer
from .schedule import Root, bring, pinned_sharding, sharding_over, written_over

# Finds the loops of a graph, and the inputs and results that are to be rows of stacks.
form: cache.Form = prepare.run_compile_passes


def compiled_graph(graph: Graph, *, may_scan: bool = True) -> Graph:
    """The graph as it is compiled, with its loops and stacks."""
    return cache.grouped(graph, form, may_scan=may_scan)[0]


def program_for(graph: Graph, name: str, line: Line, why_not: str = "") -> Program:
    """The compiled program of a graph. why_not: see `cache.program_for`."""
    return cache.program_for(graph, name, line, form, why_not)


planned_for = partial(cache.planned_for, form=form)


def compile_unlocked(graph: Graph, name: str, line: Line, why_not: str = "") -> None:
    """Compiles a graph that is not in the cache, while other threads go on recording: see
    `unlocked`."""
    with unlocked():
        program_for(graph, name, line, why_not)


def run(program: Program, graph: Graph) -> list[DeviceData]:
    """Hands a program to PJRT, which runs it asynchronously; returns device data for each root.

    It waits for a program that calls Python: errors of the call must come before the inputs are
    given up. Raises `torch.OutOfMemoryError` for a program that cannot fit, before it runs. When a
    run fails, donated buffers may be gone; the next use of their device data raises LostError.
    """
    for look in before_run:
        look(program)
    for note in before_recorded_run:
        note(program, graph)
    # Before the launch: an allocation that fails inside PJRT has taken the donated buffers with it.
    if program.bytes_needed >= failing.SMALL:
        failing.check_memory(program, graph)
    observing = state.active_observation.value
    if observing is not None:
        observing.num_runs += 1
    floats, integers = pack_numbers(graph.nodes)
    vectors = [np.array(floats, np.float64), np.array(integers, np.int64)]
    # The passes may have moved ops; the numbers travel in the order in which the program reads
    # them.
    if program.numbers is not None:
        vectors = [vector[order] for vector, order in zip(vectors, program.numbers, strict=True)]
    try:
        result = launch(
            program, len(graph.mesh.device_ids), lambda: _arguments(program, graph), vectors
        )
    except jax.errors.JaxRuntimeError as error:
        raise failing.with_nodes(graph, program, failing.explain(program, error)) from error
    return _outputs(program, graph, result, ref(program))


# Called before a program runs: for any, where one may raise RefusedError; for one whose ops were
# recorded for this run, with their graph.
before_run: list[Callable[[Program], None]] = []
before_recorded_run: list[Callable[[Program, Graph], None]] = []
# Called after each launch with its start (`counters.now`) and one of its results.
on_launch: list[Callable[[float, jax.Array], None]] = []


def launch(
    program: Program,
    num_devices: int,
    arguments: Callable[[], list[jax.Array]],
    vectors: Sequence[np.ndarray],
) -> list[jax.Array]:
    """Hands a program to PJRT with these arguments and scalar arguments; returns its results'
    buffers.

    Raises jax's errors of the run, those of `arguments` among them.
    """
    started, event = counters.now(), 0
    if processes.several():
        numbers = b"".join(map(bytes, vectors))
        words = (
            f"a run, its {processes.digest('numbers', numbers)}, "
            f"{processes.digest('program', program.fingerprint)},"
        )
        event = processes.note(words, program.fingerprint + numbers, program.line)
    buffers = arguments()
    # A checkpoint that is being written reads its buffers from another thread: they are copied
    # before they are donated.
    if buffer_leases.LENT:
        buffer_leases.spare(
            buffers, [i for i, port in enumerate(program.inputs) if port.is_donated]
        )
    # jit refuses an argument whose devices are named in another order, though the shards are where
    # they must be.
    for i, sharding in program.foreign:
        buffers[i] = transfer.respelled(buffers[i], sharding)
    # Unbounded, a fast loop would queue programs, and each holds its inputs.
    in_flight.make_room(num_devices)
    with trace_rows.span("dispatch", lambda: _trace_arguments(program)), jax.enable_x64(True):
        result = list(
            program.executable(
                *buffers, *transfer.placed(vectors, program.scalars, program.graph.mesh)
            )
        )
    # An error that its Python raises must come before its inputs are given up.
    if program.calls_host:
        with trace_rows.span("wait", lambda: {"for": "a program that calls Python"}):
            jax.block_until_ready(result)
    for i, sharding in program.respelled:
        result[i] = transfer.respelled(result[i], sharding)
    in_flight.note_run(result[program.smallest], ref(program), event)
    seconds = counters.now() - started
    counters.add_time("dispatch", seconds)
    counters.add_sample("DispatchTime", seconds * 1e9)
    for note in on_launch:
        note(started, result[program.smallest])
    counters.add("runs")
    return result


def _trace_arguments(program: Program) -> dict[str, str]:
    """The arguments of a dispatch row in a trace; its number is text, to keep all digits."""
    return {
        "program": str(id(program)),
        "name": program.name,
        "ops": str(len(program.entries)),
        "line": str(program.line),
    }


# --- graphs ---------------------------------------------------------------------------------------


def graph_of(
    roots: Sequence[Root],
    mesh: Sharding | None,
    *,
    dies: Callable[[DeviceData], bool] = lambda device_data: False,
    passed: Iterable[DeviceData] = (),
) -> Graph:
    """The graph of these values over a mesh.

    dies: True for an input without later readers. It is donated if it is overwritten, or if an
    earlier subgraph `passed` it on.
    """
    assert mesh is not None, "the host has no programs"
    values, storages = list(map(itemgetter(0), roots)), list(map(itemgetter(1), roots))
    nodes, inputs = topological(values)
    for device_data in inputs:
        if device_data.lost_reason is not None:
            device_data.check()
    # The data that values set aside depend on: a read may still run these.
    aside_values = [storage.value for ref in ASIDE if (storage := ref()) is not None]
    aside = set(topological(aside_values)[1])
    # Memory that nothing reads any more is offered to the results, or a step would hold old and new
    # values of it.
    inputs += _overwritten_unread(storages, {*inputs, *aside}, mesh, dies)
    pinned = [pinned_sharding(storage, mesh) for storage in storages]
    requested = dict(zip(storages, enumerate(pinned), strict=True))
    shardings: list[Sharding] = []
    onto: list[int | None] = []  # by input, the root that takes its buffer
    free: set[DeviceData] = set()
    for device_data in inputs:
        shardings.append(sharding_over(device_data, mesh))
        is_last = dies(device_data) and device_data not in aside
        onto.append(written_over(device_data, shardings[-1], requested) if is_last else None)
        # Data that no tensor holds may be overwritten by any result, not only by its own storage's.
        if is_last and device_data.is_unreferenced():
            free.add(device_data)
    donated = [root_index is not None for root_index in onto]
    dead = set(filter(dies, passed))
    if not dead.isdisjoint(inputs):
        # Data made for a later subgraph has no storage: it is matched to results by shape and
        # sharding.
        _donate_passed(donated, inputs, shardings, dead, values, pinned)
    return Graph(
        nodes, inputs, shardings, values, pinned, tuple(donated), mesh, onto=onto, free=free
    )


def _donate_passed(
    donated: list[bool],
    inputs: Sequence[DeviceData],
    shardings: Sequence[Sharding],
    dead: set[DeviceData],
    values: Sequence[Value],
    pinned: Sequence[Sharding | None],
) -> None:
    """Sets `donated` for `dead` data, which this subgraph alone reads, as long as results of its
    shape and sharding remain that overwrite no other input."""
    num_free = Counter(
        (value.meta.struct, sharding) for value, sharding in zip(values, pinned, strict=True)
    )
    kinds = [
        (device_data.meta.struct, sharding)
        for device_data, sharding in zip(inputs, shardings, strict=True)
    ]
    num_free.subtract(itertools.compress(kinds, donated))
    for i, device_data in enumerate(inputs):
        if (
            not donated[i]
            and num_free[kinds[i]] > 0
            and device_data in dead
            and not device_data.is_lent()
        ):
            num_free[kinds[i]] -= 1
            donated[i] = True


def _overwritten_unread(
    storages: list[Storage],
    read_data: set[DeviceData],
    mesh: Sharding,
    dies: Callable[[DeviceData], bool],
) -> list[DeviceData]:
    """The old data of overwritten storages that no op reads, to be donated: storages keep it only
    in case the program fails."""
    unread = {
        data: None
        for storage in storages
        if (data := storage.data) is not None
        and data not in read_data
        and data.host is None
        and data.lost_reason is None
        and data.sharding is pinned_sharding(storage, mesh)
        and data.meta.struct == storage.meta.struct
        and dies(data)
    }
    return list(unread)


# --- stacks ---------------------------------------------------------------------------------------


def _arguments(program: Program, graph: Graph) -> list[jax.Array]:
    """The buffers that a program takes for a graph whose inputs are on its devices."""
    inputs = graph.inputs
    return [
        buffer_of(inputs[port.indices], graph.shardings[port.indices], is_donated=port.is_donated)
        if isinstance(port.indices, int)
        else _stack(graph, port.indices)
        for port in program.inputs
    ]


def buffer_of(data: DeviceData, sharding: Sharding, *, is_donated: bool) -> jax.Array:
    """The buffer of an input, or its host data if that is passed without an upload (see
    `is_passed_from_host`)."""
    if data.host is None:
        return data.placed()[0]
    # PJRT uploads an argument of the host by itself, in the call; donated memory must be a buffer
    # of ours.
    return transfer.upload(data.host, sharding) if is_donated else data.host  # type: ignore[return-value]


def _stack(graph: Graph, group: Sequence[int]) -> jax.Array:
    """The stack of a group of inputs: the buffer of their store, or a copy where they cannot share
    a store."""
    members, sharding = [graph.inputs[index] for index in group], graph.shardings[group[0]]
    store = store_of(members)
    if store is None or store.sharding is not sharding:
        bring_rows(members, sharding)
        store = full_store(members, sharding)
    return stacked(members, sharding) if store is None else store.placed()


def bring_rows(members: Sequence[DeviceData], sharding: Sharding) -> None:
    """Moves rows of a stack to its devices. If the stack's dim is sharded, a row from the host goes
    only to the devices of its block."""
    device_rows = members
    if sharding.spec.stack:
        device_rows = [data for data in members if data.host is None]
        for row, data in enumerate(members):
            if data.host is not None:
                block, _ = store.block_of(sharding, len(members), row)
                data.take(transfer.upload(data.host, block), block)
    bring(device_rows, [sharding] * len(device_rows))


def full_store(members: Sequence[DeviceData], sharding: Sharding) -> Store | None:
    """The store with exactly these rows; None if some are rows of another store. The first call
    makes it from their buffers; later calls put back rows that were written separately."""
    store = store_of(members) or _completed_store(members)
    is_new = store is None and all(device_data.store is None for device_data in members)
    return Store.of(members, sharding) if is_new else store


def stacked(members: Sequence[DeviceData], sharding: Sharding) -> jax.Array:
    """A stack of copies of these device data, for one run."""
    result = store.stacked([device_data.placed()[0] for device_data in members], sharding)
    for device_data in members:
        if device_data.sharding is not sharding:  # the row is on the devices of its block alone
            device_data.take_row(None, sharding)
    return result


def _completed_store(members: Sequence[DeviceData]) -> Store | None:
    """The store with most of these data at their rows; the rest is moved into its unused rows."""
    stores = Counter(
        device_data.store
        for i, device_data in enumerate(members)
        if device_data.store is not None and device_data.row == i
    )
    if not stores:
        return None
    (store, _), *_ = stores.most_common(1)
    misplaced = [
        i
        for i, device_data in enumerate(members)
        if device_data.store is not store or device_data.row != i
    ]
    # Rows of another length, or rows that others hold, would be a store of a different group.
    if len(store) != len(members) or any(
        members[i].store is not None or store.device_data(i) is not None for i in misplaced
    ):
        return None
    for i in misplaced:
        store.put(i, members[i])
    return store


def replaced_by(program: Program, graph: Graph) -> Replaced:
    """The inputs that the results of a program replace: see `Graph.replaced`.

    A port has the indices of roots; below 0, ~index of an input that is returned unchanged.
    """
    input_of = {root: index for index, root in enumerate(graph.onto) if root is not None}
    donated = {port.indices for port in program.inputs if port.is_donated}
    replaced: Replaced = {}
    for port in program.outputs:
        roots = (port.indices,) if isinstance(port.indices, int) else port.indices
        # -1, for a root that overwrites no input, is in no donated port.
        inputs = tuple(~root if root < 0 else input_of.get(root, -1) for root in roots)
        is_equal = all(
            graph.inputs[index].meta is graph.roots[root].meta
            and graph.shardings[index] is program.results[root]
            for root, index in zip(roots, inputs, strict=True)
            if root >= 0 and index >= 0
        )
        if is_equal and (inputs if roots is port.indices else inputs[0]) in donated:
            replaced[port.indices] = list(zip(roots, inputs, strict=True))
    return replaced


def _outputs(
    program: Program, graph: Graph, buffers: Sequence[jax.Array], maker: ref[Program]
) -> list[DeviceData]:
    """Device data for each root of a program that has run. Rows of a stacked output, and rows that
    the program returned unchanged, share a store: a new one, or that of the data they replace."""
    outputs: list[DeviceData | None] = [None] * len(graph.roots)
    for port, buffer in zip(program.outputs, buffers, strict=True):
        replaced = graph.replaced.get(port.indices, ())
        old = [graph.inputs[index] for _, index in replaced]
        owner: DeviceData | Store | None = None
        if old and not isinstance(port.indices, int):
            owner = store_of(old)
        # A row of a store has no buffer of its own, nor has data of the host.
        elif old and old[0].store is None and old[0].host is None:
            owner = old[0]
        if owner is not None:
            refill(owner, buffer)
            for (root, _), data in zip(replaced, old, strict=True):
                if root >= 0:
                    data.maker, data.source, outputs[root] = maker, root, data
            continue
        if isinstance(port.indices, int):
            root = port.indices
            meta, sharding = graph.roots[root].meta, program.results[root]
            outputs[root] = DeviceData(
                meta, buffer=buffer, sharding=sharding, maker=maker, source=root
            )
            continue
        # All roots of a stack have one sharding; inputs among its rows have indices below 0.
        sharding = program.results[max(port.indices)]
        members = []
        for root in port.indices:
            if root < 0:
                members.append(graph.inputs[~root])
            else:
                members.append(
                    DeviceData(graph.roots[root].meta, sharding=sharding, maker=maker, source=root)
                )
                outputs[root] = members[-1]
        Store(buffer, sharding, members)
    return outputs  # type: ignore[return-value]  # every root is in one output

"""The stacks among a program's arguments and results, at a run: inputs become rows of stores, results are rows of new
ones."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax

from ..graph import store_rows
from ..graph.graph import DeviceData, Graph
from ..graph.store import StackGroup, Store, store_of
from ..programs.program import Program


def arguments(program: Program, graph: Graph) -> list[jax.Array]:
    """The buffers that a program takes for a graph whose inputs are on its devices."""
    inputs = graph.inputs
    return [
        inputs[port.places].placed()[0] if isinstance(port.places, int) else _stack(inputs, port.places)
        for port in program.inputs
    ]


def _stack(inputs: Sequence[DeviceData], group: StackGroup) -> jax.Array:
    """The stack of these device data. The first time it is made of their buffers, and they are rows of it from then on;
    data that was written by itself since is set into it. One that takes rows out of another store is made for this run.
    """
    members = [inputs[place] for place in group]
    store = store_of(members) or _mended(members)
    if store is None and all(device_data.store is None for device_data in members):
        store = Store.of(members)
    if store is None:
        sharding = members[0].sharding
        assert sharding is not None, "it has been brought to the devices"
        return store_rows.stacked([device_data.placed()[0] for device_data in members], sharding)
    return store.placed()


def _mended(members: Sequence[DeviceData]) -> Store | None:
    """The store that most of these are rows of, in their places, after the others took the rows that are unused."""
    stores = Counter(
        device_data.store
        for i, device_data in enumerate(members)
        if device_data.store is not None and device_data.row == i
    )
    if not stores:
        return None
    (store, _), *_ = stores.most_common(1)
    late = [i for i, device_data in enumerate(members) if device_data.store is not store or device_data.row != i]
    if len(store) != len(members) or any(
        members[i].store is not None or store.device_data(i) is not None for i in late
    ):
        return None
    for i in late:
        store.put(i, members[i])
    return store


def given(program: Program, graph: Graph, made: Sequence[jax.Array], maker: Any) -> list[DeviceData]:
    """Device data for each root of a program that has run; those returned as one stack are rows of a new store, with
    those that came out as they went in."""
    outputs: list[DeviceData | None] = [None] * len(graph.roots)
    for port, buffer in zip(program.outputs, made, strict=True):
        if isinstance(port.places, int):
            place = port.places
            meta, sharding = graph.roots[place].meta, program.results[place]
            outputs[place] = DeviceData(meta, buffer=buffer, sharding=sharding, maker=maker, source=place)
            continue
        sharding = program.results[max(port.places)]
        members = []
        for place in port.places:
            if place < 0:
                members.append(graph.inputs[~place])
            else:
                members.append(DeviceData(graph.roots[place].meta, sharding=sharding, maker=maker, source=place))
                outputs[place] = members[-1]
        Store(buffer, sharding, members)
    return outputs  # type: ignore[return-value]  # every root is in one output

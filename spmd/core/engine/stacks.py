"""The stacks that a program takes and gives, at a run: leaves become rows of stores, results are rows of new ones."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax

from ..compile.program import Program
from ..ir.graph import Graph, Leaf
from ..ir.store import Family, Store, store_of
from ..sharding import rows


def arguments(program: Program, graph: Graph) -> list[jax.Array]:
    """The buffers that a program takes of a graph whose leaves are on its devices."""
    leaves = graph.leaves
    return [
        leaves[port.places].placed()[0] if isinstance(port.places, int) else _stack(leaves, port.places)
        for port in program.inputs
    ]


def _stack(leaves: Sequence[Leaf], family: Family) -> jax.Array:
    """The stack of these leaves. The first time it is made of their buffers, and they are rows of it from then on; what
    has been written by itself since is set into it. One that takes rows out of another store is made for this run."""
    members = [leaves[place] for place in family]
    store = store_of(members) or _mended(members)
    if store is None and all(leaf.store is None for leaf in members):
        store = Store.of(members)
    if store is None:
        sharding = members[0].sharding
        assert sharding is not None, "it has been brought to the devices"
        return rows.stacked([leaf.placed()[0] for leaf in members], sharding)
    return store.placed()


def _mended(members: Sequence[Leaf]) -> Store | None:
    """The store that most of these are rows of, in their places, after the others took the rows that are nobody's."""
    stores = Counter(leaf.store for i, leaf in enumerate(members) if leaf.store is not None and leaf.row == i)
    if not stores:
        return None
    (store, _), *_ = stores.most_common(1)
    late = [i for i, leaf in enumerate(members) if leaf.store is not store or leaf.row != i]
    if len(store) != len(members) or any(members[i].store is not None or store.leaf(i) is not None for i in late):
        return None
    for i in late:
        store.put(i, members[i])
    return store


def given(program: Program, graph: Graph, made: Sequence[jax.Array], maker: Any) -> list[Leaf]:
    """A leaf for each root of a program that has run; those that it gives as one stack are rows of a new store, with
    those that came out as they went in."""
    leaves: list[Leaf | None] = [None] * len(graph.roots)
    for port, buffer in zip(program.outputs, made, strict=True):
        if isinstance(port.places, int):
            place = port.places
            meta, sharding = graph.roots[place].meta, program.results[place]
            leaves[place] = Leaf(meta, buffer=buffer, sharding=sharding, maker=maker, source=place)
            continue
        sharding = program.results[max(port.places)]
        members = []
        for place in port.places:
            if place < 0:
                members.append(graph.leaves[~place])
            else:
                members.append(Leaf(graph.roots[place].meta, sharding=sharding, maker=maker, source=place))
                leaves[place] = members[-1]
        Store(buffer, sharding, members)
    return leaves  # type: ignore[return-value]  # every root is in one output

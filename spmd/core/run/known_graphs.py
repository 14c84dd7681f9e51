"""Known graphs: pending ops are compared with the graphs of earlier syncs, to reuse a program.

Not here: the programs (`programs.cache`), and graphs that are cut or changed by passes.
"""

# Why a comparison before the key: a key takes walks that collect, sort and hash, and shardings and
# donation are found for each value. A graph that has a program keeps them as flat lists, which one
# walk over the pending ops compares. It accepts graphs of the same key and donation, and no others.

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar
from weakref import ref

from ..base import counters
from ..base.state import active_observation
from ..base.tables import Bounded
from ..graph.graph import (
    Graph,
    Node,
    TupleElement,
    Value,
    flags,
    origin,
    pack_numbers,
    topological,
)
from ..programs import cache
from ..record.storage import Storage
from . import executables
from .inlined_calls import Calls
from .schedule import Prepared, intended_sharding

_MOST = 4  # graphs with the same ops behind their results, as of other batches
_MOST_NOTES = 16  # in a row of one program, whose storages may be new ones at each sync
_known: "Bounded[Hashable, list[KnownGraph]]" = Bounded(64)

# The facts by which a result gets its sharding.
_layout = attrgetter("meta", "sharding", "home", "is_state")
_maker, _index = attrgetter("node"), attrgetter("index")
_Pending = TypeVar("_Pending")


class KnownGraph:
    """The facts of a graph that has a program, without its data.

    A walk lists the roots, then the operands of each op, of the last op first. Values are numbered
    by their positions in this list. first: for each position, the first position of its value.
    calls: the graph as it was recorded, where calls stood for ops of `graph`.
    """

    def __init__(
        self,
        graph: Graph,
        storages: Sequence[Storage],
        program: cache.Program,
        calls: Calls | None = None,
    ):
        self.programs = cache.programs_of(graph)
        self.program = ref(program)
        self.replaced = executables.replaced_by(program, graph)
        self._facts = graph.shardings, graph.pinned, graph.donated, graph.mesh, graph.onto
        self._order = None if calls is None else [*map(calls.storages.index, storages)]
        if calls is not None:
            roots = [calls.values[storage] for storage in storages]
            graph = replace(graph, nodes=calls.nodes, roots=roots)
        nodes = graph.nodes[::-1]
        values = chain(graph.roots, *(node.operands for node in nodes))
        first: dict[Value, int] = {}
        self._first = [first.setdefault(value, position) for position, value in enumerate(values)]
        self._distinct, self._types = list(first.values()), list(map(type, first))
        result = {origin(value): position for value, position in first.items()}
        self._nodes = [(result[node], node.op, len(node.operands)) for node in nodes]
        number = {node: index for index, node in enumerate(nodes)}
        elements = [value for value in first if type(value) is TupleElement]
        self._elements = [first[element] for element in elements]
        self._makers = [number[element.node] for element in elements]
        self._indices = list(map(_index, elements))
        self._inputs = [
            (data.meta, data.host is None, intended_sharding(data)) for data in graph.inputs
        ]
        self._read = [first[data] for data in graph.inputs if data in first]
        # By result, the input that is its data; -1 for no data, as None stands behind all inputs. 0
        # for data that is no input: it never matches, and such a graph is not kept.
        input_of = {data: index for index, data in enumerate(graph.inputs)} | {None: -1}
        self._data_indices = [input_of.get(storage.data, 0) for storage in storages]
        self._unread = list(
            map(self._data_indices.index, range(len(self._read), len(graph.inputs)))
        )
        self._layouts = list(map(_layout, storages))

    def match(self, storages: Sequence[Storage], pending: Sequence[Value]) -> Graph | None:
        """Returns the graph of these storages, with these pending values, if it differs from this
        one in its data alone, or None."""
        storages, roots = self.in_order(storages), self.in_order(pending)
        values, nodes, serial = list[Any](roots), list[Node](), math.inf
        for position, op, count in self._nodes:
            value = values[position]
            node = value.node if type(value) is TupleElement else value
            if type(node) is not Node or node.op is not op or node.serial >= serial:
                return None
            if len(node.operands) != count:
                return None
            serial = node.serial  # falls from op to op, as the last op is listed first
            nodes.append(node)
            values += node.operands
        if (
            list(map(values.__getitem__, self._first)) != values
            or list(map(type, map(values.__getitem__, self._distinct))) != self._types
        ):
            return None
        elements = [values[position] for position in self._elements]
        makers = list(map(nodes.__getitem__, self._makers))
        if list(map(_maker, elements)) != makers or list(map(_index, elements)) != self._indices:
            return None
        inputs = [values[position] for position in self._read]
        inputs += [storages[index].data for index in self._unread]
        if not self._has_layouts(storages, inputs):
            return None
        shardings, pinned, donated, mesh, onto = self._facts
        return Graph(nodes[::-1], inputs, shardings, [*roots], pinned, donated, mesh, onto=onto)

    def in_order(self, pending: Sequence[_Pending]) -> Sequence[_Pending]:
        """Returns pending storages, or their values, in the order of the graph's roots."""
        return pending if self._order is None else [*map(pending.__getitem__, self._order)]

    def _has_layouts(self, storages: Sequence[Storage], inputs: Sequence[Any]) -> bool:
        """True if results and inputs have the shardings and the memory of this graph."""
        old_data = map([*inputs, None].__getitem__, self._data_indices)  # -1 is the None
        return (
            list(map(_layout, storages)) == self._layouts
            and len({*inputs}) == len(inputs)
            # Memory is given up by its only holder.
            and all(
                [  # noqa: C419  # a list takes half of the time
                    storage.data is data and (data is None or data.holder is storage.ref)
                    for storage, data in zip(storages, old_data, strict=True)
                ]
            )
            and all(
                [  # noqa: C419
                    data is not None
                    and data.meta is meta
                    and data.lost_reason is None
                    and (data.host is None) is is_on_device
                    and intended_sharding(data) is sharding
                    for data, (meta, is_on_device, sharding) in zip(
                        inputs, self._inputs, strict=True
                    )
                ]
            )
        )


def _table_key(values: Sequence[Any]) -> Hashable:
    """The key of `_known`: the flags, and the ops of the results."""
    ops = [(value.node if type(value) is TupleElement else value).op for value in values]
    return flags(), tuple(ops)


def note(
    graph: Graph, storages: Sequence[Storage], program: cache.Program, calls: Calls | None = None
) -> None:
    """Keeps the facts of a graph if `match` can accept it: each input that is a storage's data must
    be overwritten by that storage. calls: see `KnownGraph`."""
    program.num_notes += 1
    owner = {storage.data: index for index, storage in enumerate(storages)}
    is_owned = list(graph.onto) == [owner.get(data) for data in graph.inputs]
    has_all = True
    if calls is not None:
        # An op of a call that nothing reads has numbers and inputs which the program does not
        # take; initial values are a program of their own.
        recorded = [calls.values[storage] for storage in storages if storage in calls.values]
        nodes, inputs = topological(recorded)
        has_all = (
            len(recorded) == len(storages)  # else another thread's are among them
            and nodes == calls.nodes
            and {*inputs} == {*topological(graph.roots)[1]}
            and pack_numbers(nodes) == pack_numbers(graph.nodes)
        )
    if is_owned and has_all and program.num_notes <= _MOST_NOTES:
        known = KnownGraph(graph, storages, program, calls)
        pending = storages if calls is None else calls.storages
        values = [storage.value if calls is None else calls.values[storage] for storage in pending]
        if known.match(pending, values) is not None:
            key = _table_key(values)
            _known.keep(key, [known, *(_known.get(key) or ())][:_MOST])


def ready(storages: Sequence[Storage]) -> tuple[Prepared, Sequence[Storage]] | None:
    """The graph of these pending storages with its program and the storages of its roots, if a
    known graph matches, else None."""
    started = counters.now()
    values = [storage.value for storage in storages]
    for known in _known.get(_table_key(values)) or ():
        graph = known.match(storages, values)
        program = None if graph is None else cache.find(graph, known.programs)
        if graph is None or program is None:
            continue
        program.num_notes = 0  # the table may have dropped the graph when it comes again
        # Only without an observation, which must tell a result from the data that it replaces.
        if program is known.program() and active_observation.value is None:
            graph = replace(graph, replaced=known.replaced)
        counters.add_time("key", counters.now() - started)
        return Prepared(graph, program), known.in_order(storages)
    return None

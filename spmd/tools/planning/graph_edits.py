"""Graphs with other annotations: the same ops, some values annotated otherwise, for programs that never run."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from ...core import DeviceData, Meta, Sharding
from ...core.extend import Graph, Node, OpSpec, TupleElement, Value, walks

# The value -> its layout; None: no annotation. By `value_name`, of inputs and of recorded values; ("copy", input): of a
# copy of an input, which all ops read in its place.
Edits = Mapping[Any, Sharding | None]


def is_mark(value: Value | None) -> TypeGuard[Node]:
    """True for an annotated value that stays in the devices' memory."""
    return type(value) is Node and value.op.name == "mark_sharding"


def edited(graph: Graph, edits: Edits, mark_op: Callable[[Meta, Sharding | None], OpSpec]) -> tuple[Graph, list[int]]:
    """Returns the graph with these annotations, and for each op of it the place in the old graph (-1: a new one).

    mark_op: the op of an annotation, and that of none. An annotated value gets the other annotation in the place of its
    own, any other value one of its own. An input that a result is written over is state: the result, and what meets it
    in its update with the same shape and layout (gradient, moments), follow it.
    """
    edits = {**edits, **_state(graph, edits)}
    shardings = [edits.get(data) or sharding for data, sharding in zip(graph.inputs, graph.shardings, strict=True)]
    now: dict[Any, Value] = {}
    nodes: list[Node] = []
    places: list[int] = []

    def value(one: Value) -> Value:
        found = now.get(walks.value_name(one))
        if found is not None or type(one) is DeviceData:
            return one if found is None else found
        maker = now[walks.origin(one)]
        return TupleElement(maker, one.index) if type(one) is TupleElement else maker  # type: ignore[arg-type]

    def add(op: Any, like: Node, operands: tuple[Value, ...], place: int) -> Node:
        made = Node(op, operands, like.numbers if place >= 0 else (), like.code, like.instruction, like.sequence)
        nodes.append(made)
        places.append(place)
        return made

    for key, sharding in edits.items():
        if isinstance(key, tuple) and key[0] == "copy" and sharding is not None:
            data, reader = key[1], graph.nodes[0]
            now[data] = add(mark_op(data.meta, sharding), reader, (data,), -1)
    for place, node in enumerate(graph.nodes):
        op = node.op
        if node in edits and is_mark(node):
            op = mark_op(node.meta, edits[node])
        now[node] = add(op, node, tuple(map(value, node.operands)), place)
        for result in _marked(node, edits):
            sharding = edits[walks.value_name(result)]
            assert sharding is not None, "a value without an annotation has none to take away"
            now[walks.value_name(result)] = add(mark_op(result.meta, sharding), node, (value(result),), -1)
    pinned = [_pinned(graph, place, edits) for place in range(len(graph.roots))]
    made = dataclasses.replace(
        graph, nodes=nodes, roots=list(map(value, graph.roots)), shardings=shardings, pinned=pinned
    )
    return made, places


def _marked(node: Node, edits: Edits) -> list[Value]:
    """The results of an op that get an annotation of their own."""
    if is_mark(node):
        return []
    return [one for one in walks.results(node) if walks.value_name(one) in edits]


def _pinned(graph: Graph, place: int, edits: Edits) -> Sharding | None:
    """The layout that a result must have: that of the input that it is written over, or its own annotation."""
    for data, onto in zip(graph.inputs, graph.onto, strict=False):
        if onto == place and edits.get(data) is not None:
            return edits[data]
    root = graph.roots[place]
    return edits[walks.value_name(root)] if walks.value_name(root) in edits and is_mark(root) else graph.pinned[place]


def _state(graph: Graph, edits: Edits) -> dict[Any, Sharding | None]:
    """The layouts of what meets an input of `edits` in its update: of its shape, and of the layout that it has now."""
    now = dict(zip(graph.inputs, graph.shardings, strict=True))
    found: dict[Any, Sharding | None] = {}
    for data, onto in zip(graph.inputs, graph.onto, strict=False):
        if data not in edits or onto is None:
            continue
        for node in walks.between([graph.roots[onto]], [data]):
            for value in (node, *node.operands):
                if value.meta.shape == data.meta.shape:
                    its = now.get(value) if type(value) is DeviceData else value.op.sharding if is_mark(value) else None
                    if its is now[data] and value not in edits:
                        found[value] = edits[data]
    return found

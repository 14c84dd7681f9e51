"""Plans of paddings: a graph that was padded once is padded again by its key, without the rules.

Where a length is an operand, each length has a graph of its own and no program of its own: the search for the padding
would run in each warm step.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ...core import DeviceData, Meta, config
from ...core.extend import Bounded, Changed, Graph, Node, OpSpec, Outcome, Sync, TupleElement, Value, executables
from .spread import LENGTHEN, in_place, padded_on_host

# A value: whether it is an input, the place of the input or op, and the index among several results of an op.
_Ref = tuple[bool, int, int | None]


class _PaddedStep(NamedTuple):
    """An op of the padded graph: its operands, and the numbers in front of those of the op `like` that it replaces."""

    op: OpSpec
    operands: tuple[_Ref, ...]
    numbers: tuple[float | int, ...]
    like: int


class _Plan(NamedTuple):
    """A padded graph.

    data: the metas of data that the host pads, by place; padded_roots: the places of roots with padding.
    """

    steps: tuple[_PaddedStep, ...]
    data: tuple[tuple[int, Meta], ...]
    roots: tuple[_Ref, ...]
    padded_roots: tuple[int, ...]


_plans: Bounded[Hashable, _Plan] = Bounded(512)


def keep(key: Hashable, counts: Sequence[int], graph: Graph, padded: Graph) -> None:
    """Keeps the padded graph of a graph with this key, whose ops had `counts` scalar arguments."""
    inputs = {device_data: place for place, device_data in enumerate(padded.inputs)}
    places = {node: place for place, node in enumerate(padded.nodes)}

    def ref(value: Value) -> _Ref:
        if type(value) is DeviceData:
            return True, inputs[value], None
        if type(value) is TupleElement:
            return False, places[value.node], value.index
        assert type(value) is Node, "other values are recorded ops"
        return False, places[value], None

    steps, like = [], 0
    for node in padded.nodes:
        is_added = node.op.name == LENGTHEN
        own = 0 if is_added else counts[like]
        numbers = tuple(node.numbers[: len(node.numbers) - own])
        steps.append(_PaddedStep(node.op, tuple(map(ref, node.operands)), numbers, like))
        like += not is_added
    pairs = enumerate(zip(graph.inputs, padded.inputs, strict=True))
    data = tuple((place, new.meta) for place, (old, new) in pairs if old is not new)
    shapes = enumerate(zip(graph.roots, padded.roots, strict=True))
    padded_roots = tuple(place for place, (old, new) in shapes if old.meta.shape != new.meta.shape)
    _plans.keep(key, _Plan(tuple(steps), data, tuple(map(ref, padded.roots)), padded_roots))


def again(graph: Graph, sync: Sync) -> Outcome:
    """Pads a graph as an equal one was padded before, if the cache has the program."""
    plan = _plans.get(sync.key) if config.pad_lengths else None
    if plan is None or any(graph.inputs[place].host is None for place, _ in plan.data):
        return ""
    inputs = list(graph.inputs)
    for place, meta in plan.data:
        inputs[place] = padded_on_host(graph.inputs[place], meta)
    nodes: list[Node] = []

    def value(ref: _Ref) -> Value:
        is_input, place, index = ref
        if is_input:
            return inputs[place]
        return nodes[place] if index is None else TupleElement(nodes[place], index)

    for step in plan.steps:
        like = graph.nodes[step.like]
        numbers = step.numbers if step.op.name == LENGTHEN else (*step.numbers, *like.numbers)
        result = Node(step.op, [value(ref) for ref in step.operands], numbers, like.code, like.instruction)
        result.serial = like.serial
        nodes.append(result)
    roots = [value(ref) for ref in plan.roots]
    padded = in_place(dataclasses.replace(graph, nodes=nodes, inputs=inputs, roots=roots), plan.padded_roots)
    if executables.find(padded) is None:
        return ""
    return Changed(padded, "lengths are operands, as before", lambda graph: graph)

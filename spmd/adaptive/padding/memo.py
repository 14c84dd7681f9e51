"""Plans of paddings: a graph that was padded once is padded again by its key, without the rules.

Where a length is an operand, each length has a graph of its own and no program of its own: the search for the padding
would run in each warm step.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ...core import Meta, config
from ...core.extend import Bounded, Changed, Graph, Node, OpSpec, Outcome, Sync, Value, executables, walks
from .spread import LENGTHEN, in_place, padded_on_host


class _PaddedStep(NamedTuple):
    """An op of the padded graph: its operands, and the numbers in front of those of the op `like` that it replaces."""

    op: OpSpec
    operands: tuple[int, ...]
    numbers: tuple[float | int, ...]
    like: int


class _Plan(NamedTuple):
    """A padded graph, each value as its place among the inputs and the results of the steps.

    data: the metas of data that the host pads, by place; padded_roots: the places of roots with padding.
    """

    steps: tuple[_PaddedStep, ...]
    data: tuple[tuple[int, Meta], ...]
    roots: tuple[int, ...]
    padded_roots: tuple[int, ...]


_plans: Bounded[Hashable, _Plan] = Bounded(512)


def keep(key: Hashable, counts: Sequence[int], graph: Graph, padded: Graph) -> None:
    """Keeps the padded graph of a graph with this key, whose ops had `counts` scalar arguments."""
    values = [*padded.inputs, *(value for node in padded.nodes for value in walks.results(node))]
    places = {walks.value_name(value): place for place, value in enumerate(values)}

    def places_of(values: Sequence[Value]) -> tuple[int, ...]:
        return tuple(places[walks.value_name(value)] for value in values)

    steps, like = [], 0
    for node in padded.nodes:
        is_added = node.op.name == LENGTHEN
        own = 0 if is_added else counts[like]
        numbers = tuple(node.numbers[: len(node.numbers) - own])
        steps.append(_PaddedStep(node.op, places_of(node.operands), numbers, like))
        like += not is_added
    pairs = enumerate(zip(graph.inputs, padded.inputs, strict=True))
    data = tuple((place, new.meta) for place, (old, new) in pairs if old is not new)
    shapes = enumerate(zip(graph.roots, padded.roots, strict=True))
    padded_roots = tuple(place for place, (old, new) in shapes if old.meta.shape != new.meta.shape)
    _plans.keep(key, _Plan(tuple(steps), data, places_of(padded.roots), padded_roots))


def again(graph: Graph, sync: Sync) -> Outcome:
    """Pads a graph as an equal one was padded before, if the cache has the program."""
    plan = _plans.get(sync.key) if config.pad_lengths else None
    if plan is None or any(graph.inputs[place].host is None for place, _ in plan.data):
        return ""
    inputs = list(graph.inputs)
    for place, meta in plan.data:
        inputs[place] = padded_on_host(graph.inputs[place], meta)
    nodes: list[Node] = []
    values: list[Value] = [*inputs]
    for step in plan.steps:
        like = graph.nodes[step.like]
        numbers = step.numbers if step.op.name == LENGTHEN else (*step.numbers, *like.numbers)
        node = Node(step.op, [values[place] for place in step.operands], numbers, like.code, like.instruction)
        node.serial = like.serial
        nodes.append(node)
        values += walks.results(node)
    roots = [values[place] for place in plan.roots]
    padded = in_place(dataclasses.replace(graph, nodes=nodes, inputs=inputs, roots=roots), plan.padded_roots)
    if executables.find(padded) is None:
        return ""
    return Changed(padded, "lengths are operands, as before")

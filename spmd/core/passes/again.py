"""Padding that was done once is done again by a plan: what became of a graph, by its key, without asking a rule.

Where a length is an operand, each length has a graph of its own and none has a program of its own: what spreads the
padding would run in each warm step.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..compile import cache
from ..config import config
from ..ir.graph import Graph, Leaf, Node, Pick, Value
from ..ir.meta import Meta
from ..ir.op import Entry
from ..tables import Bounded
from .lengths import LENGTHEN, in_place

# Of a value: whether it is a leaf, which leaf or op, and which of an op's results where it is one of several.
_Ref = tuple[bool, int, int | None]


class _Step(NamedTuple):
    """An op of the padded graph: on what, with which numbers before those of the op that it stands for."""

    entry: Entry
    operands: tuple[_Ref, ...]
    numbers: tuple[float | int, ...]
    like: int
    is_added: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    """A padded graph: data: the layouts of what the host pads, by their places; grown: the roots with padding."""

    steps: tuple[_Step, ...]
    data: tuple[tuple[int, Meta], ...]
    roots: tuple[_Ref, ...]
    grown: tuple[int, ...]


_plans: Bounded[Hashable, _Plan] = Bounded(512)


def keep(key: Hashable, counts: Sequence[int], graph: Graph, padded: Graph) -> None:
    """Has a graph with this key, whose ops had so many numbers, become this one from now on."""
    leaves = {leaf: place for place, leaf in enumerate(padded.leaves)}
    places = {node: place for place, node in enumerate(padded.nodes)}

    def ref(value: Value) -> _Ref:
        if type(value) is Leaf:
            return True, leaves[value], None
        if type(value) is Pick:
            return False, places[value.node], value.index
        assert type(value) is Node, "what is no leaf is made"
        return False, places[value], None

    steps, like = [], 0
    for node in padded.nodes:
        is_added = node.entry.name == LENGTHEN
        own = 0 if is_added else counts[like]
        numbers = tuple(node.numbers[: len(node.numbers) - own])
        steps.append(_Step(node.entry, tuple(map(ref, node.operands)), numbers, like, is_added))
        like += not is_added
    pairs = enumerate(zip(graph.leaves, padded.leaves, strict=True))
    data = tuple((place, new.meta) for place, (old, new) in pairs if old is not new)
    shapes = enumerate(zip(graph.roots, padded.roots, strict=True))
    grown = tuple(place for place, (old, new) in shapes if old.meta.shape != new.meta.shape)
    _plans.keep(key, _Plan(tuple(steps), data, tuple(map(ref, padded.roots)), grown))


def again(graph: Graph) -> tuple[Graph, cache.Program] | None:
    """The graph padded as one like it was before, and its program; None where there is no such."""
    if not config.pad_lengths or not _plans.rows:
        return None
    plan = _plans.get(graph.key())
    if plan is None or any(graph.leaves[place].host is None for place, _ in plan.data):
        return None
    leaves = list(graph.leaves)
    for place, meta in plan.data:
        leaves[place] = _lengthened(graph.leaves[place], meta)
    nodes: list[Node] = []

    def value(ref: _Ref) -> Value:
        is_leaf, place, index = ref
        if is_leaf:
            return leaves[place]
        return nodes[place] if index is None else Pick(nodes[place], index)

    for step in plan.steps:
        like = graph.nodes[step.like]
        numbers = step.numbers if step.is_added else (*step.numbers, *like.numbers)
        made = Node(step.entry, [value(ref) for ref in step.operands], numbers, like.code, like.instruction)
        made.serial = like.serial
        nodes.append(made)
    roots = [value(ref) for ref in plan.roots]
    padded = in_place(dataclasses.replace(graph, nodes=nodes, leaves=leaves, roots=roots), plan.grown)
    program = cache.find(padded)
    return None if program is None else (padded, program)


def _lengthened(leaf: Leaf, meta: Meta) -> Leaf:
    assert leaf.host is not None, "data of the host"
    room = [(0, new - old) for new, old in zip(meta.shape, leaf.meta.shape, strict=True)]
    return Leaf(meta, host=np.pad(leaf.host, room), sharding=leaf.sharding)

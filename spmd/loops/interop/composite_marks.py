"""Marks on tensors, and the StableHLO composites that the ops between them become."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import torch

from ...core import points
from ...core.extend import (
    Arrays,
    Graph,
    Layouts,
    Lowering,
    Node,
    OpSpec,
    Region,
    Rewrite,
    lowering,
    propagation,
    regions,
    registry,
    rewrite,
    walks,
)

Attributes = tuple[tuple[str, Any], ...]

_library = torch.library.Library("spmd", "FRAGMENT")
_library.define(
    "mark_tensor(Tensor x, str name, int pos, str id, bool is_input, Any? attr=None) -> Tensor"
)
_library.impl("mark_tensor", lambda x, *_: x.clone(), "CompositeExplicitAutograd")
torch.library.register_autograd(
    "spmd::mark_tensor", lambda _, gradient: (gradient, *(None,) * 5), lib=_library
)
# A mark whose composite is not whole in a program is its operand.
registry.lower(torch.ops.spmd.mark_tensor.default)(lambda x, name, pos, id, is_input, attr=None: x)


@dataclass(frozen=True, slots=True)
class Composite(Lowering):
    """A region as one `stablehlo.composite`, which a compiler may replace by a kernel of its
    name."""

    body: Region
    name: str
    attributes: Attributes

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.body,)

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        # Numbers are constants of an export; those of a program that runs are operands behind the
        # region's.
        traced = {
            index: vector
            for index, vector in enumerate(numbers)
            if vector.size and not isinstance(vector, np.ndarray)
        }

        def decomposition(*arrays: jax.Array, **_: Any) -> tuple[jax.Array, ...]:
            vectors = dict(enumerate(numbers))
            vectors |= zip(traced, arrays[len(operands) :], strict=True)
            inside = arrays[: len(operands)]
            return tuple(
                lowering.lower_region(self.body, 0, inside, (vectors[0], vectors[1]), layouts)
            )

        attributes = {name: _typed(value) for name, value in self.attributes}
        return tuple(
            jax.lax.composite(decomposition, self.name)(*operands, *traced.values(), **attributes)
        )


propagation.STEPS[Composite] = propagation.STEPS[regions.Called]


def _typed(value: Any) -> Any:
    """An attribute in PyTorch/XLA's types: float32 and int64."""
    array = np.array(value)
    if array.dtype.kind in "fi":
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
    return (
        array
        if isinstance(value, (list, tuple))
        else value
        if array.dtype.kind in "Ub"
        else array[()]
    )


def composites(graph: Graph, _: bool) -> tuple[Graph, str]:
    """Returns the graph with one op for each composite of which all marks are in it, and their
    number in words.

    Marks of equal names and ids are of one composite. It takes the marked inputs, then the other
    values from outside that its ops read. Ops that are recorded behind its first mark are inside;
    those that are read outside as well are computed there, too. Of composites in each other the
    outer one is made.
    """
    marks = defaultdict[Any, dict[bool, list[Node]]](lambda: {True: [], False: []})
    for node in graph.nodes:
        if node.op.name == MARK:
            mark = _arguments(node)
            marks[mark["name"], mark["id"]][mark["is_input"]].append(node)
    rules: dict[Node, rewrite.Rule] = {}
    for (name, _), of_composite in marks.items():
        entering, leaving = (sorted(of_composite[kind], key=_position) for kind in (True, False))
        if entering and leaving:
            first, *others = sorted(leaving, key=lambda node: node.serial)
            rules[first] = partial(_put, name, entering, leaving)
            rules |= dict.fromkeys(others, Rewrite.drop) | dict.fromkeys(entering, _stand_for)
    if not rules:
        return graph, ""
    new = rewrite.rewrite(graph, rules)
    new.nodes[:] = walks.up_to(new.roots, ())  # what no op outside reads is inside alone
    return new, f"{sum(type(node.op.lowering) is Composite for node in new.nodes)} composites"


MARK = "spmd.mark_tensor"
PASS: Any = ("composites", composites, {MARK})
# An export has composites, too; and layers with composites are isomorphic, whose marks are not.
points.EXPORT_PASSES.append(PASS)
points.COMPILE_PASSES.insert(0, PASS)


def _arguments(node: Node) -> Mapping[str, Any]:
    return {"attr": None, **dict(node.op.lowering.arguments)}  # type: ignore[attr-defined]


def _position(node: Node) -> int:
    position: int = _arguments(node)["pos"]
    return position


def _stand_for(new: Rewrite, mark: Node) -> None:
    """Has the operand of a mark stand for its result."""
    new.new_values[mark] = new.value(mark.operands[0])


def _put(
    name: str, entering: Sequence[Node], leaving: Sequence[Node], new: Rewrite, first: Node
) -> None:
    """Puts a composite in the place of the first mark of its results."""
    roots = [node.operands[0] for node in leaving]
    inside = walks.between(roots, entering, since=min(int(node.serial) for node in entering))
    made = set(inside)
    outside = {
        walks.value_name(value): value
        for value in [*roots, *(operand for node in inside for operand in node.operands)]
        if walks.origin(value) not in made and value not in entering
    }
    parameters = [*entering, *outside.values()]
    operands = [*(mark.operands[0] for mark in entering), *outside.values()]
    attributes = next(filter(None, (_arguments(node)["attr"] for node in leaving)), ())
    body = Region.of(roots, parameters, inside)
    op = OpSpec.of(
        f"spmd.composite.{name}",
        Composite(body, name, attributes),
        tuple(root.meta for root in body.roots),
        tuple(value.meta for value in parameters),
        numbers=regions.kinds_of(inside),
        sharding=regions.mesh_in((body,)),
    )
    numbers = [number for node in inside for number in new.numbers[node]]
    new.replace(leaving, new.add(op, operands, first, numbers, [first]))

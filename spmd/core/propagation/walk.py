"""A walk over a graph, forward, backward and forward, from the shardings of inputs and annotations.

A dim has the axes that an input or an annotation gives it, else those of the first operand with axes that becomes it,
else those of a result that it becomes; no array has an axis twice.
"""

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..graph.graph import DeviceData, Node, TupleElement, Value, results
from ..graph.op import Lowering
from ..loop.loop_op import Loop
from ..lower.called import Called
from ..lower.lower import known_of
from ..lower.region import Branches, Region, While
from ..ops import sharded
from ..ops.sharded import Dims, Factors, Values
from ..record.lowerings import Call, Operand, fill
from .words import RESHAPES, Flow, OpShapes, flow_of


def walk(nodes: Sequence[Node], inputs: Mapping[DeviceData, Dims | None]) -> Values:
    """Returns the known dims of every value of a graph, or of a region, whose inputs are known so far."""
    run = _Walk(Values({}, {}), fixed=set(inputs))
    for data, dims in inputs.items():
        if dims is not None:
            run.values.dims[data, 0] = dims
    run.forward(nodes)
    run.backward(nodes)
    run.forward(nodes)
    return run.values


class _Step(NamedTuple):
    """A value outside of a region that is a value inside it. num_rows: of dims in front of it outside: 1 of a stack."""

    region: int
    outside: Value
    inside: Value
    num_rows: int = 0


@dataclass(slots=True)
class _Walk:
    """fixed: inputs, and annotations that leave no dim open: nothing is learned of them."""

    values: Values
    flows: dict[Node, Flow] = field(default_factory=dict)
    fixed: set[Any] = field(default_factory=set)

    def dims(self, value: Value) -> Dims | None:
        """The dims of a value that are known so far."""
        return self.values.dims.get((value.node, value.index) if type(value) is TupleElement else (value, 0))

    def know(self, value: Value, dims: Dims | None) -> None:
        """Adds what is known of a value."""
        if type(value) is TupleElement:
            self.learn(value.node, value.index, dims)
        else:
            self.learn(value, 0, dims)

    def learn(self, owner: Any, index: int, dims: Dims | None) -> None:
        """Adds what is known of a result of an op, or of data: for dims without axes, and axes that it has not."""
        if dims is None or owner in self.fixed:
            return
        before = self.values.dims.get((owner, index), ((),) * len(dims))
        taken = {axis for factors in before for _, axes in factors for axis in axes}
        after = list(before)
        for dim, factors in enumerate(dims):
            axes = [axis for _, of_factor in factors for axis in of_factor]
            if not after[dim] and taken.isdisjoint(axes):
                after[dim] = factors
                taken.update(axes)
        self.values.dims[owner, index] = tuple(after)

    def forward(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            op = node.op
            if type(op.lowering) in _STEPS:
                self._through(node, is_forward=True)
                continue
            if op.sharding is not None and not op.lowering.regions and node not in self.fixed:
                for index, meta in enumerate(op.metas):
                    self.learn(node, index, sharded.dims_in(op.sharding.in_program(), meta.shape))
                if not op.sharding.is_open:
                    self.fixed.add(node)
            if node in self.fixed:
                continue
            if op.name in RESHAPES:
                self.learn(node, 0, self._reshaped(node.operands[0], op.metas[0].shape))
            elif node.operands:
                self._forward(node)

    def _reshaped(self, source: Value, shape: Sequence[int]) -> Dims | None:
        dims = self.dims(source)
        return None if dims is None else sharded.reshaped_dims(dims, source.meta.shape, shape)

    def _forward(self, node: Node) -> None:
        sources: dict[Any, Factors] = {}
        for place, operand in enumerate(node.operands):
            dims = self.dims(operand)
            if dims is not None:
                _gather(sources, self._flow(node).operands.get(place, ()), node.op.operands[place].shape, dims)
        if sources:
            for index, (words, meta) in enumerate(zip(self._flow(node).results, node.op.metas, strict=False)):
                self.learn(node, index, _spread(sources, words, meta.shape))

    def backward(self, nodes: Sequence[Node]) -> None:
        for node in reversed(nodes):
            if type(node.op.lowering) in _STEPS:
                self._through(node, is_forward=False)
            elif node.op.name in RESHAPES:
                self.know(node.operands[0], self._reshaped(node, node.operands[0].meta.shape))
            elif node.operands:
                self._backward(node)

    def _backward(self, node: Node) -> None:
        sources: dict[Any, Factors] = {}
        for index, meta in enumerate(node.op.metas):
            dims = self.values.dims.get((node, index))
            if dims is not None and index < len(self._flow(node).results):
                _gather(sources, self._flow(node).results[index], meta.shape, dims)
        if sources:
            for place, words in self._flow(node).operands.items():
                self.know(node.operands[place], _spread(sources, words, node.op.operands[place].shape))

    def _flow(self, node: Node) -> Flow:
        if node not in self.flows:
            self.flows[node] = flow_of(node.op.name, _shapes_of(node))
        return self.flows[node]

    def _through(self, node: Node, *, is_forward: bool) -> None:
        """Walks an op's regions."""
        inside = [
            _Walk(self.values.regions.setdefault((node, index), Values({}, {})), self.flows)
            for index in range(len(node.op.lowering.regions))
        ]
        entering, leaving, carried = _STEPS[type(node.op.lowering)](node)
        for region, outside, value, num_rows in entering if is_forward else [*entering, *leaving]:
            dims = self.dims(outside)
            inside[region].know(value, dims and dims[num_rows:])
            if outside in self.fixed:
                inside[region].fixed.add(value)
        for region, run in zip(node.op.lowering.regions, inside, strict=True):
            (run.forward if is_forward else run.backward)(region.nodes)
        for region, root, value in carried:
            inside[region].know(value, inside[region].dims(root))
        for region, outside, value, num_rows in leaving if is_forward else entering:
            dims = inside[region].dims(value)
            self.know(outside, dims and ((),) * num_rows + dims)


_shape = operator.attrgetter("shape")


def _gather(sources: dict[Any, Factors], words: Sequence[Any], shape: Sequence[int], dims: Dims) -> None:
    """Adds the known dims of a value by word and size; of several for a word the first counts."""
    for word, size, factors in zip(words, shape, dims, strict=False):
        if word is not None and factors:
            sources.setdefault((word, size), factors)


def _spread(sources: Mapping[Any, Factors], words: Sequence[Any], shape: Sequence[int]) -> Dims | None:
    """The dims of a value with these words; None where none has axes."""
    dims = tuple(map(sources.get, zip(words, shape, strict=False), itertools.repeat(())))
    return dims if len(dims) == len(shape) and any(dims) else None


def _shapes_of(node: Node) -> OpShapes:
    operands, results = list(map(_shape, node.op.operands)), list(map(_shape, node.op.metas))
    lowering: Lowering = node.op.lowering
    call = getattr(lowering, "call", lowering)  # of an op on padded operands
    if not isinstance(call, Call):
        return OpShapes({}, {}, operands, results, False)
    places, static = dict[str, Any](), dict[str, Any]()
    for name, value in call.arguments:
        if _has_operand(value):
            places[name] = fill(value, int, float)
        else:
            static[name] = value
    return OpShapes(places, static, operands, results, call.rule.promote is not None)


def _has_operand(value: Any) -> bool:
    return type(value) is Operand or (type(value) is list and any(map(_has_operand, value)))


# --- regions ----------------------------------------------------------------------------------------------------------

_Steps = tuple[list[_Step], list[_Step], list[tuple[int, Value, Value]]]


def _of_loop(node: Node) -> _Steps:
    loop = node.op.lowering
    assert isinstance(loop, Loop)
    body, single = loop.body, loop.num_carried + loop.num_last
    entering = [_Step(0, *pair) for pair in zip(node.operands[: loop.num_fixed], body.inputs, strict=False)]
    for run, inside, is_stack in zip(loop.operand_runs(), body.inputs[loop.num_fixed :], loop.xs, strict=True):
        entering += [_Step(0, node.operands[place], inside, int(is_stack)) for place in run]
    outside = results(node)
    leaving = [_Step(0, *pair) for pair in zip(outside[:single], body.roots[:single], strict=True)]
    for run, root, y in zip(loop.result_runs(), body.roots[single:], loop.ys, strict=True):
        leaving += [_Step(0, outside[place], root, int(y.is_stack)) for place in run]
    return entering, leaving, list(_carried(0, body, loop.num_constants, loop.num_carried))


def _of_while(node: Node) -> _Steps:
    loop = node.op.lowering
    assert isinstance(loop, While)
    entering = [
        _Step(index, *pair)
        for index, region in enumerate(loop.regions)
        for pair in zip(node.operands, region.inputs, strict=True)
    ]
    leaving = [_Step(1, *pair) for pair in zip(results(node), loop.body.roots, strict=True)]
    return entering, leaving, list(_carried(1, loop.body, loop.num_constants, len(loop.body.roots)))


def _carried(index: int, body: Region, num_constants: int, num_carried: int) -> Iterator[tuple[int, Value, Value]]:
    for root, inside in zip(body.roots[:num_carried], body.inputs[num_constants:], strict=False):
        yield index, root, inside


def _of_branches(node: Node) -> _Steps:
    regions = list(enumerate(node.op.lowering.regions))
    entering = [_Step(i, *pair) for i, region in regions for pair in zip(node.operands[1:], region.inputs, strict=True)]
    leaving = [_Step(i, *pair) for i, region in regions for pair in zip(results(node), region.roots, strict=True)]
    return entering, leaving, []


def _of_call(node: Node) -> _Steps:
    (body,) = node.op.lowering.regions
    entering = [_Step(0, *pair) for pair in zip(node.operands, body.inputs, strict=True)]
    return entering, [_Step(0, *pair) for pair in zip(results(node), body.roots, strict=True)], []


# A region of another op, a manual computation, is walked when it is lowered, with nothing known: its values are shards.
_STEPS: dict[type, Callable[[Node], _Steps]] = {
    Loop: _of_loop, While: _of_while, Branches: _of_branches, Called: _of_call
}  # fmt: skip

known_of.append(walk)

"""Layers of experts as one op each: each device's rows are sorted alone, and weights or tokens
move.

The pass puts an op in the place of what `expert_stretches` finds, forward and backward. Its
operands are tokens, the experts of each, and the experts' weights; backward computes forward's rows
again instead of keeping them. How rows meet weights is chosen where the op is lowered, from bytes
(`expert_exchanges`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from ..core import config, dense_meta, points
from ..core.extend import Arrays, Graph, Layouts, Lowering, Node, OpSpec, Rewrite, Value, walks
from .expert_choice import ExpertsCase
from .expert_rows import RowBody, RowResult, reassociated
from .expert_stretches import ExpertLayer, layers, root_of, stretches
from .micro_batches import ROW_OPERANDS, RowOperands


@dataclass(frozen=True, slots=True)
class ExpertsLowering(Lowering):
    """The computation of one layer's experts: operands are the choices [..., chosen], then those of
    the body."""

    body: RowBody
    num_experts: int

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        choices, *body_operands = operands
        unread, scalars = list(numbers), dict[int, Sequence[jax.Array]]()
        for index, step in enumerate(self.body.steps):
            count = len(step.op.numbers) if step.op is not None else 0
            scalars[index], unread = unread[:count], unread[count:]
        results = ExpertsCase(
            self.body, self.num_experts, choices, tuple(body_operands), scalars
        ).results()
        structs = [meta.struct for meta in op.metas]
        return tuple(
            x.astype(struct.dtype).reshape(struct.shape)
            for x, struct in zip(results, structs, strict=True)
        )


@dataclass(eq=False)
class ExpertsOp:
    """The op in the place of a layer's ops. steps: of the stretch, in order; places: of its
    operands."""

    layer: ExpertLayer
    exits: dict[Any, RowResult]  # those that the graph reads

    def parts(self, numbers: Any) -> tuple[OpSpec, list[Value], list[Any]]:
        """The op, its operands and its scalar arguments; numbers: by op, its own."""
        stretch, number_of = self.layer.stretch, dict[int, int]()
        steps, operands, scalars, kinds = [], list[Value](), list[Any](), ""
        for index in self.steps:
            step, number_of[index] = stretch.steps[index], len(number_of)
            sources = tuple(number_of[source] for source in RowBody.values_of(step))
            for value in self.values(step):
                names = list(map(walks.value_name, operands))
                if walks.value_name(value) not in names:
                    operands.append(value)
                    names.append(walks.value_name(value))
                sources = (*sources, names.index(walks.value_name(value)))
            steps.append(replace(step, sources=sources))
            if step.op is not None:
                scalars += numbers[stretch.made_of[index]]
                kinds += step.op.numbers
        ends = tuple(
            replace(end, sources=tuple(map(number_of.__getitem__, end.sources)))
            for end in self.exits.values()
        )
        metas = tuple(dense_meta(end.shape, end.dtype) for end in ends)
        operands.insert(0, stretch.choices)
        lowering = ExpertsLowering(reassociated(RowBody(tuple(steps), ends)), stretch.num_experts)
        operand_metas = tuple(operand.meta for operand in operands)
        return (
            OpSpec.of("spmd.experts", lowering, metas, operand_metas, numbers=kinds),
            operands,
            scalars,
        )

    @property
    def steps(self) -> list[int]:
        """The steps of the results, in order."""
        stretch = self.layer.stretch
        every = RowBody(tuple(stretch.steps), ())
        return sorted(
            every.upstream(source for end in self.exits.values() for source in end.sources)
        )

    def values(self, step: Any) -> list[Value]:
        """The operands of a step; of a parameter that was gathered more than once, the last
        copy."""
        stretch = self.layer.stretch
        places = step.sources[len(RowBody.values_of(step)) :]
        if step.kind not in ("product", "expert"):
            return [stretch.operands[index] for index in places]
        return [self._last[root_of(stretch.operands[index])] for index in places]

    @property
    def _last(self) -> dict[Any, Value]:
        stretch = self.layer.stretch
        steps = [stretch.steps[index] for index in self.steps]
        places = sorted(step.sources[-1] for step in steps if step.kind in ("product", "expert"))
        return {root_of(stretch.operands[index]): stretch.operands[index] for index in places}

    @property
    def operands(self) -> list[Value]:
        steps = [self.layer.stretch.steps[index] for index in self.steps]
        return [
            self.layer.stretch.choices,
            *(value for step in steps for value in self.values(step)),
        ]


_PRODUCTS = frozenset({"aten._grouped_mm", "aten.bmm"})


def fuse(graph: Graph, may_scan: bool) -> tuple[Graph, str]:
    """The graph with one op for each layer of experts, forward and backward; and their number, in
    words."""
    if config.parallel == "off" or len(graph.mesh.device_ids) == 1:
        return graph, ""
    all_stretches = stretches(graph)
    if not all_stretches:
        return graph, ""
    fused, reasons = layers(graph, all_stretches)
    words = [
        f"{len(fused)} layer{'s' * (len(fused) > 1)} of experts",
        *(f"as recorded: {reason}" for reason in sorted(set(reasons))),
    ]
    return (_replaced(graph, fused) if fused else graph), ", ".join(words[not fused :])


def _replaced(graph: Graph, expert_layers: Sequence[ExpertLayer]) -> Graph:
    """The graph with an op in the place of each layer."""
    of_layer = {id(layer): ExpertsOp(layer, {}) for layer in expert_layers}
    by_exit = {name: of_layer[id(layer)] for layer in expert_layers for name in layer.exits}
    read = _read(graph, by_exit)
    result, done, late = Rewrite(graph), set[Node](), list[Node | ExpertsOp]()
    places = {node: index for index, node in enumerate(graph.nodes)}
    order: dict[int, list[ExpertsOp]] = {}
    for fused in of_layer.values():
        # In the order of recording, not of reading: equal layers are equal ops.
        fused.exits = {name: end for name, end in fused.layer.exits.items() if name in fused.exits}
        if fused.exits:
            last = max(
                (places[maker] for maker in map(walks.origin, fused.operands) if maker is not None),
                default=-1,
            )
            order.setdefault(last, []).append(fused)

    def emit(item: Node | ExpertsOp) -> bool:
        operands = item.operands
        makers = [maker for maker in map(walks.origin, operands) if maker is not None]
        if not done.issuperset(makers):
            return False
        if isinstance(item, ExpertsOp):
            op, values, scalars = item.parts(result.numbers)
            names = list(item.exits)
            like = names[0][0] if isinstance(names[0], tuple) else names[0]
            fused_node = result.add(op, values, like, scalars)
            result.new_values |= dict(zip(names, walks.results(fused_node), strict=True))
            done.update(name[0] if isinstance(name, tuple) else name for name in names)
        else:
            result.copy(item)
            done.add(item)
        return True

    items: list[Node | ExpertsOp] = [*order.get(-1, [])]
    for index, node in enumerate(graph.nodes):
        items += [node] if node in read else []
        items += order.get(index, [])
    for item in items:
        late.append(item)
        size = -1
        while size != len(late):
            size = len(late)
            late = [op for op in late if not emit(op)]
    assert not late, "a layer of experts depends on itself"
    return result.graph()


def _read(graph: Graph, by_exit: dict[Any, ExpertsOp]) -> set[Node]:
    """The ops that the graph still needs; notes the results of layers that are read."""
    read, stack, visited = set[Node](), list(graph.roots), set[Any]()
    while stack:
        value = stack.pop()
        name = walks.value_name(value)
        if name in visited:
            continue
        visited.add(name)
        if name in by_exit:
            fused = by_exit[name]
            fused.exits[name] = fused.layer.exits[name]
            stack.extend(fused.operands)
        elif (node := walks.origin(value)) is not None and node not in read:
            read.add(node)
            stack.extend(node.operands)
    return read


def _rows_of(lowering: ExpertsLowering) -> RowOperands:
    body = lowering.body
    rows = {1 + step.sources[0] for step in body.steps if step.kind in ("token", "choice", "base")}
    sums = [index for index, end in enumerate(body.exits) if end.kind == "expert"]

    def resized(shapes: Sequence[Sequence[int]]) -> ExpertsLowering:
        exits = tuple(
            replace(end, shape=tuple(shape)) for end, shape in zip(body.exits, shapes, strict=True)
        )
        return replace(lowering, body=replace(body, exits=exits))

    return RowOperands({0, *rows}, sums, resized)


ROW_OPERANDS[ExpertsLowering] = _rows_of
# Before equal layers become loops, whose bodies are not searched.
points.COMPILE_PASSES.insert(
    [name for name, *_ in points.COMPILE_PASSES].index("scan layers"),
    ("fuse experts", fuse, _PRODUCTS),
)

"""Finds layers of experts in a graph, and the results that they have outside: forward, and what
depends on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..core.extend import Graph, Node, Value, lowerings, walks
from .expert_rows import RowBody, RowResult
from .expert_rules import RULES, by_element
from .expert_stretch import ANNOTATIONS, VIEWS, ExpertStretch, KnownRows, arguments_of

_WRITES = frozenset(f"spmd.write.{name}" for name in VIEWS)
_BEGINNINGS = frozenset(
    {"aten.sort.default", "aten.sort.stable", "aten.index.Tensor", "aten.histc.default"}
)


def stretches(graph: Graph) -> list[ExpertStretch]:
    """The stretches of a graph, with what is known of their values."""
    by_choices: dict[Any, ExpertStretch] = {}
    owners: dict[Any, ExpertStretch] = {}
    for node in graph.nodes:
        call, is_write = node.op.lowering, node.op.name in _WRITES
        if not is_write and (not isinstance(call, lowerings.Call) or call.rule.wants_draw):
            continue
        name = "write" if is_write else str(call.overload)  # type: ignore[attr-defined]  # a `Call`
        names = list(map(walks.value_name, node.operands))
        stretch = next(
            (owners[operand_name] for operand_name in names if operand_name in owners), None
        )
        if stretch is None and name in _BEGINNINGS:
            stretch = _beginning(node, by_choices)
        if stretch is None or any(
            owners.get(operand_name, stretch) is not stretch for operand_name in names
        ):
            continue
        rule = RULES.get(name) or (by_element if call.rule.promote is not None else None)  # type: ignore[attr-defined]
        facts = (
            None if rule is None else rule(stretch, node, {} if is_write else arguments_of(node))
        )
        if facts is not None:
            stretch.nodes[node] = None
            if facts.kind != "exit":
                stretch.facts_of[walks.value_name(walks.results(node)[0])] = facts
            owners.update(dict.fromkeys(stretch.facts_of.keys() - owners.keys(), stretch))
    return [
        stretch
        for stretch in by_choices.values()
        if any(step.kind == "product" for step in stretch.steps)
    ]


def _beginning(node: Node, by_choices: dict[Any, ExpertStretch]) -> ExpertStretch | None:
    """The stretch of the experts' numbers that an op sorts, counts, or takes matrices by."""
    arguments = arguments_of(node)
    ids = arguments["self"]
    if "indices" in arguments:
        ids = (
            arguments["indices"][0]
            if len(arguments["indices"]) == 1 and len(ids.meta.shape) > 2
            else None
        )
    if ids is None or len(ids.meta.shape) != 1:
        return None
    base = ids
    while (maker := walks.origin(base)) is not None and maker.op.name in VIEWS | {"aten._to_copy"}:
        base = maker.operands[0]
    shape, is_whole = base.meta.shape, not base.meta.dtype.is_floating_point
    if not is_whole or base.meta.numel != ids.meta.numel or len(shape) < 2 or base.meta.numel < 2:
        return None
    stretch = by_choices.setdefault(walks.value_name(base), ExpertStretch(base, len(by_choices)))
    stretch.facts_of[walks.value_name(ids)] = KnownRows("ids")
    return stretch


@dataclass(frozen=True)
class ExpertLayer:
    """The ops of one layer's experts that become one, forward or backward: by the value that it
    replaces, each result.

    level: 0 forward, 1 what depends on its results.
    """

    stretch: ExpertStretch
    level: int
    exits: dict[Any, RowResult]


_OF_ROWS = ("rows", "matrix", "outer")


class ValueReaders:
    """The ops that read each value of a graph, and the values that it returns."""

    def __init__(self, graph: Graph):
        self.roots = set(map(walks.value_name, graph.roots))
        self.of: dict[Any, list[Node]] = {}
        for node in graph.nodes:
            for operand in node.operands:
                self.of.setdefault(walks.value_name(operand), []).append(node)


def layers(
    graph: Graph, candidates: Sequence[ExpertStretch]
) -> tuple[list[ExpertLayer], list[str]]:
    """The layers of stretches whose rows stay inside; and why others are computed as recorded."""
    readers, result, reasons = ValueReaders(graph), list[ExpertLayer](), list[str]()
    for stretch in candidates:
        _trim(stretch, readers)
    levels = _levels(graph, candidates)
    for stretch in candidates:
        exits, reason = _exits(stretch, readers, levels)
        if reason:
            reasons.append(reason)
            continue
        for level in sorted({levels[_node(name)] for name in exits}):
            exits_of_level = {
                name: end for name, end in exits.items() if levels[_node(name)] == level
            }
            result.append(ExpertLayer(stretch, level, exits_of_level))
    return result, reasons


def _node(name: Any) -> Node:
    return name[0] if isinstance(name, tuple) else name


def _known_rows(stretch: ExpertStretch, node: Node) -> KnownRows | None:
    """Facts known of a result with a value of each row."""
    facts = stretch.of(walks.results(node)[0])
    return facts if facts is not None and facts.kind in _OF_ROWS else None


def _trim(stretch: ExpertStretch, readers: ValueReaders) -> None:
    """Leaves out what follows the last sum or product, in the order of the choices, unless it makes
    rows smaller."""
    useful: set[Node] = set()
    for node in reversed(list(stretch.nodes)):
        facts = _known_rows(stretch, node)
        if facts is None or facts.kind != "rows" or facts.is_sorted:
            useful.add(node)
            continue
        step = stretch.steps[facts.step]
        widest = max((stretch.steps[source].width for source in RowBody.values_of(step)), default=0)
        moves = (
            node.op.name in ("aten.index.Tensor", "aten.index_put", "aten.index_put_")
            or step.kind == "product"
        )
        if moves or step.width < widest or not useful.isdisjoint(readers.of.get(node, ())):
            useful.add(node)
        else:
            del stretch.nodes[node], stretch.facts_of[node]


def _levels(graph: Graph, candidates: Sequence[ExpertStretch]) -> dict[Node, int]:
    """By node of a stretch, 1 if it depends on a result of the stretch, 2 if on one of those that
    do so; else 0."""
    owners = {node: stretch for stretch in candidates for node in stretch.nodes}
    depends: dict[Node, tuple[int, int]] = {}  # a bit a stretch
    levels: dict[Node, int] = {}
    for node in graph.nodes:
        first = second = 0
        stretch_of_node = owners.get(node)
        for operand in node.operands:
            source = walks.origin(operand)
            if source is None:
                continue
            bits = depends.get(source, (0, 0))
            first, second = first | bits[0], second | bits[1]
            stretch = owners.get(source)
            if stretch is None or (stretch_of_node is stretch and source not in stretch.exits):
                continue
            if source in stretch.exits or _known_rows(stretch, source) is not None:
                first |= 1 << stretch.index
                second |= (levels[source] > 0) << stretch.index
        if stretch_of_node is not None:
            levels[node] = (first >> stretch_of_node.index & 1) + (
                second >> stretch_of_node.index & 1
            )
        if first:
            depends[node] = first, second
    return levels


def _exits(
    stretch: ExpertStretch, readers: ValueReaders, levels: dict[Node, int]
) -> tuple[dict[Any, RowResult], str]:
    """The results of a stretch by the value that each replaces; and why it has none."""
    exits: dict[Any, RowResult] = dict(stretch.exits)
    for node in stretch.nodes:
        facts, outside = (
            _known_rows(stretch, node),
            [x for x in readers.of.get(node, ()) if x not in stretch.nodes],
        )
        if facts is None or not (outside or node in readers.roots):
            continue
        if facts.kind != "rows" or facts.is_sorted or facts.dim:
            reader = outside[0].op.name if outside else "the program's result"
            return {}, f"{reader} reads sorted rows ({node.op.name}), and is not row by row"
        exits[node] = RowResult("choice", (facts.step,), tuple(node.meta.shape), node.meta.dtype)
    if any(level > 1 for node, level in levels.items() if node in stretch.nodes):
        return {}, "a gradient of gradients"
    return exits, ""


def root_of(value: Value) -> Any:
    """The name of the value that annotations, as of gathering, are of."""
    while (node := walks.origin(value)) is not None and node.op.name in ANNOTATIONS:
        value = node.operands[walks.result_index(value)]
    return walks.value_name(value)

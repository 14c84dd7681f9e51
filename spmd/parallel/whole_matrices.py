"""Functions of one matrix that multiply it by itself, such as Muon's orthogonalization: each device
computes whole matrices, and no two the same.

A partitioner gathers a sharded matrix for each product of it with its transpose, 15 times for five
Newton-Schulz iterations (kellerjordan.github.io/posts/muon). The pass finds such functions by what
they compute: a Gram matrix and what is made of it, from one matrix to one of its shape and dtype,
with nothing else in between. Equal functions become one op, which deals its matrices out over the
devices: one all-to-all in and one out, both in the dtype in which the function computes.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..core import config, points
from ..core.extend import (
    Arrays,
    Graph,
    Layouts,
    Lowering,
    Node,
    OpSpec,
    Region,
    Rewrite,
    Value,
    lowering,
    lowerings,
    partitioning,
    regions,
    walks,
)

_TRANSPOSES = frozenset({"aten.t", "aten.transpose.int", "aten.permute"})
_PRODUCTS = frozenset({"aten.mm", "aten.addmm"})
_FEWEST_PRODUCTS = 3  # of a function: fewer gathers cost less than two exchanges
_LARGEST_GRAM = 1 << 14  # its rows: a larger one is computed by all devices together
_MOST_OPS = 256  # of a function
_MOST_BEFORE = 16  # ops from a function's beginning to its first Gram matrix


@dataclass(frozen=True, slots=True)
class WholeMatrices(Lowering):
    """The result of the body for each operand; these are matrices of one shape and dtype."""

    body: Region

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.body,)

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        count = len(operands)
        known = next(filter(None, map(partitioning.axes_of, operands)), None)

        vectors = [vector.reshape(count, -1) for vector in numbers]
        if known is not None:  # else the packed numbers of all ops would be sharded as these are
            vectors = [partitioning.placed(vector, known[0], (), ()) for vector in vectors]

        def of_one(matrix: jax.Array, *vectors: jax.Array) -> jax.Array:
            floats, integers = vectors
            (result,) = lowering.lower_region(self.body, 0, [matrix], (floats, integers), [None])
            return result

        if known is None or count == 1:
            # Unsharded, or alone: it is gathered once.
            whole = (
                operands if known is None else [partitioning.placed(operands[0], known[0], (), ())]
            )
            return tuple(of_one(x, *(vector[i] for vector in vectors)) for i, x in enumerate(whole))
        mesh, dims = known
        axes = tuple(axis for of_dim in dims for axis in of_dim)
        padding = -count % partitioning.num_shards(mesh, axes)
        stack = partitioning.placed(jnp.stack(operands), mesh, (), *dims)
        stacks = [_padded(x, padding) for x in (stack, *vectors)]
        spec = partitioning.spec(axes)
        each = jax.shard_map(
            jax.vmap(of_one), mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False
        )
        results = partitioning.placed(each(*stacks)[:count], mesh, (), *dims)
        return tuple(results[index] for index in range(count))


def _padded(stack: jax.Array, count: int) -> jax.Array:
    """The stack with copies of its last row behind it."""
    return jnp.concatenate([stack, *[stack[-1:]] * count]) if count else stack


class _Function(NamedTuple):
    """A function of one matrix in a graph: its ops in order, and its result."""

    entry: Value
    nodes: list[Node]
    exit: Node

    @property
    def key(self) -> Any:
        """Equal for functions of the same ops."""
        place: dict[Any, int] = {walks.value_name(self.entry): -1}
        place |= {node: index for index, node in enumerate(self.nodes)}
        wiring = [
            (node.op, *(place[walks.value_name(operand)] for operand in node.operands))
            for node in self.nodes
        ]
        return self.entry.meta, tuple(wiring)


def _is_matrix(value: Value) -> bool:
    return len(value.meta.shape) == 2


class _Finder:
    """The functions of one matrix in a graph."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.place = {node: index for index, node in enumerate(graph.nodes)}
        self.uses: dict[Any, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            for operand in node.operands:
                self.uses[walks.value_name(operand)].append(node)
        self.roots = set(map(walks.value_name, graph.roots))

    def functions(self) -> Iterator[_Function]:
        """Those that do not overlap, in order."""
        taken: set[Node] = set()
        for node in self.graph.nodes:
            is_product = node.op.name == "aten.mm" and node not in taken
            if is_product and node.meta.shape[0] <= _LARGEST_GRAM:
                base, other = map(_untransposed, node.operands)
                if walks.value_name(base) == walks.value_name(other):
                    function = self._around(base)
                    if function is not None and taken.isdisjoint(function.nodes):
                        taken.update(function.nodes)
                        yield function

    def _around(self, base: Value) -> _Function | None:
        """The function in which a Gram matrix of this value is computed: of those the one with the
        smallest elements, and of these the longest."""
        candidates = [base]
        for _ in range(_MOST_BEFORE):
            maker = walks.origin(candidates[-1])
            sources = () if maker is None else maker.operands
            same = [x for x in sources if _is_matrix(x) and _size(x) == _size(base)]
            if len(same) != 1:
                break
            candidates += same
        found = [function for entry in candidates if (function := self._from(entry)) is not None]
        return min(reversed(found), key=lambda x: x.entry.meta.dtype.itemsize, default=None)

    def _from(self, entry: Value) -> _Function | None:
        """The longest function of a value that has a result of the value's shape and dtype."""
        inside = {walks.value_name(entry)}
        nodes: list[Node] = []
        todo = [*self.uses[walks.value_name(entry)]]
        while todo and len(nodes) < _MOST_OPS:
            node = min(todo, key=self.place.__getitem__)
            todo = [other for other in todo if other is not node]
            is_own = inside.issuperset(map(walks.value_name, node.operands))
            if is_own and type(node.op.lowering) is lowerings.Call and len(node.op.metas) == 1:
                nodes.append(node)
                inside.add(node)
                todo += self.uses[node]
        for index in range(len(nodes) - 1, -1, -1):
            if (function := self._to(entry, nodes[: index + 1])) is not None:
                return function
        return None

    def _to(self, entry: Value, nodes: Sequence[Node]) -> _Function | None:
        """The function whose result is that of the last of these ops; None if it is none."""
        last = nodes[-1]
        if last.meta.shape != entry.meta.shape or last.meta.dtype is not entry.meta.dtype:
            return None
        needed, todo = set[Node](), [last]
        while todo:
            node = todo.pop()
            if node not in needed:
                needed.add(node)
                todo += [
                    x
                    for operand in node.operands
                    if (x := walks.origin(operand)) in self.place and x in nodes
                ]
        own = [node for node in nodes if node in needed]
        is_closed = all(
            node not in self.roots and needed.issuperset(self.uses[node]) for node in own[:-1]
        )
        num_products = sum(node.op.name in _PRODUCTS for node in own)
        return (
            _Function(entry, own, last) if is_closed and num_products >= _FEWEST_PRODUCTS else None
        )


def _size(value: Value) -> int:
    rows, columns = value.meta.shape
    return int(rows * columns)


def _untransposed(value: Value) -> Value:
    maker = walks.origin(value)
    while maker is not None and maker.op.name in _TRANSPOSES:
        value = maker.operands[0]
        maker = walks.origin(value)
    return value


def compute_whole(graph: Graph, may_scan: bool) -> tuple[Graph, str]:
    """The graph with one op for all equal functions of one matrix; and their number, in words."""
    if config.parallel == "off" or len(graph.mesh.device_ids) == 1:
        return graph, ""
    functions = list(_Finder(graph).functions())
    if not functions:
        return graph, ""
    # A function of another one's result, of a second step say, stays as it is.
    late = _readers(graph, [function.exit for function in functions])
    kinds: dict[Any, list[_Function]] = defaultdict(list)
    for function in functions:
        if function.nodes[0] not in late:
            kinds[function.key].append(function)
    own = {node: function for of in kinds.values() for function in of for node in function.nodes}
    result = Rewrite(graph)
    for node in graph.nodes:
        if node not in late and node not in own:
            result.copy(node)
    for of in kinds.values():
        first = of[0]
        body = Region.of([first.exit], [first.entry], first.nodes)
        metas, kind = (first.exit.meta,) * len(of), regions.kinds_of(body.nodes)
        scalars = [x for function in of for node in function.nodes for x in result.numbers[node]]
        op = OpSpec.of(
            "spmd.whole_matrices",
            WholeMatrices(body),
            metas,
            (first.entry.meta,) * len(of),
            numbers=kind * len(of),
        )
        entries = [function.entry for function in of]
        sources = [node for function in of for node in function.nodes]
        new = result.add(op, entries, first.nodes[0], scalars, sources)
        result.replace([function.exit for function in of], new)
    for node in graph.nodes:
        if node in late and node not in own:
            result.copy(node)
    count = sum(map(len, kinds.values()))
    return result.graph(), f"{count} functions of a matrix in {len(kinds)} kinds"


def _readers(graph: Graph, nodes: Sequence[Node]) -> set[Node]:
    """The ops behind the results of these."""
    made = set(map(walks.value_name, nodes))
    readers = set[Node]()
    for node in graph.nodes:
        if not made.isdisjoint(map(walks.value_name, node.operands)):
            readers.add(node)
            made.update(map(walks.value_name, walks.results(node)))
    return readers


points.COMPILE_PASSES.insert(0, ("matrices computed whole", compute_whole, _PRODUCTS))

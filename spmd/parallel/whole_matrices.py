"""Functions of one matrix that multiply it by itself, such as Muon's orthogonalization: each device
computes whole matrices, and no two the same.

A partitioner gathers a sharded matrix for each product of it with its transpose, 15 times for five
Newton-Schulz iterations (kellerjordan.github.io/posts/muon). The pass finds such functions by what
they compute: a Gram matrix and what is made of it, from one matrix to one of its shape and dtype,
with nothing else in between. Equal functions become one op, whose matrices are a stack that is
split by matrix. Those with fewer equals than devices are dealt out by work. Either has one
all-to-all in and one out, both in the dtype in which the functions compute.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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

Vectors = lowering.Vectors  # scalar arguments of ops: floats and integers

_TRANSPOSES = frozenset({"aten.t", "aten.transpose.int", "aten.permute"})
_PRODUCTS = frozenset({"aten.mm", "aten.addmm"})
_FEWEST_PRODUCTS = 3  # of a function: fewer gathers cost less than two exchanges
_LARGEST_GRAM = 1 << 14  # its rows: a larger one is computed by all devices together
_MOST_OPS = 256  # of a function
_MOST_DEALT = 64  # functions of several kinds in one op: each is compiled by itself
_MOST_BEFORE = 16  # ops from a function's beginning to its first Gram matrix


@dataclass(frozen=True, slots=True)
class WholeMatrices(Lowering):
    """The results of functions of a matrix: of each body for its number of operands, in order."""

    bodies: tuple[Region, ...]
    counts: tuple[int, ...]

    @property
    def regions(self) -> tuple[Region, ...]:
        return self.bodies

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        kinds = [kind for kind, count in enumerate(self.counts) for _ in range(count)]
        vectors = regions.numbers_by_region(numbers, [self.bodies[kind] for kind in kinds])
        works = [
            _Work(partial(self._of_one, kind), matrix, numbers)
            for kind, matrix, numbers in zip(kinds, operands, vectors, strict=True)
        ]
        dealt = _dealt_over(works) if len(self.bodies) > 1 else None
        if dealt is not None:
            return dealt
        ends = [*itertools.accumulate(self.counts)]
        starts = [0, *ends]
        return tuple(
            itertools.chain.from_iterable(
                _equal(works[start:end]) for start, end in zip(starts, ends, strict=False)
            )
        )

    def _of_one(self, kind: int, matrix: jax.Array, numbers: Vectors) -> jax.Array:
        (result,) = lowering.lower_region(self.bodies[kind], kind, [matrix], numbers, [None])
        return result


class _Work(NamedTuple):
    """A function of a matrix, with the numbers of its ops."""

    function: Callable[[jax.Array, Vectors], jax.Array]
    matrix: jax.Array
    numbers: Vectors

    @property
    def cost(self) -> int:
        """Operations of one of its products, but for a factor."""
        rows, columns = self.matrix.shape
        return int(rows * columns * min(rows, columns))


def _equal(works: Sequence[_Work]) -> Sequence[jax.Array]:
    """The results of equal functions of matrices of one shape: a stack that is split over the
    devices by matrix."""
    operands, function, count = [work.matrix for work in works], works[0].function, len(works)
    known = next(filter(None, map(partitioning.axes_of, operands)), None)
    if known is None or count == 1:
        # Unsharded, or alone: it is gathered once.
        return [
            function(x if known is None else partitioning.placed(x, known[0], (), ()), numbers)
            for x, (_, _, numbers) in zip(operands, works, strict=True)
        ]
    mesh, dims = known
    # Else the packed numbers of all ops would be sharded as these are.
    vectors = [
        partitioning.placed(jnp.stack([work.numbers[i] for work in works]), mesh, (), ())
        for i in range(2)
    ]
    axes = tuple(axis for of_dim in dims for axis in of_dim)
    padding = -count % partitioning.num_shards(mesh, axes)
    stack = partitioning.placed(jnp.stack(operands), mesh, (), *dims)
    stacks = [_padded(x, padding) for x in (stack, *vectors)]
    spec = partitioning.spec(axes)
    each = jax.shard_map(
        jax.vmap(lambda matrix, *numbers: function(matrix, numbers)),
        mesh=mesh,
        in_specs=(spec,) * 3,
        out_specs=spec,
        check_vma=False,
    )
    results = partitioning.placed(each(*stacks)[:count], mesh, (), *dims)
    return [results[index] for index in range(count)]


def _dealt_over(works: Sequence[_Work]) -> tuple[jax.Array, ...] | None:
    """The results of functions of any shapes, each computed by one device, with about equal work
    for all: one all-to-all of shards in, and one out. None where not all matrices are sharded
    evenly over the same axes."""
    known = [partitioning.axes_of(work.matrix) for work in works]
    mesh = known[0][0] if known[0] is not None else None
    layouts = [one[1] for one in known if one is not None and one[0] == mesh]
    if mesh is None or len(layouts) < len(works):
        return None
    of_mesh = [{axis for axes in dims for axis in axes} for dims in layouts]
    if not of_mesh[0] or any(of_one != of_mesh[0] for of_one in of_mesh):
        return None
    axes = tuple(axis for axis in mesh.axis_names if axis in of_mesh[0])
    blocks = [
        tuple(
            size // partitioning.num_shards(mesh, of_dim)
            for size, of_dim in zip(work.matrix.shape, dims, strict=True)
        )
        for work, dims in zip(works, layouts, strict=True)
    ]
    ways = partitioning.num_shards(mesh, axes)
    sizes = [math.prod(block) for block in blocks]
    if any(size * ways != work.matrix.size for size, work in zip(sizes, works, strict=True)):
        return None  # uneven
    hands: list[list[int]] = [[] for _ in range(ways)]
    for index in sorted(range(len(works)), key=lambda i: -works[i].cost):
        min(hands, key=lambda hand: sum(works[i].cost for i in hand)).append(index)
    starts = {
        index: sum(sizes[before] for before in hand[:place])
        for hand in hands
        for place, index in enumerate(hand)
    }
    length = max(sum(map(sizes.__getitem__, hand)) for hand in hands)

    def row(parts: Sequence[jax.Array]) -> jax.Array:
        """Parts [..., elements] behind each other, filled up to the length of all rows."""
        lead, used = parts[0].shape[:-1], sum(part.shape[-1] for part in parts)
        return jnp.concatenate([*parts, jnp.zeros((*lead, length - used), parts[0].dtype)], -1)

    def compute(hand: Sequence[int], numbers: Sequence[Vectors], received: jax.Array) -> jax.Array:
        results = [jnp.zeros((ways, 0), received.dtype)]
        for index in hand:
            start, dims = starts[index], layouts[index]
            shards = received[:, start : start + sizes[index]]
            matrix = _joined(shards, blocks[index], mesh, axes, dims)
            result = works[index].function(matrix, numbers[index])
            results.append(_apart(result, blocks[index], mesh, axes, dims))
        return row(results)

    def on_device(numbers: Sequence[Vectors], *shards: jax.Array) -> tuple[jax.Array, ...]:
        nothing = jnp.zeros(0, shards[0].dtype)
        sent = jnp.stack([row([nothing, *(shards[i].ravel() for i in hand)]) for hand in hands])
        received = jax.lax.all_to_all(sent, axes, 0, 0, tiled=True)
        branches = [partial(compute, hand, numbers) for hand in hands]
        results = jax.lax.switch(jax.lax.axis_index(axes), branches, received)
        back = jax.lax.all_to_all(results, axes, 0, 0, tiled=True)
        device_of = {index: device for device, hand in enumerate(hands) for index in hand}
        return tuple(
            back[device_of[i], starts[i] : starts[i] + sizes[i]].reshape(blocks[i])
            for i in range(len(works))
        )

    specs = [partitioning.spec(*dims) for dims in layouts]
    numbers = [work.numbers for work in works]
    dealt = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(partitioning.spec(), *specs),
        out_specs=tuple(specs),
        check_vma=False,
    )
    return tuple(dealt(numbers, *(work.matrix for work in works)))


def _order(
    mesh: Any, axes: Sequence[str], dims: Sequence[Sequence[str]]
) -> tuple[list[int], list[int]]:
    """Of shards with a leading dim for each axis and the block's two behind: the sizes of the axes,
    and the dims in the order in which they make the matrix."""
    order = [
        place
        for dim, of_dim in enumerate(dims)
        for place in (*map(list(axes).index, of_dim), len(axes) + dim)
    ]
    return [mesh.shape[axis] for axis in axes], order


def _joined(
    shards: jax.Array, block: Sequence[int], mesh: Any, axes: Sequence[str], dims: Any
) -> jax.Array:
    """The matrix of its shards [devices, elements]."""
    sizes, order = _order(mesh, axes, dims)
    rows = block[0] * partitioning.num_shards(mesh, dims[0])
    return shards.reshape(*sizes, *block).transpose(order).reshape(rows, -1)


def _apart(
    matrix: jax.Array, block: Sequence[int], mesh: Any, axes: Sequence[str], dims: Any
) -> jax.Array:
    """The shards [devices, elements] of a matrix."""
    sizes, order = _order(mesh, axes, dims)
    shape = [[*sizes, *block][place] for place in order]
    back = sorted(range(len(order)), key=order.__getitem__)
    return matrix.reshape(shape).transpose(back).reshape(math.prod(sizes), -1)


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
    for group in _groups(list(kinds.values()), len(graph.mesh.device_ids)):
        whole = [function for of in group for function in of]
        bodies = [Region.of([of[0].exit], [of[0].entry], of[0].nodes) for of in group]
        sources = [node for function in whole for node in function.nodes]
        op = OpSpec.of(
            "spmd.whole_matrices",
            WholeMatrices(tuple(bodies), tuple(map(len, group))),
            tuple(function.exit.meta for function in whole),
            tuple(function.entry.meta for function in whole),
            numbers=regions.kinds_of(sources),
        )
        scalars = [x for node in sources for x in result.numbers[node]]
        entries = [function.entry for function in whole]
        new = result.add(op, entries, whole[0].nodes[0], scalars, sources)
        result.replace([function.exit for function in whole], new)
    for node in graph.nodes:
        if node in late and node not in own:
            result.copy(node)
    count = sum(map(len, kinds.values()))
    return result.graph(), f"{count} functions of a matrix in {len(kinds)} kinds"


def _groups(kinds: Sequence[list[_Function]], num_devices: int) -> Iterator[list[list[_Function]]]:
    """The kinds of functions that are one op: those with fewer functions than devices together, by
    dtype; the others each by itself."""
    few: dict[Any, list[list[_Function]]] = defaultdict(list)
    for kind in kinds:
        if len(kind) < num_devices:
            few[kind[0].entry.meta.dtype].append(kind)
        else:
            yield [kind]
    for group in few.values():
        yield from [group] if sum(map(len, group)) <= _MOST_DEALT else ([kind] for kind in group)


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

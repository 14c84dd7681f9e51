"""From nodes to one JAX function: the graph's ops in order, lifted numbers unpacked, paddings cut off and put on."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

from ..ir.graph import Graph, Leaf, Node, Pick, Port, Region, Value
from ..ir.op import Layouts
from ..ops import split
from ..sharding.constrain import cut, on_device, pad
from ..sharding.value import DEVICE, Sharding, report_sharding
from . import heads


class LoweringError(RuntimeError):
    """No program could be made; the message names the op and the user's line, `node` is the op (None: unknown)."""

    def __init__(self, message: str, node: Node | None):
        super().__init__(message)
        self.node = node


@dataclass(frozen=True, eq=False, slots=True)
class Row:
    """A value that is one row of an array in the program; an op that reads it takes the slice."""

    stack: jax.Array
    index: int

    def array(self) -> jax.Array:
        return jax.lax.index_in_dim(self.stack, self.index, keepdims=False)


Made = jax.Array | Row
Values = dict[Value, tuple[Made, ...]]


def build(
    graph: Graph, describe: Callable[[Node], str], chosen: list[tuple[Node, Any]] | None = None
) -> Callable[..., tuple[jax.Array, ...]]:
    """The graph as a function of (buffers of `graph.inputs()`..., float64 vector, int64 vector) -> `graph.outputs()`,
    physical shapes.

    chosen: where given, receives (annotated node, the sharding that the partitioner gave it) during compilation.
    """
    lies = dict(zip(graph.leaves, graph.lies, strict=True))
    by_head = heads.find(graph)

    def program(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        *buffers, floats, integers = arguments
        values: Values = {}
        inputs = [
            (_take_in(graph, port, buffer, values), port.sharding)
            for port, buffer in zip(graph.inputs(), buffers, strict=True)
        ]
        with _telling(_Told(describe, chosen, by_head)), _known_to_lie(inputs):
            lower_nodes(graph.nodes, values, (floats, integers), lies)
        return tuple(_give_out(graph, port, values) for port in graph.outputs())

    return program


def _known_to_lie(arrays: Sequence[tuple[jax.Array, Sharding | None]]) -> contextlib.AbstractContextManager[None]:
    """For the rules that ask how an array is split (`ops.split`)."""
    known = [(array, lies.in_program()) for array, lies in arrays if lies is not None]
    return split.inputs_lie([array for array, _ in known], [lies for _, lies in known])


def _take_in(graph: Graph, port: Port, buffer: jax.Array, values: Values) -> jax.Array:
    """An argument as the values that it is, logical shapes."""
    assert port.sharding is not None, "every input lies somewhere"
    is_plain = isinstance(port.places, int) and buffer.shape == port.meta.shape
    array = buffer if is_plain else cut(on_device(buffer), port.meta.shape)
    if isinstance(port.places, int):
        values[graph.leaves[port.places]] = (array,)
    else:
        values |= {graph.leaves[place]: (Row(array, row),) for row, place in enumerate(port.places)}
    return array


def _give_out(graph: Graph, port: Port, values: Values) -> jax.Array:
    """A result of the program, physical shape."""
    if isinstance(port.places, int):
        array = plain(made_of(graph.roots[port.places], values))
    else:
        wanted = [graph.leaves[~place] if place < 0 else graph.roots[place] for place in port.places]
        array = _stack([made_of(value, values) for value in wanted])
    if port.sharding is not None and port.sharding.padded_shape(port.meta.shape) != port.meta.shape:
        array = on_device(array)  # jit takes it to where it is to lie
    return pad(array, port.sharding, port.meta.shape)


def _stack(rows: Sequence[Made]) -> jax.Array:
    """The rows as one array: the stack that most of them are in their places, the others set into it."""
    homes = [
        (id(row.stack), row.stack)
        for i, row in enumerate(rows)
        if isinstance(row, Row) and row.index == i and len(row.stack) == len(rows)
    ]
    if not homes:
        return jnp.stack([plain(row) for row in rows])
    (most, _), *_ = Counter(name for name, _ in homes).most_common(1)
    stack = home = dict(homes)[most]
    for i, row in enumerate(rows):
        if not (isinstance(row, Row) and row.stack is home and row.index == i):
            stack = jax.lax.dynamic_update_index_in_dim(stack, plain(row), i, 0)
    return stack


def plain(made: Made) -> jax.Array:
    """A value as an array of its own."""
    return made.array() if isinstance(made, Row) else made


Vectors = tuple[jax.Array, jax.Array]  # lifted numbers: float64 and int64


class _Told(NamedTuple):
    """Who is told what while one program is traced (see `build`)."""

    describe: Callable[[Node], str]
    chosen: list[tuple[Node, Any]] | None
    heads: Mapping[Node, heads.Head]


_tracing = threading.local()  # .told


@contextlib.contextmanager
def _telling(told: _Told) -> Iterator[None]:
    before, _tracing.told = getattr(_tracing, "told", None), told
    try:
        yield
    finally:
        _tracing.told = before


def lower_nodes(nodes: Sequence[Node], values: Values, numbers: Vectors, lies: Mapping[Leaf, Sharding | None]) -> None:
    """Lowers ops in order, of a program or of a region inside it; adds what they make to `values`.

    numbers: all of theirs, in the order of `pack_numbers`. lies: how each leaf is known to lie.
    """
    told: _Told = _tracing.told
    packed = dict(zip("fi", numbers, strict=True))
    position = {"f": 0, "i": 0}
    for index, node in enumerate(nodes):
        kinds = node.entry.numbers
        own: list[jax.Array] = []
        if node.entry.lowering.regions:
            for kind in "fi":
                start = position[kind]
                position[kind] += kinds.count(kind)
                own.append(jax.lax.slice(packed[kind], (start,), (position[kind],)))
        else:
            for kind in kinds:
                own.append(jax.lax.index_in_dim(packed[kind], position[kind], keepdims=False))
                position[kind] += 1
        lower = None
        if node in told.heads:
            lower = told.heads[node].lowering(node, lambda value: plain(made_of(value, values)))
            if lower is None:
                continue
        operands = [] if lower else [plain(made_of(operand, values)) for operand in node.operands]
        if not node.entry.lowering.any_memory:
            operands = [on_device(operand) for operand in operands]
        # The index lets an error that XLA raises late be traced back to this node (see `failing`).
        with jax.named_scope(f"{node.entry.name}#{index}"):
            values[node] = _apply(node, operands, own, lies, told.describe, lower)
        if told.chosen is not None and node.entry.name == "mark_sharding":
            values[node] = (_reported(node, plain(values[node][0]), told.chosen),)


def lower_region(
    region: Region, index: int, arrays: Sequence[jax.Array], numbers: Vectors, layouts: Layouts
) -> list[jax.Array]:
    """What a region makes of these arrays, one for each of its leaves. index: which of its op's regions it is.

    layouts: how each array is known to lie (None: unknown).
    """
    values: Values = {leaf: (array,) for leaf, array in zip(region.leaves, arrays, strict=True)}
    with jax.named_scope(f"region{index}"), _known_to_lie(list(zip(arrays, layouts, strict=True))):
        lower_nodes(region.nodes, values, numbers, dict(zip(region.leaves, layouts, strict=True)))
    return [plain(made_of(root, values)) for root in region.roots]


def made_of(value: Value, values: Values) -> Made:
    return values[value.node][value.index] if isinstance(value, Pick) else values[value][0]


def pack_numbers(nodes: Sequence[Node]) -> tuple[list[float], list[int]]:
    """The lifted numbers of the nodes, in the order in which the program unpacks them."""
    floats: list[float] = []
    integers: list[int] = []
    for node in nodes:
        if node.numbers:
            for kind, number in zip(node.entry.numbers, node.numbers, strict=True):
                (floats if kind == "f" else integers).append(number)  # type: ignore[arg-type]  # as its kind says
    return floats, integers


# What XLA makes of a product of these is exact in the float32 that it accumulates in; asking for more would only cost.
_NARROW = frozenset({torch.bfloat16, torch.float16})


def _apply(
    node: Node,
    operands: list[jax.Array],
    numbers: list[jax.Array],
    lies: Mapping[Leaf, Sharding | None],
    describe: Callable[[Node], str],
    lower: Callable[[], tuple[jax.Array, ...]] | None = None,
) -> tuple[jax.Array, ...]:
    """The results of an op, by its own rule or by `lower`."""
    is_narrow = any(value.meta.dtype in _NARROW for value in node.operands)
    try:
        # An accelerator's own default for float32 is less than float32; see `core.precision` for who asks for that.
        with jax.default_matmul_precision(None if is_narrow else "highest"):
            layouts = [_known_sharding(value, lies) for value in node.operands]
            made = lower() if lower is not None else node.entry.lower(operands, numbers, layouts)
    except LoweringError as error:  # of an op in a region of this one, which it names
        raise LoweringError(str(error), node) from error
    except Exception as error:
        raise LoweringError(f"lowering {describe(node)} failed: {type(error).__name__}: {error}", node) from error
    for array, meta in zip(made, node.entry.metas, strict=True):
        if array.shape != meta.struct.shape or array.dtype != meta.struct.dtype:
            raise LoweringError(
                f"the rule of {describe(node)} made {array.dtype}{list(array.shape)} where torch makes {meta!r}",
                node,
            )
    return made


def _known_sharding(value: Value, lies: Mapping[Leaf, Sharding | None]) -> Sharding | None:
    """How a value is known to lie: a buffer as it does, an annotated value as asked."""
    if isinstance(value, Leaf):
        return lies[value]
    return value.entry.sharding if isinstance(value, Node) and not value.entry.lowering.regions else None


def _reported(node: Node, array: jax.Array, chosen: list[tuple[Node, Any]]) -> jax.Array:
    """Asks the partitioner to tell, while it compiles, how it laid out an annotated value; not of padded ones."""
    asked = node.entry.sharding
    assert asked is not None, "only annotations are asked for"
    if asked.padded_shape(array.shape) != array.shape or not array.ndim or len(asked.devices) == 1:
        return array
    if asked.memory != DEVICE:
        return array  # the partitioner is done before anything is placed in a memory
    return report_sharding(array, lambda sharding: chosen.append((node, sharding)))


def argument_struct(port: Port) -> jax.ShapeDtypeStruct:
    """What jax must know of an input to compile for it: physical shape, dtype, sharding."""
    meta, lies = port.meta, port.sharding
    assert lies is not None, "every input lies somewhere"
    return jax.ShapeDtypeStruct(lies.padded_shape(meta.shape), meta.struct.dtype, sharding=lies.in_program())

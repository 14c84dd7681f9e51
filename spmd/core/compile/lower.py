"""From nodes to one JAX function: the graph's ops in order, lifted numbers unpacked, paddings cut off and put on."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch

from ..ir.graph import Graph, Leaf, Node, Port, Value
from ..sharding.constrain import constrain, cut, on_device, pad
from ..sharding.value import Sharding, report_sharding
from .loops import lower_loop
from .numbers import Numbers
from .rows import Made, Row, as_stack, joined, made_of, plain, scalars


class LoweringError(RuntimeError):
    """No program could be made; the message names the op and the user's line, `node` is the op (None: unknown)."""

    def __init__(self, message: str, node: Node | None):
        super().__init__(message)
        self.node = node


def build(
    graph: Graph, describe: Callable[[Node], str], chosen: list[tuple[Node, Any]] | None = None
) -> Callable[..., tuple[jax.Array, ...]]:
    """The graph as a function of (buffers of `graph.inputs()`..., float64 vector, int64 vector) -> `graph.outputs()`,
    physical shapes.

    chosen: where given, receives (annotated node, the sharding that the partitioner gave it) during compilation.
    """
    lies = dict(zip(graph.leaves, graph.lies, strict=True))
    loops = {loop.start: loop for loop in graph.loops}
    place = {node: index for index, node in enumerate(graph.nodes)}

    def layout_of(value: Value) -> Sharding | None:
        """How a value is known to lie: a buffer as it does, an annotated value as asked."""
        return lies[value] if isinstance(value, Leaf) else value.entry.sharding if isinstance(value, Node) else None

    def apply(
        node: Node, operands: list[Made], numbers: Sequence[jax.Array], layouts: list[Sharding | None]
    ) -> Sequence[Made]:
        # The index lets an error that XLA raises late be traced back to this node (see compile.explain_failure).
        with jax.named_scope(f"{node.entry.name}#{place[node]}"):
            made = _apply(node, operands, numbers, layouts, describe)
        if chosen is not None and node.entry.name == "mark_sharding":
            made = (_reported(node, plain(made[0]), chosen),)
        return made

    def program(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        *buffers, floats, integers = arguments
        values: dict[Value, Sequence[Made]] = {}
        for port, buffer in zip(graph.inputs(), buffers, strict=True):
            _take_in(graph, port, buffer, values)
        for column in graph.columns:
            _stack([graph.leaves[i] for i in column], lies, values)
        packed = Numbers(floats, integers)
        end = 0
        for index, node in enumerate(graph.nodes):
            if index in loops:
                lower_loop(loops[index], values, packed, apply, layout_of)
                end = loops[index].stop
            if index >= end:
                numbers = packed.of(node.entry.numbers)
                operands = [made_of(operand, values) for operand in node.operands]
                values[node] = apply(node, operands, numbers, list(map(layout_of, node.operands)))
        return tuple(_give_out(graph, port, values) for port in graph.outputs())

    return program


def _take_in(graph: Graph, port: Port, buffer: jax.Array, values: dict[Value, Sequence[Made]]) -> None:
    """An argument as the values that it is, logical shapes."""
    assert port.sharding is not None, "every input lies somewhere"
    array = cut(on_device(buffer, port.sharding), port.meta.shape)
    if isinstance(port.places, int):
        values[graph.leaves[port.places]] = (array,)
    else:
        values.update({graph.leaves[place]: (Row(array, row),) for row, place in enumerate(port.places)})


def _stack(leaves: Sequence[Leaf], lies: dict[Leaf, Sharding], values: dict[Value, Sequence[Made]]) -> None:
    """Makes one array of leaves that are alike, and them its rows."""
    lay, shape = lies[leaves[0]], leaves[0].meta.shape
    stack = joined([values[leaf][0] for leaf in leaves])
    if lay.padded_shape(shape) == shape:
        stack = constrain(stack, lay.behind_rows())
    values.update({leaf: (Row(stack, row, plain(values[leaf][0])),) for row, leaf in enumerate(leaves)})


def _give_out(graph: Graph, port: Port, values: dict[Value, Sequence[Made]]) -> jax.Array:
    """A result of the program, physical shape."""
    if isinstance(port.places, int):
        array = plain(made_of(graph.roots[port.places], values))
    else:
        wanted = [graph.leaves[~place] if place < 0 else graph.roots[place] for place in port.places]
        array = as_stack([made_of(value, values) for value in wanted])
    return pad(array, port.sharding, port.meta.shape)


# What XLA makes of a product of these is exact in the float32 that it accumulates in; asking for more would only cost.
_NARROW = frozenset({torch.bfloat16, torch.float16})


def _apply(
    node: Node,
    operands: list[Made],
    numbers: Sequence[jax.Array],
    layouts: list[Sharding | None],
    describe: Callable[[Node], str],
) -> Sequence[Made]:
    is_narrow = any(value.meta.dtype in _NARROW for value in node.operands)
    try:
        # An accelerator's own default for float32 is less than float32; see `core.precision` for who asks for that.
        with jax.default_matmul_precision(None if is_narrow else "highest"):
            if node.entry.lowering.elements:
                made = node.entry.lower(operands, numbers, layouts)  # type: ignore[arg-type]  # takes rows
            elif _is_of_scalars(node) and any(isinstance(operand, Row) for operand in operands):
                made = (scalars(operands),)
            else:
                made = node.entry.lower(list(map(plain, operands)), numbers, layouts)
    except Exception as error:
        raise LoweringError(f"lowering {describe(node)} failed: {type(error).__name__}: {error}", node) from error
    for one, meta in zip(made, node.entry.metas, strict=True):
        array = one.stack if isinstance(one, Row) else one
        shape = array.shape[1:] if isinstance(one, Row) else array.shape
        if shape != meta.struct.shape or array.dtype != meta.struct.dtype:
            raise LoweringError(
                f"the rule of {describe(node)} made {array.dtype}{list(shape)} where torch makes {meta!r}",
                node,
            )
    return made


def _is_of_scalars(node: Node) -> bool:
    """Whether an op makes a vector of numbers."""
    return node.entry.name == "aten.stack" and not any(operand.meta.shape for operand in node.operands)


def _reported(node: Node, array: jax.Array, chosen: list[tuple[Node, Any]]) -> jax.Array:
    """Asks the partitioner to tell, while it compiles, how it laid out an annotated value; not of padded ones."""
    asked = node.entry.sharding
    assert asked is not None, "only annotations are asked for"
    if asked.padded_shape(array.shape) != array.shape or not array.ndim or len(asked.devices) == 1:
        return array
    return report_sharding(array, lambda sharding: chosen.append((node, sharding)))


def argument_struct(port: Port) -> jax.ShapeDtypeStruct:
    """What jax must know of an input to compile for it: physical shape, dtype, sharding."""
    meta, lies = port.meta, port.sharding
    assert lies is not None, "every input lies somewhere"
    return jax.ShapeDtypeStruct(lies.padded_shape(meta.shape), meta.struct.dtype, sharding=lies.in_program())

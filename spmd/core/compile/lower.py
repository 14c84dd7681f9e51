"""From nodes to one JAX function: the graph's ops in order, lifted numbers unpacked, paddings cut off and put on."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch

from ..ir.graph import Graph, Leaf, Node, Pick, Value
from ..ir.meta import Meta
from ..ops import split
from ..sharding.constrain import cut, on_device, pad
from ..sharding.value import Sharding, report_sharding
from . import heads


class LoweringError(RuntimeError):
    """No program could be made; the message names the op and the user's line, `node` is the op (None: unknown)."""

    def __init__(self, message: str, node: Node | None):
        super().__init__(message)
        self.node = node


def build(
    graph: Graph, describe: Callable[[Node], str], chosen: list[tuple[Node, Any]] | None = None
) -> Callable[..., tuple[jax.Array, ...]]:
    """The graph as a function of (leaf buffers..., float64 vector, int64 vector) -> root values, physical shapes.

    chosen: where given, receives (annotated node, the sharding that the partitioner gave it) during compilation.
    """
    lies = dict(zip(graph.leaves, graph.lies, strict=True))
    by_head = heads.find(graph)

    def program(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        *buffers, floats, integers = arguments
        placed = zip(graph.leaves, graph.lies, buffers, strict=True)
        inputs = [cut(on_device(buffer, to), leaf.meta.shape) for leaf, to, buffer in placed]
        with split.inputs_lie(inputs, [to.in_program() for to in graph.lies]):
            return compute(inputs, floats, integers)

    def compute(inputs: list[jax.Array], floats: jax.Array, integers: jax.Array) -> tuple[jax.Array, ...]:
        values: dict[Value, tuple[jax.Array, ...]] = {}
        for leaf, array in zip(graph.leaves, inputs, strict=True):
            values[leaf] = (array,)
        position = {"f": 0, "i": 0}
        packed = {"f": floats, "i": integers}
        for index, node in enumerate(graph.nodes):
            numbers = []
            for kind in node.entry.numbers:
                numbers.append(jax.lax.index_in_dim(packed[kind], position[kind], keepdims=False))
                position[kind] += 1
            lower = None
            if node in by_head:
                lower = by_head[node].lowering(node, lambda value: _value(value, values))
                if lower is None:
                    continue
            operands = [] if lower else [_value(operand, values) for operand in node.operands]
            # The index lets an error that XLA raises late be traced back to this node (see compile.explain_failure).
            with jax.named_scope(f"{node.entry.name}#{index}"):
                values[node] = _apply(node, operands, numbers, lies, describe, lower)
            if chosen is not None and node.entry.name == "mark_sharding":
                values[node] = (_reported(node, values[node][0], chosen),)
        return tuple(
            pad(_value(root, values), pinned, root.meta.shape)
            for root, pinned in zip(graph.roots, graph.pinned, strict=True)
        )

    return program


def _value(value: Value, values: dict[Value, tuple[jax.Array, ...]]) -> jax.Array:
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
    lies: dict[Leaf, Sharding],
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
    except Exception as error:
        raise LoweringError(f"lowering {describe(node)} failed: {type(error).__name__}: {error}", node) from error
    for array, meta in zip(made, node.entry.metas, strict=True):
        if array.shape != meta.struct.shape or array.dtype != meta.struct.dtype:
            raise LoweringError(
                f"the rule of {describe(node)} made {array.dtype}{list(array.shape)} where torch makes {meta!r}",
                node,
            )
    return made


def _known_sharding(value: Value, lies: dict[Leaf, Sharding]) -> Sharding | None:
    """How a value is known to lie: a buffer as it does, an annotated value as asked."""
    return lies[value] if isinstance(value, Leaf) else value.entry.sharding if isinstance(value, Node) else None


def _reported(node: Node, array: jax.Array, chosen: list[tuple[Node, Any]]) -> jax.Array:
    """Asks the partitioner to tell, while it compiles, how it laid out an annotated value; not of padded ones."""
    asked = node.entry.sharding
    assert asked is not None, "only annotations are asked for"
    if asked.padded_shape(array.shape) != array.shape or not array.ndim or len(asked.devices) == 1:
        return array
    return report_sharding(array, lambda sharding: chosen.append((node, sharding)))


def argument_struct(meta: Meta, lies: Sharding) -> jax.ShapeDtypeStruct:
    """What jax must know of an input to compile for it: physical shape, dtype, sharding."""
    return jax.ShapeDtypeStruct(lies.padded_shape(meta.shape), meta.struct.dtype, sharding=lies.in_program())

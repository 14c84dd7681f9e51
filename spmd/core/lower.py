"""From nodes to one JAX function: the graph's ops in order, lifted numbers unpacked, paddings cut off and put on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch

from .ir import Leaf, Meta, Node, Pick, Value
from .sharding import Sharding


@dataclass(frozen=True, slots=True)
class Graph:
    """A piece of the lazy graph that is about to become one program.

    nodes in order of recording; leaves in order of first use; roots: the values wanted; pinned: the sharding each root
    must have, or None where the compiler may choose; donated: per leaf, whether its buffer may be overwritten.
    """

    nodes: list[Node]
    leaves: list[Leaf]
    roots: list[Value]
    pinned: list[Sharding | None]
    donated: tuple[bool, ...]


class LoweringError(RuntimeError):
    """A rule failed; the message names the op and the user's line, `node` is the op."""

    def __init__(self, message: str, node: Node):
        super().__init__(message)
        self.node = node


def build(
    graph: Graph, describe: Callable[[Node], str], chosen: list[tuple[Node, Any]] | None = None
) -> Callable[..., tuple[jax.Array, ...]]:
    """The graph as a function of (leaf buffers..., float64 vector, int64 vector) -> root values, physical shapes.

    chosen: where given, receives (annotated node, the sharding that the partitioner gave it) during compilation.
    """

    def program(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        *buffers, floats, integers = arguments
        values: dict[Value, tuple[jax.Array, ...]] = {}
        for leaf, buffer in zip(graph.leaves, buffers, strict=True):
            values[leaf] = (_cut(buffer, leaf.meta.shape),)
        position = {"f": 0, "i": 0}
        packed = {"f": floats, "i": integers}
        for index, node in enumerate(graph.nodes):
            numbers = []
            for kind in node.entry.numbers:
                numbers.append(jax.lax.index_in_dim(packed[kind], position[kind], keepdims=False))
                position[kind] += 1
            operands = [_value(operand, values) for operand in node.operands]
            # The index lets an error that XLA raises late be traced back to this node (see compile.explain_failure).
            with jax.named_scope(f"{node.entry.name}#{index}"):
                values[node] = _apply(node, operands, numbers, describe)
            if chosen is not None and node.entry.name == "mark_sharding":
                _inspect(node, values[node][0], chosen)
        return tuple(
            _pad(_value(root, values), pinned, root.meta.shape)
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


def constrain(array: jax.Array, sharding: Sharding) -> jax.Array:
    """Asks the partitioner to lay an intermediate value out so; an uneven dim is padded for it and cut again."""
    padded = _pad(array, sharding, array.shape)
    return _cut(jax.lax.with_sharding_constraint(padded, sharding.jax), array.shape)


# What XLA makes of a product of these is exact in the float32 that it accumulates in; asking for more would only cost.
_NARROW = frozenset({torch.bfloat16, torch.float16})


def _apply(node: Node, operands: list[jax.Array], numbers: list[jax.Array], describe: Callable[[Node], str]):
    is_narrow = any(value.meta.dtype in _NARROW for value in node.operands)
    try:
        # An accelerator's own default for float32 is less than float32; see `core.precision` for who asks for that.
        with jax.default_matmul_precision(None if is_narrow else "highest"):
            if node.entry.by_layout is None:
                made = node.entry.lower(operands, numbers)
            else:
                made = node.entry.by_layout(operands, numbers, [_known_sharding(value) for value in node.operands])
    except Exception as error:
        raise LoweringError(f"lowering {describe(node)} failed: {type(error).__name__}: {error}", node) from error
    for array, meta in zip(made, node.entry.metas, strict=True):
        if array.shape != meta.struct.shape or array.dtype != meta.struct.dtype:
            raise LoweringError(
                f"the rule of {describe(node)} made {array.dtype}{list(array.shape)} where torch makes {meta!r}",
                node,
            )
    return made


def _known_sharding(value: Value) -> Sharding | None:
    """How a value is known to lie: a buffer as it does, an annotated value as asked."""
    return value.sharding if isinstance(value, Leaf) else value.entry.sharding if isinstance(value, Node) else None


def _inspect(node: Node, array: jax.Array, chosen: list[tuple[Node, Any]]) -> None:
    """Asks the partitioner to tell, while it compiles, how it laid out an annotated value; not of padded ones."""
    asked = node.entry.sharding
    assert asked is not None, "only annotations are inspected"
    if asked.padded_shape(array.shape) == array.shape and array.ndim:
        jax.debug.inspect_array_sharding(array, callback=lambda sharding: chosen.append((node, sharding)))


def _cut(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return array if array.shape == shape else jax.lax.slice(array, (0,) * len(shape), shape)


def _pad(array: jax.Array, sharding: Sharding | None, shape: tuple[int, ...]) -> jax.Array:
    physical = shape if sharding is None else sharding.padded_shape(shape)
    if physical == shape:
        return array
    return jnp.pad(array, [(0, wide - narrow) for wide, narrow in zip(physical, shape, strict=True)])


def argument_struct(leaf: Leaf) -> jax.ShapeDtypeStruct:
    """What jax must know of a leaf to compile for it: physical shape, dtype, sharding."""
    meta: Meta = leaf.meta
    assert leaf.sharding is not None
    return jax.ShapeDtypeStruct(leaf.sharding.padded_shape(meta.shape), meta.struct.dtype, sharding=leaf.sharding.jax)

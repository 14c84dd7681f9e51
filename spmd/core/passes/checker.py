"""Checks that a graph is legal, after each pass where `config.check_graphs` is on, as in all tests.

A wrong rewrite is found here, with the name of its pass, and not in XLA or in a number, as in
tinygrad.
"""

# Why graphs are checked at all: a pass that drops an op, or reads a value before it is made, gives
# wrong numbers or an error of XLA far from it. Here the error names the pass and the op. It costs a
# walk, so that users do not pay for it.

from collections.abc import Iterator, Sequence

from ..graph.graph import DeviceData, Graph, Node, TupleElement, Value, origin, result_index
from ..graph.source import describe, node_line


class GraphError(AssertionError):
    """A pass has returned a graph that is not legal: an error of this library."""


def check(graph: Graph, pass_name: str) -> None:
    """Raises GraphError, with the name of the pass, for a graph that is not legal.

    A legal graph is acyclic and in order: each op reads inputs and results of earlier ops, of the
    shapes and dtypes of its OpSpec. Regions are closed: their ops read nothing from outside. Each
    input has a sharding; a donated buffer has one writer, which has its shape and sharding; rows of
    a stack have one meta and one sharding.
    """
    for fault in _faults(graph):
        raise GraphError(f"the pass {pass_name} has made a graph that is not legal: {fault}")


def _faults(graph: Graph) -> Iterator[str]:
    yield from _value_faults(graph.nodes, graph.inputs, graph.roots)
    count, results = len(graph.inputs), len(graph.roots)
    if not len(graph.shardings) == len(graph.donated) == count:
        yield (
            f"{count} inputs have {len(graph.shardings)} shardings and {len(graph.donated)} "
            "donation flags"
        )
    if len(graph.pinned) != results:
        yield f"{results} results have {len(graph.pinned)} requested shardings"
    yield from _donation_faults(graph)
    yield from _stack_faults(graph)


def _value_faults(
    nodes: Sequence[Node], inputs: Sequence[DeviceData], roots: Sequence[Value]
) -> Iterator[str]:
    """Yields the faults of ops in order, and of the results of a program or region."""
    defined: set[Value] = set(inputs)
    if len(defined) < len(inputs):
        yield "an input is there twice"
    for node in nodes:
        if node in defined:
            yield f"{describe(node)} is there twice"
        for operand in node.operands:
            yield from (
                f"{node.op.name} at {node_line(node)} {fault}"
                for fault in _operand_faults(operand, defined)
            )
        # An op that fills or draws its result has dropped the operand that gave only the shape.
        if node.operands:
            operand_structs = [operand.meta.struct for operand in node.operands]
            expected = [meta.struct for meta in node.op.operands]
            if operand_structs != expected:
                yield f"{describe(node)} takes {operand_structs}, its spec says {expected}"
        numbers_fit = node.op.lowering.regions or len(node.numbers) == len(node.op.numbers)
        if not numbers_fit:
            yield (
                f"{describe(node)} has {len(node.numbers)} scalar arguments, its spec says "
                f"{node.op.numbers!r}"
            )
        for region in node.op.lowering.regions:
            for fault in _value_faults(region.nodes, region.inputs, region.roots):
                yield f"in a region of {describe(node)}: {fault}"
        defined.add(node)
    for root in roots:
        yield from (f"a result {fault}" for fault in _operand_faults(root, defined))


def _operand_faults(value: Value, defined_values: set[Value]) -> Iterator[str]:
    """Yields the fault of an operand or root that no input and no earlier op defines."""
    maker = origin(value)
    if (value if maker is None else maker) not in defined_values:
        label = repr(value.meta) if maker is None else maker.op.name
        yield f"is or reads {label}, which is no input and no earlier op"
    elif maker is not None:
        count, index = len(maker.op.metas), result_index(value)
        if index >= count or (type(value) is TupleElement) != (count > 1):
            yield f"is or reads result {index} of {maker.op.name}, which has {count}"


def _donation_faults(graph: Graph) -> Iterator[str]:
    """Yields the faults of donation: the root that is written over each input."""
    written = [root_index for root_index in graph.onto if root_index is not None]
    if len(set(written)) < len(written):
        yield "a result is written over two inputs"
    for device_data, sharding, root_index in zip(
        graph.inputs, graph.shardings, graph.onto, strict=False
    ):
        if root_index is None:
            continue
        if graph.roots[root_index].meta.struct != device_data.meta.struct:
            yield (
                f"result {root_index}, {graph.roots[root_index].meta!r}, is written over "
                f"{device_data.meta!r}"
            )
        if graph.pinned[root_index] is not None and graph.pinned[root_index] is not sharding:
            yield (
                f"result {root_index}, in {graph.pinned[root_index]!r}, is written over an input "
                f"in {sharding!r}"
            )


def _stack_faults(graph: Graph) -> Iterator[str]:
    """Yields the faults of stack groups."""
    for groups, metas, shardings in (
        (graph.stack_groups, [value.meta for value in graph.inputs], graph.shardings),
        (graph.columns, [value.meta for value in graph.inputs], graph.shardings),
        (graph.stacked, [value.meta for value in graph.roots], graph.pinned),
    ):
        # A row of two stacks would be donated twice, or copied into one of them at each run.
        indices = [index for group in groups for index in group if index >= 0]
        if len(set(indices)) < len(indices):
            yield "a value is a row of two stacks"
        for group in groups:
            # inputs among the results have indices below 0
            rows = [index for index in group if index >= 0]
            if len({(metas[index].struct, shardings[index]) for index in rows}) > 1:
                yield f"the rows {rows} of one stack differ in shape, dtype or sharding"

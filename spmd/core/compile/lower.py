"""From nodes to one JAX function: the graph's ops in order, lifted numbers unpacked, paddings cut off and put on."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import torch

from ..ir.graph import Graph, Leaf, Node, Port, Region, Value
from ..ir.loops import Loop
from ..ir.op import Layouts
from ..ops import split
from ..sharding.constrain import body, constrain, cut, in_memory, is_slice, on_device, pad, space_of
from ..sharding.partitioner import report_sharding
from ..sharding.value import DEVICE, HOST, Sharding
from . import ahead, beside, heads, updates
from .fori_loop import Lower, lower_loop
from .numbers import Numbers, Vectors
from .rows import Made, Row, as_stack, find_stretch, joined, made_of, plain, rows_on_device


class LoweringError(RuntimeError):
    """No program could be made; the message names the op and the user's line, `node` is the op (None: unknown)."""

    def __init__(self, message: str, node: Node | None):
        super().__init__(message)
        self.node = node


Values = dict[Value, Sequence[Made]]


def build(
    graph: Graph, describe: Callable[[Node], str], chosen: list[tuple[Node, Any]] | None = None
) -> Callable[..., tuple[jax.Array, ...]]:
    """The graph as a function of (buffers of `graph.inputs()`..., float64 vector, int64 vector) -> `graph.outputs()`,
    physical shapes.

    chosen: where given, receives (annotated node, the sharding that the partitioner gave it) during compilation.
    """
    lies = dict(zip(graph.leaves, graph.lies, strict=True))
    by_head = heads.find(graph)
    written = updates.Written.of(graph)
    wanted = ahead.find(graph)

    def program(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        *buffers, floats, integers = arguments
        values: Values = {}
        inputs = [
            (_take_in(graph, port, buffer, values), port.sharding)
            for port, buffer in zip(graph.inputs(), buffers, strict=True)
        ]
        with _telling(_Told(describe, chosen, by_head)), _known_to_lie(inputs):
            for column in graph.columns:
                _stack([graph.leaves[i] for i in column], lies, values)
            lower_nodes(graph.nodes, values, (floats, integers), lies, graph.loops, written, wanted)
        return tuple(_give_out(graph, port, values) for port in graph.outputs())

    return program


def _known_to_lie(arrays: Sequence[tuple[jax.Array, Sharding | None]]) -> contextlib.AbstractContextManager[None]:
    """For the rules that ask how an array is split (`ops.split`)."""
    return split.inside(
        [array for array, _ in arrays], [None if lies is None else lies.in_program() for _, lies in arrays]
    )


def _take_in(graph: Graph, port: Port, buffer: jax.Array, values: Values) -> jax.Array:
    """An argument as the values that it is, logical shapes."""
    assert port.sharding is not None, "every input lies somewhere"
    array = buffer if buffer.shape == port.meta.shape else cut(on_device(buffer), port.meta.shape)
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
        array = as_stack([made_of(value, values) for value in wanted])
    if port.sharding is None:
        return array
    is_even = port.sharding.padded_shape(port.meta.shape) == array.shape
    if is_even and port.sharding.memory == HOST == space_of(array) and not is_slice(array):
        return array  # written in place there
    # Placed by ourselves, as jit would pair results with donated arguments whatever memory these are in.
    return in_memory(pad(on_device(array), port.sharding, port.meta.shape), port.sharding.memory)


def _stack(leaves: Sequence[Leaf], lies: Mapping[Leaf, Sharding], values: Values) -> None:
    """Makes one array of leaves that are alike, and them its rows, unless they are neighbouring rows of one already."""
    given = [values[leaf][0] for leaf in leaves]
    if find_stretch(given) is not None:
        return
    lay, shape = lies[leaves[0]], leaves[0].meta.shape
    stack = joined(given)
    if lay.padded_shape(shape) == shape:
        stack = constrain(stack, lay.behind_rows())
    for row, (leaf, one) in enumerate(zip(leaves, given, strict=True)):
        values[leaf] = (Row(stack, row, one.plain if isinstance(one, Row) else one),)


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


@contextlib.contextmanager
def unreported() -> Iterator[None]:
    """What is traced inside is on one shard: the partitioner has nothing to tell of it."""
    with _telling(_tracing.told._replace(chosen=None)):
        yield


def lower_nodes(
    nodes: Sequence[Node],
    values: Values,
    numbers: Vectors,
    lies: Mapping[Leaf, Sharding | None],
    loops: Sequence[Loop] = (),
    written: updates.Written = updates.NOTHING,
    wanted: Mapping[int, ahead.Ahead] = MappingProxyType({}),
) -> None:
    """Lowers ops in order, of a program or of a region inside it; adds what they make to `values`.

    numbers: all of theirs, in the order of `pack_numbers`. lies: how each leaf is known to lie. loops: the stretches of
    which one turn is lowered; of their values those are added that others read. written: what comes of the results.
    wanted: what must be there before which op, the first of a loop.
    """
    told: _Told = _tracing.told
    packed = Numbers(*numbers)
    position = {node: index for index, node in enumerate(nodes)}

    def apply(
        node: Node, operands: list[Made], own: list[jax.Array], layouts: Layouts, lower: Lower | None = None
    ) -> Sequence[Made]:
        # The index lets an error that XLA raises late be traced back to this node (see `failing`).
        with jax.named_scope(f"{node.entry.name}#{position[node]}"):
            made = _apply(node, operands, own, layouts, told.describe, lower)
        if told.chosen is not None and node.entry.name == "mark_sharding":
            made = (_reported(node, plain(made[0]), told.chosen),)
        return made

    def layout_of(value: Value) -> Sharding | None:
        return _known_sharding(value, lies)

    def lower_one(node: Node) -> None:
        own, lower = packed.of(node.entry), None
        if node in told.heads:
            lower = told.heads[node].lowering(node, lambda value: plain(made_of(value, values)))
            if lower is None:
                return
        operands = [] if lower else [made_of(operand, values) for operand in node.operands]
        values[node] = apply(node, operands, own, list(map(layout_of, node.operands)), lower)
        for where in joins.get(node, ()):
            beside.join(*where, values)

    starts = {loop.start: loop for loop in loops}
    joins = beside.find(loops)
    done: set[Node] = set()
    end = 0
    for index, node in enumerate(nodes):
        if index in starts:
            loop = starts[index]
            if index in wanted:
                for one in wanted[index].ops:
                    lower_one(one)
                done.update(wanted[index].ops)
                ahead.have(wanted[index].values, loop, values)
            drawn = packed.of_turns([node.entry for node in loop.body()], loop.turns)
            lower_loop(loop, values, drawn, apply, layout_of, written.over)
            end = loop.stop
        if index >= end and node not in done:
            run = updates.lists_at(nodes, index, starts)
            found = updates.find(run, values, written) if run else []
            if found:
                position |= {step: position[step.of] for update in found for step in update.steps}
                owns = [packed.of(one.entry) for one in run]
                updates.lower(found, run, values, owns, apply, layout_of)
                end = index + len(run)
            else:
                lower_one(node)


def lower_region(
    region: Region, index: int, arrays: Sequence[jax.Array], numbers: Vectors, layouts: Layouts
) -> list[jax.Array]:
    """What a region makes of these arrays, one for each of its leaves. index: which of its op's regions it is.

    layouts: how each array is known to lie (None: unknown).
    """
    values: Values = {leaf: (array,) for leaf, array in zip(region.leaves, arrays, strict=True)}
    lie = _known_to_lie(list(zip(arrays, layouts, strict=True)))
    with body(), jax.named_scope(f"region{index}"), lie:
        lower_nodes(region.nodes, values, numbers, dict(zip(region.leaves, layouts, strict=True)))
    return [plain(made_of(root, values)) for root in region.roots]


# What XLA makes of a product of these is exact in the float32 that it accumulates in; asking for more would only cost.
_NARROW = frozenset({torch.bfloat16, torch.float16})


def _apply(
    node: Node,
    operands: list[Made],
    numbers: list[jax.Array],
    layouts: Layouts,
    describe: Callable[[Node], str],
    lower: Lower | None = None,
) -> Sequence[Made]:
    """The results of an op, by its own rule or by `lower`."""
    is_narrow = any(value.meta.dtype in _NARROW for value in node.operands)
    try:
        # An accelerator's own default for float32 is less than float32; see `core.precision` for who asks for that.
        with jax.default_matmul_precision(None if is_narrow else "highest"):
            takes_rows = node.entry.lowering.takes_rows
            if operands and not node.entry.lowering.any_memory:
                # Of a stack on the host only the row that is read is fetched, where the op takes no rows.
                operands = rows_on_device(operands if takes_rows else list(map(plain, operands)), layouts)
            if lower is not None:
                made = lower(list(map(plain, operands)))
            elif takes_rows:
                made = node.entry.lower(operands, numbers, layouts)  # type: ignore[arg-type]  # takes rows
            else:
                made = node.entry.lower(list(map(plain, operands)), numbers, layouts)
    except LoweringError as error:  # of an op in a region of this one, which it names
        raise LoweringError(str(error), node) from error
    except Exception as error:
        raise LoweringError(f"lowering {describe(node)} failed: {type(error).__name__}: {error}", node) from error
    for one, meta in zip(made, node.entry.metas, strict=True):
        if one is None:  # made by a loop of `updates`
            continue
        array = one.stack if isinstance(one, Row) else one
        shape = array.shape[1:] if isinstance(one, Row) else array.shape
        if shape != meta.struct.shape or array.dtype != meta.struct.dtype:
            raise LoweringError(
                f"the rule of {describe(node)} made {array.dtype}{list(shape)} where torch makes {meta!r}",
                node,
            )
    return made


def _known_sharding(value: Value, lies: Mapping[Leaf, Sharding | None]) -> Sharding | None:
    """How a value is known to lie: a buffer as it does, an annotated value as asked, if in all dims."""
    if isinstance(value, Leaf):
        return lies[value]
    asked = value.entry.sharding if isinstance(value, Node) and not value.entry.lowering.regions else None
    return None if asked is None or asked.is_open else asked


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

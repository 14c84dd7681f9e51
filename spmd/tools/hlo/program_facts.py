"""The facts of an optimised program: cycles, operations, kernels of a GPU, and its collectives and
moves with lines."""

import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core import Collective, Move, options
from ...core.extend import (
    Computation,
    Graph,
    Instruction,
    Module,
    Node,
    Program,
    hlo_text,
    user_lines,
)
from .hlo_collectives import (
    KINDS,
    Exchange,
    Exchanges,
    Key,
    PlacedCollective,
    bytes_of,
    collectives,
    key_of,
)
from .splash_calls import attention_flops, computed_share, is_attention
from .unrequested_moves import Placement, moves

# --- what a line of the compile log reads ---------------------------------------------------------


_COLLECTIVE = re.compile(rf"= .*? ({'|'.join(KINDS)})(-start)?\(")


def facts_of(program: Program) -> options.ProgramFacts:
    """Returns the operations of a program, the number of its collectives of each kind, these, and
    its moves."""
    graph, text = program.graph, program.executable.as_text()
    counts = Counter(match[1] for match in _COLLECTIVE.finditer(text))
    counted = options.num_flops(program.executable)
    # The compiler of a GPU that is only described counts nothing.
    is_counted = bool(counted) or graph.mesh.platform != "gpu"
    if not counts and " while(" not in text and _KERNEL not in text and is_counted:
        return options.ProgramFacts(counted, {})
    module = Module.of(program.executable)
    counted += repeated_flops(module) if is_counted else flops_of(module)
    if not counts:
        return options.ProgramFacts(counted, {})
    rows = collectives(module, graph)
    unused = "" if program.record is None else " ".join(program.record.unused_axes)
    return options.ProgramFacts(
        counted, dict(counts), exchanges(rows, graph), moves(module, graph, rows, unused)
    )


def tables_of(program: Program, above: int) -> tuple[tuple[Collective, ...], tuple[Move, ...]]:
    """Returns the collectives of a program and its moves of more than `above` bytes, with the lines
    of its run."""
    facts = program.facts
    return table(facts.exchanges, program.graph), listed(facts.moves, program.graph, above)


# of each collective the seconds, and those that nothing covers
Times = Mapping[Key, tuple[float, float]]


def exchanges(
    placed_collectives: Iterable[PlacedCollective], graph: Graph, times: Times | None = None
) -> Exchanges:
    """Returns a program's collectives by the recorded op (its place in the graph) that each came
    from, without lines: those belong to the run that recorded the ops, and the program may be
    reused by others.

    times: by the clock of a plan.
    """

    def row(collective: PlacedCollective) -> Collective:
        seconds, waiting = (times or {}).get(
            key_of(collective.computation, collective.line), (0.0, 0.0)
        )
        return dataclasses.replace(
            collective.row, op=_op(collective, graph), seconds=seconds, waiting=waiting
        )

    return tuple(_merged((row(collective), collective.node) for collective in placed_collectives))


def _op(collective: PlacedCollective, graph: Graph) -> str:
    """The op that a collective came from; of a combined one the number of its arrays and the op of
    the first one."""
    name = (
        ""
        if collective.node is None
        else user_lines.source_of(graph.nodes[collective.node]).op.name
    )
    if not collective.joined:
        return name
    is_backward = all(graph.nodes[index].sequence >= 0 for index in collective.joined)
    return (
        f"{len(collective.joined)} {'gradients' if is_backward else 'values'} combined, the first "
        f"of {name}"
    )


def table(
    exchange_rows: Exchanges, graph: Graph, paths: Callable[[Node], str] = lambda node: ""
) -> tuple[Collective, ...]:
    """Returns the table of a program's collectives: equal ones are one row, those that move most
    come first.

    paths: returns the path of the module that an op belongs to, or "".
    """
    rows: list[Exchange] = []
    lines = user_lines.lines_of(graph.nodes) if exchange_rows else []
    for row, index in exchange_rows:
        line = path = ""
        if index is not None:
            source = user_lines.source_of(node := graph.nodes[index])
            line = str(
                direct
                if (direct := user_lines.node_line(source)).code is not None
                else lines[index]
            )
            path = paths(node) if row.op == source.op.name else ""  # a combined one has several
        rows.append((dataclasses.replace(row, line=line, path=path), None))
    return tuple(sorted((row for row, _ in _merged(rows)), key=lambda row: -row.moved_bytes))


def _merged(exchange_rows: Iterable[Exchange]) -> Iterator[Exchange]:
    """Yields rows that are equal but for their counts and times as one."""
    sums: dict[Exchange, tuple[int, float, float]] = {}
    for row, node in exchange_rows:
        key = dataclasses.replace(row, count=1, seconds=0.0, waiting=0.0), node
        count, seconds, waiting = sums.get(key, (0, 0.0, 0.0))
        sums[key] = count + row.count, seconds + row.seconds, waiting + row.waiting
    for (row, node), (count, seconds, waiting) in sums.items():
        yield dataclasses.replace(row, count=count, seconds=seconds, waiting=waiting), node


def listed(
    placements: Iterable[Placement],
    graph: Graph,
    above: int,
    paths: Callable[[Node], str] = lambda node: "",
) -> tuple[Move, ...]:
    """Returns the moves with a collective of more than `above` bytes, with the lines of the ops of
    this graph; equal ones of a line and a module are one.

    paths: returns the path of the module that an op belongs to, or "".
    """
    merged: dict[Move, Move] = {}
    for move, node_index in placements:
        if move.largest > above:
            line = str(user_lines.line_of(graph.nodes[node_index], graph.nodes))
            equal = dataclasses.replace(
                move, line=line, path=paths(graph.nodes[node_index]), largest=0, bytes=0, count=0
            )
            former = merged.get(equal, equal)
            merged[equal] = dataclasses.replace(
                equal,
                largest=max(former.largest, move.largest),
                bytes=former.bytes + move.bytes,
                count=former.count + 1,
            )
    return tuple(sorted(merged.values(), key=lambda move: -move.bytes))


# --- cycles and operations ------------------------------------------------------------------------

_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')


def cycles(module: Module) -> tuple[int, int]:
    """Returns the estimated cycles of a run, and the same with each loop's body once; 0 if there
    are no estimates."""
    cycle_counts = [
        (computation.count, line_cycles(line)) for computation, line in module.lines(inner=False)
    ]
    return sum(count * number for count, number in cycle_counts), sum(
        number for _, number in cycle_counts
    )


def line_cycles(line: Instruction) -> int:
    """Returns the estimated cycles of one line; 0 without an estimate."""
    estimate = _CYCLES.search(line.tail)
    return 0 if estimate is None else int(estimate[1])


def exact_cycles(module: Module) -> int:
    """The estimated cycles of products of float32 without rounded operands, of all iterations."""
    return sum(
        part.count * line_cycles(line)
        for part, line in module.lines(inner=False)
        if any(_dtype(*product) == "f32" for product in _products(module, part, [line]))
    )


# The operations that the author of a kernel states (Pallas' `CostEstimate`), of a buffer with all
# of its rows.
_STATED = re.compile(r'"cost_estimate":\{[^}]*"flops":"?(\d+)')


def repeated_flops(module: Module) -> int:
    """The floating-point operations that XLA's own count omits: those of matrix products,
    convolutions and kernels in the iterations of loops after the first, less what a kernel states
    and does not compute."""
    return sum(
        computation.count * _line_flops(module, computation, line)
        - _counted_by_xla(module, computation, line)
        for computation, line in module.lines()
    )


def _counted_by_xla(module: Module, computation: Computation, line: Instruction) -> int:
    return (
        _stated_flops(line)
        if line.opcode == "custom-call"
        else _line_flops(module, computation, line)
    )


def kernels(module: Module) -> tuple[int, int]:
    """Of the kernels (Pallas) of a run, for which the TPU compiler estimates no cycles: the
    operations of those whose operations are known, and the number of calls of the others."""
    stated = unknown = 0
    for computation, line in module.lines():
        if _is_kernel(line):
            flops = kernel_flops(module, computation, line)
            stated += computation.count * flops
            unknown += computation.count * (not flops)
    return stated, unknown


def kernels_in_full(module: Module) -> int:
    """The number of calls of kernels that count all of their scores or rows, though they may
    compute fewer: attention whose mask is not known before the run, and grouped products whose
    scope states no rows."""
    return sum(
        computation.count
        for computation, line in module.lines()
        if (is_attention(line) and computed_share(module, computation, line) is None)
        or (_is_kernel(line) and _GROUPED.match(line.name) and not _ROWS.search(line.scope))
    )


def kernel_flops(module: Module, computation: Computation, line: Instruction) -> int:
    """The operations that one run of a kernel without cycles computes: of attention those of the
    blocks that its mask leaves, of grouped products those of the rows in their scope, of another
    its author's cost estimate; 0 for another line."""
    return _line_flops(module, computation, line) if _is_kernel(line) else 0


def _is_kernel(line: Instruction) -> bool:
    return line.opcode == "custom-call" and _KERNEL in line.tail and not line_cycles(line)


_KERNEL = 'custom_call_target="tpu_custom_call"'

_GROUPED = re.compile(r"t?gmm\b")

# The work of a grouped product depends on the router, so its caller states it in the scope of the
# call (`ops/kernels/grouped.py`): the rows in the blocks up to the last group.
_ROWS = re.compile(r"\brows=(\d+)")


def _line_flops(module: Module, computation: Computation, line: Instruction) -> int:
    if line.opcode in ("dot", "convolution"):
        return product_flops(computation, line)
    if line.opcode != "custom-call":
        return 0
    if is_attention(line):
        return attention_flops(module, computation, line)
    rows = _ROWS.search(line.scope) if _GROUPED.match(line.name) else None
    return (
        _stated_flops(line)
        if rows is None
        else 2 * int(rows[1]) * math.prod(_weight_of(computation, line))
    )


def _stated_flops(line: Instruction) -> int:
    stated = _STATED.search(line.tail)
    return 0 if stated is None else int(stated[1])


def _weight_of(computation: Computation, line: Instruction) -> tuple[int, ...]:
    """The sides of the weight of one group: of the operand, or the result, with a dim of groups."""
    shapes = [line.shape, *(computation.by_name[name].shape for name in line.operands)]
    return next(
        dims for shape in shapes for _, dims, _ in hlo_text.arrays(shape) if len(dims) == 3
    )[1:]


def product_flops(computation: Computation, line: Instruction) -> int:
    """The operations of one `dot` or `convolution`: two for each product of two elements."""
    lhs, rhs = (
        hlo_text.arrays(computation.by_name[name].shape)[0][1] for name in line.operands[:2]
    )
    result = hlo_text.arrays(line.shape)[0][1]
    if line.opcode == "dot":
        return (
            2
            * math.prod(result)
            * math.prod(lhs[dim] for dim in _dims(line, "lhs_contracting_dims"))
        )
    names = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", line.tail)
    assert names is not None, "every convolution has them"
    of_left, of_right, of_made = names.groups()
    total = 2 * result[of_made.index("b")] * result[of_made.index("f")] * rhs[of_right.index("i")]
    for dim in filter(str.isdigit, of_made):
        total *= _pairs(lhs[of_left.index(dim)], result[of_made.index(dim)], line, int(dim))
    return total


def _dims(line: Instruction, name: str) -> list[int]:
    dims = re.search(rf"{name}=\{{([\d,]*)\}}", line.tail)
    return [int(dim) for dim in dims[1].split(",") if dim] if dims is not None else []


def _window(line: Instruction, dim: int, name: str, default: int = 1) -> int:
    """Returns the size, stride, low padding or dilation of a window along a dim."""
    match = re.search(rf"window=\{{[^}}]*\b{name}=(\S+?)[ }}]", line.tail)
    return default if match is None else int(match[1].split("x")[dim].partition("_")[0])


def _pairs(length: int, num_results: int, line: Instruction, dim: int) -> int:
    """Counts the (result, window place) pairs along one dim that meet an element, not padding or a
    dilation's gap."""
    starts = np.arange(num_results) * _window(line, dim, "stride") - _window(line, dim, "pad", 0)
    gaps = _window(line, dim, "lhs_dilate")
    position = starts[:, None] + np.arange(_window(line, dim, "size")) * _window(
        line, dim, "rhs_dilate"
    )
    return int(((position >= 0) & (position % gaps == 0) & (position // gaps < length)).sum())


# --- kernels of a GPU -----------------------------------------------------------------------------

# XLA's GPU compiler gives no estimates with its result (`cost_analysis()` is None for devices that
# are only described), so both are counted from the optimised program: the operations of products,
# convolutions and attention from their shapes, the bytes from operands and results, of which a
# slice of an operand counts alone.


PRODUCT, CONVOLUTION, ATTENTION, OTHER = "products", "convolutions", "attention", "other kernels"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel. kind: one of the four above. dtype: of the operands of a product, as HLO spells
    it; "tf32" for float32 of less than its own precision. tiles: the blocks of 128 x 128 of a
    product's result. bytes: read and written."""

    kind: str
    dtype: str
    flops: int
    tiles: int
    bytes: int


# Instructions without a kernel of their own: names of memory, and calls whose lines count by
# themselves.
_NO_KERNEL = {
    "parameter", "constant", "bitcast", "tuple", "get-tuple-element", "partition-id", "replica-id",
    "after-all", "while", "call", "conditional", "opt-barrier", "domain", "add-dependency",
    "get-dimension-size",
}  # fmt: skip


def kernel_of(module: Module, computation: Computation, line: Instruction) -> Kernel | None:
    """The kernel of a line of a schedule; None for a line without one. Not for collectives."""
    if line.opcode in _NO_KERNEL or line.opcode.endswith(("-start", "-done", "-update")):
        return None
    moved = _bytes(module, computation, line)
    sizes = [
        (product_flops(*product), product) for product in _products(module, computation, [line])
    ]
    if sizes:
        widest = max(sizes, key=lambda entry: entry[0])[1]
        kind = CONVOLUTION if widest[1].opcode == "convolution" else PRODUCT
        return Kernel(
            kind, _dtype(*widest), sum(size for size, _ in sizes), _tiles(widest[1].shape), moved
        )
    return _library_call(computation, line, moved) or Kernel(OTHER, "", 0, 0, moved)


def flops_of(module: Module) -> float:
    """The operations of products, convolutions and attention in a run, every iteration of a loop
    counted."""
    kernels = (
        (part.count, kernel_of(module, part, line)) for part, line in module.lines(inner=False)
    )
    return float(sum(count * kernel.flops for count, kernel in kernels if kernel is not None))


def _products(
    module: Module, computation: Computation, lines: Iterable[Instruction]
) -> Iterator[tuple[Computation, Instruction]]:
    """Yields the products among these lines, and inside of their fusions."""
    for line in lines:
        if line.opcode in ("dot", "convolution"):
            yield computation, line
        elif line.opcode == "fusion":
            inner = module.computations[line.called[0][1]]
            yield from _products(module, inner, inner.lines)


def _dtype(computation: Computation, line: Instruction) -> str:
    """The dtype of a product's operands: the wider one."""
    dtypes = [hlo_text.arrays(computation.by_name[name].shape)[0][0] for name in line.operands[:2]]
    widest = "f64" if "f64" in dtypes else "f32" if "f32" in dtypes else dtypes[0]
    return "tf32" if widest == "f32" and "highest" not in line.tail else widest


_TILE = 128


def _tiles(shape: str) -> int:
    dims = hlo_text.arrays(shape)[0][1]
    rows, columns = (dims[-2] if len(dims) > 1 else 1), (dims[-1] if dims else 1)
    return math.prod(dims[:-2]) * -(-rows // _TILE) * -(-columns // _TILE)


# --- bytes ----------------------------------------------------------------------------------------

_PARTS = ("slice", "dynamic-slice", "gather")  # what reads only its result's size of an operand


def _bytes(module: Module, computation: Computation, line: Instruction) -> int:
    if line.opcode != "fusion":
        return bytes_of(computation, line)
    inner = module.computations[line.called[0][1]]
    parameters = [instruction for instruction in inner.lines if instruction.opcode == "parameter"]
    return sum(_read(inner, instruction) for instruction in parameters) + _written(
        inner, inner.lines[-1], line
    )


def _read(inner: Computation, parameter: Instruction) -> int:
    """The bytes that a fusion reads of one operand: of one that it only slices, the slices; of one
    that it updates in place, none."""
    whole, total = hlo_text.num_bytes(parameter.shape), 0
    todo = [parameter]
    while todo:
        value = todo.pop()
        for reader in inner.readers.get(value.name, ()):
            if reader.opcode == "bitcast":
                todo.append(reader)
            elif reader.opcode in _PARTS and reader.operands[0] == value.name:
                total += hlo_text.num_bytes(reader.shape)
            elif reader.opcode != "dynamic-update-slice" or reader.operands[0] != value.name:
                return whole
    return min(whole, total)


def _written(inner: Computation, root: Instruction, line: Instruction) -> int:
    """The bytes that a fusion writes: of a result that is updated in place, the update."""
    results = [inner.by_name[name] for name in root.operands] if root.opcode == "tuple" else [root]
    total = 0
    for result in results:
        while result.opcode == "bitcast" and result.operands[0] in inner.by_name:
            result = inner.by_name[result.operands[0]]
        written = (
            inner.by_name[result.operands[1]] if result.opcode == "dynamic-update-slice" else result
        )
        total += hlo_text.num_bytes(written.shape)
    return min(total, hlo_text.num_bytes(line.shape))


# --- calls of libraries ---------------------------------------------------------------------------


def _library_call(computation: Computation, line: Instruction, moved: int) -> Kernel | None:
    """The kernel of a call of cuBLAS or cuDNN; None for another line. moved: the bytes that it
    reads and writes."""
    name = line.tail.partition('custom_call_target="')[2].partition('"')[0]
    config = _config(line) if name else {}
    if name.startswith("__cublas$"):
        numbers = config["gemm_backend_config"]["dot_dimension_numbers"]
        lhs = hlo_text.arrays(computation.by_name[line.operands[0]].shape)[0][1]
        summed = math.prod(lhs[int(dim)] for dim in numbers["lhs_contracting_dimensions"])
        flops = 2 * math.prod(hlo_text.arrays(line.shape)[0][1]) * summed
        return Kernel(PRODUCT, _dtype(computation, line), flops, _tiles(line.shape), moved)
    if name.startswith("__cudnn$fmha"):
        return Kernel(
            ATTENTION, _dtype(computation, line), _cudnn_flops(computation, line, config), 0, moved
        )
    if name.startswith("__cudnn$conv"):
        return Kernel(
            CONVOLUTION, _dtype(computation, line), product_flops(computation, line), 0, moved
        )
    return None


def _config(line: Instruction) -> dict[str, Any]:
    text = line.tail.partition("backend_config=")[2]
    return json.JSONDecoder().raw_decode(text)[0] if text.startswith("{") else {}


def _cudnn_flops(computation: Computation, line: Instruction, config: dict[str, Any]) -> int:
    """The products of each visible score: of keys' width and of values' forward, three and two of
    them backward. Half of the scores are visible under causality, or a window of each row."""
    attention = config["cudnn_fmha_backend_config"]
    batch, heads, rows, columns = map(int, attention["intermediate_tensor_shape"]["dimensions"])
    query, value = (
        hlo_text.arrays(computation.by_name[line.operands[place]].shape)[0][1] for place in (0, 2)
    )
    is_backward = "Backward" in line.tail.partition("custom_call_target=")[2][:40]
    width = 3 * query[-1] + 2 * value[-1] if is_backward else query[-1] + value[-1]
    products = 2 * batch * heads * width
    window = int(attention.get("sliding_window_length", 0))
    if window:  # the first rows see less
        return products * (rows * window - window * (window - 1) // 2)
    share = 2 if "CAUSAL" in attention.get("mask_type", "") else 1
    return products * rows * columns // share

"""The kernels of a program for a GPU, in the order of its schedule: the operations and bytes of each.

XLA's GPU compiler gives no estimates with its result (`cost_analysis()` is None for devices that are only described),
so both are counted from the optimised program: the operations of products, convolutions and attention from their
shapes, the bytes from operands and results, of which a slice of an operand counts alone.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

from ...core.extend import Computation, Instruction, Module, hlo_text
from .costs import product_flops

PRODUCT, CONVOLUTION, ATTENTION, OTHER = "products", "convolutions", "attention", "other kernels"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel. kind: one of the four above. dtype: of the operands of a product, as HLO spells it; "tf32" for
    float32 of less than its own precision. tiles: the blocks of 128 x 128 of a product's result. bytes: read and
    written."""

    kind: str
    dtype: str
    flops: int
    tiles: int
    bytes: int


# Instructions without a kernel of their own: names of memory, and calls whose lines count by themselves.
_NO_KERNEL = {
    "parameter", "constant", "bitcast", "tuple", "get-tuple-element", "partition-id", "replica-id", "after-all",
    "while", "call", "conditional", "opt-barrier", "domain", "add-dependency", "get-dimension-size",
}  # fmt: skip


def kernel_of(module: Module, computation: Computation, line: Instruction) -> Kernel | None:
    """The kernel of a line of a schedule; None for a line without one. Not for collectives."""
    if line.opcode in _NO_KERNEL or line.opcode.endswith(("-start", "-done", "-update")):
        return None
    inner = module.computations[line.called[0][1]] if line.opcode == "fusion" else None
    products = _products(module, inner) if inner is not None else []
    if line.opcode in ("dot", "convolution"):
        products = [(computation, line)]
    moved = _bytes(computation, line, inner)
    if products:
        sizes = [(product_flops(*one), one) for one in products]
        widest = max(sizes, key=lambda one: one[0])[1]
        kind = CONVOLUTION if widest[1].opcode == "convolution" else PRODUCT
        return Kernel(kind, _dtype(*widest), sum(size for size, _ in sizes), _tiles(widest[1].shape), moved)
    called = _library_call(computation, line) if line.opcode == "custom-call" else None
    return called if called is not None else Kernel(OTHER, "", 0, 0, moved)


def flops_of(module: Module) -> float:
    """The operations of products, convolutions and attention in a run, every iteration of a loop counted."""
    found = 0
    for computation in module.computations.values():
        if computation.count and not computation.is_inner:
            kernels = (kernel_of(module, computation, line) for line in computation.lines)
            found += computation.count * sum(one.flops for one in kernels if one is not None)
    return float(found)


def _products(module: Module, inner: Computation) -> list[tuple[Computation, Instruction]]:
    found = []
    for line in inner.lines:
        if line.opcode in ("dot", "convolution"):
            found.append((inner, line))
        elif line.opcode == "fusion":
            found += _products(module, module.computations[line.called[0][1]])
    return found


def _dtype(computation: Computation, line: Instruction) -> str:
    """The dtype of a product's operands: the wider one."""
    dtypes = [hlo_text.arrays(computation.by_name[name].shape)[0][0] for name in line.operands[:2]]
    widest = "f64" if "f64" in dtypes else "f32" if "f32" in dtypes else dtypes[0]
    return "tf32" if widest == "f32" and "highest" not in line.rest else widest


_TILE = 128


def _tiles(shape: str) -> int:
    dims = hlo_text.arrays(shape)[0][1]
    rows, columns = (dims[-2] if len(dims) > 1 else 1), (dims[-1] if dims else 1)
    return math.prod(dims[:-2]) * -(-rows // _TILE) * -(-columns // _TILE)


# --- bytes ------------------------------------------------------------------------------------------------------------

_PARTS = ("slice", "dynamic-slice", "gather")  # what reads only its result's size of an operand


def _bytes(computation: Computation, line: Instruction, inner: Computation | None) -> int:
    if inner is None:
        return _size(computation, line) + sum(
            _size(computation, computation.by_name.get(name)) for name in line.operands
        )
    parameters = [one for one in inner.lines if one.opcode == "parameter"]
    return sum(_read(inner, one) for one in parameters) + _written(inner, inner.lines[-1], line)


def _size(computation: Computation, line: Instruction | None) -> int:
    return 0 if line is None else hlo_text.num_bytes(line.shape)


def _read(inner: Computation, parameter: Instruction) -> int:
    """The bytes that a fusion reads of one operand: of one that it only slices, the slices; of one that it updates in
    place, none."""
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
        written = inner.by_name[result.operands[1]] if result.opcode == "dynamic-update-slice" else result
        total += hlo_text.num_bytes(written.shape)
    return min(total, hlo_text.num_bytes(line.shape))


# --- calls of libraries -----------------------------------------------------------------------------------------------


def _library_call(computation: Computation, line: Instruction) -> Kernel | None:
    """The kernel of a call of cuBLAS or cuDNN; None for another."""
    name = line.rest.partition('custom_call_target="')[2].partition('"')[0]
    config = _config(line)
    moved = _bytes(computation, line, None)
    if name.startswith("__cublas$"):
        numbers = config["gemm_backend_config"]["dot_dimension_numbers"]
        left = hlo_text.arrays(computation.by_name[line.operands[0]].shape)[0][1]
        summed = math.prod(left[int(dim)] for dim in numbers["lhs_contracting_dimensions"])
        flops = 2 * math.prod(hlo_text.arrays(line.shape)[0][1]) * summed
        return Kernel(PRODUCT, _dtype(computation, line), flops, _tiles(line.shape), moved)
    if name.startswith("__cudnn$fmha"):
        return Kernel(ATTENTION, _dtype(computation, line), _attention_flops(computation, line, config), 0, moved)
    if name.startswith("__cudnn$conv"):
        return Kernel(CONVOLUTION, _dtype(computation, line), product_flops(computation, line), 0, moved)
    return None


def _config(line: Instruction) -> dict[str, Any]:
    text = line.rest.partition("backend_config=")[2]
    return json.JSONDecoder().raw_decode(text)[0] if text.startswith("{") else {}


def _attention_flops(computation: Computation, line: Instruction, config: dict[str, Any]) -> int:
    """Two products of (length x length x head) a head forward, five backward; half of them where a mask is causal."""
    attention = config["cudnn_fmha_backend_config"]
    batch, heads, rows, columns = map(int, attention["intermediate_tensor_shape"]["dimensions"])
    query = hlo_text.arrays(computation.by_name[line.operands[0]].shape)[0][1]
    products = 5 if "Backward" in line.rest.partition("custom_call_target=")[2][:40] else 2
    share = 2 if "CAUSAL" in attention.get("mask_type", "") else 1
    return products * 2 * batch * heads * rows * columns * query[-1] // share

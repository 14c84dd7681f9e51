"""The operations of jax's splash attention, of any caller: by the mask and the block sizes that its
calls hold."""

import itertools
import math
import re

import numpy as np

from ...core.extend import Computation, Instruction, Module, hlo_text

# A part of the kernel, and the names of the rows and columns of its blocks among the metadata of a
# call.
_PART = re.compile(r"splash_m[hq]a_(fwd|dkv|dq)")
_SIDES = {
    part: ("block_q" + end, "block_kv" + end)
    for part, end in (("fwd", ""), ("dkv", "_dkv"), ("dq", "_dq"))
}
# The products of a part: how many sum over the dim of keys, and over that of values. The backward
# ones compute the scores again.
_PRODUCTS = {"fwd": (1, 1), "dkv": (2, 2), "dq": (2, 1), "all": (3, 2)}


def is_attention(line: Instruction) -> bool:
    """True for a part of splash attention."""
    return line.opcode == "custom-call" and _PART.match(line.name) is not None


def attention_flops(module: Module, computation: Computation, line: Instruction) -> int:
    """The operations of one run of a part; without a mask that is known before the run, of all
    scores."""
    part, query, key, value = _part(line), *_operands(computation, line)
    # A backward for all gradients has that of the queries in parts.
    has_parts = any(len(dims) > len(query) for _, dims, _ in hlo_text.arrays(line.shape))
    of_keys, of_values = _PRODUCTS["all" if part == "dkv" and has_parts else part]
    share = computed_share(module, computation, line)
    scores = round(query[-2] * key[-2] * (1 if share is None else share))
    return 2 * math.prod(query[:-2]) * scores * (of_keys * query[-1] + of_values * value[-1])


def computed_share(module: Module, computation: Computation, line: Instruction) -> float | None:
    """The share of all scores in the blocks that the mask leaves, on the device with most; a block
    is computed whole. None: the program computes the mask and states no share, or the call does
    not state its block sizes."""
    shapes = [hlo_text.arrays(computation.by_name[name].shape)[0] for name in line.operands]
    # Before the queries: the next block to read, the kind of each block (0: masked), the next
    # partial mask.
    info = list(itertools.takewhile(lambda shape: shape[0][0] in "su", shapes))
    if len(info) < 2:
        return 1.0
    sides = [
        match[1]
        for name in _SIDES[_part(line)]
        if (match := re.search(rf'\\"{name}\\": (\d+)', line.tail))
    ]
    kinds, dims = _constant(module, computation, line.operands[1]), info[1][1]
    if kinds is not None and kinds.size == math.prod(dims):
        kinds = kinds.reshape(dims)
    if kinds is None and (stated := _SHARE.search(line.scope)):
        return float(stated[1])
    if kinds is None or len(sides) != 2 or kinds.ndim != len(dims):
        return None
    # Of each dim the devices, and the blocks of one of them.
    shards = [
        length for size, dim in zip(kinds.shape, dims, strict=True) for length in (size // dim, dim)
    ]
    if math.prod(shards) != kinds.size:
        return None
    blocks = np.count_nonzero(kinds.reshape(shards), axis=(1, 3, 5)).max() / dims[0]
    query, key, _ = _operands(computation, line)
    return float(blocks) * math.prod(map(int, sides)) / (query[-2] * key[-2])


# The share of a call whose blocks depend on data, as its caller states it
# (`ops/kernels/splash.py`).
_SHARE = re.compile(r"\bshare=([\d.]+)")


def _part(line: Instruction) -> str:
    match = _PART.match(line.name)
    assert match is not None, "is_attention"
    return match[1]


def _operands(computation: Computation, line: Instruction) -> list[tuple[int, ...]]:
    """The dims of query, key and value."""
    shapes = (hlo_text.arrays(computation.by_name[name].shape)[0] for name in line.operands)
    return [dims for dtype, dims, _ in shapes if dtype in ("bf16", "f32")][:3]


# Opcodes of a copy, or of a part, of their first operand; also as a pair of -start and -done.
_COPIES = {
    "copy",
    "bitcast",
    "reshape",
    "convert",
    "optimization-barrier",
    "slice",
    "dynamic-slice",
    "while",
}
_INDEX = re.compile(r"\bindex=(\d+)")


def _constant(
    module: Module, computation: Computation, name: str, index: int = 0
) -> np.ndarray | None:
    """The constant of which a value is a copy or a slice, also through tuples, loops and calls;
    None for another value.

    index: of an element of a tuple. A carry counts as its initial value.
    """
    line = computation.by_name[name]
    if line.opcode == "constant":
        return line.values
    if line.opcode == "broadcast" and computation.by_name[line.operands[0]].shape.partition("]")[
        0
    ].endswith("["):
        scalar = _constant(module, computation, line.operands[0])
        return None if scalar is None else np.full(hlo_text.arrays(line.shape)[0][1], scalar)
    if line.opcode == "get-tuple-element" and (match := _INDEX.search(line.tail)) is not None:
        return _constant(module, computation, line.operands[0], int(match[1]))
    if line.opcode == "tuple":
        return _constant(module, computation, line.operands[index], 0)
    if line.opcode in ("fusion", "call"):
        inner = module.computations[line.called[0][1]]
        return _constant(module, inner, inner.lines[-1].name, index)
    if line.opcode == "parameter" and computation.caller is not None:
        outer, call = computation.caller
        number = int(line.arguments)
        if call.opcode == "conditional":
            number = 1 + [branch for _, branch in call.called].index(computation.name)
        return _constant(module, outer, call.operands[number], index)
    is_copy = line.opcode.removesuffix("-start").removesuffix("-done") in _COPIES
    return _constant(module, computation, line.operands[0], index) if is_copy else None

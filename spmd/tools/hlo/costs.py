"""The costs of an optimised program: the cycles that the TPU compiler estimates, the operations in loops."""

import math
import re

import numpy as np

from ...core.extend import Computation, Instruction, Module, hlo_text

_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')


def cycles(module: Module) -> tuple[int, int]:
    """Returns the estimated cycles of a run, and the same with each loop's body once; 0 if there are no estimates."""
    total = once = 0
    for computation in module.computations.values():
        if computation.is_inner or not computation.count:
            continue
        own = sum(map(line_cycles, computation.lines))
        total += computation.count * own
        once += own
    return total, once


def line_cycles(line: Instruction) -> int:
    """Returns the estimated cycles of one line; 0 without an estimate."""
    found = _CYCLES.search(line.rest)
    return 0 if found is None else int(found[1])


# The operations that the author of a kernel states (Pallas' `CostEstimate`), of a buffer with all of its rows.
_STATED = re.compile(r'"cost_estimate":\{[^}]*"flops":"?(\d+)')


def repeated_flops(module: Module) -> int:
    """The floating-point operations that XLA's own count omits: those of matrix products, convolutions and kernels in
    the iterations of loops after the first, less what a kernel states and does not compute."""
    return sum(
        computation.count * _line_flops(computation, line) - _counted_by_xla(computation, line)
        for computation in module.computations.values()
        for line in computation.lines
    )


def _counted_by_xla(computation: Computation, line: Instruction) -> int:
    return _stated_flops(line) if line.opcode == "custom-call" else _line_flops(computation, line)


def kernels(module: Module) -> tuple[int, int]:
    """Of the kernels (Pallas) of a run, for which the TPU compiler estimates no cycles: the operations of those whose
    operations are known, and the number of calls of the others."""
    stated = unknown = 0
    for computation in module.computations.values():
        for line in computation.lines:
            if _is_kernel(line):
                flops = kernel_flops(computation, line)
                stated += computation.count * flops
                unknown += computation.count * (not flops)
    return stated, unknown


def kernel_flops(computation: Computation, line: Instruction) -> int:
    """The operations that one run of a kernel without cycles computes: of the library's own by what their scope says,
    of a user's by his cost estimate; 0 for another line."""
    return _line_flops(computation, line) if _is_kernel(line) else 0


def is_attention(line: Instruction) -> bool:
    """True for a part of jax's splash attention."""
    return line.opcode == "custom-call" and _SPLASH.match(line.name) is not None


def _is_kernel(line: Instruction) -> bool:
    return line.opcode == "custom-call" and _KERNEL in line.rest and not line_cycles(line)


_KERNEL = 'custom_call_target="tpu_custom_call"'

# The products of a part of jax's splash attention: how many sum over the dim of keys, and over that of values. The
# backward ones compute the scores again.
_SPLASH = re.compile(r"splash_m[hq]a_(fwd|dkv|dq)")
_PRODUCTS = {"fwd": (1, 1), "dkv": (2, 2), "dq": (2, 1), "all": (3, 2)}
_GROUPED = re.compile(r"t?gmm\b")

# What a kernel computes, in the scope of its call (`core/ops/kernels`): the scores of a head in the blocks that the
# mask leaves; the rows of a grouped product in the blocks up to the last group.
_SCORES, _ROWS = re.compile(r"\bscores=(\d+)"), re.compile(r"\brows=(\d+)")


def _line_flops(computation: Computation, line: Instruction) -> int:
    if line.opcode in ("dot", "convolution"):
        return product_flops(computation, line)
    if line.opcode != "custom-call":
        return 0
    if (part := _SPLASH.match(line.name)) is not None:
        return _attention_flops(computation, line, part[1])
    rows = _ROWS.search(line.scope) if _GROUPED.match(line.name) else None
    return _stated_flops(line) if rows is None else 2 * int(rows[1]) * math.prod(_weight_of(computation, line))


def _stated_flops(line: Instruction) -> int:
    stated = _STATED.search(line.rest)
    return 0 if stated is None else int(stated[1])


def _attention_flops(computation: Computation, line: Instruction, part: str) -> int:
    """The operations of one run of a part of jax's splash attention; without a scope that says less, of all scores."""
    shapes = (hlo_text.arrays(computation.by_name[name].shape)[0] for name in line.operands)
    query, key, value = [dims for dtype, dims, _ in shapes if dtype in ("bf16", "f32")][:3]
    # A backward for all gradients has that of the queries in parts.
    has_parts = any(len(dims) > len(query) for _, dims, _ in hlo_text.arrays(line.shape))
    of_keys, of_values = _PRODUCTS["all" if part == "dkv" and has_parts else part]
    computed = _SCORES.search(line.scope)
    scores = query[-2] * key[-2] if computed is None else int(computed[1])
    return 2 * math.prod(query[:-2]) * scores * (of_keys * query[-1] + of_values * value[-1])


def _weight_of(computation: Computation, line: Instruction) -> tuple[int, ...]:
    """The sides of the weight of one group: of the operand, or the result, with a dim of groups."""
    shapes = [line.shape, *(computation.by_name[name].shape for name in line.operands)]
    return next(dims for shape in shapes for _, dims, _ in hlo_text.arrays(shape) if len(dims) == 3)[1:]


def product_flops(computation: Computation, line: Instruction) -> int:
    """The operations of one `dot` or `convolution`: two for each product of two elements."""
    left, right = (hlo_text.arrays(computation.by_name[name].shape)[0][1] for name in line.operands[:2])
    result = hlo_text.arrays(line.shape)[0][1]
    if line.opcode == "dot":
        return 2 * math.prod(result) * math.prod(left[dim] for dim in _dims(line, "lhs_contracting_dims"))
    names = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", line.rest)
    assert names is not None, "every convolution has them"
    of_left, of_right, of_made = names.groups()
    windows = _window(line, sum(letter.isdigit() for letter in of_made))
    total = 2 * result[of_made.index("b")] * result[of_made.index("f")] * right[of_right.index("i")]
    for number, window in enumerate(windows):
        letter = str(number)
        total *= _pairs(left[of_left.index(letter)], result[of_made.index(letter)], window)
    return total


def _dims(line: Instruction, name: str) -> list[int]:
    found = re.search(rf"{name}=\{{([\d,]*)\}}", line.rest)
    return [int(dim) for dim in found[1].split(",") if dim] if found is not None else []


def _window(line: Instruction, rank: int) -> list[dict[str, tuple[int, ...]]]:
    """Returns for each dim of a window its size, stride, padding and dilations."""
    found = re.search(r"window=\{([^}]*)\}", line.rest)
    fields = dict(part.split("=") for part in found[1].split()) if found is not None else {}
    windows: list[dict[str, tuple[int, ...]]] = [{} for _ in range(rank)]
    for name, text in fields.items():
        for window, part in zip(windows, text.split("x"), strict=False):
            window[name] = tuple(map(int, part.split("_")))
    return windows


def _pairs(length: int, made: int, window: dict[str, tuple[int, ...]]) -> int:
    """Counts the (result, window place) pairs along one dim that meet an element, not padding or a dilation's gap."""
    (size,), (stride,) = window.get("size", (1,)), window.get("stride", (1,))
    low = window.get("pad", (0, 0))[0]
    (gaps,), (spread,) = window.get("lhs_dilate", (1,)), window.get("rhs_dilate", (1,))
    place = np.arange(made)[:, None] * stride - low + np.arange(size)[None, :] * spread
    return int(((place >= 0) & (place % gaps == 0) & (place // gaps < length)).sum())

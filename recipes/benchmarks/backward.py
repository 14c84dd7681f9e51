"""Compare our backward rules with `jax.vjp` of the same function, by the figures of the compiled
programs.

    python recipes/benchmarks/backward.py                       # every case
    python recipes/benchmarks/backward.py --cases 'norm|gelu'   # those whose name matches
    python recipes/benchmarks/backward.py --batch 1024          # larger

Each case is one program of a forward pass and its gradients: ours recorded as a user runs it
(torch's function and torch's autograd on the device), the other `jax.vjp` of the function as it is
written in JAX, of the same arrays and the same cotangent. Every entry is ours / theirs; the lines
below the table name the cases where ours does more, and why. The counts are XLA's own of the
compiled program on this machine's CPU. StableHLO ops are counted in XLA's input, each private
function once.
"""

import argparse
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

# isort: off
import spmd  # before jax: it sets environment variables that XLA reads when jax is imported
import jax

# isort: on
import jax.numpy as jnp
from jax import lax

from spmd.core.programs import cache
from spmd.core.run.pjrt.transfer import host_array
from spmd.core.sharding.partitioner import compiler_context

EPS = 1e-5

Function = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """One function in torch and in JAX. Floating-point `inputs` get gradients; `constants` (class
    weights) do not."""

    torch: Function
    jax: Function
    inputs: tuple[Tensor, ...]
    constants: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Cost:
    """XLA's figures of one compiled program, and the number of operations of its input."""

    operations: int
    flops: float
    transcendentals: float
    bytes_accessed: float
    temporary_bytes: int


FIGURES = ("flops", "transcendentals", "bytes_accessed", "temporary_bytes")


# -- The functions as they are written in JAX, where `jax.nn` has none.


def layer_norm(x, weight, bias):
    mean, variance = jnp.mean(x, -1, keepdims=True), jnp.var(x, -1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + EPS) * weight + bias


def rms_norm(x, weight):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPS) * weight


def group_norm(x, weight, bias, groups):
    grouped = x.reshape(x.shape[0], groups, -1)
    mean, variance = jnp.mean(grouped, -1, keepdims=True), jnp.var(grouped, -1, keepdims=True)
    normalized = ((grouped - mean) * lax.rsqrt(variance + EPS)).reshape(x.shape)
    return normalized * weight[:, None, None] + bias[:, None, None]


def batch_norm(x, weight, bias):
    mean, variance = jnp.mean(x, (0, 2, 3), keepdims=True), jnp.var(x, (0, 2, 3), keepdims=True)
    return (x - mean) * lax.rsqrt(variance + EPS) * weight[:, None, None] + bias[:, None, None]


def nll(log_probabilities, target):
    return -jnp.mean(jnp.take_along_axis(log_probabilities, target[:, None], 1))


def cross_entropy(logits, target, weight=None, smoothing=0.0, ignored=-100):
    log_probabilities = jax.nn.log_softmax(logits)
    kept = target != ignored
    classes = jnp.where(kept, target, 0)
    each = kept.astype(logits.dtype) if weight is None else jnp.where(kept, weight[classes], 0)
    total = jnp.sum(each)
    loss = (
        -jnp.sum(each * jnp.take_along_axis(log_probabilities, classes[:, None], 1)[:, 0]) / total
    )
    if not smoothing:
        return loss
    rows = jnp.sum(log_probabilities if weight is None else log_probabilities * weight, axis=1)
    return (1 - smoothing) * loss - smoothing / logits.shape[1] * jnp.sum(
        jnp.where(kept, rows, 0)
    ) / total


def bce_with_logits(x, target):
    return jnp.mean(jnp.maximum(x, 0) - x * target + jnp.log1p(jnp.exp(-jnp.abs(x))))


LAYOUTS = {3: ("NCW", "OIW", "NCW"), 4: ("NCHW", "OIHW", "NCHW")}


def conv(x, weight, bias, stride=1, padding=0, dilation=1, groups=1):
    rank = x.ndim - 2
    made = lax.conv_general_dilated(
        x,
        weight,
        (stride,) * rank,
        [(padding, padding)] * rank,
        rhs_dilation=(dilation,) * rank,
        dimension_numbers=LAYOUTS[x.ndim],
        feature_group_count=groups,
    )
    return made + bias.reshape(-1, *[1] * rank)


def conv_transpose(x, weight, bias, stride, padding):
    rank, reach = x.ndim - 2, weight.shape[2] - 1 - padding
    made = lax.conv_general_dilated(
        x,
        jnp.flip(weight, tuple(range(2, weight.ndim))).swapaxes(0, 1),
        (1,) * rank,
        [(reach, reach)] * rank,
        lhs_dilation=(stride,) * rank,
        dimension_numbers=LAYOUTS[x.ndim],
    )
    return made + bias.reshape(-1, *[1] * rank)


def max_pool(x, window, stride, padding):
    pads = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    return lax.reduce_window(
        x, -jnp.inf, lax.max, (1, 1, window, window), (1, 1, stride, stride), pads
    )


def avg_pool(x, window, stride, padding):
    pads = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    return (
        lax.reduce_window(x, 0.0, lax.add, (1, 1, window, window), (1, 1, stride, stride), pads)
        / window**2
    )


def adaptive_avg_pool(x, count):
    for axis in (2, 3):
        size = x.shape[axis]
        parts = [
            jnp.mean(
                lax.slice_in_dim(x, i * size // count, -(-(i + 1) * size // count), axis=axis), axis
            )
            for i in range(count)
        ]
        x = jnp.stack(parts, axis)
    return x


def scatter_add(x, index, source):
    return x.at[index, jnp.arange(x.shape[1])].add(source)


def mish(x):
    return x * jnp.tanh(jax.nn.softplus(x))


def cases(batch: int = 64) -> dict[str, Case]:
    """Every case by name; `batch` is the leading dim of most inputs."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    def below(limit, *shape):
        return torch.randint(limit, shape, generator=generator)

    rows, wide = normal(batch, 16, 128), normal(batch, 256)
    images, channels = normal(batch, 16, 14, 14), (normal(16), normal(16))
    target = below(256, batch)
    ignoring = torch.where(torch.arange(batch) % 4 == 0, -100, target)
    weights = torch.rand(256, generator=generator) + 0.5

    made = {
        "softmax": Case(lambda x: F.softmax(x, -1), jax.nn.softmax, (rows,)),
        "softmax, middle dim": Case(
            lambda x: F.softmax(x, 1), lambda x: jax.nn.softmax(x, axis=1), (rows,)
        ),
        "softmax, bfloat16": Case(lambda x: F.softmax(x, -1), jax.nn.softmax, (rows.bfloat16(),)),
        "log_softmax": Case(lambda x: F.log_softmax(x, -1), jax.nn.log_softmax, (rows,)),
        "logsumexp": Case(
            lambda x: torch.logsumexp(x, -1), lambda x: jax.nn.logsumexp(x, -1), (rows,)
        ),
        "layer_norm": Case(
            lambda x, w, b: F.layer_norm(x, (128,), w, b, EPS),
            layer_norm,
            (rows, normal(128), normal(128)),
        ),
        "layer_norm, bfloat16": Case(
            lambda x, w, b: F.layer_norm(x, (128,), w, b, EPS),
            lambda x, w, b: layer_norm(*(v.astype(jnp.float32) for v in (x, w, b))).astype(x.dtype),
            (rows.bfloat16(), normal(128).bfloat16(), normal(128).bfloat16()),
        ),
        "rms_norm": Case(lambda x, w: F.rms_norm(x, (128,), w, EPS), rms_norm, (rows, normal(128))),
        "group_norm": Case(
            lambda x, w, b: F.group_norm(x, 4, w, b, EPS),
            lambda x, w, b: group_norm(x, w, b, 4),
            (images, *channels),
        ),
        "batch_norm": Case(
            lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True, eps=EPS),
            batch_norm,
            (images, *channels),
        ),
        "cross_entropy": Case(F.cross_entropy, cross_entropy, (wide, target)),
        "cross_entropy, ignore_index": Case(F.cross_entropy, cross_entropy, (wide, ignoring)),
        "cross_entropy, weights": Case(
            lambda x, t, w: F.cross_entropy(x, t, w), cross_entropy, (wide, ignoring), (weights,)
        ),
        "cross_entropy, label_smoothing": Case(
            lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
            lambda x, t: cross_entropy(x, t, smoothing=0.1),
            (wide, ignoring),
        ),
        "cross_entropy, weights, label_smoothing": Case(
            lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.1),
            lambda x, t, w: cross_entropy(x, t, w, 0.1),
            (wide, ignoring),
            (weights,),
        ),
        "cross_entropy, bfloat16": Case(
            F.cross_entropy,
            lambda x, t: cross_entropy(x.astype(jnp.float32), t).astype(x.dtype),
            (wide.bfloat16(), target),
        ),
        "nll_loss": Case(F.nll_loss, nll, (wide, target)),
        "mse_loss": Case(
            F.mse_loss, lambda x, t: jnp.mean((x - t) ** 2), (wide,), (normal(batch, 256),)
        ),
        "mse_loss, both gradients": Case(
            F.mse_loss, lambda x, t: jnp.mean((x - t) ** 2), (wide, normal(batch, 256))
        ),
        "l1_loss": Case(
            F.l1_loss, lambda x, t: jnp.mean(jnp.abs(x - t)), (wide,), (normal(batch, 256),)
        ),
        "binary_cross_entropy_with_logits": Case(
            F.binary_cross_entropy_with_logits,
            bce_with_logits,
            (wide,),
            (torch.rand(batch, 256, generator=generator),),
        ),
        "conv1d": Case(
            lambda x, w, b: F.conv1d(x, w, b, padding=1),
            lambda x, w, b: conv(x, w, b, padding=1),
            (rows, normal(32, 16, 3), normal(32)),
        ),
        "conv2d": Case(
            lambda x, w, b: F.conv2d(x, w, b, padding=1),
            lambda x, w, b: conv(x, w, b, padding=1),
            (images, normal(32, 16, 3, 3), normal(32)),
        ),
        "conv2d, stride": Case(
            lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1),
            lambda x, w, b: conv(x, w, b, stride=2, padding=1),
            (images, normal(32, 16, 3, 3), normal(32)),
        ),
        "conv2d, dilation": Case(
            lambda x, w, b: F.conv2d(x, w, b, padding=2, dilation=2),
            lambda x, w, b: conv(x, w, b, padding=2, dilation=2),
            (images, normal(32, 16, 3, 3), normal(32)),
        ),
        "conv2d, groups": Case(
            lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=4),
            lambda x, w, b: conv(x, w, b, padding=1, groups=4),
            (images, normal(32, 4, 3, 3), normal(32)),
        ),
        "conv2d, depthwise": Case(
            lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=16),
            lambda x, w, b: conv(x, w, b, padding=1, groups=16),
            (images, normal(16, 1, 3, 3), normal(16)),
        ),
        "conv_transpose1d": Case(
            lambda x, w, b: F.conv_transpose1d(x, w, b, stride=2, padding=1),
            lambda x, w, b: conv_transpose(x, w, b, 2, 1),
            (rows, normal(16, 8, 4), normal(8)),
        ),
        "conv_transpose2d": Case(
            lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1),
            lambda x, w, b: conv_transpose(x, w, b, 2, 1),
            (images, normal(16, 8, 4, 4), normal(8)),
        ),
        "max_pool2d": Case(lambda x: F.max_pool2d(x, 2), lambda x: max_pool(x, 2, 2, 0), (images,)),
        "max_pool2d, overlapping": Case(
            lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: max_pool(x, 3, 2, 1), (images,)
        ),
        "avg_pool2d": Case(lambda x: F.avg_pool2d(x, 2), lambda x: avg_pool(x, 2, 2, 0), (images,)),
        "avg_pool2d, overlapping": Case(
            lambda x: F.avg_pool2d(x, 3, 2, 1), lambda x: avg_pool(x, 3, 2, 1), (images,)
        ),
        "adaptive_avg_pool2d": Case(
            lambda x: F.adaptive_avg_pool2d(x, 7), lambda x: adaptive_avg_pool(x, 7), (images,)
        ),
        "adaptive_avg_pool2d, uneven": Case(
            lambda x: F.adaptive_avg_pool2d(x, 5), lambda x: adaptive_avg_pool(x, 5), (images,)
        ),
        "adaptive_avg_pool2d, whole": Case(
            lambda x: F.adaptive_avg_pool2d(x, 1),
            lambda x: jnp.mean(x, (2, 3), keepdims=True),
            (images,),
        ),
        "embedding": Case(
            lambda w, i: F.embedding(i, w),
            lambda w, i: jnp.take(w, i, axis=0),
            (normal(512, 64), below(512, batch, 16)),
        ),
        "embedding, padding_idx": Case(
            lambda w, i: F.embedding(i, w, padding_idx=3),
            lambda w, i: jnp.take(
                jnp.concatenate([w[:3], lax.stop_gradient(w[3:4]), w[4:]]), i, axis=0
            ),
            (normal(512, 64), below(512, batch, 16)),
        ),
        "gather": Case(
            lambda x, i: torch.gather(x, 1, i),
            lambda x, i: jnp.take_along_axis(x, i, 1),
            (wide, below(256, batch, 32)),
        ),
        "index_select": Case(
            lambda x, i: torch.index_select(x, 1, i),
            lambda x, i: jnp.take(x, i, axis=1),
            (wide, below(256, 32)),
        ),
        "index": Case(
            lambda x, i: x[i], lambda x, i: x[i], (normal(512, 64), below(512, batch, 4))
        ),
        "index_put, accumulate": Case(
            lambda x, i, v: x.index_put((i,), v, accumulate=True),
            lambda x, i, v: x.at[i].add(v),
            (normal(512, 64), below(512, batch), normal(batch, 64)),
        ),
        "index_put": Case(
            lambda x, i, v: x.index_put((i,), v),
            lambda x, i, v: x.at[i].set(v, unique_indices=True),
            (
                normal(4 * batch, 64),
                torch.randperm(4 * batch, generator=generator)[:batch],
                normal(batch, 64),
            ),
        ),
        "index_add": Case(
            lambda x, i, v: x.index_add(0, i, v),
            lambda x, i, v: x.at[i].add(v),
            (normal(512, 64), below(512, batch), normal(batch, 64)),
        ),
        "scatter_add": Case(
            lambda x, i, s: x.scatter_add(0, i, s),
            scatter_add,
            (normal(512, 64), below(512, batch, 64), normal(batch, 64)),
        ),
        "cumsum": Case(lambda x: torch.cumsum(x, 1), lambda x: jnp.cumsum(x, 1), (rows,)),
        "var": Case(lambda x: torch.var(x, -1), lambda x: jnp.var(x, -1, ddof=1), (rows,)),
        "std": Case(lambda x: torch.std(x, -1), lambda x: jnp.std(x, -1, ddof=1), (rows,)),
        "norm": Case(
            lambda x: torch.linalg.vector_norm(x, dim=-1),
            lambda x: jnp.linalg.norm(x, axis=-1),
            (rows,),
        ),
        "norm, whole": Case(
            torch.linalg.vector_norm, lambda x: jnp.linalg.norm(x.reshape(-1)), (rows,)
        ),
    }
    activations: dict[str, tuple[Function, Function]] = {
        "gelu": (F.gelu, lambda x: jax.nn.gelu(x, approximate=False)),
        "gelu, tanh": (lambda x: F.gelu(x, approximate="tanh"), jax.nn.gelu),
        "silu": (F.silu, jax.nn.silu),
        "relu": (F.relu, jax.nn.relu),
        "leaky_relu": (F.leaky_relu, jax.nn.leaky_relu),
        "elu": (F.elu, jax.nn.elu),
        "softplus": (F.softplus, jax.nn.softplus),
        "mish": (F.mish, mish),
        "hardswish": (F.hardswish, jax.nn.hard_swish),
        "sigmoid": (torch.sigmoid, jax.nn.sigmoid),
        "logsigmoid": (F.logsigmoid, jax.nn.log_sigmoid),
        "tanh": (torch.tanh, jnp.tanh),
        "glu": (F.glu, jax.nn.glu),
    }
    return made | {
        name: Case(ours, theirs, (rows,)) for name, (ours, theirs) in activations.items()
    }


# -- Both sides, compiled.


def _cost(stablehlo: str, executable: Any) -> Cost:
    figures, memory = executable.cost_analysis(), executable.memory_analysis()
    return Cost(
        len(re.findall(r"\bstablehlo\.(?!return\b|constant\b)\w+", stablehlo)),
        *(figures.get(name, 0.0) for name in ("flops", "transcendentals", "bytes accessed")),
        memory.temp_size_in_bytes,
    )


def _cotangent(case: Case) -> Tensor:
    """The cotangent of the result: an operand, so that neither side can fold it as a constant."""
    return torch.rand_like(case.torch(*case.inputs, *case.constants)) + 0.5


def ours(case: Case) -> Cost:
    """The cost of the case recorded on the device, as one program of result and gradients."""
    cotangent = _cotangent(case).to("xla")
    inputs = [x.to("xla").requires_grad_(x.is_floating_point()) for x in case.inputs]
    constants = [x.to("xla") for x in case.constants]
    spmd.sync()  # so that the program has no earlier ops
    result = case.torch(*inputs, *constants)
    # Not `.backward()`: where a gradient is the cotangent itself, `.grad` would copy it, and JAX
    # returns it.
    gradients = torch.autograd.grad(result, [x for x in inputs if x.requires_grad], cotangent)
    stablehlo = spmd.get_stablehlo([result, *gradients])
    spmd.sync(wait=True)
    return _cost(stablehlo, cache.last_program().executable)


def theirs(case: Case) -> Cost:
    """The cost of `jax.vjp` of the case's JAX function, compiled by the same compiler with the same
    options."""
    constants = [_array(x) for x in case.constants]
    inputs = [_array(x) for x in case.inputs]
    differentiable = [i for i, x in enumerate(case.inputs) if x.is_floating_point()]

    def program(inputs, constants, cotangent):
        def function(*floats):
            operands = list(inputs)
            for i, x in zip(differentiable, floats, strict=True):
                operands[i] = x
            return case.jax(*operands, *constants)

        result, pullback = jax.vjp(function, *(inputs[i] for i in differentiable))
        return result, pullback(cotangent)

    with compiler_context():
        lowered = jax.jit(program).lower(inputs, constants, _array(_cotangent(case)))
        return _cost(lowered.as_text(), lowered.compile())


def _array(tensor: Tensor) -> jax.Array:
    with compiler_context():
        return jnp.asarray(host_array(tensor))


# Small extra costs (unpacking a scalar argument, a divisor, a mask per target) are not worth a
# rule: a figure may be so many times theirs, and more by so many flops or bytes.
ALLOWANCE, SLACK = 1.02, 1024


def excess(ours: Cost, theirs: Cost) -> dict[str, float]:
    """The ratios ours / theirs of the figures that are larger in ours, by name."""
    pairs = {name: (getattr(ours, name), getattr(theirs, name)) for name in FIGURES}
    return {
        name: mine / other if other else math.inf
        for name, (mine, other) in pairs.items()
        if mine > ALLOWANCE * other + SLACK
    }


@dataclass(frozen=True)
class Known:
    """A known reason for larger figures of ours in `cases()`, with the ratios: they are right, or
    no rule can change them."""

    why: str
    ratios: dict[str, float]


_AGAIN = "the exponential is computed again where jax.vjp keeps it: less memory is written and read"
_ENTROPY = (
    f"{_AGAIN}; the one-hot part is a comparison, not a scatter: it fuses, and shards like the "
    "logits"
)
_FIRST = (
    "torch's max_pool2d returns the indices of the maxima, which cost comparisons and save "
    "select-and-scatter its bytes"
)
_ELEMENTS = (
    "XLA's CPU has no kernel for it: one element of the window after the other moves more bytes, "
    "and is a small part of the time (docs/decisions/convolutions.md)"
)
_GUARD = (
    "torch's gradient of a norm is zero where the norm is zero, and jax.vjp's is NaN: one select"
)

KNOWN: dict[str, Known] = {
    "log_softmax": Known(_AGAIN, {"transcendentals": 1.99}),
    "logsumexp": Known(_AGAIN, {"flops": 1.23, "transcendentals": 1.99}),
    "rms_norm": Known(
        "at this size XLA's scheduler does not put one intermediate into a result's buffer; at "
        "batch 1024 it does, and the other program has twice the temporary memory",
        {"temporary_bytes": 43.0},
    ),
    "cross_entropy": Known(_ENTROPY, {"flops": 1.13, "transcendentals": 2.0}),
    "cross_entropy, ignore_index": Known(_ENTROPY, {"flops": 1.13, "transcendentals": 2.0}),
    "cross_entropy, weights": Known(_ENTROPY, {"flops": 1.13, "transcendentals": 2.0}),
    "cross_entropy, label_smoothing": Known(_ENTROPY, {"flops": 1.11, "transcendentals": 2.0}),
    "cross_entropy, weights, label_smoothing": Known(
        _ENTROPY, {"flops": 1.09, "transcendentals": 2.0}
    ),
    "cross_entropy, bfloat16": Known(
        f"{_ENTROPY}; the logits are converted twice", {"flops": 1.33, "transcendentals": 2.0}
    ),
    "nll_loss": Known(
        "the one-hot gradient is a comparison, not a scatter: half the bytes", {"flops": 29.5}
    ),
    "index": Known(
        "an index out of range reads NaN, where the other takes the nearest element",
        {"flops": 1.93},
    ),
    "mse_loss, both gradients": Known(
        "torch computes each gradient by a call of its own: x - t, then t - x",
        {"bytes_accessed": 1.12},
    ),
    "l1_loss": Known("torch's sign is zero at zero and at NaN: two comparisons", {"flops": 1.13}),
    "binary_cross_entropy_with_logits": Known(
        f"{_AGAIN}; torch's derivative is written with a sigmoid", {"transcendentals": 1.5}
    ),
    "conv2d, groups": Known(_ELEMENTS, {"flops": 1.03}),
    "conv2d, depthwise": Known(_ELEMENTS, {"bytes_accessed": 3.03, "temporary_bytes": 2.91}),
    "max_pool2d": Known(_FIRST, {"flops": 1.3}),
    "max_pool2d, overlapping": Known(_FIRST, {"flops": 1.2}),
    "adaptive_avg_pool2d, uneven": Known(
        "one small matrix for each dim, where windows cut out one by one take as many slices as "
        "there are windows",
        {"flops": 3.55},
    ),
    "norm": Known(_GUARD, {"flops": 1.25}),
    "norm, whole": Known(_GUARD, {"flops": 1.25}),
    "gelu": Known(
        "XLA counts erf, a polynomial, as one transcendental; jax.nn.gelu expands erfc and has 12 "
        "times the flops",
        {"transcendentals": 2.0},
    ),
    "relu": Known(
        "torch keeps the result, whose maximum is fused into the gradient: no bytes",
        {"flops": 1.33},
    ),
    "elu": Known(
        "exp(x), where jax.vjp takes expm1(x) + 1, which loses the small gradients of very "
        "negative x",
        {"transcendentals": 2.0},
    ),
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default="", help="a pattern that the names of cases must match")
    parser.add_argument(
        "--batch", type=int, default=64, help="leading dim of most inputs (default 64)"
    )
    return parser.parse_args()


def main() -> None:
    args = parse()
    console = Console(width=140)
    spmd.simulate(1)
    spmd.config.program_cache = False  # costs are read from the last compiled program
    table = Table(title=f"Ours / jax.vjp, batch {args.batch}", title_justify="left")
    headings = (
        "forward and backward of",
        "StableHLO ops",
        "kflop",
        "ktranscendental",
        "kB accessed",
        "temporary kB",
    )
    for heading in headings:
        table.add_column(heading, justify="right" if table.columns else "left")
    worse: dict[str, dict[str, float]] = {}
    better = 0
    for name, case in cases(args.batch).items():
        if not re.search(args.cases, name):
            continue
        a, b = ours(case), theirs(case)
        more = excess(a, b)
        better += bool(excess(b, a))
        figures = [f"{a.operations} / {b.operations}"]
        for figure in FIGURES:
            text = f"{getattr(a, figure) / 1e3:,.1f} / {getattr(b, figure) / 1e3:,.1f}"
            figures.append(f"[red]{text}[/red]" if figure in more else text)
        table.add_row(name, *figures)
        if more:
            worse[name] = more
    console.print(table)
    for name, more in worse.items():
        why = (
            KNOWN[name].why
            if name in KNOWN and more.keys() <= KNOWN[name].ratios.keys()
            else "reason unknown"
        )
        console.print(
            f"{name}: "
            + ", ".join(f"{ratio:.2f} times the {figure}" for figure, ratio in more.items())
        )
        console.print(f"    {why}", highlight=False)
    for side, count in (("Ours", len(worse)), ("jax.vjp", better)):
        words = (
            f"has more of some count, by over {100 * (ALLOWANCE - 1):.0f} %, in {count} of "
            f"{len(table.rows)} cases"
        )
        console.print(f"{side} {words}.", highlight=False)


if __name__ == "__main__":
    main()

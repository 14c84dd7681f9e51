"""Random draws: counter-based, so a number depends on (seed, draw, position) alone and never on the
mesh.

The generator is "squares" (Widynski 2020, arXiv:2004.06278): five rounds of squaring a 64-bit
counter under a 64-bit key. It is purely elementwise, so XLA fuses it into the consumer and
partitions it without communication; threefry on CPU is a loop over stored state, which costs memory
at initialization and 50 ms of compile time a draw (docs/decisions/random.md).
"""

import math
import threading
from contextlib import AbstractContextManager
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from .held import held
from .registry import lower

aten = torch.ops.aten

Draw = tuple[jax.Array, jax.Array]


class Rows(NamedTuple):
    """The rows that a shard draws of a larger array: the dim, its size in all of it, and the first
    row of the shard."""

    dim: int
    size: int
    first: jax.Array


class _Drawing(threading.local):
    rows: Rows | None = None


_thread = _Drawing()


def drawing(rows: Rows) -> AbstractContextManager[None]:
    """A context in which draws are of these rows of a larger array: its numbers there."""
    return held(_thread, rows=rows)


def _mix(x: jax.Array) -> jax.Array:
    """The finaliser of splitmix64 (Steele et al. 2014): every input bit reaches every output
    bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _key(draw: Draw) -> jax.Array:
    seed, counter = (part.astype(jnp.uint64) for part in draw)
    golden = np.uint64(0x9E3779B97F4A7C15)
    return _mix(_mix(seed + golden) + (counter + np.uint64(1)) * golden) | np.uint64(1)


def _counters(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The row-major index of every element times the key, built from iotas so that it is
    partitioned like its consumer.

    Each iota is multiplied by itself: the indices alone are the same in every iteration of a loop,
    and XLA would hoist them and keep them, eight bytes an element.
    """
    index = jnp.zeros(shape, jnp.uint64)
    stride, rows = 1, _thread.rows
    for dim in reversed(range(len(shape))):
        place = jax.lax.broadcasted_iota(jnp.uint64, shape, dim)
        if rows is not None and dim == rows.dim:
            place = place + rows.first.astype(jnp.uint64)
        index = index + place * (key * np.uint64(stride))
        stride *= rows.size if rows is not None and dim == rows.dim else shape[dim]
    return index


def bits(draw: Draw, shape: tuple[int, ...]) -> jax.Array:
    """Uniform 64-bit words of the given shape."""
    key = _key(draw)
    return _words(key, _counters(key, shape))


def _words(key: jax.Array, counters: jax.Array) -> jax.Array:
    half = np.uint64(32)
    x = y = counters
    z = y + key
    for added in (y, z, y):
        x = x * x + added
        x = (x >> half) | (x << half)
    t = x = x * x + z
    x = (x >> half) | (x << half)
    return t ^ ((x * x + y) >> half)


def uniform(draw: Draw, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    """Uniform numbers in [0, 1): 53 random bits for float64, 24 for float32, the precision of the
    mantissa."""
    dtype = jnp.dtype(dtype)
    if dtype == jnp.float64:
        return (bits(draw, shape) >> np.uint64(11)).astype(jnp.float64) * 2.0**-53
    digits = min(24, jnp.finfo(dtype).nmant + 1)
    words = (bits(draw, shape) >> np.uint64(64 - digits)).astype(jnp.uint32).astype(jnp.float32)
    return (words * np.float32(2.0**-digits)).astype(dtype)


def normal(draw: Draw, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    """Standard normal numbers by the inverse error function of an open-interval uniform."""
    wide = jnp.float64 if jnp.dtype(dtype) == jnp.float64 else jnp.float32
    digits = 52 if wide == jnp.float64 else 23
    words = (bits(draw, shape) >> np.uint64(64 - digits)).astype(jnp.int64).astype(wide)
    # Half a step off the grid keeps both ends open, so erf_inv never meets -1 or 1.
    centred = (words + wide(0.5)) * wide(2.0 ** (1 - digits)) - wide(1)
    return (jax.lax.erf_inv(centred) * wide(math.sqrt(2))).astype(dtype)


def keep_mask(draw: Draw, shape: tuple[int, ...], keep_probability: float | jax.Array) -> jax.Array:
    """True with the given probability: the elements that dropout keeps."""
    return uniform(draw, shape, jnp.float32) < keep_probability


# A span from here on takes more than the high half of a word.
WIDE = 2**32


def integers(
    draw: Draw, shape: tuple[int, ...], low: int, high: int | jax.Array, dtype: np.dtype
) -> jax.Array:
    """Integers from low to below high.

    A high that is a scalar argument is at most WIDE above low.
    """
    span = np.uint64(high - low) if isinstance(high, int) else (high - low).astype(jnp.uint64)
    # A multiplication keeps the high bits of a 32-bit word (Lemire 2019); wide spans take the
    # remainder of 64 bits.
    words = bits(draw, shape)
    is_wide = isinstance(high, int) and high - low >= WIDE
    offset = words % span if is_wide else ((words >> np.uint64(32)) * span) >> np.uint64(32)
    return (offset.astype(jnp.int64) + low).astype(dtype)


@lower(aten.uniform.default)
def aten_uniform(self, from_=0.0, to=1.0, *, draw):
    low, span = (jnp.asarray(bound).astype(self.dtype) for bound in (from_, to - from_))
    return uniform(draw, self.shape, self.dtype) * span + low


@lower(aten.normal_functional.default)
def aten_normal_functional(self, mean=0.0, std=1.0, *, draw):
    wide = jnp.promote_types(self.dtype, jnp.float32)
    # As scalar arguments they are float64, which TPUs have not.
    mean, std = (jnp.asarray(number).astype(wide) for number in (mean, std))
    return (normal(draw, self.shape, wide) * std + mean).astype(self.dtype)


@lower(aten.normal.Tensor_Tensor, aten.normal.float_Tensor)
def aten_normal(mean, std, *, draw, returns):
    wide = jnp.promote_types(returns.dtype, jnp.float32)
    mean, std = (jnp.asarray(number).astype(wide) for number in (mean, std))
    # The CPU raises for a deviation below 0; where only the device has it, the result is NaN.
    return (normal(draw, returns.shape, wide) * jnp.where(std < 0, jnp.nan, std) + mean).astype(
        returns.dtype
    )


@lower(aten.bernoulli.p)
def aten_bernoulli_p(self, p, *, draw):
    # Only the in-place form has a default, 0.5, which torch leaves out of the call.
    return keep_mask(draw, self.shape, 0.5 if p is None else p).astype(self.dtype)


@lower(aten.bernoulli.default, aten.bernoulli.Tensor)
def aten_bernoulli(self, p=None, *, draw):
    return keep_mask(draw, self.shape, (self if p is None else p).astype(jnp.float32)).astype(
        self.dtype
    )


@lower(aten.exponential.default)
def aten_exponential(self, lambd=1.0, *, draw):
    wide = uniform(draw, self.shape, jnp.promote_types(self.dtype, jnp.float32))
    return (-jnp.log1p(-wide) / lambd).astype(self.dtype)


@lower(aten.geometric.default)
def aten_geometric(self, p, *, draw):
    # 1 - u is never 0, so neither is its logarithm infinite.
    wide = jnp.log1p(-uniform(draw, self.shape, jnp.float64)) / math.log1p(-p)
    return (jnp.floor(wide) + 1).astype(self.dtype)


@lower(getattr(aten.random, "from"))
def aten_random_from(self, from_, to, *, draw):
    return integers(draw, self.shape, from_, 2**63 - 1 if to is None else to, self.dtype)


@lower(aten.random.to)
def aten_random_to(self, to, *, draw):
    return integers(draw, self.shape, 0, to, self.dtype)


@lower(aten.random.default)
def aten_random(self, *, draw):
    is_float = jnp.issubdtype(self.dtype, jnp.floating)
    top = int(2 ** (jnp.finfo(self.dtype).nmant + 1) if is_float else jnp.iinfo(self.dtype).max)
    return integers(draw, self.shape, 0, min(top + 1, 2**63 - 1), self.dtype)


@lower(aten.randperm.default)
def aten_randperm(n, *, dtype=None, draw, returns):
    return jnp.argsort(bits(draw, (n,))).astype(returns.dtype)


def permutation_on_host(n: int, seed: int, counter: int) -> np.ndarray:
    """Returns the numbers of `aten_randperm`, computed by numpy."""
    key = _key((np.array([seed]), np.array([counter])))  # type: ignore[arg-type]  # of numpy alone
    counters = np.arange(n, dtype=np.uint64) * key
    return np.argsort(_words(key, counters), kind="stable")  # type: ignore[arg-type]  # of numpy alone


@lower(aten.multinomial.default)
def aten_multinomial(self, num_samples, replacement=False, *, draw):
    logits = jnp.log(self.astype(jnp.float32))
    # One Gumbel race per sample: argmax(log p + g) is distributed as p; without replacement the
    # first ones of one race.
    shape = (*self.shape[:-1], num_samples, self.shape[-1]) if replacement else self.shape
    noise = -jnp.log(
        -jnp.log(jnp.maximum(uniform(draw, shape, jnp.float32), jnp.finfo(jnp.float32).tiny))
    )
    if replacement:
        return jnp.argmax(logits[..., None, :] + noise, axis=-1).astype(jnp.int64)
    return jax.lax.top_k(logits + noise, num_samples)[1].astype(jnp.int64)


@lower(aten.native_dropout.default)
def aten_native_dropout(input, p, train, *, draw):
    if train is False or p == 0:
        return input, jnp.ones(input.shape, jnp.bool_)
    mask = keep_mask(draw, input.shape, 1.0 - p)
    scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
    return jnp.where(
        mask, input * jnp.asarray(scale, input.dtype), jnp.zeros((), input.dtype)
    ), mask


@lower(aten.native_dropout_backward.default)
def aten_native_dropout_backward(grad_output, mask, scale, *, returns):
    grad = grad_output.astype(returns.dtype)
    return jnp.where(mask, grad * jnp.asarray(scale, grad.dtype), jnp.zeros((), grad.dtype))


# -- Distributions that are drawn by rejection take jax's samplers, under a key of their own.


def _jax_key(draw: Draw) -> jax.Array:
    key = _key(draw)
    return jnp.stack([key >> np.uint64(32), key & np.uint64(0xFFFFFFFF)]).astype(jnp.uint32)


@lower(aten.poisson.default)
def aten_poisson(self, *, draw):
    return jax.random.poisson(_jax_key(draw), self.astype(jnp.float32), dtype=jnp.int32).astype(
        self.dtype
    )


@lower(aten.binomial.default)
def aten_binomial(count, prob, *, draw):
    return jax.random.binomial(_jax_key(draw), count, prob).astype(count.dtype)


@lower(aten._standard_gamma.default)
def aten_standard_gamma(self, *, draw):
    return jax.random.gamma(_jax_key(draw), self).astype(self.dtype)


@lower(aten._standard_gamma_grad.default)
def aten_standard_gamma_grad(self, output):
    return jax.lax.random_gamma_grad(self, output)

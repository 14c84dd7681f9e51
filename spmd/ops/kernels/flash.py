"""Attention block by block, forward and backward: no array of query length x key length, except for
a passed mask.

FlashAttention-2 (Dao 2023, arXiv:2307.08691) on XLA: one loop over the pairs of a block of query
rows and a block of key columns. The forward keeps a running maximum and total of each row and
returns only the output and the logsumexp; the backward computes the probabilities again from the
logsumexp. A pair that is fully masked by causality is not in the loop.

Queries are [batch, kv heads, queries per kv head, length, width] throughout, so keys and values are
never repeated. Batch and heads are batch dims of every operation in the loop, so a sharding of them
needs no communication.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import sharded
from ..floats import wide
from ..random import Draw, _mix, bits
from .computed import Block

# Rows and columns of one block.
BLOCK = (256, 256)
# The block on a TPU, as long as its scores, of all heads of a device, take at most this many bytes.
TPU_BLOCK, _MOST = (512, 512), 64 << 20


@partial(jax.tree_util.register_dataclass, data_fields=("words",), meta_fields=("probability",))
@dataclass(frozen=True, slots=True)
class Dropout:
    """The dropped probabilities: each row a splitmix64 stream (Steele et al. 2014), its seed a word
    of the draw.

    So a number depends on the draw, the row and the column alone, and any block of it can be
    computed by itself, at two multiplications a number.
    """

    words: jax.Array
    probability: float

    @staticmethod
    def of(draw: Draw, shape: tuple[int, ...], probability: float) -> "Dropout | None":
        """The dropout of rows of the given shape; None where the probability is 0."""
        return None if probability == 0 else Dropout(bits(draw, shape), probability)

    def rows(self, cut: Callable[[jax.Array], jax.Array]) -> "Dropout":
        """The same dropout for some of the rows."""
        return Dropout(cut(self.words), self.probability)

    def apply(self, x: jax.Array, first_column: int | jax.Array = 0) -> jax.Array:
        """x, [rows..., columns] from `first_column` on, with dropped elements at zero and the rest
        scaled up."""
        golden = np.uint64(0x9E3779B97F4A7C15)
        columns = (
            lax.iota(jnp.uint64, x.shape[-1])
            + jnp.asarray(first_column).astype(jnp.uint64)
            + np.uint64(1)
        )
        threshold = np.uint64(min(int((1 - self.probability) * 2**64), 2**64 - 1))
        keep = _mix(self.words[..., None] + columns * golden) < threshold
        scale = 0.0 if self.probability == 1 else 1 / (1 - self.probability)
        return jnp.where(keep, x * scale, jnp.zeros((), x.dtype))


@dataclass(frozen=True, slots=True)
class _Scores:
    """The scores of any block, computed from blocks of query and key, masked positions at -inf."""

    query: jax.Array
    key: jax.Array
    # [batch or 1, kv heads or 1, queries per kv head or 1, length or 1, length or 1]
    bias: jax.Array | None
    is_causal: bool
    scale: float
    first_row: jax.Array | int = 0  # of this shard of the rows among all
    num_row_shards: int = 1

    @property
    def lengths(self) -> tuple[int, int]:
        return self.query.shape[3], self.key.shape[2]

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of a block; where one dim is short the block is longer in the other."""
        num_bytes = math.prod((*self.query.shape[:3], *TPU_BLOCK)) * wide(self.query.dtype).itemsize
        # a shard's query is that of one device
        devices = sharded.num_devices() if self.num_row_shards == 1 else 1
        is_large = sharded.platform() == "tpu" and num_bytes <= _MOST * devices
        largest = TPU_BLOCK if is_large else BLOCK
        (rows, columns), area = self.lengths, largest[0] * largest[1]
        rows = min(rows, max(largest[0], area // columns))
        return rows, min(columns, area // rows)

    def pairs(self) -> np.ndarray:
        """(first row, first column) of every block that holds an allowed position, in the last
        shard of the rows: all shards have the same loop."""
        (num_rows, num_columns), (rows, columns) = self.lengths, self.block
        last_shard = (self.num_row_shards - 1) * num_rows
        starts = np.indices((-(-num_rows // rows), -(-num_columns // columns))).reshape(2, -1).T * (
            rows,
            columns,
        )
        ends = last_shard + np.minimum(starts[:, 0] + rows, num_rows)
        return (starts[starts[:, 1] < ends] if self.is_causal else starts).astype(np.int32)

    def rows(self, x: jax.Array, row: jax.Array) -> jax.Array:
        """The rows of a block out of a query-like x; a length of 1 broadcasts."""
        return x if x.shape[3] == 1 else lax.dynamic_slice_in_dim(x, row, self.block[0], 3)

    def columns(self, x: jax.Array, column: jax.Array, axis: int = 2) -> jax.Array:
        """The columns of a block out of a key-like x."""
        return x if x.shape[axis] == 1 else lax.dynamic_slice_in_dim(x, column, self.block[1], axis)

    def of(self, row: jax.Array, column: jax.Array) -> jax.Array:
        """The scores of the block that begins at (row, column), in the accumulation dtype."""
        dtype = wide(self.query.dtype)
        operands = self.rows(self.query, row), self.columns(self.key, column)
        scores = jnp.einsum("bkgsd,bkld->bkgsl", *operands, preferred_element_type=dtype)
        scores = scores * jnp.asarray(self.scale, dtype)
        allowed = self._allowed(row, column)
        if self.bias is not None:
            first_row, first_column = self.start(row, column)
            # a mask of all shards' rows
            first_row += self.first_row if self.bias.shape[3] > self.lengths[0] else 0
            bias = Block(first_row, first_column, *self.block).of(self.bias)
            if bias.dtype == jnp.bool_:
                allowed = bias if allowed is None else allowed & bias
            else:
                scores = scores + bias.astype(dtype)
        return (
            scores if allowed is None else jnp.where(allowed, scores, jnp.asarray(-jnp.inf, dtype))
        )

    def _allowed(self, row: jax.Array, column: jax.Array) -> jax.Array | None:
        """[rows, columns]: the positions that causality and the edge leave; None for all.

        A dynamic slice that would pass the end is moved back to fit. So the last block of a length
        that the block does not divide begins with positions that the block before it has had; here
        they count as masked.
        """
        (num_rows, num_columns), shape = self.lengths, self.block
        rows = jnp.minimum(row, num_rows - shape[0]) + lax.broadcasted_iota(jnp.int32, shape, 0)
        columns = jnp.minimum(column, num_columns - shape[1]) + lax.broadcasted_iota(
            jnp.int32, shape, 1
        )
        conditions = [columns <= rows + self.first_row] if self.is_causal else []
        conditions += [rows >= row] if num_rows % shape[0] else []
        conditions += [columns >= column] if num_columns % shape[1] else []
        return reduce(operator.and_, conditions) if conditions else None

    def start(self, row: jax.Array, column: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The first row and column of a block after it is moved back (see `_allowed`)."""
        return jnp.minimum(row, self.lengths[0] - self.block[0]), self.first_column(column)

    def first_column(self, column: jax.Array) -> jax.Array:
        """The first column of a block after it is moved back."""
        return jnp.minimum(column, self.lengths[1] - self.block[1])


def _put(x: jax.Array, block: jax.Array, start: jax.Array, axis: int) -> jax.Array:
    return lax.dynamic_update_slice_in_dim(x, block.astype(x.dtype), start, axis)


def _no_infinity(x: jax.Array) -> jax.Array:
    """x, with 0 for -inf: the reference point of rows without an allowed position so far."""
    return jnp.where(x == -jnp.inf, jnp.zeros_like(x), x)


def forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    dropout: Dropout | None,
    *,
    is_causal: bool,
    scale: float,
    first_row: jax.Array | int = 0,
    num_row_shards: int = 1,
) -> tuple[jax.Array, jax.Array]:
    """(output, logsumexp of the scores) in the accumulation dtype.

    A fully masked row gets zeros.
    """
    scores = _Scores(query, key, bias, is_causal, scale, first_row, num_row_shards)
    dtype = wide(query.dtype)

    def step(carry, start):
        row, column = start[0], start[1]
        highest, total, output = (scores.rows(x, row) for x in carry)
        block = scores.of(row, column)
        largest = jnp.maximum(highest, jnp.max(block, axis=-1))
        base = _no_infinity(largest)
        weights, decay = jnp.exp(block - base[..., None]), jnp.exp(highest - base)
        total = total * decay + jnp.sum(weights, axis=-1)
        if dropout is not None:
            block_dropout = dropout.rows(lambda words: scores.rows(words, row))
            weights = block_dropout.apply(weights, scores.first_column(column))
        operands = weights.astype(value.dtype), scores.columns(value, column)
        added = jnp.einsum("bkgsl,bkld->bkgsd", *operands, preferred_element_type=dtype)
        output = output * decay[..., None] + added
        return tuple(
            _put(x, new, row, 3) for x, new in zip(carry, (largest, total, output), strict=True)
        ), None

    rows = query.shape[:-1]
    start = (
        jnp.full(rows, -jnp.inf, dtype),
        jnp.zeros(rows, dtype),
        jnp.zeros((*rows, value.shape[-1]), dtype),
    )
    (largest, total, output), _ = lax.scan(step, start, scores.pairs())
    logsumexp = _no_infinity(largest) + jnp.log(total)
    return output / jnp.where(total == 0, jnp.ones_like(total), total)[..., None], logsumexp


def backward(
    grad_out: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    out: jax.Array,
    logsumexp: jax.Array,
    bias: jax.Array | None,
    dropout: Dropout | None,
    *,
    is_causal: bool,
    scale: float,
    wants_bias: bool,
    first_row: jax.Array | int = 0,
    num_row_shards: int = 1,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """The gradients of query, key, value and, if it is needed, bias, in the accumulation dtype."""
    scores = _Scores(query, key, bias, is_causal, scale, first_row, num_row_shards)
    dtype = wide(query.dtype)
    # FlashAttention-2: the sum over l of weights * grad_weights is the row sum of grad_out * out.
    delta = jnp.sum(grad_out.astype(dtype) * out.astype(dtype), axis=-1)
    logsumexp = _no_infinity(logsumexp)

    def step(carry, start):
        row, column = start[0], start[1]
        weights = jnp.exp(scores.of(row, column) - scores.rows(logsumexp, row)[..., None])
        grad_output = scores.rows(grad_out, row)
        operands = grad_output, scores.columns(value, column)
        dropped_weights, grad_weights = (
            weights,
            jnp.einsum("bkgsd,bkld->bkgsl", *operands, preferred_element_type=dtype),
        )
        if dropout is not None:
            of_rows = dropout.rows(lambda words: scores.rows(words, row))
            dropped_weights, grad_weights = (
                of_rows.apply(x, scores.first_column(column))
                for x in (dropped_weights, grad_weights)
            )
        grad_scores = weights * (grad_weights - scores.rows(delta, row)[..., None])
        grad_query, grad_key, grad_value, grad_bias = carry
        to_query = grad_scores.astype(query.dtype), scores.columns(key, column)
        to_key = grad_scores.astype(query.dtype), scores.rows(query, row)
        to_value = dropped_weights.astype(value.dtype), grad_output
        query_block = jnp.einsum("bkgsl,bkld->bkgsd", *to_query, preferred_element_type=dtype)
        key_block = jnp.einsum("bkgsl,bkgsd->bkld", *to_key, preferred_element_type=dtype)
        value_block = jnp.einsum("bkgsl,bkgsd->bkld", *to_value, preferred_element_type=dtype)
        return (
            _put(grad_query, scores.rows(grad_query, row) + query_block, row, 3),
            _put(grad_key, scores.columns(grad_key, column) + key_block, column, 2),
            _put(grad_value, scores.columns(grad_value, column) + value_block, column, 2),
            None
            if grad_bias is None
            else _add_to_bias(grad_bias, grad_scores, scores, row, column),
        ), None

    grad_query, grad_key, grad_value = (jnp.zeros(x.shape, dtype) for x in (query, key, value))
    start = grad_query, grad_key, grad_value, _zeros_like_bias(scores) if wants_bias else None
    (grad_query, grad_key, grad_value, grad_bias), _ = lax.scan(step, start, scores.pairs())
    # The scale multiplies the width-D gradients, not the scores: one pass over the larger array
    # less.
    return scale * grad_query, scale * grad_key, grad_value, grad_bias


def _zeros_like_bias(scores: _Scores) -> jax.Array:
    """The initial gradient of the bias: each position of a full-size bias gets one term, so it
    needs no wider sum."""
    bias = scores.bias
    assert bias is not None
    return jnp.zeros(
        bias.shape, bias.dtype if bias.shape[3:] == scores.lengths else wide(bias.dtype)
    )


def _add_to_bias(
    grad_bias: jax.Array, grad_scores: jax.Array, scores: _Scores, row: jax.Array, column: jax.Array
) -> jax.Array:
    """grad_bias with a block's scores added, summed over the dims along which the bias was
    broadcast."""
    part = scores.columns(scores.rows(grad_bias, row), column, 4)
    axes = tuple(
        axis for axis, size in enumerate(part.shape) if size == 1 and grad_scores.shape[axis] != 1
    )
    block = part + jnp.sum(grad_scores, axis=axes, keepdims=True)
    starts = [0, 0, 0, row if part.shape[3] != 1 else 0, column if part.shape[4] != 1 else 0]
    return lax.dynamic_update_slice(
        grad_bias, block.astype(grad_bias.dtype), [jnp.int32(i) for i in starts]
    )

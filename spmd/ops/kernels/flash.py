"""Attention block by block, forward and backward: no array of query length x key length, except for
a passed mask.

FlashAttention-2 (Dao 2023, arXiv:2307.08691) on XLA: one loop over the pairs of a block of query
rows and a block of key columns. The forward keeps a running maximum and total of each row and
returns only the output and the logsumexp; the backward computes the probabilities again from the
logsumexp. A pair that the table of the mask's blocks knows to be masked is not in a loop, and one
that it knows to be visible is in a loop without the mask.

Queries are [batch, kv heads, queries per kv head, length, width] throughout, so keys and values are
never repeated. Batch and heads are batch dims of every operation in the loop, so a sharding of them
needs no communication.
"""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import sharded
from ..floats import wide
from ..random import Draw, _mix, bits
from .computed import Block
from .document_ids import Documents
from .mask_blocks import ALL, NONE, PART, MaskEquations, Span, in_causal_order, table

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
class Places:
    """The places that these rows and columns may have in a mask.

    starts: (first row, first column) of each, None for one where nothing is visible. index: of the
    place on this device. traced: the first row and column, instead, where they are not known.
    """

    starts: tuple[tuple[int, int] | None, ...] = ((0, 0),)
    index: jax.Array | int = 0
    traced: tuple[jax.Array, jax.Array] | None = None

    @property
    def start(self) -> tuple[jax.Array | int, jax.Array | int]:
        """The first row and column on this device."""
        if self.traced is not None:
            return self.traced
        starts = [start or (0, 0) for start in self.starts]
        if len(starts) == 1:
            return starts[0]
        start = jnp.asarray(np.array(starts, np.int32))[self.index]
        return start[0], start[1]

    @property
    def is_visible(self) -> jax.Array | None:
        """False on a device where nothing is visible; None: something is on each."""
        if None not in self.starts:
            return None
        return jnp.asarray([start is not None for start in self.starts])[self.index]

    def of_band(self) -> "Places":
        """Places of equal differences of row and column as one."""
        differences = {start[0] - start[1] for start in self.starts if start is not None}
        if self.traced is not None or len(differences) != 1 or None in self.starts:
            return self
        return Places(((differences.pop(), 0),))


ONE_PLACE = Places()


@dataclass(frozen=True, slots=True)
class Score:
    """A function of scores: (score, batch, head, row, column) of one, all scalars, and whole
    tensors, to the score before the mask.

    soft_cap: c of a function c * tanh(score / c). first: the batch and head of the first scores.
    wanted: the tensors with a gradient, by their places.
    """

    function: Callable[..., jax.Array]
    soft_cap: float | None = None
    first: tuple[jax.Array | int, jax.Array | int] = (0, 0)
    tensors: tuple[jax.Array, ...] = ()
    wanted: tuple[int, ...] = ()

    @property
    def of_wanted(self) -> list[jax.Array]:
        """The tensors with a gradient."""
        return [self.tensors[place] for place in self.wanted]

    def with_wanted(self, wanted: Sequence[jax.Array]) -> "Score":
        """The function of other tensors with a gradient."""
        tensors = dict(enumerate(self.tensors)) | dict(zip(self.wanted, wanted, strict=True))
        return replace(self, tensors=tuple(tensors.values()))

    def of(self, scores: jax.Array, *starts: jax.Array) -> jax.Array:
        """The scores of a block [batch, kv heads, queries per kv head, rows, columns]."""
        batch, kv_heads, group, rows, columns = scores.shape
        heads = jnp.arange(kv_heads * group, dtype=jnp.int32).reshape(kv_heads, group)
        sides = (
            (jnp.asarray(start) + jnp.arange(size)).astype(jnp.int32)
            for start, size in zip((self.first[0], *starts), (batch, rows, columns), strict=True)
        )
        of_batch, of_rows, of_columns = sides
        mapped = self.function
        for axes in ((0, 4), (0, 3), (0, 2), (0, 2), (0, 1)):
            whole = (None,) * len(self.tensors)
            mapped = jax.vmap(mapped, (*(0 if axis in axes else None for axis in range(5)), *whole))
        places = of_batch, heads + self.first[1], of_rows, of_columns
        return mapped(scores, *places, *self.tensors)


@dataclass(frozen=True, slots=True)
class Masking:
    """The mask of scores, beside a bias.

    equations: computed for each block. bounds: those of a bias, as far as they are known. places:
    of the rows and columns in both. score: of scores before the mask. documents: those of a bias of
    Booleans, for kernels.
    """

    equations: MaskEquations | None = None
    bounds: MaskEquations | None = None
    places: Places = ONE_PLACE
    score: Score | None = None
    documents: Documents | None = None

    @property
    def masks(self) -> list[MaskEquations]:
        return [mask for mask in (self.equations, self.bounds) if mask is not None]

    def refusal(self, bias: jax.Array | None, dropout_p: float) -> str:
        """Why no kernel computes this mask; empty if one may."""
        if bias is not None and self.documents is None:
            return "a mask of data" if bias.dtype == jnp.bool_ else "a bias"
        if dropout_p:
            return "dropout"
        if self.score is not None and self.score.soft_cap is None:
            return "a function of scores"
        is_bias = self.equations is not None and self.equations.lines[-1].dtype != "bool"
        return "a bias of positions" if is_bias else ""

    @property
    def of_kernel(self) -> MaskEquations | None:
        """What a kernel computes of the mask, beside ids of documents that are data."""
        rest = None if self.documents is None else self.documents.rest
        if rest is None:
            return self.equations
        return rest if self.equations is None else in_causal_order(rest)

    def at(self, places: Places) -> "Masking":
        """The mask of rows and columns at other places."""
        is_band = self.bounds is None and (self.equations is None or self.equations.is_band)
        return replace(self, places=places.of_band() if is_band else places)

    def tables(self, lengths: tuple[int, int], block: tuple[int, int]) -> list[np.ndarray]:
        """The table of the blocks of rows and columns at each place."""
        shape = tuple(-(-length // size) for length, size in zip(lengths, block, strict=True))
        if self.places.traced is not None:
            return [np.full(shape, PART, np.int8)]
        return [
            np.full(shape, NONE, np.int8)
            if start is None
            else table(
                self.masks, *(Span(*side) for side in zip(start, lengths, block, strict=True))
            )
            for start in self.places.starts
        ]


NO_MASK = Masking()


@dataclass(frozen=True, slots=True)
class _Scores:
    """The scores of any block, computed from blocks of query and key, masked positions at -inf."""

    query: jax.Array
    key: jax.Array
    # [batch or 1, kv heads or 1, queries per kv head or 1, length or 1, length or 1]
    bias: jax.Array | None
    masking: Masking
    scale: float
    block: tuple[int, int]

    @property
    def lengths(self) -> tuple[int, int]:
        return self.query.shape[3], self.key.shape[2]

    @staticmethod
    def with_block(
        query: jax.Array, key: jax.Array, bias: jax.Array | None, masking: Masking, scale: float
    ) -> "_Scores":
        """Scores in blocks of the usual size, or of half of it where that computes much less."""
        lengths = query.shape[3], key.shape[2]
        num_bytes = math.prod((*query.shape[:3], *TPU_BLOCK)) * wide(query.dtype).itemsize
        # a shard's query is that of one device
        devices = sharded.num_devices() if len(masking.places.starts) == 1 else 1
        is_large = sharded.platform() == "tpu" and num_bytes <= _MOST * devices
        largest = TPU_BLOCK if is_large else BLOCK
        block, half = _fitted(lengths, largest), (largest[0] // 2, largest[1] // 2)
        if block == largest and min(half) >= _SMALLEST:
            area, smaller = (_computed(masking, lengths, size) for size in (block, half))
            block = half if smaller < _WORTH_HALF * area else block
        return _Scores(query, key, bias, masking, scale, block)

    def pairs(self) -> "Iterator[tuple[bool, jax.Array | np.ndarray]]":
        """The pairs of each loop: whether it leaves the mask out, and (first row, first column,
        kind) of each pair at this device's place. All devices have the same loops."""
        masking = self.masking
        tables = masking.tables(self.lengths, self.block)
        both = masking.equations is None or len(masking.equations.lines) < _LONG_MASK
        both &= self.bias is None or self.bias.dtype != jnp.bool_
        for kinds in ((PART, ALL),) if both else ((ALL,), (PART,)):
            of_places = [_pairs(kinds_of, kinds, self.block) for kinds_of in tables]
            most = max(map(len, of_places))
            # A place with fewer pairs computes one again, masked.
            padded = np.zeros((len(tables), most, 3), np.int32)
            for pairs, of_place in zip(padded, of_places, strict=True):
                pairs[: len(of_place)] = of_place
            index = masking.places.index
            if most:
                yield kinds == (ALL,), padded[0] if len(tables) == 1 else jnp.asarray(padded)[index]

    def rows(self, x: jax.Array, row: jax.Array) -> jax.Array:
        """The rows of a block out of a query-like x; a length of 1 broadcasts."""
        return x if x.shape[3] == 1 else lax.dynamic_slice_in_dim(x, row, self.block[0], 3)

    def columns(self, x: jax.Array, column: jax.Array, axis: int = 2) -> jax.Array:
        """The columns of a block out of a key-like x."""
        return x if x.shape[axis] == 1 else lax.dynamic_slice_in_dim(x, column, self.block[1], axis)

    def of(self, pair: jax.Array, is_all: bool) -> jax.Array:
        """The scores of a pair's block, in the accumulation dtype. is_all: without the mask."""
        return self.masked(self.scored(self.raw(pair), pair), pair, is_all)

    def raw(self, pair: jax.Array) -> jax.Array:
        """The scaled products of a pair's block."""
        row, column = pair[0], pair[1]
        dtype = wide(self.query.dtype)
        operands = self.rows(self.query, row), self.columns(self.key, column)
        scores = jnp.einsum("bkgsd,bkld->bkgsl", *operands, preferred_element_type=dtype)
        return scores * jnp.asarray(self.scale, dtype)

    def scored(
        self, scores: jax.Array, pair: jax.Array, wanted: Sequence[jax.Array] = ()
    ) -> jax.Array:
        """The scores of a pair's block by the function of scores, if there is one. wanted: its
        tensors with a gradient."""
        score = self.masking.score
        if score is None:
            return scores
        score = score.with_wanted(wanted) if wanted else score
        return score.of(scores, *self._positions(pair)).astype(scores.dtype)

    @property
    def wanted(self) -> list[jax.Array]:
        """The tensors with a gradient of the function of scores."""
        return [] if self.masking.score is None else self.masking.score.of_wanted

    def with_gradient(
        self, pair: jax.Array
    ) -> tuple[jax.Array, Callable[[jax.Array], tuple[jax.Array, ...]]]:
        """The scores before the mask, and from their gradient those of the products and of the
        tensors that want one."""
        raw = self.raw(pair)
        if self.masking.score is None:
            return raw, lambda grad: (grad,)
        return jax.vjp(lambda raw, *wanted: self.scored(raw, pair, wanted), raw, *self.wanted)

    def _positions(self, pair: jax.Array) -> list[jax.Array]:
        """The first row and column of a pair's block in the mask."""
        starts = zip(self.start(pair[0], pair[1]), self.masking.places.start, strict=True)
        return [jnp.asarray(start, jnp.int32) + first for start, first in starts]

    def masked(self, scores: jax.Array, pair: jax.Array, is_all: bool) -> jax.Array:
        """The scores of a pair's block, with the mask."""
        dtype = scores.dtype
        conditions = list(self._inside(pair))
        for mask in () if is_all else self._masks(pair):
            if mask.dtype == jnp.bool_:
                conditions.append(mask)
            else:
                scores = scores + mask.astype(dtype)
        if not conditions:
            return scores
        allowed = reduce(operator.and_, conditions)
        return jnp.where(allowed, scores, jnp.asarray(-jnp.inf, dtype))

    def _masks(self, pair: jax.Array) -> Iterator[jax.Array]:
        """The mask and the bias of a block."""
        starts = self._positions(pair)
        if self.masking.equations is not None:
            rows, columns = (
                start + lax.broadcasted_iota(jnp.int32, self.block, dim)
                for dim, start in enumerate(starts)
            )
            yield self.masking.equations(rows, columns, jnp)
        if self.bias is not None:
            # Of all places, or of this one alone.
            sizes = zip(
                self.bias.shape[3:], self.lengths, starts, self.start(pair[0], pair[1]), strict=True
            )
            row, column = (whole if size > length else part for size, length, whole, part in sizes)
            yield Block(row, column, *self.block).of(self.bias)

    @property
    def is_looked_at(self) -> bool:
        """True if a mask of data may hide a pair that is in the loop, and to look at it is no
        communication: batch and heads share it, or are those of one device."""
        if self.bias is None or self.bias.dtype != jnp.bool_:
            return False
        is_shared = self.bias.shape[:3] == (1, 1, 1)
        return is_shared or sharded.num_devices() == 1 or self.masking.places is not ONE_PLACE

    def mask_of_data(self, pair: jax.Array) -> jax.Array:
        """The block of a pair of a mask that is data."""
        *_, mask = self._masks(pair)
        return mask

    def _inside(self, pair: jax.Array) -> Iterator[jax.Array]:
        """Conditions on positions: of the edge, and of a pair that only fills a loop up.

        A dynamic slice that would pass the end is moved back to fit. So the last block of a length
        that the block does not divide begins with positions that the block before it has had; here
        they count as masked.
        """
        for dim, start in enumerate(self.start(pair[0], pair[1])):
            if self.lengths[dim] % self.block[dim]:
                yield start + lax.broadcasted_iota(jnp.int32, self.block, dim) >= pair[dim]
        if len(self.masking.places.starts) > 1:
            yield pair[2] != NONE

    def start(self, row: jax.Array, column: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The first row and column of a block after it is moved back (see `_inside`)."""
        return jnp.minimum(row, self.lengths[0] - self.block[0]), self.first_column(column)

    def first_column(self, column: jax.Array) -> jax.Array:
        """The first column of a block after it is moved back."""
        return jnp.minimum(column, self.lengths[1] - self.block[1])


# A mask of fewer equations costs less than a loop of its own for the pairs without it.
_LONG_MASK = 5
# Smaller blocks are slower for each score.
_WORTH_HALF, _SMALLEST = 0.8, 64


def _fitted(lengths: tuple[int, int], largest: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of a block; where one dim is short the block is longer in the other."""
    (rows, columns), area = lengths, largest[0] * largest[1]
    rows = min(rows, max(largest[0], area // columns))
    return rows, min(columns, area // rows)


def _computed(masking: Masking, lengths: tuple[int, int], block: tuple[int, int]) -> int:
    """The scores that blocks of a size compute, at the place with most."""
    counts = (int(np.count_nonzero(kinds)) for kinds in masking.tables(lengths, block))
    return max(counts) * math.prod(block)


def _pairs(table: np.ndarray, kinds: tuple[int, ...], block: tuple[int, int]) -> np.ndarray:
    """(first row, first column, kind) of each block of these kinds."""
    rows, columns = np.nonzero(np.isin(table, kinds))
    return np.stack([rows * block[0], columns * block[1], table[rows, columns]], 1)


def _put(x: jax.Array, block: jax.Array, start: jax.Array, axis: int) -> jax.Array:
    return lax.dynamic_update_slice_in_dim(x, block.astype(x.dtype), start, axis)


def _no_infinity(x: jax.Array) -> jax.Array:
    """x, with 0 for -inf: the reference point of rows without an allowed position so far."""
    return jnp.where(x == -jnp.inf, jnp.zeros_like(x), x)


def _looped(step, carry, scores):
    """The carry after all pairs. Of a mask of data each pair is looked at first."""

    def visit(carry, pair):
        visible = jnp.any(scores.mask_of_data(pair))
        return lax.cond(
            visible, lambda carry: step(False, carry, pair)[0], lambda x: x, carry
        ), None

    for is_all, pairs in scores.pairs():
        is_looked_at = not is_all and scores.is_looked_at
        carry, _ = lax.scan(visit if is_looked_at else partial(step, is_all), carry, pairs)
    return carry


def forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    dropout: Dropout | None,
    *,
    masking: Masking,
    scale: float,
) -> tuple[jax.Array, jax.Array]:
    """(output, logsumexp of the scores) in the accumulation dtype.

    A fully masked row gets zeros.
    """
    scores = _Scores.with_block(query, key, bias, masking, scale)
    dtype = wide(query.dtype)

    def step(is_all, carry, pair):
        row, column = pair[0], pair[1]
        highest, total, output = (scores.rows(x, row) for x in carry)
        block = scores.of(pair, is_all)
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
    largest, total, output = _looped(step, start, scores)
    logsumexp = _no_infinity(largest) + jnp.log(total)
    return output / jnp.where(total == 0, jnp.ones_like(total), total)[..., None], logsumexp


def delta_of(
    grad_out: jax.Array,
    out: jax.Array,
    logsumexp: jax.Array,
    grad_logsumexp: jax.Array | None,
) -> jax.Array:
    """What each row takes from the gradients of its weights, in the accumulation dtype.

    FlashAttention-2: the sum over l of weights * grad_weights is the row sum of grad_out * out.
    The derivatives of the logsumexp are the weights, so its gradient is added to theirs.
    """
    dtype = wide(out.dtype)
    delta = jnp.sum(grad_out.astype(dtype) * out.astype(dtype), axis=-1)
    if grad_logsumexp is None:
        return delta
    # A row that sees nothing has no weights, and perhaps no number as a gradient.
    return delta - jnp.where(jnp.isfinite(logsumexp), grad_logsumexp.astype(dtype), 0)


def backward(
    grad_out: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    out: jax.Array,
    logsumexp: jax.Array,
    grad_logsumexp: jax.Array | None,
    bias: jax.Array | None,
    dropout: Dropout | None,
    *,
    masking: Masking,
    scale: float,
    wants_bias: bool,
) -> tuple[jax.Array | None, ...]:
    """The gradients of query, key, value, the bias, if it is needed, and the tensors of a function
    of scores that want one, in the accumulation dtype."""
    scores = _Scores.with_block(query, key, bias, masking, scale)
    dtype = wide(query.dtype)
    delta = delta_of(grad_out, out, logsumexp, grad_logsumexp)
    logsumexp = _no_infinity(logsumexp)

    def step(is_all, carry, pair):
        row, column = pair[0], pair[1]
        block, pull = scores.with_gradient(pair)
        block = scores.masked(block, pair, is_all)
        weights = jnp.exp(block - scores.rows(logsumexp, row)[..., None])
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
        grad_query, grad_key, grad_value, grad_bias, *of_tensors = carry
        grad_products, *parts = pull(grad_scores)
        grad_products = grad_products.astype(query.dtype)
        to_query = grad_products, scores.columns(key, column)
        to_key = grad_products, scores.rows(query, row)
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
            *map(operator.add, of_tensors, parts),
        ), None

    grad_query, grad_key, grad_value = (jnp.zeros(x.shape, dtype) for x in (query, key, value))
    of_bias = _zeros_like_bias(scores) if wants_bias else None
    start = grad_query, grad_key, grad_value, of_bias, *map(jnp.zeros_like, scores.wanted)
    grad_query, grad_key, grad_value, *others = _looped(step, start, scores)
    # The scale multiplies the width-D gradients, not the scores: one pass over the larger array
    # less.
    return scale * grad_query, scale * grad_key, grad_value, *others


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

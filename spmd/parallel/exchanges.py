"""Exchanges of attention over a sharded sequence: how the queries of each device meet the keys of
all.

Keys and values travel around the ring of devices (Ring Attention, Liu et al. 2023,
arXiv:2310.01889), are gathered first, or heads are exchanged for rows (DeepSpeed-Ulysses, Jacobs et
al. 2023, arXiv:2309.14509). Results over disjoint sets of keys are merged by their log-sum-exp.
Backward takes the log-sum-exp of all keys for each pair of chunks; in the ring the gradients of
keys and values travel with these.

Under a causal mask each step has two pairs of chunks, neither of which is masked in part; the
diagonal pairs are those of a device with its own keys.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .orders import Axes, Chunks, Consecutive, Order, together


class PairStart(NamedTuple):
    """The first row and column of a pair of chunks in the sequence."""

    row: jax.Array
    column: jax.Array


class Pair(NamedTuple):
    """A chunk of rows and one of columns, by their numbers; is_diagonal: of the causal mask."""

    row: jax.Array | int
    column: jax.Array | int
    is_diagonal: bool = False


Compute = Callable[[Any, Any, PairStart, bool], Any]  # of rows, columns, their place, is_diagonal


class AttentionExchange(ABC):
    """The rows of a device are a pytree of arrays [batch, heads, rows, ...], and so are its
    columns."""

    @abstractmethod
    def forward(
        self, compute: Compute, rows: Any, columns: Any, dtype: Any
    ) -> tuple[jax.Array, jax.Array]:
        """The output and log-sum-exp of a device's shard of rows. compute: gives those of a pair of
        chunks."""

    @abstractmethod
    def backward(
        self, compute: Compute, rows: Any, columns: Any, dtype: Any
    ) -> tuple[jax.Array, ...]:
        """The gradients of the first array of a device's rows, and of its columns. compute: gives
        those of a pair."""


@dataclass(frozen=True)
class ByChunks(AttentionExchange):
    """Pairs of chunks, one after the other."""

    order: Order
    is_causal: bool

    def own_pairs(self) -> list[Pair]:
        """The pairs of a group's rows with its own keys."""
        return (
            [Pair(0, 0, True), Pair(1, 1, True), Pair(1, 0)]
            if self.is_causal
            else self._all_pairs()
        )

    def pairs(self, source: jax.Array) -> list[Pair]:
        """The pairs with the keys of another group. Of a causal mask: the high rows meet its low
        keys, and either low rows low keys, of a group before this one, or high rows high keys."""
        if not self.is_causal:
            return self._all_pairs()
        half = (source > self.order.group).astype(jnp.int32)
        return [Pair(1, 0), Pair(half, half)]

    def _all_pairs(self) -> list[Pair]:
        """Each chunk of rows with each of keys; a mask may hide some of them."""
        chunks = range(1 if isinstance(self.order, Consecutive) else 2)
        return [Pair(row, column) for row in chunks for column in chunks]

    def source(self, step: jax.Array | int) -> jax.Array:
        """The group whose keys are met in a step."""
        return (self.order.group - step) % self.order.num_groups

    def computed(
        self, compute: Compute, pairs: list[Pair], rows: Chunks, columns: Chunks, source: jax.Array
    ) -> Iterator[tuple[Pair, Any]]:
        """The results of pairs with the keys of a group."""
        row_starts, column_starts = self.order.starts(self.order.group), self.order.starts(source)
        for pair in pairs:
            start = PairStart(row_starts[pair.row], column_starts[pair.column])
            yield (
                pair,
                compute(at(rows, pair.row), at(columns, pair.column), start, pair.is_diagonal),
            )

    def merge(
        self,
        compute: Compute,
        results: Chunks,
        pairs: list[Pair],
        rows: Chunks,
        columns: Chunks,
        source: jax.Array,
    ) -> Chunks:
        """The outputs and log-sum-exps with those of pairs."""
        for pair, result in self.computed(compute, pairs, rows, columns, source):
            results = put(results, pair.row, merged(at(results, pair.row), result))
        return results

    def add(
        self,
        compute: Compute,
        grads: Any,
        pairs: list[Pair],
        rows: Chunks,
        columns: Chunks,
        source: jax.Array,
    ) -> Any:
        """The gradients of rows and columns with those of pairs."""
        of_rows, of_columns = grads
        for pair, (row, *column) in self.computed(compute, pairs, rows, columns, source):
            of_rows = put(of_rows, pair.row, at(of_rows, pair.row) + row.astype(of_rows.dtype))
            of_columns = put(
                of_columns, pair.column, summed(at(of_columns, pair.column), tuple(column))
            )
        return of_rows, of_columns


def _no_keys(rows: Chunks, columns: Chunks, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """The output and log-sum-exp of rows before they have met a key."""
    query, value = rows[0], columns[-1]
    return jnp.zeros((*query.shape[:-1], value.shape[-1]), dtype), jnp.full(
        query.shape[:-1], -jnp.inf, dtype
    )


def _zeros(arrays: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, dtype), arrays)


@dataclass(frozen=True)
class RingOfKeys(ByChunks):
    """Keys travel from group to group, each step's while the step before computes."""

    def _rotated(self, chunks: Chunks) -> Chunks:
        """The chunks of the group before this one."""
        moved = together(
            self._moved, jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), chunks)
        )
        return jax.tree.map(lambda x, like: x.reshape(like.shape), moved, chunks)

    def _moved(self, x: jax.Array) -> jax.Array:
        return lax.ppermute(x, self.order.axes, self.order.route())

    def forward(
        self, compute: Compute, rows: Any, columns: Any, dtype: Any
    ) -> tuple[jax.Array, jax.Array]:
        rows, columns = self.order.chunks((rows, columns))
        last = self.order.num_groups - 1

        def step_on(carry: Any, step: jax.Array) -> tuple[Any, None]:
            columns, results = carry
            following, source = self._rotated(columns), self.source(step)
            return (
                following,
                self.merge(compute, results, self.pairs(source), rows, columns, source),
            ), None

        following = self._rotated(columns) if last else None
        results = _no_keys(rows, columns, dtype)
        results = self.merge(compute, results, self.own_pairs(), rows, columns, self.source(0))
        if last:
            (columns, results), _ = lax.scan(step_on, (following, results), jnp.arange(1, last))
            source = self.source(last)
            results = self.merge(compute, results, self.pairs(source), rows, columns, source)
        return self.order.shard(results)

    def backward(
        self, compute: Compute, rows: Any, columns: Any, dtype: Any
    ) -> tuple[jax.Array, ...]:
        rows, keys = self.order.chunks((rows, columns))
        of_rows, zeros, last = (
            _zeros(rows[0], dtype),
            _zeros(keys, dtype),
            self.order.num_groups - 1,
        )

        def contribution(of_rows: Chunks, columns: Chunks, step: jax.Array | int) -> Any:
            source = self.source(step)
            return self.add(compute, (of_rows, zeros), self.pairs(source), rows, columns, source)

        def step_on(carry: Any, step: jax.Array) -> tuple[Any, None]:
            columns, sums, of_rows = carry
            following, sums = self._rotated((columns, sums))
            of_rows, of_step = contribution(of_rows, columns, step)
            return (following, summed(sums, of_step), of_rows), None

        # The sums of a group's keys begin at the next group, and come home after `last` steps, to
        # be added to its own.
        sums = zeros
        if last:
            columns = self._rotated(keys)
            following = self._rotated(columns) if last > 1 else None
            of_rows, sums = contribution(of_rows, columns, 1)
            if last > 1:
                (columns, sums, of_rows), _ = lax.scan(
                    step_on, (following, sums, of_rows), jnp.arange(2, last)
                )
                sums = self._rotated(sums)
                of_rows, of_step = contribution(of_rows, columns, last)
                sums = summed(sums, of_step)
            sums = self._rotated(sums)
        grads = self.add(compute, (of_rows, sums), self.own_pairs(), rows, keys, self.source(0))
        of_query, of_columns = self.order.shard(grads)
        return of_query, *of_columns


@dataclass(frozen=True)
class Gathered(ByChunks):
    """Keys are gathered before the first step; their gradients are reduce-scattered after the
    last."""

    def _everywhere(self, columns: Any) -> Any:
        """All rows of this device's heads."""
        gathered = together(
            lambda x: lax.all_gather(x, self.order.axes, axis=2, tiled=True), columns
        )
        return jax.tree.map(self.order.heads, gathered)

    def _of(self, arrays: Any, group: jax.Array) -> Chunks:
        """The chunks of a group, of arrays with all rows."""
        starts = self.order.starts(group)

        def cut(x: jax.Array) -> jax.Array:
            return jnp.stack(
                [lax.dynamic_slice_in_dim(x, start, self.order.length, 2) for start in starts]
            )

        return jax.tree.map(cut, arrays)

    def _put(self, sums: Any, group: jax.Array, chunks: Chunks) -> Any:
        """The sums with the chunks of a group replaced."""

        def replaced(x: jax.Array, pieces: jax.Array) -> jax.Array:
            for number, start in enumerate(self.order.starts(group)):
                x = lax.dynamic_update_slice_in_dim(x, pieces[number], start, 2)
            return x

        return jax.tree.map(replaced, sums, chunks)

    def forward(
        self, compute: Compute, rows: Any, columns: Any, dtype: Any
    ) -> tuple[jax.Array, jax.Array]:
        rows, everywhere = self.order.chunks(rows), self._everywhere(columns)

        def visit(
            results: Chunks, step: jax.Array | int, is_own: bool = False
        ) -> tuple[Chunks, None]:
            source = self.source(step)
            pairs = self.own_pairs() if is_own else self.pairs(source)
            return self.merge(
                compute, results, pairs, rows, self._of(everywhere, source), source
            ), None

        results, _ = visit(_no_keys(rows, columns, dtype), 0, is_own=True)
        results, _ = lax.scan(visit, results, jnp.arange(1, self.order.num_groups))
        return self.order.shard(results)

    def backward(
        self, compute: Compute, rows: Any, columns: Any, dtype: Any
    ) -> tuple[jax.Array, ...]:
        rows, everywhere = self.order.chunks(rows), self._everywhere(columns)

        def visit(carry: Any, step: jax.Array | int, is_own: bool = False) -> tuple[Any, None]:
            (of_rows, sums), source = carry, self.source(step)
            pairs = self.own_pairs() if is_own else self.pairs(source)
            grads = of_rows, self._of(sums, source)
            of_rows, of_columns = self.add(
                compute, grads, pairs, rows, self._of(everywhere, source), source
            )
            return (of_rows, self._put(sums, source, of_columns)), None

        carry, _ = visit((_zeros(rows[0], dtype), _zeros(everywhere, dtype)), 0, is_own=True)
        (of_rows, sums), _ = lax.scan(visit, carry, jnp.arange(1, self.order.num_groups))
        sums = jax.tree.map(self.order.all_heads, sums)
        return self.order.shard(of_rows), *together(self._scattered, sums)

    def _scattered(self, x: jax.Array) -> jax.Array:
        return lax.psum_scatter(x, self.order.axes, scatter_dimension=2, tiled=True)


@dataclass(frozen=True)
class AllToAll(AttentionExchange):
    """Each device computes some heads of the whole sequence."""

    axes: Axes
    is_causal: bool

    def _all_rows(self, shard: Any) -> Any:
        """All rows of a device's heads, of its rows of all heads; of arrays without heads all
        rows."""

        def all_rows(x: jax.Array) -> jax.Array:
            if x.shape[1] == 1:
                return lax.all_gather(x, self.axes, axis=2, tiled=True)
            return lax.all_to_all(x, self.axes, 1, 2, tiled=True)

        return jax.tree.map(all_rows, shard)

    def _own_rows(self, results: Any) -> Any:
        return jax.tree.map(lambda x: lax.all_to_all(x, self.axes, 2, 1, tiled=True), results)

    def _whole(self, compute: Compute, rows: Any, columns: Any) -> Any:
        start = jnp.zeros((), jnp.int32)
        rows, columns = self._all_rows((rows, columns))
        results = compute(rows, columns, PairStart(start, start), self.is_causal)
        return self._own_rows(tuple(results))

    def forward(
        self, compute: Compute, rows: Any, columns: Any, dtype: Any
    ) -> tuple[jax.Array, jax.Array]:
        output, logsumexp = self._whole(compute, rows, columns)
        return output.astype(dtype), logsumexp

    def backward(
        self, compute: Compute, rows: Any, columns: Any, dtype: Any
    ) -> tuple[jax.Array, ...]:
        return tuple(x.astype(dtype) for x in self._whole(compute, rows, columns))


def at(chunks: Chunks, index: jax.Array | int) -> Any:
    """One of the chunks."""
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, index, 0, keepdims=False), chunks)


def put(chunks: Chunks, index: jax.Array | int, chunk: Any) -> Chunks:
    """The chunks with one of them replaced."""
    return jax.tree.map(
        lambda x, new: lax.dynamic_update_index_in_dim(x, new, index, 0), chunks, chunk
    )


def summed(lhs: Any, rhs: Any) -> Any:
    """The sums of two trees' arrays, in the dtypes of `lhs`."""
    return jax.tree.map(lambda x, y: x + y.astype(x.dtype), lhs, rhs)


def merged(
    lhs: tuple[jax.Array, jax.Array], rhs: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """(output, log-sum-exp) over the keys of two disjoint sets, of those over each; -inf: over
    none."""
    (output, logsumexp), (other_output, other_logsumexp) = lhs, rhs
    largest = jnp.maximum(logsumexp, other_logsumexp)
    base = jnp.where(largest == -jnp.inf, jnp.zeros_like(largest), largest)
    weight, other_weight = jnp.exp(logsumexp - base), jnp.exp(other_logsumexp - base)
    total = weight + other_weight
    share = 1 / jnp.where(total == 0, jnp.ones_like(total), total)
    output = (
        output * (weight * share)[..., None]
        + other_output.astype(output.dtype) * (other_weight * share)[..., None]
    )
    return output, base + jnp.log(total)

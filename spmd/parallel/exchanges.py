"""Exchanges of attention over a sharded sequence: how the queries of each device meet the keys of
all.

Keys and values travel around the ring of devices (Ring Attention, Liu et al. 2023,
arXiv:2310.01889), are gathered first, or heads are exchanged for rows (DeepSpeed-Ulysses, Jacobs et
al. 2023, arXiv:2309.14509). Results over disjoint sets of keys are merged by their log-sum-exp.
Backward takes the log-sum-exp of all keys for each pair of chunks; in the ring the gradients of
keys and values travel with these.

The table of the mask's blocks has the pairs of chunks that a step computes: under a causal mask
two, neither of which is masked in part, and of a window none behind the first steps.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..core.extend import ALL, NONE, Masking
from .orders import Axes, Chunks, Order, together


class Place(NamedTuple):
    """The place of a pair of chunks in the sequence.

    row, column: the first of each. of_groups: those of each group, None for a group without a
    visible pair; None in a loop over steps. is_all: no group's pair is masked. is_visible: of this
    group, in a loop over steps; None: in each.
    """

    row: jax.Array
    column: jax.Array
    of_groups: tuple[tuple[int, int] | None, ...] | None = None
    is_all: bool = False
    is_visible: jax.Array | None = None


Compute = Callable[[Any, Any, Place], Any]  # of rows, columns, and their place


class Pair(NamedTuple):
    """A chunk of rows and one of columns, by their numbers on the device, and their place."""

    row: jax.Array | int
    column: jax.Array | int
    place: Place


class Visible(NamedTuple):
    """The pairs of chunks that a mask leaves, by steps and groups.

    pairs: [steps, pairs, groups, (row, column, is visible)]. is_all: [steps, pairs, groups], True
    for a pair without a masked position. cost: of all steps, the blocks of the group with most.
    """

    pairs: np.ndarray
    is_all: np.ndarray
    cost: int

    @staticmethod
    def of(masking: Masking, order: Order) -> "Visible":
        groups, chunks = order.num_groups, len(order.numbers(0))
        block = next(n for n in (_FINER, 1) if order.length % n == 0)
        block, total = order.length // block, order.length * groups * chunks
        (kinds,) = masking.tables((total, total), (block, block))
        finer = order.length // block
        kinds = kinds.reshape(groups * chunks, finer, groups * chunks, finer)
        counts, are_all = (kinds != NONE).sum((1, 3)), (kinds == ALL).all((1, 3))
        pairs = np.zeros((groups, chunks**2, groups, 3), np.int32)
        is_all = np.ones(pairs.shape[:3], np.bool_)
        costs = np.zeros((groups, groups), np.int64)
        for step, group in np.ndindex(groups, groups):
            of_rows, of_columns = order.numbers(group), order.numbers((group - step) % groups)
            visible = [
                (row, column)
                for row, column in np.ndindex(chunks, chunks)
                if counts[of_rows[row], of_columns[column]]
            ]
            for place, (row, column) in enumerate(visible):
                at_chunks = of_rows[row], of_columns[column]
                pairs[step, place, group] = row, column, 1
                is_all[step, place, group] = are_all[at_chunks]
                costs[step, group] += counts[at_chunks]
        cost = int(costs.max(1).sum()) * block**2
        # Those of a group may have a part of the heads each.
        return Visible(pairs, is_all, cost * groups // order.num_devices)

    def num_pairs(self, steps: Sequence[int]) -> int:
        """The pairs of the group with most, in any of the steps."""
        return max((int(self.pairs[step, :, :, 2].sum(0).max()) for step in steps), default=0)

    @property
    def last(self) -> int:
        """The last step with a pair."""
        return int(max(np.flatnonzero(self.pairs[..., 2].any((1, 2))), default=0))


# The blocks of the side of a chunk in the table from which an order is chosen.
_FINER = 4
# Steps up to so many are not a loop: each has the places of its own pairs.
MOST_UNROLLED = 3


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
    visible: Visible

    def pairs(self, step: jax.Array | int, steps: Sequence[int]) -> Iterator[Pair]:
        """The pairs of a step, one of `steps`."""
        group, source = self.order.group, self.source(step)
        of_steps, are_all = self.visible.pairs[list(steps)], self.visible.is_all[list(steps)]
        for place in range(self.visible.num_pairs(steps)):
            known = of_steps[:, place]
            here = jnp.asarray(self.visible.pairs[:, place])[step, group]
            row, column = (
                int(known[0, 0, side])
                if (known[..., side] == known[0, 0, side]).all()
                else here[side]
                for side in (0, 1)
            )
            starts = self.order.starts(group)[row], self.order.starts(source)[column]
            of_groups, is_visible = None, None if known[..., 2].all() else here[2] == 1
            is_all = bool(are_all[:, place].all())
            if isinstance(step, int):
                of_groups, is_visible = tuple(self._starts(step, place)), None
                is_all &= None not in of_groups
            yield Pair(row, column, Place(*starts, of_groups, is_all, is_visible))

    def _starts(self, step: int, place: int) -> Iterator[tuple[int, int] | None]:
        """The first row and column of a step's pair, of each group."""
        for group, (row, column, is_visible) in enumerate(self.visible.pairs[step, place]):
            source = (group - step) % self.order.num_groups
            numbers = self.order.numbers(group)[row], self.order.numbers(source)[column]
            first = numbers[0] * self.order.length, numbers[1] * self.order.length
            yield first if is_visible else None

    def source(self, step: jax.Array | int) -> jax.Array:
        """The group whose keys are met in a step."""
        return (self.order.group - step) % self.order.num_groups

    def computed(
        self, compute: Compute, pairs: Iterable[Pair], rows: Chunks, columns: Chunks
    ) -> Iterator[tuple[Pair, Any]]:
        """The results of pairs with the keys of a group."""
        for pair in pairs:
            yield pair, compute(at(rows, pair.row), at(columns, pair.column), pair.place)

    def merge(
        self,
        compute: Compute,
        results: Chunks,
        pairs: Iterable[Pair],
        rows: Chunks,
        columns: Chunks,
    ) -> Chunks:
        """The outputs and log-sum-exps with those of pairs."""
        for pair, result in self.computed(compute, pairs, rows, columns):
            results = put(results, pair.row, merged(at(results, pair.row), result))
        return results

    def add(
        self, compute: Compute, grads: Any, pairs: Iterable[Pair], rows: Chunks, columns: Chunks
    ) -> Any:
        """The gradients of rows and columns with those of pairs."""
        of_rows, of_columns = grads
        for pair, (row, *column) in self.computed(compute, pairs, rows, columns):
            of_rows = put(of_rows, pair.row, at(of_rows, pair.row) + row.astype(of_rows.dtype))
            of_columns = put(
                of_columns, pair.column, summed(at(of_columns, pair.column), tuple(column))
            )
        return of_rows, of_columns

    def _looped(self, visit: Callable[..., Any], carry: Any, steps: range) -> Any:
        """The carry after `visit(carry, step, steps)` of all steps: in a loop, where there are
        many."""
        if len(steps) > MOST_UNROLLED:
            return lax.scan(
                lambda carry, step: (visit(carry, step, steps), None), carry, jnp.array(steps)
            )[0]
        for step in steps:
            carry = visit(carry, step, (step,))
        return carry


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

    def _rotated(self, chunks: Chunks, distance: int = 1) -> Chunks:
        """The chunks of the group before this one, or of one at another distance."""
        moved = together(
            partial(self._moved, distance=distance),
            jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), chunks),
        )
        return jax.tree.map(lambda x, like: x.reshape(like.shape), moved, chunks)

    def _moved(self, x: jax.Array, distance: int = 1) -> jax.Array:
        return lax.ppermute(x, self.order.axes, self.order.route(distance))

    def forward(
        self, compute: Compute, rows: Any, columns: Any, dtype: Any
    ) -> tuple[jax.Array, jax.Array]:
        rows, columns = self.order.chunks((rows, columns))
        last = self.visible.last

        def visit(carry: Any, step: jax.Array | int, steps: Sequence[int]) -> Any:
            columns, results = carry
            following = self._rotated(columns)
            pairs = self.pairs(step, steps)
            return following, self.merge(compute, results, pairs, rows, columns)

        following = self._rotated(columns) if last else None
        results = _no_keys(rows, columns, dtype)
        results = self.merge(compute, results, self.pairs(0, (0,)), rows, columns)
        if last:
            columns, results = self._looped(visit, (following, results), range(1, last))
            results = self.merge(compute, results, self.pairs(last, (last,)), rows, columns)
        return self.order.shard(results)

    def backward(
        self, compute: Compute, rows: Any, columns: Any, dtype: Any
    ) -> tuple[jax.Array, ...]:
        rows, keys = self.order.chunks((rows, columns))
        of_rows, zeros, last = _zeros(rows[0], dtype), _zeros(keys, dtype), self.visible.last

        def contribution(
            of_rows: Chunks, columns: Chunks, step: jax.Array | int, steps: Sequence[int]
        ) -> Any:
            return self.add(compute, (of_rows, zeros), self.pairs(step, steps), rows, columns)

        def visit(carry: Any, step: jax.Array | int, steps: Sequence[int]) -> Any:
            columns, sums, of_rows = carry
            following, sums = self._rotated((columns, sums))
            of_rows, of_step = contribution(of_rows, columns, step, steps)
            return following, summed(sums, of_step), of_rows

        # The sums of a group's keys begin at the next group, and come home after `last` steps, to
        # be added to its own.
        sums = zeros
        if last:
            columns = self._rotated(keys)
            following = self._rotated(columns) if last > 1 else None
            of_rows, sums = contribution(of_rows, columns, 1, (1,))
            if last > 1:
                carry = following, sums, of_rows
                columns, sums, of_rows = self._looped(visit, carry, range(2, last))
                sums = self._rotated(sums)
                of_rows, of_step = contribution(of_rows, columns, last, (last,))
                sums = summed(sums, of_step)
            sums = self._rotated(sums, self.order.num_groups - last)
        grads = self.add(compute, (of_rows, sums), self.pairs(0, (0,)), rows, keys)
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

        def visit(results: Chunks, step: jax.Array | int, steps: Sequence[int]) -> Chunks:
            columns = self._of(everywhere, self.source(step))
            return self.merge(compute, results, self.pairs(step, steps), rows, columns)

        results = visit(_no_keys(rows, columns, dtype), 0, (0,))
        return self.order.shard(self._looped(visit, results, range(1, self.visible.last + 1)))

    def backward(
        self, compute: Compute, rows: Any, columns: Any, dtype: Any
    ) -> tuple[jax.Array, ...]:
        rows, everywhere = self.order.chunks(rows), self._everywhere(columns)

        def visit(carry: Any, step: jax.Array | int, steps: Sequence[int]) -> Any:
            (of_rows, sums), source = carry, self.source(step)
            grads, columns = (of_rows, self._of(sums, source)), self._of(everywhere, source)
            of_rows, of_columns = self.add(compute, grads, self.pairs(step, steps), rows, columns)
            return of_rows, self._put(sums, source, of_columns)

        carry = visit((_zeros(rows[0], dtype), _zeros(everywhere, dtype)), 0, (0,))
        of_rows, sums = self._looped(visit, carry, range(1, self.visible.last + 1))
        sums = jax.tree.map(self.order.all_heads, sums)
        return self.order.shard(of_rows), *together(self._scattered, sums)

    def _scattered(self, x: jax.Array) -> jax.Array:
        return lax.psum_scatter(x, self.order.axes, scatter_dimension=2, tiled=True)


@dataclass(frozen=True)
class AllToAll(AttentionExchange):
    """Each device computes some heads of the whole sequence."""

    axes: Axes

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
        results = compute(rows, columns, Place(start, start, ((0, 0),)))
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

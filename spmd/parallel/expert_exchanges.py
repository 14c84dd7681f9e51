"""Exchanges of a layer of experts: rows of tokens meet the weights of their experts, on one device
of several.

Weights are gathered, as under FSDP; or rows travel: about an even share of each pair of devices at
once, by an all-to-all, and those of longer queues in rounds until all are empty (no row is dropped,
and memory is bounded whatever the router does); or around the ring of the axis, each device adding
what its own experts compute. On each device rows are sorted by expert and multiplied in groups
(Gale et al. 2022, arXiv:2211.15841).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from ..core import dense_meta
from ..core.extend import floats
from .expert_rows import RowBody, SortedRows

# Rows of at most so many elements are exchanged together.
_NARROW = 64
# Kernels compute rows in blocks of so many.
BLOCK = 512

Rows = dict[int, jax.Array]  # by step
Results = dict[int, jax.Array]  # by place


@dataclass(frozen=True)
class ExpertsOnDevice:
    """The op on one device: its tokens' choices, tokens and weights."""

    case: Any  # an `ExpertsCase`
    kinds: list[str]
    own_choices: jax.Array
    operands: Sequence[jax.Array]
    scalars: Mapping[int, Sequence[jax.Array]]

    @property
    def body(self) -> RowBody:
        return self.case.body

    @property
    def chosen(self) -> int:
        return self.own_choices.shape[-1]

    @cached_property
    def ids(self) -> jax.Array:
        """The expert of each row. First come the tokens' first choices, then their second ones,
        ...: a sum over choices is then one of arrays of tokens."""
        return self.own_choices.reshape(-1, self.chosen).T.reshape(-1).astype(jnp.int32)

    @property
    def num_rows(self) -> int:
        return self.own_choices.size

    @property
    def num_tokens(self) -> int:
        return self.num_rows // self.chosen

    @cached_property
    def entries(self) -> Rows:
        """By step, its operand as rows: of tokens, or of choices."""
        entries = {}
        for index, step in enumerate(self.body.steps):
            if step.kind in ("token", "choice"):
                x = self.operands[step.sources[0]]
                if step.kind == "choice":
                    x = jnp.moveaxis(x.reshape(-1, self.chosen, *step.shape[1:]), 1, 0)
                entries[index] = x.reshape(-1, *step.shape[1:])
        return entries

    def taken(self, entries: Rows, steps: Sequence[int], choice: jax.Array) -> Rows:
        """The rows of these choices."""
        is_token = {index: self.body.steps[index].kind == "token" for index in steps}
        return {
            index: entries[index][choice % self.num_tokens if is_token[index] else choice]
            for index in steps
        }

    def group(self, ids: jax.Array, num_parts: int = 1) -> SortedRows:
        """The operands of rows of experts; a block of rows is computed for each expert that it has
        rows of."""
        stacks = {index: x for index, x in enumerate(self.operands) if self.kinds[index] == "stack"}
        shared = {
            index: x for index, x in enumerate(self.operands) if self.kinds[index] == "shared"
        }
        num_experts = len(next(iter(stacks.values())))
        computed = (self.case.computed + (num_experts - 1) * BLOCK) // num_parts
        numbered = jnp.where(ids < num_experts, ids + self._first, self.case.num_experts)
        return SortedRows(
            ids, numbered, _counts(ids, num_experts), stacks, shared, self.scalars, computed
        )

    @property
    def _first(self) -> jax.Array | int:
        """The first expert of this device."""
        is_whole = self.case.exchange in ("", "gathered")
        return 0 if is_whole else lax.axis_index(self.case.placed[3]) * self.case.of_device

    def zeros(self) -> Rows:
        """By their places, the results that are sums over an expert's rows, before the first
        row."""
        count, exits = self.case.of_device, enumerate(self.body.exits)
        shapes = {index: (count, *end.shape[1:]) for index, end in exits if end.kind == "expert"}
        return {
            index: jnp.zeros(shape, dtype_of(self.body, index)) for index, shape in shapes.items()
        }

    def computed(
        self,
        step_indices: Sequence[int],
        ids: jax.Array,
        rows: Callable[[jax.Array], Rows],
        sums: Rows | None = None,
    ) -> tuple[Rows, dict[int, jax.Array]]:
        """Steps' values of rows, and sums by expert with those of these rows added. ids: of this
        device's experts, or their number for none. rows: takes indices of rows, and returns the
        known values of those. sums: so far."""
        order, exits = _order(ids), enumerate(self.body.exits)
        ends = {exit_index: end.sources for exit_index, end in exits if end.kind == "expert"}
        sources = [source for end_sources in ends.values() for source in end_sources]
        num_parts = self.case.num_parts(len(ids))

        def part(order: jax.Array, sums: Rows | None) -> tuple[Rows, Rows]:
            group = self.group(ids[order], num_parts)
            values = self.body.run([*step_indices, *sources], rows(order), len(order), group)
            total: dict[int, jax.Array] = {}
            for exit_index, end_sources in ends.items():
                so_far, dtype = (
                    None if sums is None else sums[exit_index],
                    dtype_of(self.body, exit_index),
                )
                total[exit_index] = group.added(
                    so_far, [values[source] for source in end_sources], dtype
                )
            return {index: values[index] for index in step_indices}, total

        if num_parts == 1:
            values, sums = part(order, sums)
            places = _order(order)
            return {index: x[places] for index, x in values.items()}, sums

        def one_part(
            carry: tuple[Rows, Rows | None], order: jax.Array
        ) -> tuple[tuple[Rows, Rows], None]:
            results, sums = carry
            values, sums = part(order, sums)
            put = {
                index: results[index].at[order].set(x, unique_indices=True)
                for index, x in values.items()
            }
            return (put, sums), None

        # The first part alone, as sums begin with it: zeros for them would be written, and read.
        first, *later_parts = order.reshape(num_parts, -1)
        carry, _ = one_part((self.empty(step_indices, len(ids)), sums), first)
        for order in later_parts if num_parts < 4 else ():
            carry, _ = one_part(*lax.optimization_barrier((carry, order)))
        return carry if num_parts < 4 else lax.scan(one_part, carry, jnp.stack(later_parts))[0]

    def empty(self, step_indices: Sequence[int], num_rows: int) -> Rows:
        """Room for the values of steps, each row of which will be written."""
        steps = {index: self.body.steps[index] for index in step_indices}
        return {
            index: lax.empty((num_rows, *step.shape[1:]), jax_dtype(step.dtype))
            for index, step in steps.items()
        }

    def results(self) -> tuple[jax.Array, ...]:
        ways = {
            "": self._local,
            "gathered": self._local,
            "all-to-all": self._rounds,
            "ring": self._ring,
        }
        results, sums = ways.get(self.case.exchange, self._replicated)()
        for exit_index, total in sums.items():
            results[exit_index] = total[None].astype(dtype_of(self.body, exit_index))
        return tuple(results[exit_index] for exit_index in range(len(self.body.exits)))

    def _ends(self, values: Rows, is_row: jax.Array) -> Rows:
        """The results of tokens and choices, of rows; those of no expert here add nothing."""
        results = {}
        for exit_index, end in enumerate(self.body.exits):
            if end.kind != "expert":
                x = jnp.where(_along(is_row, values[end.sources[0]]), values[end.sources[0]], 0)
                x = x.reshape(self.chosen, self.num_tokens, *x.shape[1:])
                is_sum = end.kind == "token"
                results[exit_index] = (
                    x.astype(floats.wide(x.dtype)).sum(0) if is_sum else jnp.moveaxis(x, 0, 1)
                )
        return results

    def _shaped(self, ends: Rows) -> Rows:
        """The results with the dims of tokens."""
        grid, results = self.own_choices.shape[:-1], {}
        for exit_index, x in ends.items():
            for base in self.body.exits[exit_index].sources[1:]:
                x = x + self.operands[self.body.steps[base].sources[0]].reshape(x.shape).astype(
                    x.dtype
                )
            results[exit_index] = x.reshape(*grid, *x.shape[1:]).astype(
                dtype_of(self.body, exit_index)
            )
        return results

    @property
    def _sources(self) -> list[int]:
        return [end.sources[0] for end in self.body.exits if end.kind != "expert"]

    def _local(self) -> tuple[Results, Results]:
        """All rows here, with the weights of all experts."""
        every = list(self.entries)
        rows = lambda order: self.taken(self.entries, every, order)  # noqa: E731  # of an order, not a name
        values, sums = self.computed(self.body.exchanged.returned, self.ids, rows)
        return self._home(values), sums

    def _home(self, values: Rows) -> Results:
        """The results, of the values that experts return: the steps after these are computed in the
        tokens' order."""
        home = [source for source in self._sources if source not in values]
        if home:
            needed = [index for index in self.body.upstream(home, values) if index in self.entries]
            computed = values | self.taken(self.entries, needed, jnp.arange(self.num_rows))
            values = self.body.run(
                home, computed, self.num_rows, replace(self.group(self.ids), numbered=self.ids)
            )
        return self._shaped(self._ends(values, self.ids < self.case.num_experts))

    # -- Rows that travel.

    def _own(self, ids: jax.Array) -> jax.Array:
        """The places of experts among this device's; their number for those of others."""
        count = self.case.of_device
        local = ids - self._first
        return jnp.where((local >= 0) & (local < count), local, count)

    def _visited(
        self, ids: jax.Array, entries: Rows, sums: Rows | None = None
    ) -> tuple[Results, Results]:
        """This device's part of the results of a device's tokens, and the sums with those of these
        rows."""
        local, every = self._own(ids), list(entries)
        rows = lambda order: self.taken(entries, every, order)  # noqa: E731  # of an order, not a name
        values, sums = self.computed(self._sources, local, rows, sums)
        is_own = (local < self.case.of_device) & (ids < self.case.num_experts)
        return self._ends(values, is_own), sums

    def _replicated(self) -> tuple[Results, Results]:
        """The same tokens on all devices of the axis."""
        ends, sums = self._visited(self.ids, self.entries)
        return self._shaped(
            {index: lax.psum(x, self.case.placed[3]) for index, x in ends.items()}
        ), sums

    def _ring(self) -> tuple[Results, Results]:
        """Tokens travel around the axis with what was added for them, and come home."""
        axes, count = self.case.placed[3], self.case.num_shards

        def moved(x: jax.Array) -> jax.Array:
            return lax.ppermute(
                x, axes, [(device, (device + 1) % count) for device in range(count)]
            )

        def step(carry: Any, _: None) -> tuple[Any, None]:
            tokens, ends, sums = carry
            following = jax.tree.map(moved, tokens)
            ids, entries = tokens
            more, sums = self._visited(ids, entries, sums)
            return (following, jax.tree.map(lambda x, y: moved(x + y), ends, more), sums), None

        tokens = self.ids, self.entries
        shapes, _ = jax.eval_shape(self._visited, *tokens)
        ends = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        (_, ends, sums), _ = lax.scan(step, (tokens, ends, self.zeros()), None, length=count)
        return self._shaped(ends), sums

    def _rounds(self) -> tuple[Results, Results]:
        """Rows travel to their experts' devices and back: about an even share of each pair at once,
        then in rounds."""
        case, (sent, returned, _) = self.case, self.body.exchanged
        axes, count, first, more = case.placed[3], case.of_device, case.at_once, case.of_round
        order = _order(self.ids)
        queues = _counts(self.ids // count, case.num_shards)
        starts = jnp.cumsum(queues, dtype=jnp.int32) - queues

        def exchanged(rows: Rows) -> Rows:
            return _packed(lambda x: lax.all_to_all(x, axes, 0, 0, tiled=True), rows)

        def sent_on(positions: jax.Array, values: Rows, sums: Rows | None) -> tuple[Rows, Rows]:
            """The values of returned rows, and the sums, with the rows at these places [pair] of
            each queue."""
            is_row = positions[None] < queues[:, None]
            choice = order[jnp.where(is_row, starts[:, None] + positions, 0)]
            ids = jnp.where(is_row, self.ids[choice] % count, count).reshape(-1)
            ids, rows = (
                exchanged({0: ids})[0],
                exchanged(self.taken(self.entries, sent, choice.reshape(-1))),
            )
            back, sums = self.computed(
                returned,
                ids,
                lambda row_index: {index: x[row_index] for index, x in rows.items()},
                sums,
            )
            target, received = jnp.where(is_row, choice, self.num_rows).reshape(-1), exchanged(back)
            put = {
                index: values[index].at[target].set(x, mode="drop", unique_indices=True)
                for index, x in received.items()
            }
            return put, sums

        values, sums = sent_on(
            jnp.arange(first, dtype=jnp.int32), self.empty(returned, self.num_rows), None
        )
        if first < self.num_rows:
            num_unsent = jnp.max((queues - first + more - 1) // more)
            num_rounds = lax.pmax(num_unsent, case.axes_of_tokens)

            def one_round(carry: Any) -> Any:
                number, values, sums = carry
                positions = first + number * more + jnp.arange(more, dtype=jnp.int32)
                return number + 1, *sent_on(positions, values, sums)

            start = jnp.zeros((), num_rounds.dtype), values, sums
            with jax.named_scope("iterations=0"):  # if the router is balanced; plans read the scope
                _, values, sums = lax.while_loop(
                    lambda carry: carry[0] < num_rounds, one_round, start
                )
        return self._home(values), sums


def _order(keys: jax.Array) -> jax.Array:
    """The indices that sort keys, of 32 bits."""
    return lax.sort((keys, lax.iota(jnp.int32, len(keys))), num_keys=1, is_stable=True)[1]


def _counts(ids: jax.Array, count: int) -> jax.Array:
    """The occurrences of each number below the count."""
    return jnp.sum(ids[:, None] == jnp.arange(count, dtype=ids.dtype), 0, dtype=jnp.int32)


def _packed(collective: Callable[[jax.Array], jax.Array], rows: Rows) -> Rows:
    """The results of a collective over rows, of one for all narrow ones of a dtype."""
    width = {index: x.size // len(x) for index, x in rows.items()}
    results = {index: collective(x) for index, x in rows.items() if width[index] > _NARROW}
    for dtype in dict.fromkeys(x.dtype for index, x in rows.items() if index not in results):
        narrow = {
            index: x for index, x in rows.items() if x.dtype == dtype and width[index] <= _NARROW
        }
        joined, start = (
            collective(jnp.concatenate([x.reshape(len(x), -1) for x in narrow.values()], 1)),
            0,
        )
        for index, x in narrow.items():
            part = lax.slice_in_dim(joined, start, start + width[index], axis=1)
            results[index], start = part.reshape(x.shape), start + width[index]
    return results


def _along(mask: jax.Array, x: jax.Array) -> jax.Array:
    """The mask with a dim of size 1 for each further one of x."""
    return mask.reshape(-1, *[1] * (x.ndim - 1))


def dtype_of(body: RowBody, exit_index: int) -> Any:
    """jax's dtype of a result."""
    return jax_dtype(body.exits[exit_index].dtype)


def jax_dtype(dtype: torch.dtype) -> Any:
    return dense_meta((), dtype).struct.dtype

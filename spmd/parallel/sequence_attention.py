"""Attention over a sharded sequence: the exchange that brings keys to queries, and the forms that
compute a chunk.

The rules take scaled dot-product attention whose queries are sharded along their rows. By
`config.parallel` keys travel around a ring, are gathered once, or heads are exchanged for rows.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import torch
from jax import lax

from ..core import config
from ..core.extend import (
    Dropout,
    Masking,
    Places,
    attention,
    computed,
    document_ids,
    floats,
    partitioning,
    registry,
    splash,
)
from .block_pairs import DropoutOfColumns, Form, forms_of
from .exchanges import (
    MOST_UNROLLED,
    AllToAll,
    AttentionExchange,
    Gathered,
    Place,
    RingOfKeys,
    Visible,
)
from .orders import Consecutive, HalfOfHeads, Order, ZigzagRows

aten = torch.ops.aten

# Keys and values of all devices that take at most so many bytes a device are gathered at once.
MOST_GATHERED = 64 << 20
# The rows of a mask that are looked at together.
_ROWS = 128
Direction = Literal["forward", "backward"]
# The results of a pair without a visible position.
NOTHING = {"forward": (0.0, -math.inf), "backward": (0.0, 0.0, 0.0)}


@partitioning.partition(aten._scaled_dot_product_fused_attention_overrideable.default)
def forward(
    query,
    key,
    value,
    attn_bias=None,
    dropout_p=0.0,
    is_causal=False,
    return_debug_mask=False,
    **named,
):
    """Attention of rows over mesh axes."""
    case = AttentionCase.of(query, key, value, attn_bias, dropout_p, is_causal, named)
    if not isinstance(case, AttentionCase):
        return case
    draw, shape = named["draw"], (*query.shape[:-1], value.shape[-1])
    output, logsumexp = case.forward(case.dropout(draw))
    seed = jnp.stack([jnp.asarray(part).astype(jnp.int64) for part in draw])
    return output.astype(query.dtype).reshape(shape), logsumexp.reshape(shape[:-1]), seed


@partitioning.partition(aten._scaled_dot_product_fused_attention_overrideable_backward.default)
def backward(
    grad_out,
    query,
    key,
    value,
    attn_bias,
    grad_input_mask,
    out,
    logsumexp,
    cum_seq_q,
    cum_seq_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    philox_seed,
    philox_offset,
    **named,
):
    """The gradients of attention of rows over mesh axes."""
    wants_bias = attn_bias is not None and grad_input_mask[3]
    case = AttentionCase.of(query, key, value, attn_bias, dropout_p, is_causal, named, wants_bias)
    if not isinstance(case, AttentionCase):
        return case
    saved = (
        attention.batched(grad_out),
        attention.batched(out),
        logsumexp.reshape(case.query.shape[:3]),
    )
    grads = case.backward(case.dropout((philox_seed[0], philox_seed[1])), *saved)
    shaped = zip(grads, (query, key, value), strict=True)
    return registry.as_promised(
        (*(grad.astype(x.dtype).reshape(x.shape) for grad, x in shaped), None), named["returns"]
    )


@dataclass(frozen=True)
class AttentionCase:
    """One attention with rows over mesh axes: operands with a batch dim, its mask, and beside it a
    bias of four dims or None."""

    query: jax.Array
    key: jax.Array
    value: jax.Array
    masking: Masking
    bias: jax.Array | None
    dropout_p: float
    scale: float
    devices: Any  # the axes of batch, heads and rows

    @staticmethod
    def of(
        query, key, value, bias, dropout_p, is_causal, named, wants_bias=False
    ) -> "AttentionCase | str | None":
        """The case of these operands; a sentence or None if the core is to compute it."""
        if config.parallel == "off" or partitioning.axes_of_dims((query, query.ndim - 2)) is None:
            return None
        scale = attention.scale_of(query, named.get("scale"))
        query, key, value = map(attention.batched, (query, key, value))
        devices = splash.AttentionDevices.of(query, key)
        if devices is None or not devices.rows:
            return None
        rows, columns = query.shape[2], key.shape[2]
        axes = " x ".join(devices.rows)
        over = f"attention over {axes} gathers keys"
        if wants_bias:
            return f"{over}: its bias has a gradient"
        if rows != columns:
            return f"{over}: {rows} rows of queries meet {columns} of keys"
        masking, bias = attention.masking_of(bias, is_causal, query, key)
        bias = None if bias is None else attention.of_four_dims(bias)
        case = AttentionCase(query, key, value, masking, bias, dropout_p, scale, devices)
        chunks = devices.num_row_shards * (2 if is_causal else 1)
        if rows % chunks:
            return f"{over}: {chunks} chunks do not divide {rows} rows"
        partitioning.note_finding(f"attention over {axes}: {case.exchange}", "exchange")
        return case

    @property
    def exchange(self) -> str:
        """The exchange that brings keys to queries: "ring", "gathered" or "all-to-all"."""
        devices, n = self.devices, self.devices.num_row_shards
        shards = partitioning.num_shards(devices.mesh, (*devices.heads, *devices.rows))
        divides = self.key.shape[1] % shards == 0 == self.query.shape[1] % shards
        divides &= self._has_rows_of_heads
        if config.parallel != "auto":
            return config.parallel if divides or config.parallel != "all-to-all" else "ring"
        # Bytes per device: keys and values of all others; or a part of its own queries, keys,
        # values and results.
        num_head_shards = partitioning.num_shards(devices.mesh, (*devices.batch, *devices.heads))
        gathered, queries = (
            sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays) // num_head_shards
            for arrays in ((self.key, self.value), (self.query, self.query))
        )
        if divides and (gathered + queries) / n < gathered:
            return "all-to-all"
        return "gathered" if gathered <= MOST_GATHERED else "ring"

    @functools.cached_property
    def order(self) -> Order:
        """The order of rows, and of heads, for exchanges by chunks: that of which the steps compute
        the fewest blocks. A mask of data may be causal, as that of documents is."""
        consecutive, zigzag = self._orders
        if zigzag is None:
            return consecutive
        costs = [Visible.of(self.masking, order).cost for order in (consecutive, zigzag)]
        is_of_data = self.bias is not None and self.bias.dtype == jnp.bool_
        return (
            zigzag if costs[1] < costs[0] or (is_of_data and costs[0] == costs[1]) else consecutive
        )

    @property
    def _orders(self) -> tuple[Order, Order | None]:
        """The orders without and with an exchange; None where the chunks do not divide the rows."""
        devices, n, rows = self.devices, self.devices.num_row_shards, self.query.shape[2]
        consecutive = Consecutive(devices.rows, n, rows // n)
        if rows % (2 * n) or not (self.masking.masks):
            return consecutive, None
        shards = 2 * partitioning.num_shards(devices.mesh, devices.heads)
        if self.key.shape[1] % shards == 0 == n % 2 and self._has_rows_of_heads:
            return consecutive, HalfOfHeads(devices.rows, n, rows // n)
        return consecutive, ZigzagRows(devices.rows, n, rows // (2 * n))

    @property
    def _has_rows_of_heads(self) -> bool:
        """False for a bias of heads which all rows share: heads are not exchanged."""
        return self.bias is None or self.bias.shape[1] == 1 or self.bias.shape[2] > 1

    @property
    def length(self) -> int:
        """The rows, and the columns, of a pair."""
        return self.query.shape[2] if self.exchange == "all-to-all" else self.order.length

    def _exchanged(self) -> AttentionExchange:
        if self.exchange == "all-to-all":
            return AllToAll(self.devices.rows)
        return (RingOfKeys if self.exchange == "ring" else Gathered)(self.order, self.visible)

    @functools.cached_property
    def visible(self) -> Visible:
        """The pairs of chunks that are computed."""
        return Visible.of(self.masking, self.order)

    def _at(self, place: Place) -> Masking:
        """The mask of a pair."""
        if place.is_all:
            return Masking()
        if place.of_groups is None:
            return self.masking.at(Places(traced=(place.row, place.column)))
        group = self.order.group if len(place.of_groups) > 1 else 0
        return self.masking.at(Places(place.of_groups, group))

    @property
    def _places(self) -> Places:
        """Places that stand for those of all pairs, for the choice of a kernel."""
        if self.exchange == "all-to-all":
            return Places()
        steps = range(1, self.visible.last + (self.exchange == "gathered"))
        is_loop = len(steps) > MOST_UNROLLED and not self.visible.is_all[list(steps)].all()
        zero = jnp.zeros((), jnp.int32)
        return Places(traced=(zero, zero)) if is_loop else Places(((0, self.length),))

    def dropout(self, draw: Any) -> Any:
        """The dropout of all rows; None without."""
        return Dropout.of(draw, self.query.shape[:3], self.dropout_p)

    def forward(self, dropout: Any) -> Any:
        """(output, logsumexp) in the accumulation dtype."""
        shape = *self.query.shape[:3], self.value.shape[-1]
        words = "b h s d, b h s d, b h s e, b h s -> b h s e, b h s"
        operands = self.query, self.key, self.value
        return self._run("forward", words, (shape, shape[:-1]), dropout, *operands)

    def backward(self, dropout: Any, grad_out: Any, out: Any, logsumexp: Any) -> Any:
        """The gradients of query, key and value, in the accumulation dtype."""
        operands = self.query, self.key, self.value, grad_out, out, logsumexp
        words = (
            "b h s d, b h s d, b h s e, b h s e, b h s e, b h s, b h s -> b h s d, b h s d, b h s e"
        )
        return self._run("backward", words, [x.shape for x in operands[:3]], dropout, *operands)

    def _exchange(
        self, direction: Direction, form: Form, bias: "Bias | IdsOfPairs", dtype: Any, *shards: Any
    ) -> Any:
        """A direction of the exchange on one device. shards: query, key, value, others of the rows,
        dropout."""
        query, key, value, *of_query = shards
        compute, nothing = getattr(form, direction), NOTHING[direction]

        def pair(rows: Any, columns: Any, place: Place) -> Any:
            query, *saved, dropout, of_rows = rows
            masking = self._at(place)

            # In the branch: a bias that enters it from outside would be in memory in full.
            def computed_pair() -> Any:
                masked = bias.at(of_rows, place), _from(dropout, place)
                return compute(query, *columns, *saved, *masked, masking)

            return self._where(bias.is_visible(of_rows, place), computed_pair, nothing)

        exchanged = getattr(self._exchanged(), direction)
        return exchanged(pair, (query, *of_query, bias.rows), (key, value), dtype)

    def _where(
        self, is_visible: Any, compute: Callable[[], Any], nothing: tuple[float, ...]
    ) -> Any:
        """The results of a pair of chunks; those of no keys where its bias masks all of it."""
        if is_visible is None or self.exchange == "all-to-all":
            return compute()
        shapes = jax.eval_shape(compute)
        empty = tuple(
            jnp.full(x.shape, fill, x.dtype) for x, fill in zip(shapes, nothing, strict=True)
        )
        return lax.cond(is_visible, lambda: tuple(compute()), lambda: empty)

    def _run(
        self, direction: Direction, words: str, shapes: Any, dropout: Any, *arrays: jax.Array
    ) -> Any:
        """A direction of the exchange on each device, by the form of the platform."""
        devices, dtype = self.devices, floats.wide(self.query.dtype)
        over = {"b": devices.batch, "h": devices.heads, "s": devices.rows}
        # A computed mask that batch and heads share is computed in each chunk; any other has its
        # rows sharded.
        bias = self.bias
        is_shared = bias is not None and bias.shape[:2] == (1, 1) and computed.is_computed(bias)

        def run(form: Form, ids: Any, *arrays: Any) -> Any:
            def on_shard(of_shard: Any, *shards: Any) -> Any:
                of_pairs = (
                    IdsOfPairs.of(of_shard, self.length)
                    if form.takes_ids
                    else Bias(bias if is_shared else of_shard, is_shared, self.length)
                )
                return self._exchange(direction, form, of_pairs, dtype, *shards)

            function = partitioning.per_shard(
                on_shard, f"b h s t, {words}", devices.mesh, over, shapes
            )
            of_pairs = ids if form.takes_ids else None if is_shared else bias
            return function(of_pairs, *arrays, dropout)

        masking = replace(self.masking, places=self._places)
        operands = self.query, self.key, self.value, masking, self.bias
        forms = forms_of(
            *operands, self.dropout_p != 0, self.scale, self.query.shape[2] // self.length
        )
        bodies: dict[str, Callable[..., Any]] = {
            name: partial(run, form) for name, form in forms.items()
        }
        is_by_ids = any(form.takes_ids for form in forms.values())
        ids = IdsOfPairs.operands(self.masking.documents) if is_by_ids else None
        if "tpu" in bodies:
            promised = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)
            bodies["tpu"] = partial(splash.when_lowered, bodies["tpu"], bodies["default"], promised)
        return partitioning.by_platform(ids, *arrays, **bodies)


@dataclass(frozen=True)
class Bias:
    """The bias of a device: its rows, of four dims, or a computed one of all rows; length: of a
    chunk."""

    array: jax.Array | None
    is_computed: bool
    length: int

    @property
    def rows(self) -> jax.Array | None:
        """The array whose rows are exchanged; None without one."""
        return (
            self.array
            if self.array is not None and not self.is_computed and self.array.shape[2] > 1
            else None
        )

    def at(
        self,
        of_rows: jax.Array | None,
        place: Place,
        first: int | jax.Array = 0,
        rows: int = 0,
    ) -> jax.Array | None:
        """The bias of a pair of chunks, or of some rows of it. of_rows: the bias of the chunk of
        rows."""
        if self.array is None:
            return None
        rows = rows or self.length
        if self.is_computed:
            return computed.Block(place.row + first, place.column, rows, self.length).of(self.array)
        bias = self.array if of_rows is None else of_rows
        bias = bias if bias.shape[2] == 1 else lax.dynamic_slice_in_dim(bias, first, rows, 2)
        return (
            bias
            if bias.shape[3] == 1
            else lax.dynamic_slice_in_dim(bias, place.column, self.length, 3)
        )

    def is_visible(self, of_rows: jax.Array | None, place: Place) -> jax.Array | None:
        """True if the bias leaves a key to a row of a pair of chunks; some rows after the other, up
        to the first."""
        if self.array is None:
            return place.is_visible
        rows = math.gcd(self.length, _ROWS)

        def look(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            bias = self.at(of_rows, place, state[0], rows)
            assert bias is not None, "there is one"
            return state[0] + rows, jnp.any(bias if bias.dtype == jnp.bool_ else bias > -jnp.inf)

        start = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.bool_)
        return lax.while_loop(lambda state: ~state[1] & (state[0] < self.length), look, start)[1]


@dataclass(frozen=True)
class IdsOfPairs:
    """Ids of documents of all rows and columns, of 32 bits [batch or 1, positions], on a device, in
    place of a bias; length: of a chunk."""

    of_rows: jax.Array
    of_columns: jax.Array
    length: int
    rows: None = None  # no rows are exchanged

    @staticmethod
    def operands(documents: Any) -> tuple[document_ids.Side, document_ids.Side]:
        """The sides of rows and columns [batch or 1, 1, 1, positions], alike."""
        rows, columns = documents.arrays()
        sides = jax.tree.map(lambda x: x[:, None], rows), columns
        batch = max(len(x) for x in jax.tree.leaves(sides))
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, *x.shape[1:])), sides)

    @staticmethod
    def of(sides: Any, length: int) -> "IdsOfPairs":
        rows, columns = sides
        rows = jax.tree.map(lambda x: x[:, 0], rows)
        num_rows = columns.ids.shape[-1]
        return IdsOfPairs(*document_ids.of_32_bits(rows, columns, num_rows), length)

    def at(self, of_rows: None, place: Place) -> tuple[jax.Array, ...]:
        """The ids of a pair of chunks."""
        sides = (self.of_rows, place.row), (self.of_columns, place.column)
        return tuple(lax.dynamic_slice_in_dim(ids, at, self.length, 1) for ids, at in sides)

    def is_visible(self, of_rows: None, place: Place) -> jax.Array:
        """False if no row of a pair of chunks may have a column's id."""
        rows, columns = self.at(of_rows, place)
        by_ids = jnp.any(document_ids.visible(rows, columns, (self.length, self.length)))
        return by_ids if place.is_visible is None else by_ids & place.is_visible


def _from(dropout: Any, place: Place) -> Any:
    """The dropout of a pair of chunks, of that of its rows."""
    return (
        None
        if dropout is None
        else DropoutOfColumns(dropout.words, dropout.probability, place.column)
    )

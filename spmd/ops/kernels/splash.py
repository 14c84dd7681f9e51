"""Attention by jax's Pallas kernel for TPUs, forward and backward: when it may be called, how, and
on which devices.

The kernel (`jax.experimental.pallas.ops.tpu.splash_attention`) processes the scores in blocks in
the chip's fast memory and skips masked blocks. No partitioner can place it, so it runs under
`jax.shard_map`, each device with its own batch and heads. Its public function differentiates by
running the forward again, whose results torch's backward has at hand, so the operations behind it
are called here.
"""

import functools
import importlib
import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from .. import sharded
from ..partition import per_shard
from ..registry import Function
from .document_ids import of_32_bits, visible
from .flash import Masking, Places, delta_of
from .mask_blocks import NONE, MaskEquations, within_documents

Arrays = tuple[jax.Array, ...]
Shapes = tuple[jax.ShapeDtypeStruct, ...]
Otherwise = Callable[..., tuple[jax.Array | None, ...]]
# Ids of documents of rows and of columns, that are data.
Ids = tuple[jax.Array, jax.Array] | None

# Rows and columns of one block, the largest of these that divides the length: measured in
# docs/decisions/attention.md. float32 takes the next smaller, or it would not fit.
_BLOCKS, _LANES = (512, 256, 128), 128
# One kernel computes all three gradients, of 5 products instead of 7, and a part of the queries'
# for each block of columns, which are summed: it is taken where the parts have at most so many
# bytes. Its blocks are wider, so that there are fewer parts: 4 or 2 times, unless half the width
# leaves less than this share of the scores, as a block that is masked in part is computed whole.
_MOST_OF_PARTS, _WORTH_NARROWER = 1 << 30, {4: 0.92, 2: 0.7}
# Logsumexps below this are those of rows that see nothing.
_LOWEST = -1e37
# The parameters of the kernel's two backward functions, and those of one alone.
_OF_BACKWARD = {
    *("q", "k", "v", "segment_ids", "sinks", "logsumexp", "do", "di", "bq", "bkv", "mask_info"),
    *("q_layout", "k_layout", "v_layout"),
    *("is_mqa", "mask_value", "attn_logits_soft_cap", "mask_function", "interpret"),
}
_OF_KEYS = {"bkv_compute", "use_fused_bwd_kernel"}


def refusal(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    masking: Masking,
    bias: jax.Array | None,
    dropout_p: float,
    num_row_shards: int = 1,
) -> str:
    """Why the kernel does not compute this attention; empty if it does: a mask of equations, a soft
    cap, no bias, no dropout, lengths of complete blocks."""
    if reason := masking.refusal(bias, dropout_p):
        return reason
    if query.dtype not in (jnp.bfloat16, jnp.float32) or {key.dtype, value.dtype} != {query.dtype}:
        return f"operands of {', '.join(str(x.dtype) for x in (query, key, value))}"
    rows, columns = query.shape[2], key.shape[2]
    if rows % (_LANES * num_row_shards) or columns % _LANES or 0 in (*query.shape, *value.shape):
        return (
            f"{rows} rows and {columns} columns are no complete blocks of {_LANES} on each device"
        )
    if query.shape[-1] > 256:
        return f"heads of width {query.shape[-1]}"
    if key.shape[1] != value.shape[1]:
        return "other heads of values than of keys"
    if masking.documents is not None and not _is_there():
        return "ids of documents that are data"
    mask, places = masking.of_kernel, masking.places
    if mask is not None and (places.traced or any(start and start[1] for start in places.starts)):
        rest = mask.without_documents() if masking.documents is None else mask
        if places.traced is not None or not (rest is None or rest.is_band):
            return "a mask whose parts differ from device to device"
    return ""


COMPUTED_BY_ALL = "attention over {axes} is computed on all {devices} devices"


@dataclass(frozen=True, slots=True)
class AttentionDevices:
    """The devices of a program: the mesh (None: one device, or unknown) and the axes that shard
    batch, heads and rows of queries."""

    mesh: sharded.AnyMesh | None
    batch: sharded.Axes = ()
    heads: sharded.Axes = ()
    rows: sharded.Axes = ()

    @staticmethod
    def of(query: jax.Array, key: jax.Array) -> "AttentionDevices | None":
        """The devices as far as the sharding of the queries is known, else None.

        Axes that shard the heads must divide the keys' heads evenly, too: a device with some of
        them needs only their queries. Axes that don't shard the rows instead.
        """
        split = sharded.axes_of_dims((query, 0), (query, 1), (query, 2), uneven=2)
        if split is None:
            return None
        mesh, (batch, heads, rows) = split
        uneven = heads if key.shape[1] % sharded.num_shards(mesh, heads) else ()
        named, length = (*rows, *uneven), query.shape[2]
        rows = next(
            axes
            for axes in (named, rows, uneven, ())
            if length % sharded.num_shards(mesh, axes) == 0
        )
        unused = tuple(axis for axis in named if axis not in rows)
        sharded.note_unused(f"{COMPUTED_BY_ALL} (they do not divide {length} rows)", mesh, unused)
        return AttentionDevices(mesh, batch, () if uneven else heads, rows)

    @property
    def num_row_shards(self) -> int:
        return (
            sharded.num_shards(self.mesh, self.rows) if self.mesh is not None and self.rows else 1
        )

    def run(
        self,
        body: Function,
        *arrays: jax.Array | None,
        bias: Any = None,
        is_backward: bool = False,
        whole: Sequence[jax.Array] = (),
        wanted: Sequence[jax.Array] = (),
    ) -> tuple[jax.Array | None, ...]:
        """`body(*arrays, bias, row shard, *whole)` of each device's batch, heads and rows; keys and
        values are gathered.

        arrays: query, key, value, then arrays with the rows of the queries. bias: of four dims, or
        None, or arrays of one such shape. The results have these rows, or are the gradients of
        query, key, value, bias and some of the whole arrays (`wanted`), which are summed here.
        """
        if self.mesh is None:
            return body(*arrays, bias, 0, *whole)
        query, key, value, *of_rows = arrays
        assert query is not None and key is not None and value is not None
        of_bias = (1,) * 4 if bias is None else jax.tree.leaves(bias)[0].shape
        operands = (
            "b h s d, b h t d, b h t e, " + "b h s, " * len(of_rows) + "b h s t" + ", " * len(whole)
        )
        results = "b h s d, b h t d, b h t e, b h s t" if is_backward else "b h s e, b h s"
        of_output = [(*query.shape[:3], value.shape[-1]), query.shape[:3]]
        shapes = [query.shape, key.shape, value.shape, of_bias] if is_backward else of_output
        results += ", " * len(wanted)
        shapes += [x.shape for x in wanted]
        over = {"b": self.batch, "h": self.heads, "s": self.rows}

        def on_shard(*shards: Any) -> tuple[jax.Array | None, ...]:
            count = len(shards) - len(whole)
            return body(*shards[:count], lax.axis_index(self.rows), *shards[count:])

        return per_shard(
            on_shard,
            f"{operands} -> {results}",
            self.mesh,
            over,
            shapes,
            scattered={"t": "s"},
        )(*arrays, bias, *whole)


def forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    masking: Masking,
    scale: float,
    devices: AttentionDevices,
    otherwise: Otherwise,
) -> Arrays:
    """(output, logsumexp of the scores in float32). otherwise: computes the same, for a jax that
    has no such kernel."""
    output = jax.ShapeDtypeStruct((*query.shape[:3], value.shape[-1]), query.dtype)
    logsumexp = jax.ShapeDtypeStruct(query.shape[:3], jnp.float32)
    body = partial(_shard_of_rows, shard_forward, masking, devices.num_row_shards, scale=scale)
    run = partial(_with_ids, partial(devices.run, body))
    otherwise = partial(_without_ids, otherwise)
    ids = None if masking.documents is None else masking.documents.arrays()
    return when_lowered(run, otherwise, (output, logsumexp), query, key, value, ids)


def backward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    grad_out: jax.Array,
    out: jax.Array,
    logsumexp: jax.Array,
    grad_logsumexp: jax.Array | None = None,
    *,
    masking: Masking,
    scale: float,
    devices: AttentionDevices,
    otherwise: Otherwise,
) -> tuple[jax.Array | None, ...]:
    """The gradients of query, key and value, and None for the bias."""
    results = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (query, key, value))
    body = partial(_shard_of_rows, shard_backward, masking, devices.num_row_shards, scale=scale)
    run = partial(_with_ids, partial(devices.run, body, is_backward=True))
    ids = None if masking.documents is None else masking.documents.arrays()
    arrays = query, key, value, grad_out, out, logsumexp, grad_logsumexp, ids
    return *when_lowered(run, partial(_without_ids, otherwise), results, *arrays), None


def _with_ids(run: Function, *operands: Any) -> Arrays:
    """Ids of rows as an array of rows, those of columns in place of a bias."""
    *arrays, ids = operands
    of_rows, of_columns = (None, None) if ids is None else ids
    return run(*arrays, of_rows, bias=of_columns)


def _without_ids(otherwise: Otherwise, *operands: Any) -> tuple[jax.Array | None, ...]:
    return otherwise(*operands[:-1])


def when_lowered(body: Function, otherwise: Otherwise, results: Shapes, *operands: Any) -> Arrays:
    def run(*operands: Any) -> tuple[jax.Array | None, ...]:
        return (body if _is_there() else otherwise)(*operands)[: len(results)]

    return late(run, results, *operands)


# -- On one device.

# True to interpret the kernel, as in tests without a TPU.
INTERPRET = False


def _shard_of_rows(function, masking, num_row_shards, *arrays, scale):
    """The kernel of one shard of the rows."""
    *arrays, of_rows, of_columns, shard = arrays
    rows = arrays[0].shape[2]
    starts = tuple((number * rows, 0) for number in range(num_row_shards))
    first = shard * rows if num_row_shards > 1 else 0
    ids = None if of_columns is None else of_32_bits(of_rows, of_columns, rows, first)
    return function(*arrays, masking=masking.at(Places(starts, shard)), scale=scale, ids=ids)


def shard_forward(query, key, value, *, masking, scale, ids=None):
    """(output, logsumexp) of one device. ids: of documents, [batch or 1, rows] and [batch or 1,
    columns], of 32 bits."""
    case = _Case.of(query, key, value, masking, scale)
    with jax.enable_x64(False):  # the kernel's own indices are of 32 bits
        return _run_forward(query, key, value, jnp.int32(masking.places.index), ids, case=case)


def shard_backward(
    query, key, value, grad_out, out, logsumexp, grad_logsumexp=None, *, masking, scale, ids=None
):
    """The gradients of query, key and value, and None for the bias, of one device."""
    case = _Case.of(query, key, value, masking, scale)
    delta = delta_of(grad_out, out, logsumexp, grad_logsumexp)
    arrays = query, key, value, grad_out, delta, logsumexp
    with jax.enable_x64(False):
        return *_run_backward(*arrays, jnp.int32(masking.places.index), ids, case=case), None


@dataclass(frozen=True, slots=True)
class _Case:
    """The static arguments of a kernel. lengths: of the rows and columns. starts: their places in
    the mask. see_themselves: rows of ids see the column of their number, but for the mask.
    document_length: that of `Facts`."""

    heads: int
    lengths: tuple[int, int]
    starts: tuple[tuple[int, int] | None, ...]
    mask: MaskEquations | None
    soft_cap: float | None
    scale: float
    is_large: bool
    interpret: bool
    query_bytes: int
    see_themselves: bool
    document_length: int

    @staticmethod
    def of(
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        masking: Masking,
        scale: float,
    ) -> "_Case":
        is_large = query.dtype == jnp.float32
        lengths, mask = (query.shape[2], key.shape[2]), masking.of_kernel
        # unmasked rows have no place
        starts = ((0, 0),) if mask is None else masking.places.starts
        query_bytes = math.prod(query.shape) * query.dtype.itemsize
        soft_cap = None if masking.score is None else masking.score.soft_cap
        documents, length = masking.documents, sharded.facts().document_length
        see_themselves = documents is None or (
            documents.leaves_no_row_out and lengths[1] == documents.shape[-1]
        )
        how = soft_cap, scale, is_large, INTERPRET, query_bytes, see_themselves, length
        return _Case(query.shape[1], lengths, starts, mask, *how)

    def forward_kernel(
        self, place: jax.Array, ids: Ids = None, left: jax.Array | None = None
    ) -> Any:
        """The forward kernel with the mask at one of the places."""
        splash, (rows, columns) = _module("kernel"), self.block
        return splash.SplashAttentionKernel(
            self.mask_info(columns, place, _by_rows, left),
            None,
            None,
            block_sizes=splash.BlockSizes(block_q=rows, block_kv=columns),
            save_residuals=True,
            residual_checkpoint_name=None,
            **self.options(ids),
        )

    def options(self, ids: Ids = None) -> dict[str, Any]:
        """The parameters of the kernel that its forward and its backward have."""
        rest = self._rest(ids)
        return {
            "is_mqa": False,
            "mask_value": _module("kernel").DEFAULT_MASK_VALUE,
            "attn_logits_soft_cap": self.soft_cap,
            "mask_function": None if rest is None else InKernel(rest),
            "interpret": self.interpret,
        }

    def _rest(self, ids: Any) -> MaskEquations | None:
        """The mask without the documents that the kernel has as ids."""
        if self.mask is None or ids is not None:
            return self.mask
        return self.mask.without_documents()

    def mask_info(
        self, width: int, place: jax.Array, layout: "Layout", left: jax.Array | None = None
    ) -> Any:
        """The blocks of a width that are computed at a place, as the kernel reads them.

        left: False for those of `self.block` that ids hide.
        """
        info = _module("mask_info").MaskInfo
        if self.mask is None and left is None:
            return info(None, None, None, None, None)

        def cut(blocks: np.ndarray) -> jax.Array:
            size, whole = blocks.shape[1] // len(self.starts), jnp.asarray(blocks)
            is_one = len(self.starts) == 1
            return whole if is_one else lax.dynamic_slice_in_dim(whole, place * size, size, 1)

        blocks, of_mask = layout(np.stack(self._tables(width)))
        if left is None:
            next_data, kinds = map(cut, map(_small, (blocks, of_mask)))
        else:
            axis = 2 if layout is _by_rows else 1
            parts = np.split(blocks, len(self.starts), 1)
            of_places = np.concatenate([np.indices(part.shape)[axis] for part in parts], 1)
            is_own = bool(np.all((blocks == of_places) | (of_mask == NONE)))
            rests = np.concatenate([_rests(part, axis) for part in parts], 1)
            blocks = np.where(of_mask == NONE, rests, blocks)
            next_data, kinds = map(cut, map(_small, (blocks, of_mask)))
            narrow = range(width // self.block[1])
            narrower = [lax.slice_in_dim(left, i, None, len(narrow), axis=1) for i in narrow]
            of_ids = lax.expand_dims(reduce(lax.bitwise_or, narrower), (0,))
            next_data, kinds = _left_by(of_ids, next_data, kinds, axis, is_own)
        rest = self._rest(left)
        rows = None
        if rest is not None:
            row, column = self._start(place)
            # The kernel counts its columns from 0.
            rows = row - column + lax.iota(jnp.int32, self.lengths[0])
        return info(next_data, None, kinds, None, rows)

    def _tables(self, width: int, documents: MaskEquations | None = None) -> list[np.ndarray]:
        """The table of each place, in blocks of this many columns."""
        masking = Masking(self.mask, documents, places=Places(self.starts))
        return masking.tables(self.lengths, (self.block[0], width))

    def _start(self, place: jax.Array) -> tuple[jax.Array | int, jax.Array | int]:
        return Places(self.starts, place).start

    def documents(self, place: jax.Array, ids: Ids = None) -> Any:
        """The ids that rows and columns must share, as the kernel reads them; None without."""
        if ids is not None:
            return _module("kernel").SegmentIds(*ids)
        sides = None if self.mask is None else self.mask.documents()
        if sides is None:
            return None
        rows, columns = (
            start + lax.iota(jnp.int32, length)
            for start, length in zip(self._start(place), self.lengths, strict=True)
        )
        return _module("kernel").SegmentIds(
            *(
                jnp.broadcast_to(side(rows, columns, jnp), x.shape).astype(jnp.int32)
                for side, x in zip(sides, (rows, columns), strict=True)
            )
        )

    def stated(self, width: int, ids: Ids) -> AbstractContextManager[Any]:
        """The scope of a kernel's call. Of ids that are data a plan knows no blocks: it counts the
        share of the scores that is stated here, as of documents of the stated length."""
        if ids is None:
            return nullcontext()
        length = self.document_length
        rows, columns = self.lengths if self.mask is None else self.mask.shape
        documents = within_documents(rows, columns, length) if length else None
        share = self._computed(width, documents) / math.prod(self.lengths)
        return jax.named_scope(f"share={share:.4f}")

    def may_leave_rows_out(self, ids: Ids) -> bool:
        """True if a row may see no column: the kernel would give it a mean."""
        if ids is not None and not self.see_themselves:
            return True
        if self.mask is None:
            return False
        rows, columns = self.lengths
        return not all(
            start is not None
            and start[1] == 0
            and self.mask.leaves_no_row_out(start[0] + rows, columns, or_first=ids is None)
            for start in self.starts
        )

    @property
    def block(self) -> tuple[int, ...]:
        """The rows and columns of one block of scores."""
        return tuple(
            next(size for size in _BLOCKS[self.is_large :] if length % size == 0)
            for length in self.lengths
        )

    @property
    def joined_columns(self) -> int:
        """The columns of a block of the backward that computes all gradients at once; 0: two
        kernels do."""
        columns, most = self.block[1], 1 if self.is_large else max(_WORTH_NARROWER)
        widths = [
            n * columns for n in (4, 2, 1) if n <= most and self.lengths[1] % (n * columns) == 0
        ]
        width = widths.pop(0)
        while widths and self._computed(widths[0]) < self._computed(width) * _WORTH_NARROWER.get(
            width // columns, 0
        ):
            width = widths.pop(0)
        return width if self.query_bytes * (self.lengths[1] // width) <= _MOST_OF_PARTS else 0

    def _computed(self, width: int, documents: MaskEquations | None = None) -> int:
        """The scores in blocks of this many columns, at the place with most."""
        if self.mask is None and documents is None:
            return math.prod(self.lengths)
        counts = (int(np.count_nonzero(kinds)) for kinds in self._tables(width, documents))
        return max(counts) * self.block[0] * width

    def scaled(self, x: jax.Array) -> jax.Array:
        """x times the scale, rounded to its dtype: the kernel takes scaled queries."""
        return (x.astype(jnp.float32) * self.scale).astype(x.dtype)


@dataclass(frozen=True, slots=True)
class InKernel:
    """A mask as the kernel calls it."""

    mask: MaskEquations

    def __call__(self, rows: jax.Array, columns: jax.Array) -> jax.Array:
        return jnp.broadcast_to(self.mask(rows, columns, jnp), rows.shape)


# From the tables [places, row blocks, column blocks] two arrays [1, blocks of all places, blocks]:
# of each step of a kernel's grid the block to read, and its kind.
Layout = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def _most(counts: np.ndarray) -> int:
    """The steps of a row or column."""
    return max(1, int(counts.max()))


def _by_rows(tables: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each row block its visible column blocks, then the last of them again, which is not
    computed."""
    counts = np.count_nonzero(tables, axis=2)
    most = _most(counts)
    order = np.argsort(tables == NONE, axis=2, stable=True)[..., :most]
    steps = np.arange(most)
    last = np.maximum(counts - 1, 0)[..., None]
    blocks = np.take_along_axis(order, np.minimum(steps, last), 2)
    kinds = np.where(steps < counts[..., None], np.take_along_axis(tables, order, 2), NONE)
    return blocks.reshape(1, -1, most), kinds.reshape(1, -1, most)


def _by_columns(tables: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each column block its visible row blocks, the first of them before, which is
    not computed."""
    counts = np.count_nonzero(tables, axis=1)
    most = _most(counts)
    order = np.argsort(tables == NONE, axis=1, stable=True)[:, :most]
    steps = np.arange(most)[:, None] - (most - counts)[:, None]
    blocks = np.take_along_axis(order, np.maximum(steps, 0), 1)
    kinds = np.where(steps >= 0, np.take_along_axis(tables, blocks, 1), NONE)
    return blocks.reshape(1, -1, blocks.shape[2]), kinds.reshape(1, -1, blocks.shape[2])


def _all(tables: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All blocks, column by column; in place of one that is not computed the next one is read."""
    places, rows, columns = tables.shape
    steps = np.arange(rows * columns)
    visible_steps = np.where(tables.swapaxes(1, 2).reshape(places, -1) != NONE, steps, steps.size)
    nearest = np.minimum.accumulate(visible_steps[:, ::-1], 1)[:, ::-1]
    first = visible_steps.min(1, keepdims=True)
    following = np.where(nearest == steps.size, first, nearest)
    blocks = np.where(following == steps.size, steps, following) % rows
    blocks = blocks.reshape(places, columns, rows).swapaxes(1, 2)
    return blocks.reshape(1, -1, columns), tables.reshape(1, -1, columns)


def _rests(blocks: np.ndarray, axis: int) -> np.ndarray:
    """The blocks that steps read which compute none: the last of rows, the first of columns."""
    return np.broadcast_to(blocks[:, :, -1:] if axis == 2 else blocks[:, :1], blocks.shape)


def _left_by(
    of_ids: jax.Array, blocks: jax.Array, kinds: jax.Array, axis: int, is_own: bool
) -> tuple[jax.Array, jax.Array]:
    """The layout of the blocks that ids leave [1, row blocks, column blocks], of that of a known
    mask. axis: of the blocks' numbers. is_own: a step of the grid has the block of its number.

    A step that is not computed reads the block of the last step of its rows, or of the first of its
    columns: one that the known mask leaves, so it is read once in between. The next computed step's
    block would take the TPU's compiler longer, as do sorts, lookups and running minima.
    """
    if is_own:
        of_ids = lax.slice_in_dim(of_ids, 0, blocks.shape[axis], axis=axis)
    else:
        numbers = np.arange(of_ids.shape[axis], dtype=np.int32)
        is_block = jnp.expand_dims(blocks, axis + 1) == numbers.reshape((-1,) + (1,) * (2 - axis))
        of_ids = lax.reduce_or(
            lax.bitwise_and(lax.expand_dims(of_ids, (axis,)), is_block), (axis + 1,)
        )
    size = blocks.shape[axis]
    first = size - 1 if axis == 2 else 0
    rests = lax.slice_in_dim(blocks, first, first + 1, axis=axis)
    rests = lax.broadcast_in_dim(rests, blocks.shape, (0, 1, 2))
    return lax.select(of_ids, blocks, rests), lax.select(of_ids, kinds, lax.full_like(kinds, NONE))


def _small(array: np.ndarray) -> np.ndarray:
    """An array in the smallest integers that hold it: the kernel's memory for them is small."""
    largest = array.max(initial=0)
    sizes = (np.int8, np.int16, np.int32)
    return array.astype(next(size for size in sizes if largest <= np.iinfo(size).max))


# Traced once for all isomorphic layers.
@partial(jax.jit, static_argnames="case")
def _run_forward(query, key, value, place, ids, *, case):
    def attend(query, key, value, ids, left):
        with case.stated(case.block[1], ids):
            kernel = case.forward_kernel(place, ids, left)
            return kernel(query, key, value, case.documents(place, ids))

    ids, left, axis = _of_batch(ids, query, case.block)
    in_axes = 0, 0, 0, axis, axis
    output, (logsumexp,) = jax.vmap(attend, in_axes)(case.scaled(query), key, value, ids, left)
    if case.may_leave_rows_out(ids):
        # A row without a visible block is not a number, another one a mean.
        is_out = jnp.isnan(logsumexp) | (logsumexp < _LOWEST)
        output = jnp.where(is_out[..., None], 0, output)
        logsumexp = jnp.where(is_out, -jnp.inf, logsumexp)
    return output, logsumexp


@partial(jax.jit, static_argnames="case")
def _run_backward(query, key, value, grad_out, delta, logsumexp, place, ids, *, case):
    splash, (rows, columns), joined = _module("kernel"), case.block, case.joined_columns
    if case.may_leave_rows_out(ids):  # the weights of such a row are zero
        logsumexp = jnp.where(logsumexp == -jnp.inf, jnp.inf, logsumexp)

    def pull(query, key, value, grad_out, delta, logsumexp, ids, left):
        layout = splash.QKVLayout.HEAD_DIM_MINOR
        options = case.options(ids) | dict.fromkeys(("q_layout", "k_layout", "v_layout"), layout)
        arrays = query, key, value, case.documents(place, ids), None, logsumexp, grad_out, delta
        width = joined or columns
        of_keys = case.mask_info(width, place, _all if joined else _by_columns, left)
        with case.stated(width, ids):
            grad_query, *grads = splash._splash_attention_bwd_dkv(
                *arrays,
                bq=rows,
                bkv=width,
                bkv_compute=columns,
                mask_info=of_keys,
                use_fused_bwd_kernel=joined > 0,
                **options,
            )
        if not joined:
            of_rows = case.mask_info(columns, place, _by_rows, left)
            with case.stated(columns, ids):
                grad_query = splash._splash_attention_bwd_dq(
                    *arrays, bq=rows, bkv=columns, mask_info=of_rows, **options
                )
        return grad_query, *grads

    ids, left, axis = _of_batch(ids, query, case.block)
    arrays = case.scaled(query), key, value, grad_out, delta, logsumexp
    grad_query, *grads = jax.vmap(pull, (*(0,) * 6, axis, axis))(*arrays, ids, left)
    return case.scaled(grad_query), *grads


def _of_batch(
    ids: Ids, query: jax.Array, block: tuple[int, ...]
) -> tuple[Ids, jax.Array | None, int | None]:
    """Ids and the blocks that they leave, for `jax.vmap` over the batch, and the axis along which
    both are mapped."""
    if ids is None:
        return None, None, None
    left = visible(*ids, block=block)
    if len(left) == 1:
        rows, columns, left = (lax.squeeze(x, (0,)) for x in (*ids, left))
        return (rows, columns), left, None
    rows, columns = (jnp.broadcast_to(x, (len(query), x.shape[1])) for x in ids)
    return (rows, columns), left, 0


def _module(name: str) -> ModuleType:
    """A module of jax's kernel, imported here, as few programs are for TPUs."""
    return importlib.import_module(
        f"jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_{name}"
    )


@functools.cache
def _is_there() -> bool:
    """True if this jax has the kernel in the form that is called here: its backward is private to
    jax."""
    functions = {"_splash_attention_bwd_dkv": _OF_BACKWARD | _OF_KEYS}
    functions["_splash_attention_bwd_dq"] = _OF_BACKWARD
    return all(
        (function := getattr(_module("kernel"), name, None)) is not None
        and set(inspect.signature(function).parameters) == parameters
        for name, parameters in functions.items()
    )


# -- Functions that are traced when they are lowered: `jax.lax.platform_dependent` traces the
# branches of every platform and lowers one. A kernel takes long to trace, so a branch binds it
# here, to be traced where it is lowered.

_late_p = Primitive("spmd_late")
_late_p.multiple_results = True


def late(function: Function, results: Shapes, *operands: object) -> Arrays:
    """function(*operands), which are pytrees; `results` has the shape and dtype of each array that
    it returns.

    The function must not hold arrays of the program other than its operands.
    """
    arrays, tree = jax.tree.flatten(operands)

    def flat(*arrays: jax.Array) -> list[jax.Array]:
        return jax.tree.flatten(function(*jax.tree.unflatten(tree, arrays)))[0]

    precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]  # made when jax starts
    return tuple(_late_p.bind(*arrays, function=flat, results=results, precision=precision))


def _run(
    *arrays: jax.Array, function: Function, results: Shapes, precision: str | None
) -> list[jax.Array]:
    with jax.default_matmul_precision(precision):
        return function(*arrays)


def _shapes(
    *arrays: object, function: Function, results: Shapes, precision: str | None
) -> list[jax.core.ShapedArray]:
    return [jax.core.ShapedArray(result.shape, result.dtype) for result in results]


_late_p.def_abstract_eval(_shapes)
mlir.register_lowering(_late_p, mlir.lower_fun(_run, multiple_results=True))

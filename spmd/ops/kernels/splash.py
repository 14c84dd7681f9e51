"""Attention by jax's Pallas kernel for TPUs, forward and backward: when it may be called, how, and
on which devices.

The kernel (`jax.experimental.pallas.ops.tpu.splash_attention`) processes the scores in blocks in
the chip's fast memory and skips masked blocks. No partitioner can place it, so it runs under
`jax.shard_map`, each device with its own batch and heads. Its public function differentiates by
running the forward again, whose results torch's backward has at hand, so the operation behind it is
called here.
"""

import functools
import importlib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from .. import sharded
from ..partition import per_shard
from ..registry import Function

Arrays = tuple[jax.Array, ...]
Shapes = tuple[jax.ShapeDtypeStruct, ...]
Otherwise = Callable[..., tuple[jax.Array | None, ...]]

# Rows and columns of one block, the largest of these that divides the length: measured in
# docs/decisions/attention.md. A width above the second number, or float32, takes the next smaller,
# or it would not fit.
_BLOCKS, _LANES = (512, 256, 128), 128
# One kernel computes all three gradients, of 5 products instead of 7, and a part of the queries'
# for each block of columns, which are summed: it is taken where the parts have at most so many
# bytes. Its blocks are wider, so that there are fewer: of a causal mask the narrower, as a block on
# the diagonal is computed whole.
_MOST_OF_PARTS, _WIDER = 1 << 30, {False: 4, True: 2}
_BACKWARD = (
    "save_residuals",
    "mask_value",
    "is_mqa",
    "block_sizes",
    "residual_checkpoint_name",
    "mask_function",
    "attn_logits_soft_cap",
    "interpret",
    "res",
    "do",
)


def takes(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attn_bias: jax.Array | None,
    dropout_p: float,
    num_row_shards: int = 1,
) -> bool:
    """True if the kernel computes this attention: no mask but causality, no dropout, lengths of
    complete blocks."""
    same = query.dtype == key.dtype == value.dtype and query.dtype in (jnp.bfloat16, jnp.float32)
    lengths = query.shape[2] % (_LANES * num_row_shards) == 0 == key.shape[2] % _LANES
    full = 0 not in (*query.shape, *value.shape) and query.shape[-1] <= 256
    return (
        same
        and lengths
        and full
        and key.shape[1] == value.shape[1]
        and attn_bias is None
        and dropout_p == 0
    )


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
        *arrays: jax.Array,
        bias: jax.Array | None = None,
        is_backward: bool = False,
    ) -> tuple[jax.Array | None, ...]:
        """`body(*arrays, bias, row shard)` of each device's batch, heads and rows; keys and values
        are gathered.

        arrays: query, key, value, then arrays with the rows of the queries. bias: of four dims, or
        None. The results have these rows, or are the gradients of query, key, value and bias, which
        are summed here.
        """
        if self.mesh is None:
            return body(*arrays, bias, 0)
        query, key, value, *of_rows = arrays
        of_bias = (1,) * 4 if bias is None else bias.shape
        operands = "b h s d, b h t d, b h t e, " + "b h s, " * len(of_rows) + "b h s t"
        results = "b h s d, b h t d, b h t e, b h s t" if is_backward else "b h s e, b h s"
        of_output = [(*query.shape[:3], value.shape[-1]), query.shape[:3]]
        shapes = [query.shape, key.shape, value.shape, of_bias] if is_backward else of_output
        over = {"b": self.batch, "h": self.heads, "s": self.rows}
        return per_shard(
            lambda *shards: body(*shards, lax.axis_index(self.rows)),
            f"{operands} -> {results}",
            self.mesh,
            over,
            shapes,
            scattered={"t": "s"},
        )(*arrays, bias)


def forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    is_causal: bool,
    scale: float,
    devices: AttentionDevices,
    otherwise: Otherwise,
) -> Arrays:
    """(output, logsumexp of the scores in float32). otherwise: computes the same, for a jax that
    has no such kernel."""
    output = jax.ShapeDtypeStruct((*query.shape[:3], value.shape[-1]), query.dtype)
    logsumexp = jax.ShapeDtypeStruct(query.shape[:3], jnp.float32)
    body = partial(
        shard_forward, is_causal=is_causal, scale=scale, num_row_shards=devices.num_row_shards
    )
    return when_lowered(
        partial(devices.run, body), otherwise, (output, logsumexp), query, key, value
    )


def backward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    grad_out: jax.Array,
    out: jax.Array,
    logsumexp: jax.Array,
    *,
    is_causal: bool,
    scale: float,
    devices: AttentionDevices,
    otherwise: Otherwise,
) -> tuple[jax.Array | None, ...]:
    """The gradients of query, key and value, and None for the bias."""
    results = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (query, key, value))
    body = partial(
        shard_backward, is_causal=is_causal, scale=scale, num_row_shards=devices.num_row_shards
    )
    run = partial(devices.run, body, is_backward=True)
    return *when_lowered(run, otherwise, results, query, key, value, grad_out, out, logsumexp), None


def when_lowered(
    body: Function, otherwise: Otherwise, results: Shapes, *operands: jax.Array
) -> Arrays:
    def run(*operands: jax.Array) -> tuple[jax.Array | None, ...]:
        return (body if _is_there() else otherwise)(*operands)[: len(results)]

    return late(run, results, *operands)


# -- On one device.

# True to interpret the kernel, as in tests without a TPU.
INTERPRET = False


def shard_forward(query, key, value, bias=None, shard=0, *, is_causal, scale, num_row_shards=1):
    case = _Case.of(query, key, value, is_causal, scale, num_row_shards)
    with jax.enable_x64(False):  # the kernel's own indices are of 32 bits
        return _run_forward(query, key, value, jnp.int32(shard), case=case)


def shard_backward(
    query,
    key,
    value,
    grad_out,
    out,
    logsumexp,
    bias=None,
    shard=0,
    *,
    is_causal,
    scale,
    num_row_shards=1,
):
    case = _Case.of(query, key, value, is_causal, scale, num_row_shards)
    with jax.enable_x64(False):
        return *_run_backward(
            query, key, value, grad_out, out, logsumexp, jnp.int32(shard), case=case
        ), None


@dataclass(frozen=True, slots=True)
class _Case:
    """The static arguments of a kernel. lengths: of one shard's rows, and of the columns."""

    heads: int
    lengths: tuple[int, int]
    num_row_shards: int
    is_causal: bool
    scale: float
    is_large: bool
    interpret: bool
    query_bytes: int

    @staticmethod
    def of(
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        is_causal: bool,
        scale: float,
        shards: int,
    ) -> "_Case":
        is_large = max(query.shape[-1], value.shape[-1]) > _LANES or query.dtype == jnp.float32
        # unmasked rows have no offset
        lengths, shards = (query.shape[2], key.shape[2]), shards if is_causal else 1
        query_bytes = math.prod(query.shape) * query.dtype.itemsize
        return _Case(
            query.shape[1], lengths, shards, is_causal, scale, is_large, INTERPRET, query_bytes
        )

    def kernel(self, shard: jax.Array) -> Any:
        """The kernel with the mask of one shard's rows."""
        result, masks = _module("kernel"), _module("mask")
        (rows, columns), joined = self.block, self.joined_columns
        backward = (
            {"block_q_dq": rows, "block_kv_dq": columns}
            if not joined
            else {"use_fused_bwd_kernel": True}
        )
        sizes = result.BlockSizes(
            block_q=rows,
            block_kv=columns,
            block_q_dkv=rows,
            block_kv_dkv=joined or columns,
            block_kv_dkv_compute=columns,
            **backward,
        )
        shape = self.lengths[0] * self.num_row_shards, self.lengths[1]
        mask = (
            masks.CausalMask(shape, shard_count=self.num_row_shards)
            if self.is_causal
            else masks.FullMask(shape)
        )
        kernel = result.make_splash_mha(
            masks.MultiHeadMask([mask] * self.heads),
            block_sizes=sizes,
            head_shards=1,
            q_seq_shards=self.num_row_shards,
            save_residuals=True,
            interpret=self.interpret,
        )
        for name in (
            ("fwd_mask_info", "dq_mask_info", "dkv_mask_info") if self.num_row_shards > 1 else ()
        ):
            if getattr(kernel, name) is not None:  # one of a joined backward is
                setattr(kernel, name, self._of_shard(getattr(kernel, name), shard))
        return kernel

    def _of_shard(self, info: Any, shard: jax.Array) -> Any:
        """The mask's blocks of one shard's rows; the masks of single blocks are those of all
        shards."""

        def cut(name: str, dim: int) -> jax.Array | None:
            blocks = getattr(info, name)
            size = 0 if blocks is None else blocks.shape[dim] // self.num_row_shards
            return (
                None
                if blocks is None
                else lax.dynamic_slice_in_dim(blocks, shard * size, size, dim)
            )

        dims = {"data_next": 1, "mask_next": 1, "block_mask": 1, "q_sequence": 0}
        return info._replace(**{name: cut(name, dim) for name, dim in dims.items()})

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
        columns, most = self.block[1], 1 if self.is_large else _WIDER[self.is_causal]
        width = next(
            n * columns for n in (4, 2, 1) if n <= most and self.lengths[1] % (n * columns) == 0
        )
        return width if self.query_bytes * (self.lengths[1] // width) <= _MOST_OF_PARTS else 0

    def scaled(self, x: jax.Array) -> jax.Array:
        """x times the scale, rounded to its dtype: the kernel takes scaled queries."""
        return (x.astype(jnp.float32) * self.scale).astype(x.dtype)


# Traced once for all isomorphic layers.
@partial(jax.jit, static_argnames="case")
def _run_forward(query, key, value, shard, *, case):
    output, (logsumexp,) = jax.vmap(case.kernel(shard))(case.scaled(query), key, value)
    return output, logsumexp


@partial(jax.jit, static_argnames="case")
def _run_backward(query, key, value, grad_out, out, logsumexp, shard, *, case):
    kernel = case.kernel(shard)
    options = {**kernel.kwargs, "save_residuals": False}

    def pull(query, key, value, grad_out, out, logsumexp):
        saved = (
            query,
            key,
            value,
            None,
            None,
            out,
            logsumexp,
            kernel.dq_mask_info,
            kernel.dkv_mask_info,
        )
        return _module("kernel")._splash_attention_bwd(res=saved, do=grad_out, **options)[3:6]

    grad_query, *grads = jax.vmap(pull)(case.scaled(query), key, value, grad_out, out, logsumexp)
    return case.scaled(grad_query), *grads


def _module(name: str) -> ModuleType:
    """A module of jax's kernel, imported here, as few programs are for TPUs."""
    return importlib.import_module(
        f"jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_{name}"
    )


@functools.cache
def _is_there() -> bool:
    """True if this jax has the kernel in the form that is called here: its backward is private to
    jax."""
    backward = getattr(_module("kernel"), "_splash_attention_bwd", None)
    return backward is not None and tuple(inspect.signature(backward).parameters) == _BACKWARD


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

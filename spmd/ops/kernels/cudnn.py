"""Attention by cuDNN's fused kernel, forward and backward: when it may be called, how, and how it
is partitioned.

`jax.nn.dot_product_attention(implementation="cudnn")` is the public way to the kernel. It looks for
cuDNN while it is traced, which a machine without a GPU does not have; its backward would run the
forward again, whose results torch's backward has at hand; and it refuses a sharded length, or keys
and values sharded otherwise than the queries. So the two operations behind it are bound here, under
a partitioning of our own.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..jax_internals import cudnn_attention as kernel
from ..jax_internals import cudnn_attention_options
from .flash import Masking
from .mask_blocks import causal

Arrays = tuple[jax.Array, ...]


def refusal(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    masking: Masking,
    bias: jax.Array | None,
    dropout_p: float,
) -> str:
    """Why the kernel does not compute this attention on every GPU that has it (Ampere and later);
    empty if it does.

    Masks but causality are excluded: the kernel takes an additive one in the operands' dtype,
    another array of query length x key length, and torch promises zeros for a fully masked row.
    Dropout is excluded: the kernel's random numbers are its own, and would change with the mesh.
    """
    if kernel is None:
        return "a jax without the kernel"
    if reason := masking.refusal(bias, dropout_p):
        return reason
    if query.dtype not in (jnp.bfloat16, jnp.float16) or {key.dtype, value.dtype} != {query.dtype}:
        return f"operands of {', '.join(str(x.dtype) for x in (query, key, value))}"
    width = query.shape[-1]
    if width % 8 or not 0 < width <= 128 or value.shape[-1] != width:
        return f"heads of widths {width} and {value.shape[-1]}"
    if 0 in (*query.shape, *key.shape):
        return "no rows or columns"
    if masking.score is not None:
        return "a soft cap"
    is_plain = masking.equations in (None, causal(query.shape[2], key.shape[2]))
    return "" if is_plain else "a mask that is not causality"


def forward(
    query: jax.Array, key: jax.Array, value: jax.Array, *, is_causal: bool, scale: float
) -> Arrays:
    """(output, logsumexp of the scores in float32)."""
    return shard_forward(query, key, value, is_causal, scale)


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
) -> tuple[jax.Array | None, ...]:
    """The gradients of query, key and value, and None for the bias."""
    return *shard_backward(query, key, value, logsumexp, out, grad_out, is_causal, scale), None


def _kernel(
    primitive: Primitive,
    qkv: Arrays,
    residuals: Arrays,
    is_causal: bool,
    scale: float,
    **options: object,
) -> Arrays:
    """One of the two operations; the seven operands between are for masks and for packed
    sequences."""
    empty = [jnp.zeros(0, qkv[0].dtype)] * 7
    assert kernel is not None, "`takes` was called first"
    result = primitive.bind(
        *qkv,
        *empty,
        *residuals,
        scale=scale,
        seed=0,
        dropout_rate=0.0,
        variadic_args=(False, False),
        mask_type=kernel.MaskType.CAUSAL if is_causal else kernel.MaskType.NO_MASK,
        layout=kernel.AttentionLayout.BNTH.value,
        sliding_window_length=None,
        **cudnn_attention_options,
        **options,
    )
    return tuple(result)


@partial(custom_partitioning, static_argnums=(3, 4))
def shard_forward(query, key, value, is_causal, scale):
    return _kernel(
        kernel._dot_product_attention_fwd_p,
        (query, key, value),
        (),
        is_causal,
        scale,
        is_training=True,
    )


@partial(custom_partitioning, static_argnums=(6, 7))
def shard_backward(query, key, value, logsumexp, out, grad_out, is_causal, scale):
    saved = logsumexp, out, grad_out
    return _kernel(
        kernel._dot_product_attention_bwd_p, (query, key, value), saved, is_causal, scale
    )


def _split(mesh: Mesh, operands: Sequence[jax.ShapeDtypeStruct]) -> NamedSharding:
    """The sharding of every operand and result: batch and heads as of the queries, where that
    divides the keys evenly.

    Each of them is [batch, heads, ...], and a device with some heads of the keys needs only their
    queries.
    """
    query, key = operands[:2]
    spec = query.sharding.spec[:2] if isinstance(query.sharding, NamedSharding) else ()
    even = []
    for axes, size in zip(spec, key.shape, strict=False):
        names = () if axes is None else axes if isinstance(axes, tuple) else (axes,)
        even.append(axes if size % math.prod(mesh.shape[name] for name in names) == 0 else None)
    return NamedSharding(mesh, PartitionSpec(*even))


def _define(
    function: custom_partitioning, body: Callable[..., Arrays], rule: str, num_results: int
) -> None:
    """Registers with both partitioners that the function is sharded along batch and heads."""

    def infer(is_causal, scale, mesh, operands, results):
        return (_split(mesh, operands),) * num_results

    def partition(is_causal, scale, mesh, operands, results):
        split = _split(mesh, operands)
        return (
            mesh,
            lambda *x: body(*x, is_causal, scale),
            (split,) * num_results,
            (split,) * len(operands),
        )

    # Heads of queries and of keys are two factors, as their numbers differ; `_split` relates them.
    # Shardy takes the replicated factors in the order in which the rule names them.
    function.def_partition(
        partition,
        infer_sharding_from_operands=infer,
        sharding_rule=rule,
        need_replication_factors=("s", "d", "l"),
    )


_QKV = "b h s d, b k l d, b k l d"
_define(shard_forward, shard_forward.fun, f"{_QKV} -> b h s d, b h s", 2)
_define(shard_backward, shard_backward.fun, f"{_QKV}, b h s, b h s d, b h s d -> {_QKV}", 3)

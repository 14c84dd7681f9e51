"""Attention by jax's Pallas kernel for TPUs, forward and backward: when it may be called, how, and on which devices.

The kernel (`jax.experimental.pallas.ops.tpu.splash_attention`) processes the scores in blocks in the chip's fast memory
and skips masked blocks. No partitioner can place it, so it runs under `jax.shard_map`, each device with its own batch
and heads. Its public function differentiates by running the forward again, whose results torch's backward has at hand,
so the operation behind it is called here.
"""

import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from .. import split
from ..late import late

Arrays = tuple[jax.Array, ...]
Otherwise = Callable[..., Any]

# Rows and columns of one block, the largest of these that divides the length: measured in docs/decisions/attention.md.
# A width above the second number, or float32, takes the next smaller, or it would not fit.
_BLOCKS, _LANES = (512, 256, 128), 128
_BACKWARD = (
    "save_residuals", "mask_value", "is_mqa", "block_sizes", "residual_checkpoint_name", "mask_function",
    "attn_logits_soft_cap", "interpret", "res", "do",
)  # fmt: skip


def takes(
    query: jax.Array, key: jax.Array, value: jax.Array, attn_bias: jax.Array | None, dropout_p: float
) -> bool:  # fmt: skip
    """True if the kernel computes this attention: no mask but causality, no dropout, lengths of complete blocks."""
    same = query.dtype == key.dtype == value.dtype and query.dtype in (jnp.bfloat16, jnp.float32)
    lengths = query.shape[2] % _LANES == 0 == key.shape[2] % _LANES and 0 not in (*query.shape, *value.shape)
    heads = key.shape[1] == value.shape[1]
    return same and lengths and heads and query.shape[-1] <= 256 and attn_bias is None and dropout_p == 0


@dataclass(frozen=True, slots=True)
class Place:
    """The devices of a program: the mesh (None: one device, or unknown) and the axes that shard batch and heads."""

    mesh: Any
    batch: split.Axes = ()
    heads: split.Axes = ()

    @staticmethod
    def of(query: jax.Array, key: jax.Array) -> "Place | None":
        """The devices as far as they are known here, where the program is traced; None where the kernel cannot be
        placed.

        Axes that shard the heads must divide the keys' heads evenly, too: a device with some of them needs only their
        queries.
        """
        known = split.axes_of_dims((query, 0), (query, 1))
        if known is None:
            return Place(None) if split.num_devices() == 1 else None
        mesh, (batch, heads) = known
        return Place(mesh, batch, heads if key.shape[1] % split.num_shards(mesh, heads) == 0 else ())

    def put(self, body: Any, num_operands: int, num_results: int) -> Any:
        """The body on each device's batch and heads."""
        if self.mesh is None:
            return body
        sharding = split.spec(self.batch, self.heads)
        operands, results = (sharding,) * num_operands, (sharding,) * num_results
        return jax.shard_map(body, mesh=self.mesh, in_specs=operands, out_specs=results, check_vma=False)


def forward(
    query: jax.Array, key: jax.Array, value: jax.Array,
    *, is_causal: bool, scale: float, place: Place, otherwise: Otherwise,
) -> Arrays:  # fmt: skip
    """(output, logsumexp of the scores in float32). otherwise: computes the same, for a jax that has no such kernel."""
    output = jax.ShapeDtypeStruct((*query.shape[:3], value.shape[-1]), query.dtype)
    logsumexp = jax.ShapeDtypeStruct(query.shape[:3], jnp.float32)
    body = partial(_forward, is_causal=is_causal, scale=scale)
    return _when_lowered(place.put(body, 3, 2), otherwise, (output, logsumexp), query, key, value)


def backward(
    query: jax.Array, key: jax.Array, value: jax.Array, grad_out: jax.Array, out: jax.Array, logsumexp: jax.Array,
    *, is_causal: bool, scale: float, place: Place, otherwise: Otherwise,
) -> tuple[jax.Array | None, ...]:  # fmt: skip
    """The gradients of query, key and value, and None for the bias."""
    results = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (query, key, value))
    body = place.put(partial(_backward, is_causal=is_causal, scale=scale), 6, 3)
    return *_when_lowered(body, otherwise, results, query, key, value, grad_out, out, logsumexp), None


def _when_lowered(body: Any, otherwise: Otherwise, results: tuple[Any, ...], *operands: jax.Array) -> Arrays:
    def run(*operands: jax.Array) -> Any:
        return body(*operands) if _is_there() else otherwise(*operands)[: len(results)]

    return late(run, results, *operands)


# -- On one device.

# True to interpret the kernel, as in tests without a TPU.
INTERPRET = False


def _forward(query, key, value, *, is_causal, scale):
    case = _Case.of(query, key, value, is_causal, scale)
    with jax.enable_x64(False):  # the kernel's own indices are of 32 bits
        return _run_forward(query, key, value, case=case)


def _backward(query, key, value, grad_out, out, logsumexp, *, is_causal, scale):
    case = _Case.of(query, key, value, is_causal, scale)
    with jax.enable_x64(False):
        return _run_backward(query, key, value, grad_out, out, logsumexp, case=case)


@dataclass(frozen=True, slots=True)
class _Case:
    """The static arguments of a kernel."""

    heads: int
    lengths: tuple[int, int]
    is_causal: bool
    scale: float
    is_large: bool
    interpret: bool

    @staticmethod
    def of(query: jax.Array, key: jax.Array, value: jax.Array, is_causal: bool, scale: float) -> "_Case":
        is_large = max(query.shape[-1], value.shape[-1]) > _LANES or query.dtype == jnp.float32
        return _Case(query.shape[1], (query.shape[2], key.shape[2]), is_causal, scale, is_large, INTERPRET)

    def kernel(self) -> Any:
        made, masks = _module("kernel"), _module("mask")
        rows, columns = (
            next(size for size in _BLOCKS[self.is_large :] if length % size == 0) for length in self.lengths
        )
        sizes = made.BlockSizes(
            block_q=rows, block_kv=columns, block_q_dkv=rows, block_kv_dkv=columns, block_q_dq=rows, block_kv_dq=columns
        )
        mask = (masks.CausalMask if self.is_causal else masks.FullMask)(self.lengths)
        return made.make_splash_mha(
            masks.MultiHeadMask([mask] * self.heads), block_sizes=sizes, head_shards=1, q_seq_shards=1,
            save_residuals=True, interpret=self.interpret,
        )  # fmt: skip

    def scope(self) -> Any:
        """The scope that says in the compiled program which scores are computed (`costs.kernel_flops` reads it)."""
        return jax.named_scope("causal" if self.is_causal else "full")

    def scaled(self, x: jax.Array) -> jax.Array:
        """x times the scale, rounded to its dtype: the kernel takes scaled queries."""
        return (x.astype(jnp.float32) * self.scale).astype(x.dtype)


# Traced once for all isomorphic layers.
@partial(jax.jit, static_argnames="case")
def _run_forward(query, key, value, *, case):
    with case.scope():
        output, (logsumexp,) = jax.vmap(case.kernel())(case.scaled(query), key, value)
    return output, logsumexp


@partial(jax.jit, static_argnames="case")
def _run_backward(query, key, value, grad_out, out, logsumexp, *, case):
    kernel = case.kernel()
    options = {**kernel.kwargs, "save_residuals": False}

    def pull(query, key, value, grad_out, out, logsumexp):
        known = query, key, value, None, None, out, logsumexp, kernel.dq_mask_info, kernel.dkv_mask_info
        return _module("kernel")._splash_attention_bwd(res=known, do=grad_out, **options)[3:6]

    with case.scope():
        grad_query, *grads = jax.vmap(pull)(case.scaled(query), key, value, grad_out, out, logsumexp)
    return case.scaled(grad_query), *grads


def _module(name: str) -> Any:
    """A module of jax's kernel, imported here, as few programs are for TPUs."""
    return importlib.import_module(f"jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_{name}")


@functools.cache
def _is_there() -> bool:
    """True if this jax has the kernel in the form that is called here: its backward is private to jax."""
    backward = getattr(_module("kernel"), "_splash_attention_bwd", None)
    return backward is not None and tuple(inspect.signature(backward).parameters) == _BACKWARD

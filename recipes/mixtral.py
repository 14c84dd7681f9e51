"""Hugging Face's Mixtral, unmodified, with its experts computed on each device's own tokens.

    config = MixtralConfig(...)
    use_experts_per_shard(config, mesh, "fsdp")
    model = MixtralForCausalLM(config)

Sorting tokens by expert is a matter of all tokens of the batch, and no partitioner cuts a product of ragged groups: as
`grouped_mm` has it, every device computes the whole batch. Which tokens are sorted and multiplied together does not
change a number, so here each device sorts its own and multiplies by every expert, without a collective but those of the
weights. transformers lets a way to compute experts be registered under a name (`ExpertsInterface`).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm
from jax.sharding import PartitionSpec
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

import spmd


def use_experts_per_shard(config: Any, mesh: spmd.Mesh, axis: str) -> None:
    """Has models of this configuration compute their experts for each shard of the batch, cut over a mesh axis.

    Raises ValueError for an axis that the mesh has not, or an activation other than SiLU.
    """
    if axis not in mesh.axis_names:
        raise ValueError(f"use_experts_per_shard: the mesh has no axis {axis!r} (axes: {', '.join(mesh.axis_names)})")
    if config.hidden_act != "silu":
        raise ValueError(f"use_experts_per_shard: expected hidden_act 'silu', got {config.hidden_act!r}")
    name = f"per_shard:{axis}:{id(mesh)}"
    ALL_EXPERTS_FUNCTIONS.register(name, partial(_experts, mesh=mesh, axis=axis))
    config._experts_implementation = name


def _experts(
    module: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor,
    *, mesh: spmd.Mesh, axis: str,
) -> torch.Tensor:  # fmt: skip
    operands = hidden_states, top_k_index.int(), top_k_weights, module.gate_up_proj, module.down_proj
    return spmd.call_jax(_on_each_shard, *operands, mesh=mesh.sharding((axis,), 1).jax.mesh, axis=axis)


def _on_each_shard(*operands: jax.Array, mesh: Any, axis: str) -> jax.Array:
    tokens, whole = PartitionSpec(axis), PartitionSpec()
    specs = (tokens, tokens, tokens, whole, whole)
    return jax.shard_map(experts, mesh=mesh, in_specs=specs, out_specs=tokens, check_vma=False)(*operands)


def experts(hidden: jax.Array, index: jax.Array, weights: jax.Array, gate_up: jax.Array, down: jax.Array) -> jax.Array:
    """What the chosen experts make of tokens, [tokens, width], weighted and added up.

    hidden: [tokens, width]. index, weights: [tokens, chosen]. gate_up: [experts, 2 * inner, width]. down: [experts,
    width, inner]. No token is dropped (Gale et al. 2022, arXiv:2211.15841).
    """
    chosen = index.shape[1]
    order = jnp.argsort(index.reshape(-1))
    places = jnp.argsort(order)
    sizes = jnp.bincount(index.reshape(-1), length=gate_up.shape[0]).astype(jnp.int32)
    rows = _dispatched(hidden, order, places, chosen)
    gate, up = jnp.split(grouped_product(rows, gate_up, sizes), 2, axis=-1)
    made = grouped_product(jax.nn.silu(gate) * up, down, sizes)
    made = _moved(made, places, order).reshape(*index.shape, -1)
    return jnp.sum(made * weights[..., None], axis=1).astype(hidden.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _dispatched(hidden: jax.Array, order: jax.Array, places: jax.Array, chosen: int) -> jax.Array:
    """A row for each choice of a token, in this order. Its gradient is a gather, too, where JAX's would add up rows."""
    return hidden[order // chosen]


def _dispatched_backward(chosen: int, places: jax.Array, gradient: jax.Array) -> tuple[jax.Array, None, None]:
    of_token = gradient[places].reshape(-1, chosen, gradient.shape[-1])
    return jnp.sum(of_token, axis=1, dtype=jnp.float32).astype(gradient.dtype), None, None


_dispatched.defvjp(
    lambda hidden, order, places, chosen: (_dispatched(hidden, order, places, chosen), places), _dispatched_backward
)


@jax.custom_vjp
def _moved(rows: jax.Array, order: jax.Array, places: jax.Array) -> jax.Array:
    """The rows in this order; places is the inverse order."""
    return rows[order]


_moved.defvjp(
    lambda rows, order, places: (rows[order], places), lambda places, gradient: (gradient[places], None, None)
)


@jax.custom_vjp
def grouped_product(rows: jax.Array, weights: jax.Array, sizes: jax.Array) -> jax.Array:
    """Runs of rows, of these sizes, each times its own weight: rows [n, in], weights [groups, out, in]."""
    return lax.ragged_dot(rows, jnp.swapaxes(weights, 1, 2), sizes)


def _grouped_forward(rows: jax.Array, weights: jax.Array, sizes: jax.Array) -> tuple[jax.Array, Any]:
    return grouped_product(rows, weights, sizes), (rows, weights, sizes)


def _grouped_backward(kept: Any, gradient: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    rows, weights, sizes = kept
    by_platform = {"tpu": _by_kernel} if len(rows) % _ROWS == 0 else {}
    to_weights = lax.platform_dependent(gradient, rows, sizes, default=_by_xla, **by_platform)
    return lax.ragged_dot(gradient, weights, sizes), to_weights, None


grouped_product.defvjp(_grouped_forward, _grouped_backward)


def _by_xla(gradient: jax.Array, rows: jax.Array, sizes: jax.Array) -> jax.Array:
    """For each group the product of its rows of both: [groups, out, in]."""
    dims = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[])
    return lax.ragged_dot_general(gradient, rows, sizes, dims)


_ROWS = 512  # of a block of the kernel, which takes whole ones


def _by_kernel(gradient: jax.Array, rows: jax.Array, sizes: jax.Array) -> jax.Array:
    """The same by jax's kernel: XLA's way on a TPU is a product of all rows for every group."""
    with jax.enable_x64(False):
        return tgmm(gradient.T, rows, sizes, preferred_element_type=rows.dtype, tiling=(_ROWS, 1024, 1024))

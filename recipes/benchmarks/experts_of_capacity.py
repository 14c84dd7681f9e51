"""Hugging Face's experts with a capacity: MaxText's published steps drop the choices that an expert
has no slot for.

    config = MixtralConfig(...)
    use_experts_of_capacity(config, mesh, "fsdp", 1.25)
    model = MixtralForCausalLM(config)

Each expert takes a fixed number of rows of a device, so that its products are dense. transformers
registers implementations of experts by name (`ExpertsInterface`).
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.sharding import PartitionSpec
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

import spmd


def use_experts_of_capacity(
    config: Any, mesh: spmd.Mesh, axis: str, capacity: float, *, expert: str | None = None
) -> None:
    """Makes models of this configuration compute at most `capacity` times an even share of the
    choices in each expert.

    Of the choices on a device, in order, an expert takes the first ceil(capacity * tokens * chosen
    / experts), and the later ones add nothing to their tokens (Lepikhin et al. 2020,
    arXiv:2006.16668). axis: that which shards the batch; every device reads all experts. expert: a
    further one that shards the batch and the experts, whose number it divides: rows go to their
    experts' devices.

    Raises ValueError for an axis that is not in the mesh, a capacity that is not positive, or an
    activation other than SiLU.
    """
    caller = "use_experts_of_capacity"
    if axis not in mesh.axis_names:
        raise ValueError(
            f"{caller}: the mesh has no axis {axis!r} (axes: {', '.join(mesh.axis_names)})"
        )
    if config.hidden_act != "silu":
        raise ValueError(f"{caller}: expected hidden_act 'silu', got {config.hidden_act!r}")
    if capacity <= 0:
        raise ValueError(f"{caller}: expected a positive capacity, got {capacity}")
    name = f"of_capacity:{axis}:{expert}:{capacity}:{id(mesh)}"
    how = {"mesh": mesh, "axis": axis, "expert": expert, "capacity": capacity}
    ALL_EXPERTS_FUNCTIONS.register(name, partial(_experts, **how))
    config._experts_implementation = name


def _experts(
    module: torch.nn.Module,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
    *,
    mesh: spmd.Mesh,
    axis: str,
    expert: str | None,
    capacity: float,
) -> torch.Tensor:
    operands = (
        hidden_states,
        top_k_index.int(),
        top_k_weights,
        module.gate_up_proj,
        module.down_proj,
    )
    # without devices: a plan's are not those of the mesh
    abstract = mesh.get_jax_mesh().abstract_mesh
    return spmd.call_jax(
        _on_each_shard, *operands, mesh=abstract, axis=axis, expert=expert, capacity=capacity
    )


def _on_each_shard(
    *operands: jax.Array, mesh: Any, axis: str, expert: str | None, capacity: float
) -> jax.Array:
    tokens = PartitionSpec((axis, expert) if expert else axis)
    weights = PartitionSpec(expert)
    function = partial(experts_of_capacity, capacity=capacity, axis=expert)
    specs = tokens, tokens, tokens, weights, weights
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=tokens, check_vma=False)(
        *operands
    )


def experts_of_capacity(
    hidden: jax.Array,
    index: jax.Array,
    weights: jax.Array,
    gate_up: jax.Array,
    down: jax.Array,
    *,
    capacity: float,
    axis: str | None = None,
) -> jax.Array:
    """The weighted sum of the chosen experts' outputs for each token, [tokens, width], without the
    choices that an expert has no slot for: it has ceil(capacity * tokens * chosen / experts), and
    earlier choices come first.

    hidden: [tokens, width]. index, weights: [tokens, chosen]. gate_up: [experts, 2 * inner, width].
    down: [experts, width, inner]. axis: the mesh axis whose devices have a part of the experts
    each.
    """
    shards = 1 if axis is None else jax.lax.axis_size(axis)
    choices, num_experts = index.size, gate_up.shape[0] * shards
    size = min(math.ceil(capacity * choices / num_experts), choices)
    slots, choice_of_slot = _slots(index.reshape(-1), num_experts, size)
    rows = _taken(hidden, choice_of_slot // index.shape[1], slots.reshape(index.shape))
    rows = rows.reshape(num_experts, size, -1)
    if axis is not None:  # each device's rows of each expert, one after the other
        rows = jax.lax.all_to_all(rows, axis, split_axis=0, concat_axis=1, tiled=True)
    gate, up = jnp.split(jnp.einsum("esi,eoi->eso", rows, gate_up), 2, axis=-1)
    results = jnp.einsum("esi,eoi->eso", jax.nn.silu(gate) * up, down)
    if axis is not None:
        results = jax.lax.all_to_all(results, axis, split_axis=1, concat_axis=0, tiled=True)
    results = _taken(
        results.reshape(num_experts * size, -1), slots, choice_of_slot[:, None]
    ).reshape(*index.shape, -1)
    return jnp.sum(results * weights[..., None], axis=1).astype(hidden.dtype)


def _slots(experts: jax.Array, num_experts: int, size: int) -> tuple[jax.Array, jax.Array]:
    """The slot of each choice, and the choice of each slot; past the last one where there is none.

    experts: the expert of each choice. Slots [experts * size] are those of expert 0, of expert 1,
    ...
    """
    order = jnp.argsort(experts, stable=True)
    counts = jnp.bincount(experts, length=num_experts)
    ends = jnp.cumsum(counts)
    ranks = jnp.argsort(order) - (ends - counts)[experts]
    slots = jnp.where(ranks < size, experts * size + ranks, num_experts * size)
    positions = (ends - counts)[:, None] + jnp.arange(size)
    choices = jnp.where(
        positions < ends[:, None], order[jnp.minimum(positions, len(experts) - 1)], len(experts)
    )
    return slots, choices.reshape(-1)


@jax.custom_vjp
def _taken(rows: jax.Array, index: jax.Array, inverse: jax.Array) -> jax.Array:
    """The rows at these indices, zeros for an index past the last row. inverse [rows, n]: the
    results that have a row, or an index past the last result. Its gradient is a gather, too; JAX's
    own would scatter-add."""
    return jnp.take(rows, index, axis=0, mode="fill", fill_value=0)


def _taken_backward(inverse: jax.Array, gradient: jax.Array) -> tuple[jax.Array, None, None]:
    of_rows = jnp.take(gradient, inverse, axis=0, mode="fill", fill_value=0)
    return jnp.sum(of_rows, axis=1, dtype=jnp.float32).astype(gradient.dtype), None, None


_taken.defvjp(lambda rows, index, inverse: (_taken(rows, index, inverse), inverse), _taken_backward)

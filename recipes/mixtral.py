"""Hugging Face's Mixtral with its experts computed on each device's own tokens; the model's code is as it is.

    config = MixtralConfig(...)
    use_experts_per_shard(config, mesh, "fsdp")  # or ("fsdp", "expert"), expert="expert"
    model = MixtralForCausalLM(config)

Sorting tokens by expert needs all tokens of the batch, and no partitioner shards a product of ragged groups: with
`grouped_mm` every device computes the whole batch. The results do not depend on the set of tokens that are sorted and
multiplied together, so here each device sorts its own and multiplies by every expert, without a collective but those of
the weights. transformers registers implementations of experts by name (`ExpertsInterface`).

With an axis of experts each device keeps its share of them. Tokens go to the experts: the devices of this axis gather
each other's tokens, compute the choices of their own experts, and add up the results by a reduce-scatter. As no token
is dropped a device must be ready to take all, and then an all-to-all would move no less.

`use_experts_of_capacity` drops tokens instead of sorting all: each expert takes a fixed number of rows, so that its
products are dense.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, tgmm
from jax.sharding import PartitionSpec
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

import spmd


def use_experts_per_shard(
    config: Any, mesh: spmd.Mesh, axis: str | tuple[str, ...], *, expert: str | None = None
) -> None:
    """Makes models of this configuration compute their experts for each shard of the batch over the axes `axis`.

    expert: the one of them over which the experts are sharded, too; None: every device reads all experts. Raises
    ValueError for an axis that is not in the mesh, experts that its size does not divide, or an activation other than
    SiLU.
    """
    axes = _checked("use_experts_per_shard", config, mesh, axis)
    if expert is not None and expert not in axes:
        raise ValueError(f"use_experts_per_shard: expected expert to be one of the axes {axes}, got {expert!r}")
    if expert is not None and config.num_local_experts % mesh.shape()[expert]:
        raise ValueError(
            f"use_experts_per_shard: {config.num_local_experts} experts cannot be split over the "
            f"{mesh.shape()[expert]} devices of {expert!r}; use a size that divides them"
        )
    _register(config, f"per_shard:{axes}:{expert}:{id(mesh)}", mesh=mesh, axes=axes, expert=expert)


def use_experts_of_capacity(config: Any, mesh: spmd.Mesh, axis: str | tuple[str, ...], capacity: float) -> None:
    """Makes models of this configuration compute at most `capacity` times an even share of the choices in each expert.

    Of the choices on a device, in order, an expert takes the first ceil(capacity * tokens * chosen / experts), and the
    later ones add nothing to their tokens (Lepikhin et al. 2020, arXiv:2006.16668). axis: the axes that shard the
    batch; every device reads all experts.

    Raises ValueError for an axis that is not in the mesh, a capacity that is not positive, or an activation other than
    SiLU.
    """
    axes = _checked("use_experts_of_capacity", config, mesh, axis)
    if capacity <= 0:
        raise ValueError(f"use_experts_of_capacity: expected a positive capacity, got {capacity}")
    _register(config, f"of_capacity:{axes}:{capacity}:{id(mesh)}", mesh=mesh, axes=axes, capacity=capacity)


def _checked(caller: str, config: Any, mesh: spmd.Mesh, axis: str | tuple[str, ...]) -> tuple[str, ...]:
    """The axes as a tuple."""
    axes = (axis,) if isinstance(axis, str) else axis
    for name in axes:
        if name not in mesh.axis_names:
            raise ValueError(f"{caller}: the mesh has no axis {name!r} (axes: {', '.join(mesh.axis_names)})")
    if config.hidden_act != "silu":
        raise ValueError(f"{caller}: expected hidden_act 'silu', got {config.hidden_act!r}")
    return axes


def _register(config: Any, name: str, **how: Any) -> None:
    ALL_EXPERTS_FUNCTIONS.register(name, partial(_experts, **how))
    config._experts_implementation = name


def _experts(
    module: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor,
    *, mesh: spmd.Mesh, axes: tuple[str, ...], expert: str | None = None, capacity: float | None = None,
) -> torch.Tensor:  # fmt: skip
    operands = hidden_states, top_k_index.int(), top_k_weights, module.gate_up_proj, module.down_proj
    abstract = mesh.get_jax_mesh().abstract_mesh  # without devices: a plan's are not those of the mesh
    return spmd.call_jax(_on_each_shard, *operands, mesh=abstract, axes=axes, expert=expert, capacity=capacity)


def _on_each_shard(
    *operands: jax.Array, mesh: Any, axes: tuple[str, ...], expert: str | None, capacity: float | None
) -> jax.Array:
    tokens, weights = PartitionSpec(axes), PartitionSpec(expert)
    function = experts if expert is None else partial(experts_of_axis, axis=expert)
    if capacity is not None:
        function = partial(experts_of_capacity, capacity=capacity)
    specs = (tokens, tokens, tokens, weights, weights)
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=tokens, check_vma=False)(*operands)


def experts_of_axis(
    hidden: jax.Array, index: jax.Array, weights: jax.Array, gate_up: jax.Array, down: jax.Array, *, axis: str
) -> jax.Array:
    """The same where `gate_up` and `down` are this device's share of the experts over a mesh axis, in order."""
    hidden, index, weights = (lax.all_gather(value, axis, tiled=True) for value in (hidden, index, weights))
    local = index - lax.axis_index(axis) * len(gate_up)
    # The number of experts stands for those of other devices: it is sorted behind all groups.
    local = jnp.where((local >= 0) & (local < len(gate_up)), local, len(gate_up))
    return lax.psum_scatter(experts(hidden, local, weights, gate_up, down, others=True), axis, tiled=True)


def experts(
    hidden: jax.Array,
    index: jax.Array,
    weights: jax.Array,
    gate_up: jax.Array,
    down: jax.Array,
    *,
    others: bool = False,
) -> jax.Array:
    """The weighted sum of the chosen experts' outputs for each token, [tokens, width].

    hidden: [tokens, width]. index, weights: [tokens, chosen]. gate_up: [experts, 2 * inner, width]. down: [experts,
    width, inner]. others: the index may be the number of experts, for a choice that adds nothing. No token is dropped
    (Gale et al. 2022, arXiv:2211.15841).
    """
    chosen = index.shape[1]
    order = jnp.argsort(index.reshape(-1))
    places = jnp.argsort(order)
    sizes = jnp.bincount(index.reshape(-1), length=gate_up.shape[0]).astype(jnp.int32)
    rows = _dispatched(hidden, order, places, chosen)
    if others:  # products and their gradients are undefined in rows behind the last group
        grouped = (jnp.arange(len(order)) < sizes.sum())[:, None]
        rows = jnp.where(grouped, rows, 0)
    gate, up = jnp.split(grouped_product(rows, gate_up, sizes), 2, axis=-1)
    made = grouped_product(jax.nn.silu(gate) * up, down, sizes)
    if others:
        made = jnp.where(grouped, made, 0)
    made = _moved(made, places, order).reshape(*index.shape, -1)
    return jnp.sum(made * weights[..., None], axis=1).astype(hidden.dtype)


def experts_of_capacity(
    hidden: jax.Array, index: jax.Array, weights: jax.Array, gate_up: jax.Array, down: jax.Array, *, capacity: float
) -> jax.Array:
    """The same without the choices that an expert has no slot for: it has ceil(capacity * tokens * chosen / experts),
    and earlier choices come first."""
    choices, num_experts = index.size, gate_up.shape[0]
    size = min(math.ceil(capacity * choices / num_experts), choices)
    slots, choice_of_slot = _slots(index.reshape(-1), num_experts, size)
    rows = _taken(hidden, choice_of_slot // index.shape[1], slots.reshape(index.shape))
    rows = rows.reshape(num_experts, size, -1)
    gate, up = jnp.split(jnp.einsum("esi,eoi->eso", rows, gate_up), 2, axis=-1)
    results = jnp.einsum("esi,eoi->eso", jax.nn.silu(gate) * up, down).reshape(num_experts * size, -1)
    results = _taken(results, slots, choice_of_slot[:, None]).reshape(*index.shape, -1)
    return jnp.sum(results * weights[..., None], axis=1).astype(hidden.dtype)


def _slots(experts: jax.Array, num_experts: int, size: int) -> tuple[jax.Array, jax.Array]:
    """The slot of each choice, and the choice of each slot; past the last one where there is none.

    experts: the expert of each choice. Slots [experts * size] are those of expert 0, of expert 1, ...
    """
    order = jnp.argsort(experts, stable=True)
    counts = jnp.bincount(experts, length=num_experts)
    ends = jnp.cumsum(counts)
    ranks = jnp.argsort(order) - (ends - counts)[experts]
    slots = jnp.where(ranks < size, experts * size + ranks, num_experts * size)
    positions = (ends - counts)[:, None] + jnp.arange(size)
    choices = jnp.where(positions < ends[:, None], order[jnp.minimum(positions, len(experts) - 1)], len(experts))
    return slots, choices.reshape(-1)


@jax.custom_vjp
def _taken(rows: jax.Array, index: jax.Array, inverse: jax.Array) -> jax.Array:
    """The rows at these indices, zeros for an index past the last row. inverse [rows, n]: the results that have a row,
    or an index past the last result. Its gradient is a gather, too; JAX's own would scatter-add."""
    return jnp.take(rows, index, axis=0, mode="fill", fill_value=0)


def _taken_backward(inverse: jax.Array, gradient: jax.Array) -> tuple[jax.Array, None, None]:
    of_rows = jnp.take(gradient, inverse, axis=0, mode="fill", fill_value=0)
    return jnp.sum(of_rows, axis=1, dtype=jnp.float32).astype(gradient.dtype), None, None


_taken.defvjp(lambda rows, index, inverse: (_taken(rows, index, inverse), inverse), _taken_backward)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _dispatched(hidden: jax.Array, order: jax.Array, places: jax.Array, chosen: int) -> jax.Array:
    """One row for each choice of a token, in this order. Its gradient is a gather, too; JAX's own would scatter-add."""
    return hidden[order // chosen]


def _dispatched_backward(chosen: int, places: jax.Array, gradient: jax.Array) -> tuple[jax.Array, None, None]:
    of_token = gradient[places].reshape(-1, chosen, gradient.shape[-1])
    return jnp.sum(of_token, axis=1, dtype=jnp.float32).astype(gradient.dtype), None, None


_dispatched.defvjp(
    lambda hidden, order, places, chosen: (_dispatched(hidden, order, places, chosen), places), _dispatched_backward
)


@jax.custom_vjp
def _moved(rows: jax.Array, order: jax.Array, places: jax.Array) -> jax.Array:
    """The rows in this order; `places` is the inverse order."""
    return rows[order]


_moved.defvjp(
    lambda rows, order, places: (rows[order], places), lambda places, gradient: (gradient[places], None, None)
)


@jax.custom_vjp
def grouped_product(rows: jax.Array, weights: jax.Array, sizes: jax.Array) -> jax.Array:
    """The product of each group of rows with its own weight: rows [n, in] in consecutive groups of these sizes, weights
    [groups, out, in]."""
    return _by_platform(
        lambda rows, weights, sizes: lax.ragged_dot(rows, jnp.swapaxes(weights, 1, 2), sizes),
        partial(_product_by_kernel, transpose_rhs=True), rows, weights, sizes,
    )  # fmt: skip


def _grouped_forward(rows: jax.Array, weights: jax.Array, sizes: jax.Array) -> tuple[jax.Array, Any]:
    return grouped_product(rows, weights, sizes), (rows, weights, sizes)


def _grouped_backward(kept: Any, gradient: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    rows, weights, sizes = kept
    to_rows = _by_platform(lax.ragged_dot, _product_by_kernel, gradient, weights, sizes)
    return to_rows, _by_platform(_outer, _outer_by_kernel, gradient, rows, sizes), None


grouped_product.defvjp(_grouped_forward, _grouped_backward)


def _outer(gradient: jax.Array, rows: jax.Array, sizes: jax.Array) -> jax.Array:
    """The product of gradient and rows within each group: [groups, out, in]."""
    dims = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[])
    return lax.ragged_dot_general(gradient, rows, sizes, dims)


def _product_by_kernel(rows: jax.Array, weights: jax.Array, sizes: jax.Array, **how: Any) -> jax.Array:
    return _kernel(gmm, _padded(rows), weights, sizes, **how)[: len(rows)]


def _outer_by_kernel(gradient: jax.Array, rows: jax.Array, sizes: jax.Array) -> jax.Array:
    return _kernel(tgmm, _padded(gradient).T, _padded(rows), sizes)


_ROWS = 512  # rows of a block of the kernels, which take full blocks only


def _padded(rows: jax.Array) -> jax.Array:
    """The rows, and zeros up to a full block, which belong to no group."""
    return jnp.pad(rows, ((0, -len(rows) % _ROWS), (0, 0)))


def _kernel(kernel: Any, left: jax.Array, right: jax.Array, sizes: jax.Array, **how: Any) -> jax.Array:
    side = 1024 if left.dtype == jnp.bfloat16 else 512  # wider blocks of float32 do not fit into a core's VMEM
    # A block of rows is computed once for each group that it has rows of: plans read the scope.
    computed = left.shape[kernel is tgmm] + (len(sizes) - 1) * _ROWS
    with jax.enable_x64(False), jax.named_scope(f"rows={computed}"):  # the kernels' own indices are of 32 bits
        return kernel(left, right, sizes, preferred_element_type=left.dtype, tiling=(_ROWS, side, side), **how)


def _by_platform(by_xla: Any, by_kernel: Any, *operands: jax.Array) -> jax.Array:
    """The product by jax's kernels on a TPU, else by XLA. On a TPU XLA's partitioner (GSPMD) ends the process at a
    ragged product, and its product for weights multiplies all rows for every group."""
    return lax.platform_dependent(*operands, default=by_xla, tpu=by_kernel)

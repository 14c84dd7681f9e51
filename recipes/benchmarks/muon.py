"""Muon's step over the shards of FSDP, next to JAX by hand, by the compilers of real TPUs.

    python -m recipes.benchmarks.muon                    needs libtpu (extra `tpu`)
    python -m recipes.benchmarks.muon --rows toy unequal   on eight simulated devices

Ours is `torch.optim.Muon` over the linear layers of a Llama on meta, with gradients as an argument,
in float32 and sharded as the weights. JAX's has the matrices of each shape as one stack, which a
constraint splits by matrix for the iteration, in bfloat16 as torch has it (and XLA's CPU compiler
not: the toys' bytes are twice those). Both have the same layout, options and clock. "unequal" has
eight shapes, of which JAX computes each on every device.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from recipes.benchmarks import sides

LR, MOMENTUM, DECAY, EPS, STEPS = 1e-3, 0.95, 0.1, 1e-7, 5
COEFFICIENTS = 3.4445, -4.775, 2.0315


def _of_llama(layers: int, width: int, keys: int, hidden: int) -> tuple[tuple[int, int], ...]:
    attention = (width, width), (keys, width), (keys, width), (width, width)
    return (*attention, (hidden, width), (hidden, width), (width, hidden)) * layers


@dataclass(frozen=True)
class Row:
    """The step of matrices of these shapes."""

    name: str
    target: str
    shapes: tuple[tuple[int, int], ...]
    shards: tuple[int, ...] = (8,)
    is_toy: bool = False
    sides: tuple[str, ...] = ("ours", "jax")


ROWS = {
    row.name: row
    for row in (
        Row("toy", "cpu:8", _of_llama(8, 64, 32, 128), is_toy=True),
        Row("unequal", "cpu:8", tuple((64, 64 + 16 * i) for i in range(8)), is_toy=True),
        Row("llama-1b", "v5p:2x2x2", _of_llama(16, 2048, 512, 8192)),
    )
}


def ours(row: Row, _: str) -> dict[str, Any]:
    """The figures of the plan of torch's optimizer."""
    import torch
    from torch import nn

    import fsdp
    import spmd
    from spmd import P

    if row.is_toy:
        spmd.simulate(8)
    mesh = spmd.Mesh(range(8), row.shards, ("fsdp",), target=None if row.is_toy else row.target)
    with torch.device("meta"):
        layers = nn.Sequential(
            *(nn.Linear(columns, rows, bias=False) for rows, columns in row.shapes)
        )
    # every matrix by its rows, as JAX's
    model = fsdp.fully_shard(layers, mesh=mesh, shard_placement_fn=lambda _: P("fsdp", None))
    optimizer = torch.optim.Muon(model.parameters(), lr=LR, weight_decay=DECAY, momentum=MOMENTUM)

    def step(gradients: Sequence[torch.Tensor]) -> None:
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = spmd.mark_sharding(gradient, mesh, P("fsdp", None))
        optimizer.step()
        optimizer.zero_grad()

    return sides.planned(step, [torch.zeros(shape, device="meta") for shape in row.shapes])[1]


def by_hand(row: Row, _: str) -> dict[str, Any]:
    """The figures of the JAX program."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    def orthogonal(update: jax.Array) -> jax.Array:
        a, b, c = COEFFICIENTS
        x = update.T if update.shape[0] > update.shape[1] else update
        norm = jnp.linalg.norm(x.astype(jnp.float32)).astype(x.dtype)
        x = x / jnp.maximum(norm, EPS)
        for _ in range(STEPS):
            gram = x @ x.T
            x = a * x + (b * gram + c * (gram @ gram)) @ x
        return x.T if update.shape[0] > update.shape[1] else x

    def lower(mesh: Any) -> Any:
        along, by_matrix = NamedSharding(mesh, P(None, "fsdp")), NamedSharding(mesh, P("fsdp"))

        def step(state: Any, gradients: Any) -> Any:
            return [of_shape(*arrays) for arrays in zip(*state, gradients, strict=True)]

        def of_shape(weights: Any, moments: Any, gradients: Any) -> tuple[Any, Any]:
            moments = moments + (1 - MOMENTUM) * (gradients - moments)
            updates = gradients + MOMENTUM * (moments - gradients)
            count, rows, columns = weights.shape
            updates = jax.lax.with_sharding_constraint(updates.astype(jnp.bfloat16), along)
            # fewer matrices than devices: each is computed by all
            dealt = by_matrix if count % mesh.size == 0 else NamedSharding(mesh, P())
            updates = jax.lax.with_sharding_constraint(updates, dealt)
            updates = jax.lax.with_sharding_constraint(jax.vmap(orthogonal)(updates), dealt)
            updates = jax.lax.with_sharding_constraint(updates, along)
            rate = LR * math.sqrt(max(1, rows / columns))
            return weights * (1 - LR * DECAY) - rate * updates, moments

        stacks = [
            jax.ShapeDtypeStruct(shape, jnp.float32, sharding=along) for shape in _stacks(row)
        ]
        out = [(along, along)] * len(stacks)
        return jax.jit(step, donate_argnums=0, out_shardings=out).lower((stacks, stacks), stacks)

    return sides.by_hand(row, ("fsdp",), lower)


def _stacks(row: Row) -> Iterator[tuple[int, int, int]]:
    for shape in dict.fromkeys(row.shapes):
        yield (row.shapes.count(shape), *shape)


def _title(row: Row) -> str:
    return f"{row.name}: {len(row.shapes)} matrices on {row.target}"


if __name__ == "__main__":
    sides.main("recipes.benchmarks.muon", __doc__, ROWS, {"ours": ours, "jax": by_hand}, _title)

"""An MLP of a tensor-parallel block with a sharded sequence, next to JAX by hand: forward and
backward, by both partitioners.

    python -m recipes.benchmarks.tensor_parallel                      needs libtpu (extra `tpu`)
    python -m recipes.benchmarks.tensor_parallel --rows toy toy-shardy   on eight simulated devices
    python -m recipes.benchmarks.tensor_parallel --rows mlp-ring

"ring" is JAX by hand whose products are cut along their gathers: an eighth of the sequence at a
time, one half of it from each neighbour of a ring through the 2x2x2 torus.

Gate and up read one operand, whose gradient is the sum of two products: it is scattered once. Both
sides have the same marks, options and clock.
"""

from dataclasses import dataclass
from typing import Any

from recipes.benchmarks import sides


@dataclass(frozen=True)
class Row:
    """Sequences of `length` tokens over the axis tensor."""

    name: str
    target: str
    partitioner: str
    batch: int = 2
    length: int = 4096
    width: int = 4096
    hidden: int = 16384
    is_toy: bool = False
    shards: tuple[int, ...] = (8,)
    sides: tuple[str, ...] = ("ours", "jax")


_TOY: dict[str, Any] = {"batch": 8, "length": 64, "width": 128, "hidden": 512, "is_toy": True}
ROWS = {
    row.name: row
    for row in (
        Row("mlp", "v5p:2x2x2", "gspmd"),
        Row("mlp-shardy", "v5p:2x2x2", "shardy"),
        Row("mlp-ring", "v5p:2x2x2", "gspmd", sides=("jax", "ring")),
        Row("toy", "cpu:8", "gspmd", **_TOY),
        Row("toy-shardy", "cpu:8", "shardy", **_TOY),
    )
}


def ours(row: Row, _: str) -> dict[str, Any]:
    """The figures of the plan of plain torch with marks."""
    import torch
    import torch.nn.functional as F

    import spmd
    from spmd import P

    if row.is_toy:
        spmd.simulate(8)
    spmd.config.partitioner = row.partitioner
    mesh = spmd.Mesh(range(8), row.shards, ("tensor",), target=row.target)
    rows, columns = P("tensor", None), P(None, "tensor")
    along, whole = P(None, "tensor", None), P(None, None, None)

    def step(arguments: list[torch.Tensor]) -> Any:
        x, scale, *weights = arguments
        x = spmd.mark_sharding(x, mesh, along).requires_grad_()
        gate, up, down = (
            spmd.mark_sharding(weight, mesh, spec).requires_grad_()
            for weight, spec in zip(weights, (rows, rows, columns), strict=True)
        )
        h = spmd.mark_sharding(F.rms_norm(x, (row.width,), scale), mesh, whole)
        y = F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)
        y = x + spmd.mark_sharding(y, mesh, along)
        return torch.autograd.grad(y.float().square().mean(), (x, gate, up, down))

    dtype = torch.float32 if row.is_toy else torch.bfloat16
    shapes = _shapes(row)
    return sides.planned(step, [torch.zeros(s, dtype=dtype, device="meta") for s in shapes])[1]


def by_hand(row: Row, _: str) -> dict[str, Any]:
    """The figures of the JAX program."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    jax.config.update("jax_use_shardy_partitioner", row.partitioner == "shardy")
    dtype = jnp.float32 if row.is_toy else jnp.bfloat16

    def lower(mesh: Any) -> Any:
        rows, columns = NamedSharding(mesh, P("tensor")), NamedSharding(mesh, P(None, "tensor"))
        whole = NamedSharding(mesh, P())
        constrain = jax.lax.with_sharding_constraint

        def loss(x: Any, scale: Any, gate: Any, up: Any, down: Any) -> Any:
            v = x.astype(jnp.float32)
            normed = v * jax.lax.rsqrt((v * v).mean(-1, keepdims=True) + 1e-6)
            h = constrain(normed.astype(x.dtype) * scale, whole)
            y = (jax.nn.silu(h @ gate.T) * (h @ up.T)) @ down.T
            return jnp.mean((x + constrain(y, columns)).astype(jnp.float32) ** 2)

        shardings = columns, whole, rows, rows, columns
        arguments = [
            jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
            for shape, sharding in zip(_shapes(row), shardings, strict=True)
        ]
        out = (columns, rows, rows, columns)
        return jax.jit(jax.grad(loss, (0, 2, 3, 4)), out_shardings=out).lower(*arguments)

    return sides.by_hand(row, ("tensor",), lower)


# A ring through the 2x2x2 torus in steps between neighbours, by their numbers in the mesh.
_RING = (0, 1, 3, 2, 6, 7, 5, 4)


def in_a_ring(row: Row, _: str) -> dict[str, Any]:
    """The figures of the JAX program with products cut along their gathers."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    ahead = list(zip(_RING, (*_RING[1:], _RING[0]), strict=True))
    ways = ahead, [(to, of) for of, to in ahead]  # of the first half of a shard, of the second

    def passed(halves: list[Any]) -> list[Any]:
        return [jax.lax.ppermute(x, "tensor", way) for x, way in zip(halves, ways, strict=True)]

    def of_shard(x: Any, scale: Any, gate: Any, up: Any, down: Any) -> Any:
        v = x.astype(jnp.float32)
        normed = v * jax.lax.rsqrt((v * v).mean(-1, keepdims=True) + 1e-6)
        halves, hidden = jnp.split(normed.astype(x.dtype) * scale, 2, 1), []
        for step in range(8):
            halves = passed(halves) if step else halves
            h = jnp.concatenate(halves, 1)
            hidden.append(jax.nn.silu(h @ gate.T) * (h @ up.T))
        sums: list[Any] = []
        for step in (*range(1, 8), 0):  # first those of the devices that are furthest
            parts = jnp.split(hidden[step] @ down.T, 2, 1)
            sums = [a + b for a, b in zip(passed(sums), parts, strict=True)] if sums else parts
        y = x + jnp.concatenate(sums, 1)
        return jax.lax.psum(jnp.sum(y.astype(jnp.float32) ** 2), "tensor")

    def lower(mesh: Any) -> Any:
        columns, rows = P(None, "tensor"), P("tensor")
        specs = columns, P(), rows, rows, columns
        whole = jax.shard_map(of_shard, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
        of_mesh = [NamedSharding(mesh, spec) for spec in specs]
        operands = [
            jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)
            for shape, sharding in zip(_shapes(row), of_mesh, strict=True)
        ]
        size = row.batch * row.length * row.width
        function = jax.grad(lambda *operands: whole(*operands) / size, (0, 2, 3, 4))
        out = [of_mesh[index] for index in (0, 2, 3, 4)]
        return jax.jit(function, out_shardings=tuple(out)).lower(*operands)

    return sides.by_hand(row, ("tensor",), lower)


def _shapes(row: Row) -> list[tuple[int, ...]]:
    width, hidden = row.width, row.hidden
    x = row.batch, row.length, width
    return [x, (width,), (hidden, width), (hidden, width), (width, hidden)]


def _title(row: Row) -> str:
    return f"{row.name}: an MLP of {row.width} x {row.hidden} on {row.target}, {row.partitioner}"


if __name__ == "__main__":
    sides.main(
        "recipes.benchmarks.tensor_parallel",
        __doc__,
        ROWS,
        {"ours": ours, "jax": by_hand, "ring": in_a_ring},
        _title,
    )

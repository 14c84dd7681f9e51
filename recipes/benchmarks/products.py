"""Products of eight-bit floats and of bfloat16, next to JAX by hand, by the compilers of chips that
are not present.

    python -m recipes.benchmarks.products      needs libtpu (extra `tpu`)

Ours is `torch._scaled_mm` of operands that are float8 already; "casts" is the two casts of its
operands from bfloat16 alone. JAX's is `lax.dot_general` with the scales behind it. On v5p, which
has no products of eight bits, both widen.
"""

from dataclasses import dataclass
from typing import Any

from recipes.benchmarks import sides


@dataclass(frozen=True)
class Row:
    """A product of two square matrices on each device."""

    name: str
    target: str
    kind: str
    size: int = 8192
    shards: tuple[int, ...] = (8,)
    is_toy: bool = False
    sides: tuple[str, ...] = ("ours", "jax")


ROWS = {
    row.name: row
    for row in (
        Row("bfloat16", "v5p:2x2x2", "bfloat16"),
        Row("float8", "v5p:2x2x2", "float8"),
        Row("casts", "v5p:2x2x2", "casts"),
        Row("bfloat16-tpu7x", "tpu7x:2x2x1", "bfloat16"),
        Row("float8-tpu7x", "tpu7x:2x2x1", "float8"),
    )
}


def ours(row: Row, _: str) -> dict[str, Any]:
    """The figures of the plan of torch's ops."""
    import torch

    import spmd
    from spmd import P

    mesh = spmd.Mesh(range(8), row.shards, ("data",), target=row.target)
    narrow = torch.float8_e4m3fn

    def step(operands: list[torch.Tensor]) -> Any:
        a, b = (spmd.mark_sharding(x, mesh, P(None, None)) for x in operands)
        if row.kind == "casts":
            return a.to(narrow), b.to(narrow)
        if row.kind == "bfloat16":
            return a @ b.t()
        one = torch.ones((), device="xla")
        return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)

    dtype = narrow if row.kind == "float8" else torch.bfloat16
    shape = (row.size, row.size)
    return sides.planned(step, [torch.zeros(shape, device="meta").to(dtype) for _ in "ab"])[1]


def by_hand(row: Row, _: str) -> dict[str, Any]:
    """The figures of the JAX program."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    narrow = jnp.float8_e4m3fn

    def product(a: Any, b: Any) -> Any:
        if row.kind == "casts":
            return a.astype(narrow), b.astype(narrow)
        sums = jnp.float32 if row.kind == "float8" else jnp.bfloat16
        both = (((1,), (1,)), ((), ()))
        return jax.lax.dot_general(a, b, both, preferred_element_type=sums).astype(jnp.bfloat16)

    def lower(mesh: Any) -> Any:
        dtype = narrow if row.kind == "float8" else jnp.bfloat16
        whole, shape = NamedSharding(mesh, P()), (row.size, row.size)
        arguments = [jax.ShapeDtypeStruct(shape, dtype, sharding=whole) for _ in "ab"]
        return jax.jit(product).lower(*arguments)

    return sides.by_hand(row, ("data",), lower)


def _title(row: Row) -> str:
    return f"{row.name}: {row.size} x {row.size} by {row.size} x {row.size} on {row.target}"


if __name__ == "__main__":
    sides.main("recipes.benchmarks.products", __doc__, ROWS, {"ours": ours, "jax": by_hand}, _title)

"""One layer of attention under a mask, forward and backward, beside JAX by hand.

    python -m recipes.benchmarks.masked_attention  # by the v5p compiler; needs libtpu
    python -m recipes.benchmarks.masked_attention --rows window document_ids --words
    python -m recipes.benchmarks.masked_attention --rows h100_window h100_wide  # extra `gpu-plan`

bfloat16, a sequence on each of eight chips. JAX by hand calls splash with its own masks under
`shard_map`, in blocks of 512 rows and 1,024 columns, of heads wider than 128 of 512. `document_ids`
are its segment ids, by which it skips no block, and `documents` the same rows as a mask that it
computes. `data_ids` are an argument, and `data_positions` positions in documents, of which the
ids are made as transformers makes them: both sides count all blocks of causality. On eight
simulated devices (`counted`) the operations are those of the loop over blocks, in float32.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import spmd
from recipes.benchmarks import sides
from spmd import P

CAP, WINDOW, DOCUMENT, NARROW = 50.0, 1024, 1024, 128
SIDES = ("ours", "jax")


class Heads(NamedTuple):
    """Of queries, of keys and values; widths of keys and of values."""

    queries: int = 16
    keys: int = 8
    width: int = 128
    width_of_values: int = 128


@dataclass(frozen=True)
class Row:
    """A mask, and the sizes of the attention."""

    name: str
    sequence: int = 8192
    heads: Heads = Heads()
    target: str = "v5p:2x2x2"
    shards: tuple[int, ...] = (8,)
    is_toy: bool = False
    sides: tuple[str, ...] = SIDES


ROWS = {
    row.name: row
    for row in (
        Row("causal"),
        Row("window"),
        Row("documents"),
        Row("document_ids"),
        Row("data_ids"),
        Row("data_positions"),
        Row("soft_cap"),
        Row("sinks", heads=Heads(64, 8, 64, 64)),
        Row("wide", heads=Heads(8, 4, 256, 256)),
        Row("latent", sequence=4096, heads=Heads(32, 32, 192, 128)),
        *(
            Row(f"counted_{name}", 2048, Heads(4, 4, 64, 64), "cpu:8", is_toy=True, sides=("ours",))
            for name in ("causal", "window", "soft_cap", "slopes")
        ),
        *(
            Row(f"h100_{name}", heads=heads, target="h100:8", sides=("ours",))
            for name, heads in (
                ("causal", Heads()),
                ("window", Heads()),
                ("documents", Heads()),
                ("data_positions", Heads()),
                ("sinks", Heads(64, 8, 64, 64)),
                ("wide", Heads(8, 4, 256, 256)),
                ("latent", Heads(16, 16, 192, 128)),
            )
        ),
    )
}


def _local(b: Any, h: Any, i: Any, j: Any) -> Any:
    """The window of gpt-oss."""
    return (i >= j) & (i - j < NARROW)


def attended(row: Row, q: Any, k: Any, v: Any, ids: Any) -> torch.Tensor:
    """The attention of a row as a user writes it."""
    kind, size = row.name.removeprefix("counted_").removeprefix("h100_"), row.sequence
    grouped = row.heads.queries != row.heads.keys
    places = torch.arange(size, device=q.device)
    is_before = places[:, None] >= places
    window = WINDOW // 4 if row.is_toy else WINDOW
    if kind == "window":
        mask = is_before & (places[:, None] - places < window)
    elif kind in ("documents", "document_ids"):
        ids = places // DOCUMENT
        mask = is_before & (ids[:, None] == ids)
    elif kind == "data_ids":
        mask = is_before & (ids[:, None, :, None] == ids[:, None, None])
    elif kind == "data_positions":
        started = ids.diff(prepend=ids[:, :1] - 1) != 1
        documents = started.cumsum(-1)
        mask = documents[:, None, :, None] == documents[:, None, None]
        mask = mask & (ids[:, None, :, None] >= ids[:, None, None])
    elif kind == "sinks":
        blocks = create_block_mask(_local, None, None, size, size, device="xla")
        aux = AuxRequest(lse=True)
        out, made = flex_attention(q, k, v, block_mask=blocks, enable_gqa=grouped, return_aux=aux)
        sinks = torch.zeros(row.heads.queries, device="xla", requires_grad=True)
        return out * torch.sigmoid(made.lse - sinks[:, None])[..., None].to(out.dtype)
    elif kind in ("soft_cap", "slopes"):
        slopes = torch.arange(row.heads.queries, device="xla").float().requires_grad_()

        def score(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return (
                CAP * torch.tanh(score / CAP) if kind == "soft_cap" else score + slopes[h] * (j - i)
            )

        blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, size, size, device="xla")
        how: Any = {"score_mod": score, "block_mask": blocks, "enable_gqa": grouped}
        result: Any = flex_attention(q, k, v, **how)
        return result
    else:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)


def _shapes(row: Row) -> list[tuple[int, ...]]:
    heads, batch = row.heads, math.prod(row.shards)
    return [
        (batch, heads.queries, row.sequence, heads.width),
        (batch, heads.keys, row.sequence, heads.width),
        (batch, heads.keys, row.sequence, heads.width_of_values),
    ]


def ours(row: Row, _: str) -> dict[str, Any]:
    """The figures of our program."""
    if row.is_toy:
        spmd.simulate(8)
    mesh = spmd.Mesh(range(8), row.shards, ("fsdp",), target=None if row.is_toy else row.target)

    def step(operands: Any) -> Any:
        *qkv, ids = operands
        q, k, v = (
            spmd.mark_sharding(x, mesh, P("fsdp", None, None, None)).requires_grad_() for x in qkv
        )
        ids = spmd.mark_sharding(ids, mesh, P("fsdp", None))
        result = attended(row, q, k, v, ids)
        return torch.autograd.grad(result.float().square().mean(), (q, k, v))

    dtype = torch.float32 if row.is_toy else torch.bfloat16
    operands = [torch.zeros(shape, dtype=dtype, device="meta") for shape in _shapes(row)]
    ids = torch.zeros(math.prod(row.shards), row.sequence, dtype=torch.int64, device="meta")
    plan, figures = sides.planned(step, [*operands, ids])
    words = [*figures["words"], *(f"{finding.kind}: {finding.text}" for finding in plan.findings)]
    return {**figures, "words": words}


def by_hand(row: Row, _: str) -> dict[str, Any]:
    """The figures of splash under `shard_map`."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental.pallas.ops.tpu import splash_attention as splash
    from jax.sharding import NamedSharding, PartitionSpec

    size, heads, split = row.sequence, row.heads, PartitionSpec("fsdp")

    class Documents(splash.CausalMask):  # type: ignore[misc]
        """Causality within documents of equal lengths, which the kernel computes."""

        def __init__(self) -> None:
            super().__init__((size, size))
            causal = self.mask_function

            def visible(rows: Any, columns: Any) -> Any:
                return causal(rows, columns) & (rows // DOCUMENT == columns // DOCUMENT)

            self.mask_function = visible

        def __hash__(self) -> int:
            return hash((type(self), self.shape))

    def lower(mesh: Any) -> Any:
        mask: Any = splash.CausalMask((size, size))
        if row.name == "window":
            mask = splash.LocalMask((size, size), (WINDOW - 1, 0), 0)
        elif row.name == "documents":
            mask = Documents()
        elif row.name == "sinks":
            mask = splash.LocalMask((size, size), (NARROW - 1, 0), 0)
        rows, columns = 512, 1024 if heads.width <= 128 else 512
        kernel = splash.make_splash_mha(
            mask=splash.MultiHeadMask([mask] * heads.queries),
            head_shards=1,
            q_seq_shards=1,
            block_sizes=splash.BlockSizes(
                block_q=rows,
                block_kv=columns,
                block_kv_compute=rows,
                block_q_dkv=rows,
                block_kv_dkv=columns,
                block_kv_dkv_compute=rows,
                use_fused_bwd_kernel=True,
            ),
            attn_logits_soft_cap=CAP if row.name == "soft_cap" else None,
        )
        known = np.arange(size, dtype=np.int32) // DOCUMENT
        is_data = row.name in ("data_ids", "data_positions")
        sinks = jnp.zeros(heads.queries) if row.name == "sinks" else None

        def of_row(q: Any, k: Any, v: Any, *data: Any) -> Any:
            ids = [*data, known][0] if is_data or row.name == "document_ids" else None
            segments = None if ids is None else splash.SegmentIds(ids, ids)
            return kernel(q, k, v, segments, sinks)

        def local(q: Any, *others: Any) -> Any:
            scaled = (q * heads.width**-0.5).astype(q.dtype)
            return jax.vmap(of_row)(scaled, *others)

        def loss(*operands: Any) -> Any:
            whole = jax.shard_map(
                local, mesh=mesh, in_specs=split, out_specs=split, check_vma=False
            )
            return jnp.mean(whole(*operands).astype(jnp.float32) ** 2)

        shapes = [(shape, jnp.bfloat16) for shape in _shapes(row)]
        if is_data:
            shapes.append(((math.prod(row.shards), size), jnp.int32))
        operands = [
            jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, split))
            for shape, dtype in shapes
        ]
        return jax.jit(jax.grad(loss, (0, 1, 2))).lower(*operands)

    return sides.by_hand(row, ("fsdp",), lower)


def _title(row: Row) -> str:
    heads = row.heads
    widths = f"{heads.width}/{heads.width_of_values}"
    return (
        f"{row.name}: {row.sequence:,} tokens a device on {row.target}, {heads.queries} heads "
        f"({heads.keys} of keys) of {widths}"
    )


if __name__ == "__main__":
    sides.main(
        "recipes.benchmarks.masked_attention",
        __doc__,
        ROWS,
        {"ours": ours, "jax": by_hand},
        _title,
    )

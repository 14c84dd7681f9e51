"""A training step of transformers' Mamba-2 under FSDP, next to JAX by hand, by the compilers of
real TPUs.

    python -m recipes.benchmarks.mamba                         every row and side
    python -m recipes.benchmarks.mamba --rows mamba2 --sides exact jax_exact

No TPU is needed, but libtpu is (extra `tpu`), except for the toy. Ours is Hugging Face's model on
meta, planned by `spmd.plan`; JAX's is `jax_mamba.py`. "ours" has
`torch.set_float32_matmul_precision("medium")`, which is JAX's default; "exact" the default of
torch, and "jax_exact" the same in JAX. Figures are those of `sides.py`, of one chip.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from recipes.benchmarks import sides

AXES = ("fsdp", "tensor")
SIZES = {"width": 2048, "heads": 64, "hidden": 4096, "vocabulary": 50_288}
TOY = {"width": 32, "heads": 8, "hidden": 64, "vocabulary": 256, "state": 16, "chunk": 16}


@dataclass(frozen=True)
class Row:
    """One step. sizes: as `jax_mamba.Mamba2` names them."""

    name: str
    target: str
    batch: int
    sequence: int
    layers: int = 8
    is_toy: bool = False
    checkpointed: bool = True
    sizes: Mapping[str, int] = field(default_factory=lambda: SIZES)
    shards: tuple[int, int] = (8, 1)
    sides: tuple[str, ...] = ("ours", "jax", "exact", "jax_exact")


ROWS = {
    row.name: row
    for row in (
        Row("toy", "cpu:8", 16, 64, layers=2, is_toy=True, sizes=TOY),
        Row("mamba2", "v5p:2x2x2", 8, 4096),
        Row("mamba2-kept", "v5p:2x2x2", 8, 4096, checkpointed=False),
    )
}


def ours(row: Row, side: str) -> dict[str, Any]:
    """The figures of the plan of an unmodified model."""
    import torch
    import transformers
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Block

    import fsdp
    import spmd

    if row.is_toy:
        spmd.simulate(row.shards[0])
    torch.set_float32_matmul_precision("highest" if side == "exact" else "medium")
    model = _by_hand(row)
    config = transformers.Mamba2Config(
        vocab_size=model.vocabulary,
        hidden_size=model.width,
        num_hidden_layers=model.layers,
        num_heads=model.heads,
        head_dim=model.head,
        expand=model.hidden // model.width,
        state_size=model.state,
        n_groups=model.kv_heads,
        chunk_size=model.chunk,
        conv_kernel=model.window,
        use_cache=False,
    )
    with torch.device("meta"):
        module = transformers.Mamba2ForCausalLM(config)
    if row.checkpointed:
        module.gradient_checkpointing_enable()
    module.train()
    mesh = spmd.Mesh(range(8), (8,), ("fsdp",), target=row.target)
    wrapped = fsdp.FullyShardedDataParallel(
        module,
        mesh,
        auto_wrap_policy=partial(
            fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Mamba2Block}
        ),
        mp_policy=fsdp.MixedPrecisionPolicy(
            param_dtype=torch.float32 if row.is_toy else torch.bfloat16
        ),
    )
    optimizer = torch.optim.AdamW(wrapped.parameters())

    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = wrapped(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    tokens = torch.zeros(row.batch, row.sequence, dtype=torch.int64, device="meta")
    return sides.planned(step, tokens)[1]


def _by_hand(row: Row) -> Any:
    from recipes.benchmarks.jax_mamba import Mamba2

    return Mamba2(layers=row.layers, kv_heads=1, **row.sizes)


def by_hand(row: Row, side: str) -> dict[str, Any]:
    """The figures of the program of JAX's."""
    import jax

    with jax.default_matmul_precision("highest" if side == "jax_exact" else "default"):
        return sides.by_hand(row, AXES, partial(_lowered, row))


def _lowered(row: Row, mesh: Any) -> Any:
    import jax.numpy as jnp

    from recipes.benchmarks.jax_mamba import MambaStep

    how = {"dtype": jnp.float32} if row.is_toy else {}
    step = MambaStep(_by_hand(row), mesh, row.batch, row.sequence, row.checkpointed, **how)
    return step.lower()


def _title(row: Row) -> str:
    kept = "layers recomputed" if row.checkpointed else "nothing recomputed"
    return (
        f"{row.name}: {row.layers} layers on {row.target}, {row.batch} x {row.sequence:,}, {kept}"
    )


if __name__ == "__main__":
    sides.main(
        "recipes.benchmarks.mamba",
        __doc__,
        ROWS,
        {"ours": ours, "jax": by_hand, "exact": ours, "jax_exact": by_hand},
        _title,
    )

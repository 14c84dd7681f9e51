"""One call of jax's attention kernel for a TPU on three sides: seconds by the clock of plans, as
JSON.

python -m tests.tools.planning.splash_by_sides
"""

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.experimental import topologies
from jax.experimental.pallas.ops.tpu import splash_attention as splash

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # runs without being installed, too

import spmd
from recipes.benchmarks import scale
from spmd.ops.kernels import splash as ours
from spmd.ops.kernels.flash import Masking
from spmd.ops.kernels.mask_blocks import causal

TARGET = "v5e:2x2"
HEADS, LENGTH, WIDTH = 8, 4096, 128
KINDS = {
    "causal": lambda: splash.CausalMask((LENGTH, LENGTH)),
    "window": lambda: splash.LocalMask((LENGTH, LENGTH), (1023, 0), 0),
    "full": lambda: splash.FullMask((LENGTH, LENGTH)),
}


def attention(kind: str, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """The kernel in the block sizes of the library's own call of it (batch 1)."""
    masking = Masking(causal(LENGTH, LENGTH) if kind == "causal" else None)
    case = ours._Case.of(query[None], key[None], value[None], masking, WIDTH**-0.5)
    (rows, columns), wide = case.block, case.joined_columns
    sizes = splash.BlockSizes(
        block_q=rows,
        block_kv=columns,
        block_q_dkv=rows,
        block_kv_dkv=wide,
        block_kv_dkv_compute=columns,
        use_fused_bwd_kernel=True,
    )
    mask = splash.MultiHeadMask([KINDS[kind]()] * HEADS)
    kernel = splash.make_splash_mha(mask=mask, head_shards=1, q_seq_shards=1, block_sizes=sizes)
    return kernel((query * WIDTH**-0.5).astype(query.dtype), key, value)


def by_torch(is_causal: bool, *arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
    arrays = tuple(array.requires_grad_() for array in arrays)
    result = torch.nn.functional.scaled_dot_product_attention(*arrays, is_causal=is_causal)
    return torch.autograd.grad(result.float().square().mean(), arrays)


def by_call_jax(kind: str, *arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
    arrays = tuple(array.requires_grad_() for array in arrays)
    result = spmd.call_jax(functools.partial(attention, kind), *arrays)
    return torch.autograd.grad(result.float().square().mean(), arrays)


def by_hand(kind: str, *, is_trained: bool = True) -> float:
    device = topologies.get_topology_desc(topology_name=TARGET, platform="tpu").devices[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    array = jax.ShapeDtypeStruct((HEADS, LENGTH, WIDTH), jnp.bfloat16, sharding=sharding)

    def loss(*arrays: jax.Array) -> jax.Array:
        return jnp.mean(attention(kind, *arrays).astype(jnp.float32) ** 2)

    function = jax.grad(loss, (0, 1, 2)) if is_trained else loss
    compiled = jax.jit(function).lower(array, array, array).compile()
    terms = scale.read(compiled, spmd.Mesh([0], (1,), ("data",), target=TARGET))["terms"]
    return float(terms["attention"])


def planned(step: Callable[..., Any], *shape: int) -> tuple[float, list[str]]:
    plan = spmd.plan(
        step,
        *(torch.empty(shape, dtype=torch.bfloat16, device="meta") for _ in range(3)),
        target=TARGET,
    )
    return next(term.seconds for term in plan.terms if term.name == "attention"), list(plan.notes)


def main() -> None:
    found: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        found[kind] = {"by hand": by_hand(kind), "forward": by_hand(kind, is_trained=False)}
        found[kind]["call_jax"], notes = planned(
            functools.partial(by_call_jax, kind), HEADS, LENGTH, WIDTH
        )
        found[kind]["notes"] = notes
        if kind != "window":
            found[kind]["torch"], _ = planned(
                functools.partial(by_torch, kind == "causal"), 1, HEADS, LENGTH, WIDTH
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()

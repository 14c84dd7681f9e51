"""The bytes that FSDP gathers for a Llama's linear layers in bfloat16, in eight bits and packed in
four, by the compilers of chips that are not present.

    python -m recipes.benchmarks.narrow_gathers                       Llama-1B for v5p:2x2x2
    python -m recipes.benchmarks.narrow_gathers --target h100:8 --weights bfloat16 float8 int4
    python -m recipes.benchmarks.narrow_gathers --target cpu:8 --model toy

Needs libtpu (extra `tpu`) or, for GPUs, the extra `gpu-plan`. Ours is `recipes/llama.py`, a unit a
block, 8 x 4,096 tokens, its layers recomputed, AdamW. "float8" gathers with
`gather_dtype=torch.float8_e4m3fn` what "bfloat16" gathers in that dtype. In "frozen" and "int4" the
blocks' linear layers, in bfloat16, are frozen: as parameters, and packed (`recipes/packed.py`).

The first table has each gather of a step, the second the bytes of those that are a weight: in the
narrow plan, and of the same weights in the one that it is compared with.
"""

import argparse
import dataclasses
import os
from typing import Any

from rich.console import Console
from rich.table import Table

BITS = {"bfloat16": 16, "float8": 8, "frozen": 16, "int4": 4}
PEERS = {"float8": "bfloat16", "int4": "frozen"}
LINEARS = {"query", "key", "value", "out", "gate", "up", "down"}


def plan_of(weights: str, model: str, target: str, layers: int | None) -> tuple[Any, set[int]]:
    """The plan of a step, and the bytes of each weight that is gathered in `weights`."""
    import torch

    import fsdp
    import spmd
    from recipes import packed
    from recipes.llama import CONFIGS, Llama, LlamaConfig, cross_entropy, fully_sharded

    config = CONFIGS.get(model, LlamaConfig(4, 256, 8, 2, 512, 512, 64))
    config = dataclasses.replace(config, layers=layers or config.layers, checkpointed=True)
    mesh = spmd.Mesh(range(8), (8,), ("fsdp",), target=target)
    with torch.device("meta"):
        llama = Llama(config)
    is_frozen = weights in ("frozen", "int4")
    if is_frozen:
        llama.bfloat16().blocks.requires_grad_(False)
    narrow = llama.blocks if is_frozen else llama
    sizes = {x.numel() * BITS[weights] // 8 for x in narrow.parameters() if x.dim() > 1}
    if weights == "int4":
        packed.pack_layers(llama.blocks, LINEARS)
    gather_dtype = torch.float8_e4m3fn if weights == "float8" else None
    precision = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, gather_dtype=gather_dtype)
    wrapped = fully_sharded(llama, mesh, precision)
    packed.shard(wrapped, mesh)
    optimizer = torch.optim.AdamW([x for x in wrapped.parameters() if x.requires_grad], lr=3e-4)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss = cross_entropy(wrapped(tokens), tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    tokens = torch.zeros(8, config.sequence, dtype=torch.int64, device="meta")
    # XLA's compiler for GPUs joins gathers, and a row would be of several weights.
    is_gpu = not target.startswith(("v", "tpu", "cpu"))
    apart = {"xla_gpu_all_gather_combine_threshold_bytes": 0} if is_gpu else {}
    return spmd.plan(step, tokens, compiler_options=apart), sizes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="v5p:2x2x2")
    parser.add_argument("--weights", nargs="+", choices=[*BITS], default=[*BITS])
    parser.add_argument("--model", choices=("1b", "8b", "toy"), default="1b")
    parser.add_argument("--layers", type=int, help="so many layers instead of the model's own")
    options = parser.parse_args()
    # Without these settings libtpu queries the network for a TPU, and allows one process only.
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    import spmd

    if options.target.startswith("cpu"):
        spmd.simulate(8)
    console, of_weights = Console(width=120), dict[str, int]()
    gathers = Table("gathers of", "dtype", "bytes", "a step", "GiB", title=options.target)
    totals = Table("gathers of", "bytes of weights", "to", "step ms", "cycles M", "peak GiB")
    for weights in options.weights:
        plan, sizes = plan_of(weights, options.model, options.target, options.layers)
        rows = sorted(
            (row.dtype, row.bytes, row.count)
            for row in plan.collectives
            if row.kind == "all-gather"
        )
        for dtype, size, count in rows:
            gathers.add_row(
                weights, dtype, f"{size:,}", f"{count:,}", f"{size * count / 2**30:.3f}"
            )
        dtype = "bf16" if BITS[weights] == 16 else "u8"
        total = sum(size * count for name, size, count in rows if name == dtype and size in sizes)
        of_weights[weights] = total
        peer = of_weights.get(PEERS.get(weights, ""))
        totals.add_row(
            weights,
            f"{total:,}",
            f"{total / peer} of {PEERS[weights]}" if peer else "",
            f"{1e3 * plan.seconds:,.1f}" if plan.seconds else "-",
            f"{plan.cycles / 1e6:,.1f}" if plan.cycles else "-",
            f"{plan.peak / 2**30:.2f}",
        )
    console.print(gathers, totals)


if __name__ == "__main__":
    main()

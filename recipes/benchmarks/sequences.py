"""Long sequences from a mark on the tokens, next to a ring by hand in JAX, compiled by the compilers of real TPUs.

    python -m recipes.benchmarks.sequences                      every row and side
    python -m recipes.benchmarks.sequences --rows 8b --sides ours jax

No TPU is needed, but libtpu is (extra `tpu`), except for the toy. Ours is Hugging Face's Llama on meta, planned by
`spmd.plan`: sides "ours" with its tokens marked alone, "marked" with the outputs of its layers as well, and "off" the
same as `config.parallel = "off"` computes it. JAX's is `jax_sequences.py`. Each side has a process of its own; figures
are those of `scale.py`, of one chip. AdamW's moments have the dtype of the weights.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from recipes.benchmarks.scale import COLUMNS, options_of, read

SIDES = ("ours", "marked", "off", "jax")
MOST = 1800  # seconds of a side


@dataclass(frozen=True)
class Row:
    """One step. shards: of fsdp and of context; weights: their dtype."""

    name: str
    target: str
    shards: tuple[int, int]
    batch: int
    sequence: int
    layers: int
    weights: str = "float32"
    checkpointed: bool = True
    is_toy: bool = False


ROWS = {
    row.name: row
    for row in (
        Row("toy", "cpu:8", (2, 4), 2, 4096, 2, checkpointed=False, is_toy=True),
        Row("2-layers", "v5p:4x4x4", (4, 16), 4, 32_768, 2, weights="bfloat16", checkpointed=False),
        Row("2-layers-float32", "v5p:4x4x4", (4, 16), 4, 32_768, 2),
        Row("8b", "v5p:4x4x4", (1, 64), 1, 1 << 20, 32),
    )
}


def ours(row: Row, side: str) -> dict[str, Any]:
    """The figures of the plan of an unmodified model."""
    import torch
    import transformers

    import fsdp
    import spmd
    from spmd import P

    if row.is_toy:
        spmd.simulate(math.prod(row.shards))
    spmd.config.parallel = "off" if side == "off" else "auto"
    mesh = spmd.Mesh(range(math.prod(row.shards)), row.shards, ("fsdp", "context"), target=row.target)
    config = transformers.LlamaConfig(
        **_shapes(row), num_hidden_layers=row.layers, max_position_embeddings=row.sequence, use_cache=False,
        attn_implementation="sdpa",
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(getattr(torch, row.weights))
    if row.checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    both = ("fsdp", "context")
    rules: dict[str, Any] = {"**.*norm.weight": P(both), "**.weight": P(both, None)}
    if side == "marked":
        rules |= {f"{name}:output": P("fsdp", "context", None) for name in ("model.layers.*", "model.embed_tokens")}
    low = {} if row.is_toy else {"mp_policy": fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)}
    spmd.ShardingRules(rules, units=["model.layers.*"]).apply(model, mesh, **low)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    tokens = torch.zeros(row.batch, row.sequence, dtype=torch.int64, device="meta")

    def step(tokens: torch.Tensor) -> torch.Tensor:
        spmd.mark_sharding(tokens, mesh, P("fsdp", "context"))
        loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    plan = spmd.plan(step, tokens)
    return {
        "state": plan.parameters + plan.optimizer_state, "temporaries": plan.temporaries, "peak": plan.peak,
        "exchanges": sum(collective.count for collective in plan.collectives),
        "moved": plan.moved_bytes, "hidden": plan.hidden_bytes, "cycles": plan.cycles, "step": plan.seconds or 0.0,
        "waiting": sum(collective.waiting for collective in plan.collectives),
        "flops": plan.flops, "attention": plan.kernel_flops / attention_flops(row), "compile": plan.compile_seconds,
        "terms": {term.name: term.seconds for term in plan.terms},
        "words": [plan.verdict, *plan.notes, *map(str, plan.collectives[:16])],
    }  # fmt: skip


def attention_flops(row: Row) -> float:
    """The operations of a device's equal part of causal attention: two products of forward, which recomputation has
    twice, and five of backward, of the scores below the diagonal."""
    width, products = _shapes(row)["hidden_size"], 9 if row.checkpointed else 7
    return row.layers * row.batch * row.sequence**2 / 2 * 2 * width * products / math.prod(row.shards)


def _shapes(row: Row) -> dict[str, int]:
    if row.is_toy:
        return {
            "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2,
            "vocab_size": 256,
        }  # fmt: skip
    return {
        "hidden_size": 4096, "intermediate_size": 14_336, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 128_256, "rope_theta": 500_000,
    }  # fmt: skip


def by_hand(row: Row, _: str) -> dict[str, Any]:
    """The figures of the program of JAX's."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh

    import spmd
    from recipes.benchmarks import jax_sequences
    from recipes.benchmarks.jax_llama import Llama

    num_devices = math.prod(row.shards)
    if row.is_toy:
        spmd.simulate(num_devices)
        devices = jax.devices()[:num_devices]
    else:
        devices = topologies.get_topology_desc(topology_name=row.target, platform="tpu").devices
    mesh = Mesh(np.array(devices).reshape(row.shards), jax_sequences.ALL)
    shapes = _shapes(row)
    model = Llama(
        row.layers, shapes["hidden_size"], shapes["num_attention_heads"], shapes["num_key_value_heads"],
        shapes["intermediate_size"], shapes["vocab_size"],
    )  # fmt: skip
    how = {"pair": jax_sequences.BY_PRODUCTS, "dtype": jnp.float32} if row.is_toy else {}
    step = jax_sequences.Step(
        model, mesh, row.batch, row.sequence, row.checkpointed, stored=getattr(jnp, row.weights), **how
    )
    with jax.enable_x64(False):
        lowered = step.lower()
        started = time.perf_counter()
        compiled = lowered.compile(compiler_options=options_of(mesh))
    seconds = time.perf_counter() - started
    ours = spmd.Mesh(range(num_devices), row.shards, jax_sequences.ALL, target=row.target)
    return {"compile": seconds, **read(compiled, ours)}


def measured(row: Row, side: str) -> dict[str, Any]:
    """The figures of one side of a row, or its error."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "recipes.benchmarks.sequences",
        "--child",
        side,
        "--rows",
        row.name,
    ]
    # Without these settings libtpu queries the network for a TPU, and allows one process only.
    settings = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "JAX_PLATFORMS": "cpu"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MOST, env={**os.environ, **settings})
    except subprocess.TimeoutExpired:
        return {"error": f"not done in {MOST} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no figures"])[-1]}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def show(row: Row, sides: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """Prints the figures of the sides of a row."""
    shards = f"fsdp={row.shards[0]}, context={row.shards[1]}"
    title = f"{row.name}: {row.layers} layers on {row.target}, {shards}, {row.batch} x {row.sequence:,}, {row.weights}"
    table = Table("", *sides, title=title, title_justify="left")
    for name, head, unit in COLUMNS:
        unit = unit * 1024 if "{}" in head else unit
        values = [f"{figures[name] / unit:,.3f}" if figures.get(name) else "-" for figures in sides.values()]
        if set(values) != {"-"}:
            table.add_row(head.format("T" if name == "flops" else "G"), *values)
    shares = [f"{figures['attention']:.3f}" if figures.get("attention") else "-" for figures in sides.values()]
    table.add_row("operations of attention / an equal part", *shares)
    for name in dict.fromkeys(name for figures in sides.values() for name in figures.get("terms", ())):
        seconds = [figures.get("terms", {}).get(name, 0.0) for figures in sides.values()]
        table.add_row(f"  {name} ms", *(f"{1e3 * value:,.1f}" for value in seconds))
    console.print(table)
    for side, figures in sides.items():
        if "error" in figures:
            console.print(f"{side}: {figures['error']}", markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=[*ROWS], default=[*ROWS], metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--words", action="store_true", help="print notes and collectives, too")
    parser.add_argument("--child", choices=SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        started = time.perf_counter()
        figures = (by_hand if given.child == "jax" else ours)(ROWS[given.rows[0]], given.child)
        host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({**figures, "seconds": time.perf_counter() - started, "host": host}))
        return
    console = Console(width=140)
    for row in (ROWS[name] for name in given.rows):
        figures = {side: measured(row, side) for side in given.sides}
        show(row, figures, console)
        for side in figures if given.words else ():
            console.print(*[f"{side}: {words}" for words in figures[side].get("words", ())], sep="\n", markup=False)


if __name__ == "__main__":
    main()

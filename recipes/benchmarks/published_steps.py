"""Steps that others have published, next to the times of their plans.

    python -m recipes.benchmarks.published_steps                    every row that is not in the file yet; the table
    python -m recipes.benchmarks.published_steps --rows 8b-v6e      some rows, again
    python -m recipes.benchmarks.published_steps --table            only the table, of the plans in the file
    python -m recipes.benchmarks.published_steps --fit              constants of TPUs, by the rows of one half; errors

No TPU or GPU is needed, but libtpu (extra `tpu`), and for rows on GPUs the extra `gpu-plan`. Each plan has a process of
its own; the file (`--file`) keeps them. Where a source gives neither the batch of a chip nor what is recomputed, the
least recomputation that fits is taken. Rows are split in two halves by a seed: constants of the chips are only ever
chosen by the one.
"""

import argparse
import dataclasses
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from recipes.benchmarks import fitted_constants as fitted


@dataclass(frozen=True)
class Row:
    """One published step. rate: tokens per second and device; or of model operations the share of the peak, below 1.
    batch: sequences a device, 0 if it is not given. checkpointed: True, False or "alternate", every second layer."""

    name: str
    model: str
    target: str
    devices: int
    sequence: int
    rate: float
    source: str
    batch: int = 0
    tensor: int = 1
    checkpointed: bool | str = True
    optimizer: bool = True


MAXTEXT = 'MaxText, "Optimized models tiering"'
TITAN = "torchtitan, docs/performance.md"
NANOTRON = "nanotron, benchmark logs"

ROWS = (
    Row("70b2-v6e", "llama2-70b", "v6e:16x16", 256, 4096, 900, MAXTEXT),
    Row("8b-v6e", "llama3-8b", "v6e:16x16", 256, 8192, 7207, MAXTEXT),
    Row("70b-v6e", "llama3-70b", "v6e:16x16", 256, 8192, 960, MAXTEXT),
    Row("405b-v6e", "llama3-405b", "v6e:16x16", 256, 8192, 123, MAXTEXT),
    Row("mixtral-v6e", "mixtral-8x7b", "v6e:16x16", 256, 4096, 3899, MAXTEXT),
    Row("mixtral22-v6e", "mixtral-8x22b", "v6e:16x16", 256, 4096, 1326, MAXTEXT),
    Row("70b2-v5p", "llama2-70b", "v5p:8x8x8", 512, 4096, 692, MAXTEXT),
    Row("mixtral-v5p", "mixtral-8x7b", "v5p:4x4x8", 128, 4096, 2909, MAXTEXT),
    Row("gpt-v4", "gpt-16b", "v4:2x4x4", 32, 1024, 0.39, "PyTorch/XLA 2.0 post", batch=8),
    Row("8b-a100", "llama3-8b", "8xa100:8", 64, 8192, 2904, TITAN, batch=1, checkpointed="alternate"),
    Row("70b-a100", "llama3-70b", "8xa100:8", 64, 8192, 331, TITAN, batch=1),
    Row("1b-h100-t2", "llama3-1b", "h100:2", 2, 4096, 33_200, NANOTRON, 4, 2, False, optimizer=False),
    Row("1b-h100-t4", "llama3-1b", "h100:4", 4, 4096, 27_800, NANOTRON, 2, 4, False, optimizer=False),
    Row("1b-h100-t8", "llama3-1b", "h100:8", 8, 4096, 5_690, NANOTRON, 4, 8, False, optimizer=False),
)  # fmt: skip

# layers, width, heads, heads of keys, hidden, vocabulary
LLAMAS = {
    "llama3-1b": (16, 2048, 32, 8, 8192, 128_256),
    "llama3-8b": (32, 4096, 32, 8, 14_336, 128_256),
    "llama2-70b": (80, 8192, 64, 8, 28_672, 32_000),
    "llama3-70b": (80, 8192, 64, 8, 28_672, 128_256),
    "llama3-405b": (126, 16_384, 128, 8, 53_248, 128_256),
}
MIXTRALS = {
    "mixtral-8x7b": (32, 4096, 32, 8, 14_336, 32_000),
    "mixtral-8x22b": (56, 6144, 48, 8, 16_384, 32_768),
}


def plan_of(row: Row, batch: int) -> Any:
    """The plan of a step of so many sequences a device."""
    import torch

    import spmd

    axes = ("fsdp", "tensor") if row.tensor > 1 else ("fsdp",)
    shape = (row.devices // row.tensor, row.tensor)[: len(axes)]
    mesh = spmd.Mesh(range(row.devices), shape, axes, target=row.target)
    model, loss_of = _made(row, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.zeros(batch * row.devices, row.sequence, dtype=torch.int64, device="meta")

    def step(tokens: torch.Tensor) -> torch.Tensor:
        spmd.mark_sharding(tokens, mesh, ("fsdp", None))
        loss = loss_of(model, tokens)
        loss.backward()
        if row.optimizer:  # else one of many micro-batches, which adds to the gradients
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return spmd.plan(step, tokens)


def _made(row: Row, mesh: Any) -> tuple[Any, Callable[..., Any]]:
    """The model over the mesh, on meta, and its loss."""
    import torch
    import transformers

    from recipes.benchmarks import scale
    from recipes.llama import Llama, LlamaConfig, cross_entropy, fully_sharded
    from recipes.mixtral import use_experts_per_shard

    like = scale.Row(
        row.name, row.model, row.target, row.devices, 0, sequence=row.sequence, checkpointed=bool(row.checkpointed)
    )
    if row.model == "gpt-16b":
        model, _, loss_of = scale.MODELS[row.model](like, None)
        return model, loss_of
    if row.model in LLAMAS:
        layers, width, heads, kv_heads, hidden, vocabulary = LLAMAS[row.model]
        with torch.device("meta"):
            llama = Llama(
                LlamaConfig(
                    layers, width, heads, kv_heads, hidden, vocabulary, row.sequence,
                    checkpointed=row.checkpointed is True,
                )
            )  # fmt: skip
        if row.checkpointed == "alternate":
            for block in llama.blocks[::2]:
                block.forward = _checkpointed(block.forward)
        return fully_sharded(llama, mesh), lambda model, tokens: cross_entropy(model(tokens), tokens)
    layers, width, heads, kv_heads, hidden, vocabulary = MIXTRALS[row.model]
    config = transformers.MixtralConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, num_key_value_heads=kv_heads,
        intermediate_size=hidden, vocab_size=vocabulary, use_cache=False,
    )  # fmt: skip
    use_experts_per_shard(config, mesh, "fsdp")
    layer = transformers.models.mixtral.modeling_mixtral.MixtralDecoderLayer
    model, _, loss_of = scale.hugging_face(like, transformers.MixtralForCausalLM, config, layer)
    return model, loss_of


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    from torch.utils.checkpoint import checkpoint

    return lambda *args: checkpoint(forward, *args, use_reentrant=False)


# What is tried where the source gives neither what is recomputed nor the batch: the first that fits, the fastest first.
TRIED: tuple[tuple[bool | str, int], ...] = ((False, 2), (False, 1), ("alternate", 1), (True, 4), (True, 1))


def planned(row: Row, programs: Path) -> dict[str, Any]:
    """The figures of the plan of a row. programs: a file for its programs."""
    for checkpointed, batch in TRIED if not row.batch else ((row.checkpointed, row.batch),):
        with fitted.Keeper() as keeper:
            plan = plan_of(dataclasses.replace(row, checkpointed=checkpointed), batch)
        if plan.fits:
            fitted.keep(keeper.programs, programs)
            break
    terms = {term.name: (term.seconds, term.low, term.high, term.source) for term in plan.terms}
    return {
        "batch": batch, "checkpointed": checkpointed, "fits": plan.fits, "peak": plan.peak, "flops": plan.flops,
        "moved": plan.moved_bytes, "peak_flops": plan.peak_flops, "terms": terms, "compile": plan.compile_seconds,
    }  # fmt: skip


def half(rows: Sequence[Row], seed: int) -> set[str]:
    """The names of the rows that constants may be chosen by."""
    names = sorted(row.name for row in rows)
    return set(random.Random(seed).sample(names, len(names) // 2))


def published_seconds(row: Row, found: dict[str, Any]) -> float:
    """The step time that the source's figure means for the batch of the plan."""
    tokens = found["batch"] * row.sequence
    if row.rate >= 1:
        return tokens / row.rate
    return 6 * 16e9 * tokens / (row.rate * found["peak_flops"])  # of model operations: GPT-2 of 16 billion weights


def show(known: dict[str, Any], seed: int) -> None:
    table, chosen, errors = Table(title="published steps"), half(ROWS, seed), {True: [], False: []}
    inside: dict[tuple[bool, bool], list[bool]] = {}
    for column in ("row", "batch, checkpoint", "published", "plan", "range", "error", "half"):
        table.add_column(column, justify="left" if column in ("row", "half") else "right", no_wrap=True)
    for row in ROWS:
        found = known.get(row.name)
        if found is None or not found["terms"]:
            table.add_row(row.name, "", "", "no plan")
            continue
        seconds, low, high = (sum(term[i] for term in found["terms"].values()) for i in range(3))
        published, is_chosen = published_seconds(row, found), row.name in chosen
        errors[is_chosen].append(seconds / published - 1)
        inside.setdefault((is_chosen, row.batch > 0), []).append(low <= published <= high)
        table.add_row(
            row.name, f"{found['batch']}, {found['checkpointed']}", f"{published:.3f} s", f"{seconds:.3f} s",
            f"{low:.3f} to {high:.3f}", f"{seconds / published - 1:+.0%}",
            "chosen by" if is_chosen else "held out",
        )  # fmt: skip
    Console(width=120).print(table)
    for is_chosen, name in ((True, "chosen by"), (False, "held out")):
        if errors[is_chosen]:
            sizes = [abs(error) for error in errors[is_chosen]]
            print(f"{name}: {len(sizes)} rows, median error {statistics.median(sizes):.0%}, worst {max(sizes):.0%}")
        for is_given, of in ((True, "with the source's batch"), (False, "with a batch of ours")):
            if found := inside.get((is_chosen, is_given)):
                print(f"    {of}: {sum(found)} of {len(found)} within the range of the plan")


def show_fit(known: dict[str, Any], folder: Path, seed: int) -> None:
    """Fits constants to the chosen half of the rows on TPUs, and prints the errors of both halves with them."""
    chosen, steps = half(ROWS, seed), []
    for row in ROWS:
        found, path = known.get(row.name), folder / f"{row.name}.gz"
        if found and found["terms"] and path.exists():
            is_open = not row.batch and found["checkpointed"] is True
            steps.append(fitted.step_of(row.name, published_seconds(row, found), is_open, path))
    result = fitted.fit([step for step in steps if step.name in chosen])
    before = fitted.Fitted(fitted.BEFORE, 1.0)
    print("fitted to", ", ".join(step.name for step in steps if step.name in chosen))
    for name in fitted.FIRST:
        print(f"{name:12} {getattr(fitted.BEFORE, name):.3f} -> {getattr(result.rates, name):.3f}")
    print(f"recomputed   1.000 -> {result.recomputed:.3f}, of rows whose source does not say")
    for step in steps:
        errors = [one.seconds(step) / step.seconds - 1 for one in (before, result)]
        name = "chosen by" if step.name in chosen else "held out"
        print(f"{step.name:14} {name:10} {errors[0]:+.0%} -> {errors[1]:+.0%}")
    for name, is_chosen in (("chosen by", True), ("held out", False)):
        sizes = [abs(result.seconds(one) / one.seconds - 1) for one in steps if (one.name in chosen) is is_chosen]
        if sizes:
            print(f"{name}: {len(sizes)} rows, median error {statistics.median(sizes):.0%}, worst {max(sizes):.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=[row.name for row in ROWS], help="plan these, again")
    parser.add_argument("--file", type=Path, default=Path("out/published_steps.json"))
    parser.add_argument("--seed", type=int, default=22, help="of the halves (default 22)")
    parser.add_argument("--table", action="store_true", help="plan nothing")
    parser.add_argument("--fit", action="store_true", help="plan nothing; fit constants of TPUs to the one half")
    parser.add_argument("--one", choices=[row.name for row in ROWS], help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.file.with_suffix("")  # of the programs
    folder.mkdir(parents=True, exist_ok=True)
    if given.one:
        row = next(row for row in ROWS if row.name == given.one)
        return print(json.dumps(planned(row, folder / f"{row.name}.gz")))
    known = json.loads(given.file.read_text()) if given.file.exists() else {}
    for row in ROWS:
        if given.table or given.fit or (row.name not in given.rows if given.rows else row.name in known):
            continue
        print(f"{row.name} ...", file=sys.stderr, flush=True)
        module = "recipes.benchmarks.published_steps"
        command = [sys.executable, "-m", module, "--one", row.name, "--file", str(given.file)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{row.name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            continue
        known[row.name] = json.loads(done.stdout.splitlines()[-1])
        given.file.write_text(json.dumps(known, indent=1))
    show(known, given.seed)
    if given.fit:
        show_fit(known, folder, given.seed)


if __name__ == "__main__":
    main()

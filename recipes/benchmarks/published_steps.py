"""Steps that others have published, as they were run, next to the times of their plans.

    python -m recipes.benchmarks.published_steps             rows without a plan; the table
    python -m recipes.benchmarks.published_steps --rows llama3.1-8b-v6e-256
                                                             these rows, also where they have one
    python -m recipes.benchmarks.published_steps --layers 2  with so many layers: does a row
                                                             compile?
    python -m recipes.benchmarks.published_steps --table     only the table, by today's constants
    python -m recipes.benchmarks.published_steps --fit       constants by the chosen half

No TPU or GPU is needed, but libtpu (extra `tpu`), and for rows on GPUs the extra `gpu-plan`. Each
plan has a process of its own. Its figures go to a file (`--file`), its programs to a folder of that
name, so that other constants need no other plan. One half of the rows is held out, by a seed:
constants are chosen by the other.
"""

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console
from rich.table import Table

from recipes.benchmarks import fitted_constants as fitted
from recipes.benchmarks.published_rows import LATER, LEFT_OUT, ROWS, Row

BY_NAME = {row.name: row for row in ROWS}
SEED = 2026


def held_out(rows: Sequence[Row], seed: int = SEED) -> set[str]:
    """The names of the rows that no constant is chosen by."""
    names = sorted(row.name for row in rows if not row.unknown and row.name not in LATER)
    return set(random.Random(seed).sample(names, len(names) // 2)) | LATER


# -- A plan, in a process of its own.


def plan_of(row: Row, options: Mapping[str, Any], layers: int | None = None) -> Any:
    """The plan of a row; layers: their number instead of the model's own."""
    import torch
    import transformers

    import spmd
    from recipes.benchmarks.published_models import model_of, optimizer_of

    if row.logits == "whole":
        spmd.config.max_logits_bytes = 0
    mesh = _mesh(row)
    model = model_of(row, mesh, layers)
    module, optimizer = model.module, optimizer_of(row, model.module)
    tokens = torch.zeros(
        row.batch * row.devices // row.context, row.sequence, dtype=torch.int64, device="meta"
    )

    def step(tokens: torch.Tensor) -> torch.Tensor:
        batch = tuple(name for name in ("fsdp", "expert") if name in mesh.axis_names)
        spmd.mark_sharding(tokens, mesh, (batch, "context" if row.context > 1 else None))
        loss = model.loss_of(module, tokens)
        loss.backward()
        if row.steps:
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return loss

    # No sequences are packed; of a large batch the check would read a value, which a plan does not
    # have.
    masks = transformers.masking_utils
    with mock.patch.object(masks, "find_packed_sequence_indices", lambda position_ids: None):
        return spmd.plan(step, tokens, compiler_options=options)


def _mesh(row: Row) -> Any:
    import spmd

    if row.target.startswith("2xv"):  # parameters are sharded over both slices
        return spmd.HybridMesh(
            ici_mesh_shape=(row.devices // 2,),
            dcn_mesh_shape=(2,),
            axis_names=("fsdp",),
            target=row.target,
        )
    sizes = {"context": row.context, "expert": row.expert, "tensor": row.tensor}
    inner = {axis: size for axis, size in sizes.items() if size > 1}
    shards = {"fsdp": row.devices // math.prod(inner.values()), **inner}
    if shards["fsdp"] == 1:  # the batch and the experts are sharded over one axis
        del shards["fsdp"]
    return spmd.Mesh(range(row.devices), tuple(shards.values()), tuple(shards), target=row.target)


def planned(row: Row, programs: Path, layers: int | None) -> dict[str, Any]:
    """The figures of the plan of a row. programs: a file for its programs."""
    from spmd.core.base.config import is_known_to_libtpu

    known = {name: value for name, value in row.options.items() if is_known_to_libtpu(name)}
    plan = None
    while plan is None:
        try:
            with fitted.Keeper() as keeper:
                plan = plan_of(row, known, layers)
        except ValueError as error:  # libtpu has the option, and takes it at its start alone
            refused = [name for name in known if f"has no option {name!r}" in str(error)]
            if not refused:
                raise
            del known[refused[0]]
    fitted.keep(keeper.programs, programs)
    return {
        "fits": plan.fits, "message": plan.verdict, "peak": plan.peak, "memory": plan.memory,
        "host": plan.host, "arguments": plan.arguments, "temporaries": plan.temporaries,
        "flops": plan.flops, "kernel_flops": plan.kernel_flops, "moved": plan.moved_bytes,
        "hidden": plan.hidden_bytes, "compile": plan.compile_seconds,
        "unknown_options": sorted({*row.options} - {*known}), "notes": list(plan.notes),
        "terms": {term.name: term.seconds for term in plan.terms},
    }  # fmt: skip


# -- The table.


@dataclass(frozen=True)
class Result:
    """A row with the time of its plan: expected, and at best and at worst."""

    row: Row
    seconds: float
    low: float
    high: float
    peak: int

    @property
    def error(self) -> float:
        return self.seconds / self.row.published - 1

    @property
    def is_inside(self) -> bool:
        return self.low <= self.row.published <= self.high


def results(figures: Mapping[str, Any], folder: Path) -> list[Result]:
    """The results of all rows whose programs were compiled, by today's constants."""
    steps = []
    for row in ROWS:
        path = folder / f"{row.name}.gz"
        if row.name in figures and not figures[row.name]["message"] and path.exists():
            seconds = fitted.times(fitted.read(path))
            if seconds[0]:
                steps.append(Result(row, *seconds, figures[row.name]["peak"]))
    return steps


def show(steps: Sequence[Result], figures: Mapping[str, Any]) -> None:
    table, outside = Table(title="published steps"), held_out(ROWS)
    for column in ("row", "backward", "published", "plan", "range", "high / low", "error", "half"):
        table.add_column(
            column, justify="left" if column in ("row", "backward", "half") else "right"
        )
    for step in steps:
        row = step.row
        half = "shown only" if row.unknown else "held out" if row.name in outside else "chosen by"
        table.add_row(
            f"{row.name}, {row.batch} x {row.sequence:,}",
            str(row.recompute),
            f"{row.published:.3f} s",
            f"{step.seconds:.3f} s",
            f"{step.low:.3f} to {step.high:.3f}",
            f"{step.high / step.low:.2f}",
            "" if row.unknown else f"{step.error:+.0%}",
            half,
        )
    console = Console(width=170)
    console.print(table)
    known = [step for step in steps if not step.row.unknown]
    for kind in ("TPUs", "GPUs"):
        of_kind = [step for step in known if step.row.is_gpu is (kind == "GPUs")]
        _summary(f"{kind}, held out", [step for step in of_kind if step.row.name in outside])
        _summary(f"{kind}, chosen by", [step for step in of_kind if step.row.name not in outside])
    _show_rest(steps, figures)


def _summary(head: str, steps: Sequence[Result]) -> None:
    if not steps:
        return
    sizes = [abs(step.error) for step in steps]
    print(
        f"{head}: {len(steps)} rows, median error {statistics.median(sizes):.1%}, worst "
        f"{max(sizes):.1%}, {sum(step.is_inside for step in steps)} inside their range, whose "
        f"factor is at most {max(step.high / step.low for step in steps):.2f}"
    )


def _show_rest(steps: Sequence[Result], figures: Mapping[str, Any]) -> None:
    """Memory, what the sources of some rows do not say, options that are left out, and rows that
    are."""
    for step in steps:
        if step.row.memory:
            peaks = f"{step.peak / 2**30:.1f} GiB, published {step.row.memory / 2**30:.1f}"
            print(f"{step.row.name}: peak {peaks} ({step.peak / step.row.memory - 1:+.0%})")
    for row in ROWS:
        if row.unknown:
            print(f"{row.name}: not known: {row.unknown}")
        row_figures = figures.get(row.name, {})
        if row_figures.get("unknown_options"):
            print(
                f"{row.name}: not known to this libtpu: {', '.join(row_figures['unknown_options'])}"
            )
        if row_figures and not row_figures["fits"]:
            print(f"{row.name}: does not fit: {row_figures['message'] or row_figures['peak']}")
    for name, reason in LEFT_OUT.items():
        print(f"left out: {name}: {reason}")


def show_fit(steps: Sequence[Result], folder: Path) -> None:
    """Prints constants that are fitted to the chosen half of the rows on TPUs, and the errors of
    both halves."""
    outside = held_out(ROWS)
    on_tpus = [
        fitted.Step(step.row.name, step.row.published, fitted.read(folder / f"{step.row.name}.gz"))
        for step in steps
        if not (step.row.is_gpu or step.row.unknown)
    ]
    rates = fitted.fit([step for step in on_tpus if step.name not in outside])
    for name in fitted.FIRST:
        print(f"{name:12} {getattr(fitted.EXPECTED, name):.3f} -> {getattr(rates, name):.3f}")
    for is_held_out in (False, True):
        sizes = []
        for step in on_tpus:
            if (step.name in outside) is is_held_out:
                error = fitted.seconds_of(step.programs, rates) / step.seconds - 1
                sizes.append(abs(error))
                print(
                    f"{step.name:28} {'held out' if is_held_out else 'chosen by':10} {error:+.1%}"
                )
        if sizes:
            print(f"median error {statistics.median(sizes):.1%}, worst {max(sizes):.1%}")


def plan_rows(rows: Sequence[Row], file: Path, layers: int | None) -> dict[str, Any]:
    """Plans rows, each in a process of its own; returns the figures of all rows in the file."""
    figures = json.loads(file.read_text()) if file.exists() else {}
    for row in rows:
        print(f"{row.name} ...", file=sys.stderr, flush=True)
        command = [
            sys.executable,
            "-m",
            "recipes.benchmarks.published_steps",
            "--child",
            row.name,
            "--file",
            str(file),
        ]
        command += [] if layers is None else ["--layers", str(layers)]
        done = subprocess.run(command, capture_output=True, text=True)
        (file.with_suffix("") / f"{row.name}.log").write_text(done.stderr)
        if done.returncode:
            print(
                f"{row.name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr, flush=True
            )
            continue
        figures[row.name] = json.loads(done.stdout.splitlines()[-1])
        file.write_text(json.dumps(figures, indent=1))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", nargs="+", choices=[*BY_NAME], metavar="ROW", help=", ".join(BY_NAME)
    )
    parser.add_argument(
        "--layers", type=int, help="so many layers instead of the model's own, in another file"
    )
    parser.add_argument("--file", type=Path, help="default out/published_steps.json")
    parser.add_argument("--table", action="store_true", help="plan nothing")
    parser.add_argument(
        "--fit", action="store_true", help="plan nothing; fit constants of TPUs to the chosen half"
    )
    parser.add_argument("--child", choices=[*BY_NAME], help=argparse.SUPPRESS)
    args = parser.parse_args()
    layers = "" if args.layers is None else f"_{args.layers}"
    file = args.file or Path(f"out/published_steps{layers}.json")
    folder = file.with_suffix("")  # of the programs
    folder.mkdir(parents=True, exist_ok=True)
    if args.child:
        return print(
            json.dumps(planned(BY_NAME[args.child], folder / f"{args.child}.gz", args.layers))
        )
    known = json.loads(file.read_text()) if file.exists() else {}
    rows = (
        [BY_NAME[name] for name in args.rows]
        if args.rows
        else [row for row in ROWS if row.name not in known]
    )
    figures = plan_rows([] if args.table or args.fit else rows, file, args.layers)
    steps = results(figures, folder)
    show(steps, figures)
    if args.fit:
        show_fit(steps, folder)


if __name__ == "__main__":
    main()

"""Digests of the programs of every recipe and example, under both partitioners: what a change
compiles otherwise.

    python tests/baseline/programs.py             # names what is another program than in
                                                  # programs.tsv
    python tests/baseline/programs.py vae train_  # only those whose names hold one of these
    python tests/baseline/programs.py --write     # the table anew

A row is a recipe as its plan for eight devices compiles it, or an example as it runs, a
partitioner, the number of programs and a digest of their StableHLO before partitioning, without
locations. A change that should not change numbers changes no row. The first line of the table names
versions: with others every row may differ.
"""

import argparse
import contextlib
import hashlib
import importlib
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests/baseline/programs.tsv"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from examples.test_examples import ALONE, COMMANDS, run  # noqa: E402
from golden.programs import VERSIONS  # noqa: E402

import spmd  # noqa: E402
from spmd.core.programs import cache, compiler  # noqa: E402
from tests.recipes.small import RECIPES  # noqa: E402

# Their actions follow from the last bits of numbers.
ENVIRONMENTS = {"actor_critic", "ppo", "reinforce"}
# XLA generates simple code of the same programs, as in tests/run.sh.
SIMPLE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def plan(name: str) -> None:
    """Plans a recipe for eight CPU devices."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        importlib.import_module(f"recipes.{name}").main([*RECIPES[name], "--target", "cpu:8"])


def programs() -> dict[str, Callable[[], Any]]:
    """By name, what compiles the programs of a row."""
    examples = COMMANDS.keys() - ENVIRONMENTS
    return {
        **{f"recipes/{name}": partial(plan, name) for name in RECIPES},
        **{f"examples/{name}": partial(run, name, "--device", "xla") for name in examples},
        **{
            f"examples/{name} --fsdp": partial(run, name, "--device", "xla", "--fsdp")
            for name in examples - ALONE
        },
    }


def digest(make: Callable[[], Any]) -> str:
    """The number and the digest of the programs that a function compiles, in any order."""
    texts: list[str] = []
    lower = compiler.lower_graph

    def kept(graph: Any, chosen: Any = None) -> Any:
        texts.append(str(lower(graph).as_text()))
        return lower(graph, chosen)

    cache.clear_cache()
    spmd.manual_seed(0)
    with (
        mock.patch.object(compiler, "lower_graph", kept),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        make()
        spmd.sync()
    return f"{len(texts)}\t{hashlib.sha256(chr(0).join(sorted(texts)).encode()).hexdigest()[:16]}"


def rows(asked: list[str]) -> Iterator[str]:
    """The rows of this process's partitioner."""
    spmd.simulate(8)
    spmd.config.program_cache = False  # a program from disk is not lowered
    for name, make in sorted(programs().items()):
        if not asked or any(part in name for part in asked):
            yield f"{name}\t{spmd.config.partitioner}\t{digest(make)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true", help="the table anew")
    parser.add_argument(
        "--here", action="store_true", help="print the rows of this process's partitioner"
    )
    args = parser.parse_args()
    if args.here:
        for row in rows(args.names):
            print(row, flush=True)
        return
    lines = [f"# {VERSIONS}"]
    for partitioner in ("gspmd", "shardy"):
        command = [sys.executable, __file__, "--here", *args.names]
        environment = {"XLA_FLAGS": SIMPLE, **os.environ, "SPMD_PARTITIONER": partitioner}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        lines += done.stdout.splitlines()
    if args.write:
        TABLE.write_text("\n".join(lines) + "\n")
        return
    changed = [line for line in lines if line not in TABLE.read_text().splitlines()]
    print(*changed or ["the same programs"], sep="\n")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()

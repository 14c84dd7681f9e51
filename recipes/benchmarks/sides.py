"""One planned step by several sides next to each other: ours, ours without a feature, and JAX by
hand.

Shared by `sequences.py` and `experts.py`. Each side of a row is compiled in a process of its own;
the columns are those of `scale.py`, of one chip, and the bytes that the compiler's buffer
assignment has for temporaries.
"""

import argparse
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from recipes.benchmarks.scale import COLUMNS, options_of, read

MOST = 1800  # seconds of a side
Figures = dict[str, Any]
_TEMPORARY = re.compile(r"^allocation \d+: size (\d+), preallocated-temp:", re.MULTILINE)


class Row(Protocol):
    """A step on a target, with its sizes of the axes; a toy runs on simulated devices."""

    @property
    def name(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def shards(self) -> tuple[int, ...]: ...
    @property
    def is_toy(self) -> bool: ...
    @property
    def sides(self) -> tuple[str, ...]: ...


class Dump:
    """A folder in which XLA writes the buffer assignment of each program that it compiles with
    `options`."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.options = {"xla_dump_to": self._folder.name, "xla_dump_hlo_as_text": "True"}

    def allocated(self) -> int:
        """Bytes of the device's memory that the largest program allocates for its temporaries.

        XLA's own figures of them differ where a loop carries a stack: PJRT's `temp_size` counts
        what it carries more than once, and the peak less arguments and results omits what is
        between buffers.
        """
        files = Path(self._folder.name).glob("*buffer-assignment.txt")
        return max(
            (sum(map(int, _TEMPORARY.findall(file.read_text()))) for file in files), default=0
        )


def planned(step: Callable[..., Any], batch: Any) -> tuple[Any, Figures]:
    """The plan of a step, and its figures."""
    import spmd

    dump, started = Dump(), time.process_time()
    plan = spmd.plan(step, batch, compiler_options=dump.options)
    return plan, {
        "processor": time.process_time() - started,
        "arguments": plan.arguments,
        "temporaries": plan.temporaries,
        "allocated": dump.allocated(),
        "peak": plan.peak,
        "exchanges": sum(collective.count for collective in plan.collectives),
        "moved": plan.moved_bytes,
        "hidden": plan.hidden_bytes,
        "cycles": plan.cycles,
        "step": plan.seconds or 0.0,
        "waiting": sum(collective.waiting for collective in plan.collectives),
        "flops": plan.flops,
        "compile": plan.compile_seconds,
        "terms": {term.name: term.seconds for term in plan.terms},
        "words": [plan.verdict, *plan.notes, *map(str, plan.collectives[:16])],
    }


def by_hand(row: Row, axes: Sequence[str], lower: Callable[[Any], Any]) -> Figures:
    """The figures of a program of JAX's. lower: gets the mesh of a row, and returns the lowered
    program."""
    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh

    import spmd

    num_devices, dump = math.prod(row.shards), Dump()
    if row.is_toy:
        spmd.simulate(num_devices)
        devices = jax.devices()[:num_devices]
    else:
        devices = topologies.get_topology_desc(topology_name=row.target, platform="tpu").devices
    mesh = Mesh(np.array(devices).reshape(row.shards), tuple(axes))
    with jax.enable_x64(False):
        # ours includes lowering, too
        started, of_processor = time.perf_counter(), time.process_time()
        compiled = lower(mesh).compile(compiler_options={**options_of(mesh), **dump.options})
    times = {
        "compile": time.perf_counter() - started,
        "processor": time.process_time() - of_processor,
    }
    ours = spmd.Mesh(range(num_devices), row.shards, tuple(axes), target=row.target)
    return {**times, "allocated": dump.allocated(), **read(compiled, ours)}


def measured(module: str, row: Row, side: str) -> Figures:
    """The figures of one side of a row of a module, or its error."""
    command = [sys.executable, "-W", "ignore", "-m", module, "--child", side, "--rows", row.name]
    # Without these settings libtpu queries the network for a TPU, and allows one process only.
    settings = {
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "JAX_PLATFORMS": "cpu",
    }
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=MOST, env={**os.environ, **settings}
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done in {MOST} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no figures"])[-1]}
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def show(title: str, sides: Mapping[str, Figures], console: Console, is_toy: bool) -> None:
    """Prints the figures of the sides of a row."""
    table = Table("", *sides, title=title, title_justify="left")
    scale, letters = (1, "MG") if is_toy else (1024, "GT")
    allocated = ("allocated", "temporaries in memory {}iB", 1 << 20)
    for name, head, unit in (
        *COLUMNS[:2],
        allocated,
        *COLUMNS[2:],
        ("attention", "attention / an equal part", 1),
    ):
        unit = unit * scale if "{}" in head else unit
        values = [
            f"{figures[name] / unit:,.3f}" if figures.get(name) else "-"
            for figures in sides.values()
        ]
        if set(values) != {"-"}:
            table.add_row(head.format(letters[name == "flops"]), *values)
    for name in dict.fromkeys(
        name for figures in sides.values() for name in figures.get("terms", ())
    ):
        seconds = [figures.get("terms", {}).get(name, 0.0) for figures in sides.values()]
        table.add_row(f"  {name} ms", *(f"{1e3 * value:,.1f}" for value in seconds))
    console.print(table)
    for side, figures in sides.items():
        if "error" in figures:
            console.print(f"{side}: {figures['error']}", markup=False)


def _fewest(figures: Figures, former: Figures) -> Figures:
    """The figures, with the fewest seconds of theirs and of a former round's."""
    return figures | {
        name: min(figures[name], former[name])
        for name in ("compile", "processor")
        if name in figures and name in former
    }


def main(
    module: str,
    description: str | None,
    rows: Mapping[str, Row],
    sides: Mapping[str, Callable[[Any, str], Figures]],
    title: Callable[[Any], str],
) -> None:
    """The command line. sides: name -> function of a row and the name that returns its figures."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", nargs="+", choices=[*rows], default=[*rows], metavar="ROW", help=", ".join(rows)
    )
    parser.add_argument("--sides", nargs="+", choices=[*sides], default=[*sides])
    parser.add_argument(
        "--rounds", type=int, default=1, help="compile so often, and show the fewest seconds"
    )
    parser.add_argument("--words", action="store_true", help="print notes and collectives, too")
    parser.add_argument("--child", choices=[*sides], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        started = time.perf_counter()
        figures = sides[options.child](rows[options.rows[0]], options.child)
        host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({**figures, "seconds": time.perf_counter() - started, "host": host}))
        return
    console = Console(width=140)
    fewest: dict[tuple[str, str], Figures] = {}  # by row and side
    for _ in range(
        options.rounds - 1
    ):  # rows alternate, as other work on the machine comes and goes
        for row in (rows[name] for name in options.rows):
            for side in options.sides:
                if side in row.sides:
                    fewest[row.name, side] = _fewest(
                        measured(module, row, side), fewest.get((row.name, side), {})
                    )
    for row in (rows[name] for name in options.rows):
        of_sides = {
            side: _fewest(measured(module, row, side), fewest.get((row.name, side), {}))
            for side in options.sides
            if side in row.sides
        }
        show(title(row), of_sides, console, row.is_toy)
        for side in of_sides if options.words else ():
            console.print(
                *[f"{side}: {words}" for words in of_sides[side].get("words", ())],
                sep="\n",
                markup=False,
            )

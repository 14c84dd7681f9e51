"""A sweep as a command: many named things tried in processes of a few each, a table, and an exit
code.

A crash or a hang costs the one thing that was running. What is tried, and what is known to fail,
the caller says.
"""

import argparse
import itertools
import json
import re
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sweep.expected import VERSIONS

LOWERED, HOST, WRONG, ERROR, UNTRIED = "lowered", "host", "wrong", "error", "untried"
OUTCOMES = {
    LOWERED: "right and lowered on the device",
    HOST: "right, visited the host",
    WRONG: "wrong",
    ERROR: "error",
    UNTRIED: "no samples",
}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one trial. dtype: the group it was tried in, for `sweep.py` a dtype, for
    `variants.py` a form."""

    op: str
    dtype: str
    outcome: str
    message: str = ""
    samples: int = 0
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        """True for values that agree with CPU, wherever they were computed."""
        return self.outcome in (LOWERED, HOST, UNTRIED)


@dataclass(frozen=True, slots=True)
class Sweep:
    """The trials of a command: every name, once for each of the groups that an option of this name
    lists by commas."""

    script: str
    title: str
    help: str
    names: Sequence[str]
    group: str
    groups: str
    run: Callable[[str, str, int], Result]
    is_expected: Callable[[str, str], bool]


def head(error: Exception) -> str:
    """The first lines of an error as one line, behind its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines[:5])[:400]}"


def main(sweep: Sweep) -> None:
    """Tries everything, prints the table, exits with 1 where the outcome is not the expected
    one."""
    options = _options(sweep)
    if options.worker:
        return _work(sweep, options)
    names = [name for name in sweep.names if re.search(options.ops, name)]
    wanted = options.groups.split(",")
    tasks = [
        (names[i : i + options.chunk], group)
        for group in wanted
        for i in range(0, len(names), options.chunk)
    ]
    groups: dict[str, list[Result]] = {group: [] for group in wanted}
    lock = threading.Lock()

    def run(task: tuple[list[str], str]) -> None:
        for result in _in_processes(sweep, *task, options):
            with lock:
                groups[task[1]].append(result)
                if sys.stderr.isatty():
                    done = sum(map(len, groups.values()))
                    print(
                        f"\r{done} of {len(names) * len(wanted)} {result.op:50.50}",
                        end="",
                        file=sys.stderr,
                    )

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run, tasks))
    results = sorted(
        itertools.chain(*groups.values()), key=lambda result: (result.dtype, result.op)
    )
    _report(sweep, results, groups)
    if options.write:
        options.write.write_text(json.dumps([asdict(result) for result in results], indent=1))
    surprises = [
        r
        for r in results
        if r.outcome != UNTRIED and r.is_right == sweep.is_expected(r.op, r.dtype)
    ]
    if surprises:
        sys.exit(
            f"otherwise than expected{VERSIONS}: "
            f"{', '.join(f'{r.op} ({r.dtype})' for r in surprises)}"
        )


def _options(sweep: Sweep) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=sweep.help, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", default="", help="regular expression that chooses ops by name")
    parser.add_argument(
        f"--{sweep.group}", dest="groups", default=sweep.groups, help=f"by commas; {sweep.groups}"
    )
    parser.add_argument(
        "--samples", type=int, default=2, help="samples of each op; 0 for all of them"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--chunk", type=int, default=60, help="ops per process")
    parser.add_argument("--timeout", type=float, default=120, help="seconds one op may take")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write every result as JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _work(sweep: Sweep, options: argparse.Namespace) -> None:
    """The child: reads op names, says which it starts, and prints each result as a line of JSON."""
    warnings.simplefilter("ignore")
    out = sys.stdout
    sys.stdout = sys.stderr
    for name in json.loads(sys.stdin.read()):
        print(json.dumps({"start": name}), file=out, flush=True)
        try:
            result = sweep.run(name, options.groups, options.samples)
        except Exception as error:
            result = Result(name, options.groups, ERROR, f"outside the op: {head(error)}")
        print(json.dumps(asdict(result)), file=out, flush=True)


def _in_processes(
    sweep: Sweep, names: list[str], group: str, options: argparse.Namespace
) -> Iterator[Result]:
    """Results of the ops, in a process that is replaced when one op ends it or takes too long."""
    left = list(names)
    while left:
        command = [
            sys.executable,
            sweep.script,
            "--worker",
            f"--{sweep.group}",
            group,
            "--samples",
            str(options.samples),
        ]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        child = subprocess.Popen(command, **pipes, text=True)
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(json.dumps(left))
        child.stdin.close()
        running, was_late = "", False

        def stop(child: Any = child) -> None:
            nonlocal was_late
            was_late = True
            child.kill()

        timer = threading.Timer(options.timeout, stop)
        timer.start()
        for line in child.stdout:
            said = json.loads(line)
            timer.cancel()
            timer = threading.Timer(options.timeout, stop)
            timer.start()
            if "start" in said:
                running = said["start"]
            else:
                left.remove(said["op"])
                running = ""
                yield Result(**said)
        timer.cancel()
        code = child.wait()
        if left:
            culprit = running or left[0]
            left.remove(culprit)
            why = (
                f"took more than {options.timeout:.0f} s"
                if was_late
                else f"the process ended with code {code}"
            )
            yield Result(culprit, group, ERROR, why)


def _report(sweep: Sweep, results: list[Result], groups: dict[str, list[Result]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 200)
    table = Table(title=sweep.title)
    for column in (sweep.group, "ops", "right", *OUTCOMES, "seconds"):
        table.add_column(column, justify="left" if column == sweep.group else "right")
    for group, mine in groups.items():
        counts = Counter(result.outcome for result in mine)
        right = sum(result.is_right for result in mine) - counts[UNTRIED]
        row = [len(mine), right, *(counts[outcome] for outcome in OUTCOMES)]
        table.add_row(group, *map(str, row), f"{sum(result.seconds for result in mine):.0f}")
    console.print(table)
    failures = Table(title="not right", show_lines=False)
    for column in ("op", sweep.group, "outcome", "message"):
        failures.add_column(column, overflow="fold")
    for result in results:
        if not result.is_right:
            known = "expected, " if sweep.is_expected(result.op, result.dtype) else ""
            failures.add_row(result.op, result.dtype, known + result.outcome, result.message)
    if failures.row_count:
        console.print(failures)
    visited = [f"{result.op} ({result.dtype})" for result in results if result.outcome == HOST]
    if visited:
        console.print(f"visited the host: {', '.join(visited)}")

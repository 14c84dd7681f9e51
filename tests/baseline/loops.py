"""All that runs as a loop, in a bucket, or cut: the list by test, and the comparison of a run of
the tests with it.

    PYTEST_ADDOPTS="-p tests.baseline.loops --loops /tmp/now.tsv" make test
    python tests/baseline/loops.py /tmp/now.tsv          what each test had in `loops.tsv.gz` and
                                                         has no more
    python tests/baseline/loops.py /tmp/now.tsv --write  the run as the new list; others keep their
                                                         rows

A row is a test's id, its partitioner, and the loops, buckets and cuts of the programs that it ran,
compiled by it or by a test before: `scan 12` is a loop of 12 equal layers, `start` and `length` are
starts and lengths that are operands, `iterations` and `changing` are graphs that ran as several
programs, `host` are lists that the host computed.
"""

import gzip
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LIST = Path(__file__).with_name("loops.tsv.gz")
# By the text that a pass returns of its change, what it is in the list.
CHANGES = {"starts are operands": "start", "lengths are operands": "length"}
# By the counter of what ran otherwise than as one program.
COUNTED = {"loop_iterations": "iterations", "changing_graphs": "changing", "host_ops": "host"}

Rows = dict[tuple[str, str], set[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--loops", type=Path, help="adds to a file each test's loops, buckets and cuts"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.loops is not None:
        config.pluginmanager.register(_Record(config.option.loops))


class _Record:
    """Adds a row for each test."""

    def __init__(self, file: Path):
        from spmd.core.run import executables

        self.file, self.found = file, set[str]()
        run = executables.run

        def recorded(program: Any, graph: Any) -> Any:
            self.found |= {f"scan {iterations}" for _, iterations, _ in program.loops}
            passes = () if program.record is None else program.record.passes
            self.found |= {
                name for _, text in passes for words, name in CHANGES.items() if words in text
            }
            return run(program, graph)

        executables.run = recorded

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        from spmd.core.base import counters

        self.found.clear()
        before = {name: counters.counter(name) for name in COUNTED}
        result = yield
        found = self.found | {
            COUNTED[name] for name, count in before.items() if counters.counter(name) > count
        }
        partitioner = os.environ.get("SPMD_PARTITIONER") or "gspmd"
        with self.file.open("a") as file:
            file.write(f"{item.nodeid}\t{partitioner}\t{', '.join(sorted(found))}\n")
        return result


def read(text: str) -> Rows:
    """The rows of a list."""
    cells = [line.split("\t") for line in text.splitlines()]
    return {
        (test, partitioner): {name for name in found.split(", ") if name}
        for test, partitioner, found in cells
    }


def main(file: str, *options: str) -> int:
    known = read(gzip.decompress(LIST.read_bytes()).decode()) if LIST.exists() else {}
    now = read(Path(file).read_text())
    if "--write" in options:
        rows = sorted(
            (test, how, ", ".join(sorted(found)))
            for (test, how), found in (known | now).items()
            if found
        )
        LIST.write_bytes(
            gzip.compress("".join("\t".join(row) + "\n" for row in rows).encode(), mtime=0)
        )
        return 0
    lost = {
        key: sorted(known[key] - now[key])
        for key in known.keys() & now.keys()
        if known[key] - now[key]
    }
    for (test, partitioner), found in sorted(lost.items()):
        print(f"{test} ({partitioner}): no longer {', '.join(found)}")
    print(
        f"{len(known.keys() & now.keys())} of {len(known)} tests compared, {len(lost)} lost "
        "something"
    )
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

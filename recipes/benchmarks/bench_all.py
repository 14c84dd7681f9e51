"""Run the benchmarks of docs/benchmarks.md, keep their figures in docs/results/, write the page
(`make bench-all`).

    python -m recipes.benchmarks.bench_all               # every section that the CPU runs
    python -m recipes.benchmarks.bench_all step layouts  # these
    python -m recipes.benchmarks.bench_all --list        # of what commit each is, and what has
                                                         # changed since
    python -m recipes.benchmarks.bench_all --page        # runs nothing: the page from the figures
                                                         # that there are

A section whose command fails keeps the figures that it had, and is named at the end.
"""

import argparse
import subprocess
import sys

from recipes.benchmarks import page, results
from recipes.benchmarks.sections import SECTIONS


def state(name: str) -> str:
    """A line that says how old a section is."""
    runs = results.runs_of(name)
    if not runs:
        return f"{name}: never run"
    changed = sorted({path for run in runs for path in results.changed_since(name, run)})
    idle = ", needs an idle machine" if SECTIONS[name].needs_idle else ""
    return f"{name}: {runs[0]['date']}, {runs[0]['commit']}{idle}, " + (
        f"changed: {', '.join(changed)}" if changed else "current"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = [name for name, section in SECTIONS.items() if section.platform == "cpu"]
    parser.add_argument(
        "sections",
        nargs="*",
        metavar="SECTION",
        help=f"{', '.join(SECTIONS)} (default: those of the CPU)",
    )
    parser.add_argument("--list", action="store_true", help="say how old each section is")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page")
    options = parser.parse_args()
    unknown = set(options.sections) - SECTIONS.keys()
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    if options.list:
        print(*map(state, options.sections or SECTIONS), sep="\n")
        return
    failed = []
    for name in () if options.page else options.sections or usual:
        section = SECTIONS[name]
        try:
            results.keep(name, [results.run(section, command) for command in section.commands])
        except subprocess.CalledProcessError as error:
            failed.append(f"{name}: exit {error.returncode}")
    page.write()
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()

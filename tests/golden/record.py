"""Write the kept StableHLO texts anew, under both partitioners; then read `git diff tests/golden`
before committing.

    python tests/golden/record.py                             # all programs
    python tests/golden/record.py two_meshes uneven_dims      # only these

A change that should not change numbers should change no file here. Record with the versions in
constraints.txt; the first line of a file names those that it was recorded with.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

from golden.programs import PROGRAMS, kept_file, text_of

import spmd

ROOT = Path(__file__).resolve().parents[2]
PARTITIONERS = ("gspmd", "shardy")


def record(names: list[str]) -> None:
    """Writes the texts of programs for the partitioner of this process."""
    spmd.simulate(8)
    for name in names:
        path = kept_file(name)
        path.write_text(text_of(name))
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(PROGRAMS)} (default: all)"
    )
    parser.add_argument(
        "--here",
        action="store_true",
        help="only for this process's SPMD_PARTITIONER, in this process",
    )
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in PROGRAMS]
    if unknown:
        parser.error(f"no program {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    names = args.names or list(PROGRAMS)
    if args.here:
        return record(names)
    for partitioner in PARTITIONERS:
        command = [sys.executable, __file__, "--here", *names]
        subprocess.run(command, env={**os.environ, "SPMD_PARTITIONER": partitioner}, check=True)


if __name__ == "__main__":
    main()

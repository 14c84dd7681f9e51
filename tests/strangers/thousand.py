"""Loads a thousand changed copies of each kind of file that a stranger may give (`changes.py`), and
prints the counts.

    nice python tests/strangers/thousand.py  # all kinds, of all test files of this folder
    nice python tests/strangers/thousand.py --count 100 --seed 7 --kinds steps safetensors

"same": the right values; "data": other values where the format has no checksum, or a sealed one;
"refused": a sentence that names the file. Faults are printed, each with the command that repeats
it. About 0.1 s a copy.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import changes

_BATCH = 100  # copies of one process


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*")
    options = parser.parse_args()
    faults = 0
    for module in sorted(Path(__file__).parent.glob("test_*.py")):
        for name in changes.kinds_of(module):
            if options.kinds and name not in options.kinds:
                continue
            counts, most, longest = Counter[str](), 0, 0.0
            for first in range(0, options.count, _BATCH):
                size = min(_BATCH, options.count - first)
                for result in changes.loaded(module, name, size, options.seed, first):
                    counts[result.outcome] += 1
                    most, longest = max(most, result.num_bytes), max(longest, result.seconds)
                    if result.outcome == "fault":
                        command = (
                            f"python {changes.__file__} {module} {name!r} 1 {options.seed} "
                            f"{result.number}"
                        )
                        print(
                            f"    {result.change}: {result.detail[:500]}\n    {command}", flush=True
                        )
            faults += counts["fault"]
            print(
                f"{name}: {dict(counts)}, at most {max(most, 0) >> 20} MB and {longest:.1f} s",
                flush=True,
            )
    sys.exit(min(faults, 1))


if __name__ == "__main__":
    main()

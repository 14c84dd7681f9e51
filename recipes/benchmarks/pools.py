"""Time a GPT training step with the threads that this library gives XLA, against XLA's own number
of them.

    python recipes/benchmarks/pools.py --devices 1  # ours, tracing included, with our pools and
                                                    # with XLA's own
    python recipes/benchmarks/pools.py --devices 8  # ours, and JAX by hand with XLA's own pools

Each pair is two processes, one after the other, of `recipes/benchmarks/step.py`; the order changes
from pair to pair. The median of the pairs' ratios is printed. Benchmarks report; nothing here
asserts a time.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

STEP = Path(__file__).with_name("step.py")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, default=8, help="simulated devices (default 8)")
    parser.add_argument("--partitioner", choices=("gspmd", "shardy"), default="gspmd")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of processes (default 10)")
    parser.add_argument(
        "--steps", type=int, default=5, help="timed steps of each process (default 5)"
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument(
        "--compiler-options", help="for both sides (see step.py); by default ours spares memory"
    )
    return parser.parse_args(arguments)


def median(side: str, args: argparse.Namespace, environment: dict[str, str]) -> float:
    """Returns the median milliseconds of a step of one side, in a process of its own."""
    flags = ["--devices", args.devices, "--partitioner", args.partitioner, "--layers", args.layers]
    flags += [] if args.compiler_options is None else ["--compiler-options", args.compiler_options]
    printed = subprocess.run(
        [sys.executable, STEP, "--only", side, "--pairs", str(args.steps), *map(str, flags)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=environment,
    ).stdout
    found = re.search(r"median ms\D+([\d.]+)", printed)
    assert found is not None, printed
    return float(found[1])


def main() -> None:
    args = parse()
    ours = {
        name: value for name, value in os.environ.items() if name not in ("PJRT_NPROC", "NPROC")
    }
    # The rest of the environment stays as it is, and XLA takes no fewer threads than devices.
    own = {**ours, "PJRT_NPROC": str(len(os.sched_getaffinity(0)))}
    other = "ours" if args.devices == 1 else "jax"
    sides = [("ours", ours), (other, own)]
    ratios = []
    for number in range(args.pairs):
        order = sides if number % 2 else sides[::-1]
        seconds = [median(side, args, environment) for side, environment in order]
        first, second = seconds if number % 2 else seconds[::-1]
        ratios.append(first / second)
        print(
            f"pair {number + 1}: {first:.1f} ms, {other} with XLA's own pools {second:.1f} ms",
            flush=True,
        )
    print(
        f"median of {len(ratios)} pairs: {statistics.median(ratios):.3f} ({min(ratios):.3f} to "
        f"{max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()

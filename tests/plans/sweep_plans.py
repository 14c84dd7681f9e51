"""Runs a tiny model of each causal language model class of transformers that has a plan, sharded by
it, and records whether loss and gradients agree with one device.

    PYTHONPATH=.:tests python tests/plans/sweep_plans.py         # those that the file of outcomes
                                                                 # lacks
    PYTHONPATH=.:tests python tests/plans/sweep_plans.py --only Llama Phi
                                                                 # classes whose names begin so,
                                                                 # again
    PYTHONPATH=.:tests python tests/plans/sweep_plans.py --list  # names and their number

`--jobs 2` shares the classes between two processes. A row is written when a class begins and when
it ends, so that one that ended the process is recorded as such.
"""

import argparse
import resource
import subprocess
import sys
import traceback
from pathlib import Path

from plans.causal_models import plan_classes, run

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import spmd

OUTCOMES = Path(__file__).parent / "outcomes.tsv"
BEGUN, PASSED = "begun", "passed"


def outcomes(file: Path = OUTCOMES) -> dict[str, tuple[str, str]]:
    """Class name -> (outcome, seconds of the CPU), the last row of each."""
    rows = [line.split("\t") for line in file.read_text().splitlines()] if file.exists() else []
    return {name: (outcome, seconds) for name, outcome, seconds in rows}


def _record(file: Path, name: str, outcome: str, seconds: float) -> None:
    with file.open("a") as rows:
        rows.write(f"{name}\t{outcome}\t{seconds:.1f}\n")


def _sweep(names: list[str], file: Path) -> None:
    classes = plan_classes()
    mesh = spmd.Mesh(range(8), (4, 2), ("fsdp", "tensor"))
    for place, name in enumerate(names, 1):
        _record(file, name, BEGUN, 0)
        before = _seconds()
        try:
            outcome = "; ".join([PASSED, *run(classes[name], mesh)])
        except Exception as error:  # of whatever kind, it is recorded
            traceback.print_exc()
            outcome = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        seconds = _seconds() - before
        _record(file, name, outcome, seconds)
        print(f"{place:3} of {len(names)}  {seconds:5.1f} s  {name}: {outcome}", flush=True)


def _seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _compact(file: Path) -> None:
    """Keeps the last row of each class."""
    rows = (
        f"{name}\t{outcome}\t{seconds}\n"
        for name, (outcome, seconds) in sorted(outcomes(file).items())
    )
    file.write_text("".join(rows))


def _print(file: Path) -> None:
    found = outcomes(file)
    width = max(map(len, found), default=0)
    for name, (outcome, seconds) in sorted(found.items()):
        print(f"{name:{width}}  {seconds:>6}  {outcome}")
    passed = sum(outcome.startswith(PASSED) for outcome, _ in found.values())
    print(f"{passed} of {len(found)} causal models with a plan run sharded by it as on one device")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="classes whose names begin so"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--out", type=Path, default=OUTCOMES, help="the file of outcomes")
    parser.add_argument("--list", action="store_true", help="print the names and their number")
    told = parser.parse_args()
    names = [name for name in plan_classes() if not told.only or name.startswith(tuple(told.only))]
    if told.list:
        print(*names, f"{len(names)} causal models with a plan", sep="\n")
        return
    left = names if told.only else [name for name in names if name not in outcomes(told.out)]
    if told.jobs > 1:
        shares = [left[place :: told.jobs] for place in range(told.jobs)]
        command = [sys.executable, __file__, "--out", str(told.out), "--only"]
        running = [subprocess.Popen([*command, *share]) for share in shares if share]
        for one in running:
            one.wait()
    else:
        spmd.config.program_cache = False
        spmd.config.slow_compile_seconds = 0
        spmd.simulate(8)
        _sweep(left, told.out)
    if not told.only:  # a process of several leaves this to the one that started it
        _compact(told.out)
    _print(told.out)


if __name__ == "__main__":
    main()

"""Random programs against the CPU, many of them: batches in fresh processes, a table, and scripts
of what disagrees.

    python tests/sweep/programs.py --count 10000 --partitioner shardy --seed 0 --jobs 2

The programs of a batch share their barriers, so that one compilation serves them all; a program
that disagrees is run again by itself, shrunk, and printed as a script. A seed and a partitioner
name a program for as long as `drawing.py` stays as it is.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

import jax  # noqa: E402
from drawing import SETS, draw_program  # noqa: E402  # behind the path
from programs import MeshShape, Program, check_alone, check_together, on_cpu, shrunk  # noqa: E402

import spmd  # noqa: E402

BATCH = 16  # programs that share their barriers
CHUNK = 20  # batches of one process


def main() -> None:
    options = _options()
    if options.worker is not None:
        return _work(options)
    started, done, wrong = time.time(), 0, []
    rows: dict[str, list[int]] = {_named(meshes): [0, 0] for meshes in SETS}
    firsts = range(options.seed, options.seed + options.count, BATCH * CHUNK)
    with ThreadPoolExecutor(options.jobs) as pool:
        for future in as_completed([pool.submit(_in_process, first, options) for first in firsts]):
            for batch in future.result():
                done += batch["count"]
                wrong += batch["wrong"]
                rows[batch["meshes"]][0] += batch["count"]
                rows[batch["meshes"]][1] += len(batch["wrong"])
                for each in batch["wrong"]:
                    print(f"\n{each['answer']}\n{each['script']}", flush=True)
            rate = done / (time.time() - started)
            print(
                f"{done:,} of {options.count:,} programs, {len(wrong)} wrong, {rate * 60:.0f} a "
                "minute",
                flush=True,
            )
    print(f"\n{'meshes (devices that are not in order)':60} programs  disagree")
    for meshes, (count, failed) in rows.items():
        print(f"{meshes:60} {count:8,}  {failed:8}")
    print(
        f"{options.partitioner}: {done:,} programs, {len(wrong)} disagree, "
        f"{time.time() - started:.0f} s"
    )
    sys.exit(1 if wrong or done != options.count else 0)


def _named(meshes: Sequence[MeshShape]) -> str:
    def named(mesh: MeshShape) -> str:
        order = (
            ""
            if list(mesh.devices) == sorted(mesh.devices)
            else f" {''.join(map(str, mesh.devices))}"
        )
        return " x ".join(map(str, mesh.shape)) + order

    return " and ".join(map(named, meshes))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000, help="programs")
    parser.add_argument("--partitioner", choices=("gspmd", "shardy"), default="gspmd")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first program; the others follow"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--steps", type=int, default=14, help="steps of a program before its turns")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds a process may take")
    parser.add_argument("--worker", type=int, metavar="FIRST", help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_process(first: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The findings of a process of its own about a chunk of programs; where it dies, each batch is
    run by itself."""
    stop = min(first + BATCH * CHUNK, options.seed + options.count)
    found = list(_run(first, stop - first, options))
    for start in range(first + BATCH * len(found), stop, BATCH):
        batch = list(_run(start, min(BATCH, stop - start), options))
        found += batch or [_dead(start, min(BATCH, stop - start), options)]
    return found


def _run(first: int, count: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    command = [
        sys.executable,
        __file__,
        "--worker",
        str(first),
        "--count",
        str(count),
        "--seed",
        str(options.seed),
        "--steps",
        str(options.steps),
    ]
    # LLVM is not what is tried here, and takes most of the time.
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    if jax.__version_info__ < (0, 11):  # later ones do not know it, which would end the process
        flags += " --xla_cpu_use_fusion_emitters=false"
    environment = {**os.environ, "SPMD_PARTITIONER": options.partitioner, "XLA_FLAGS": flags}
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=options.timeout,
            env=environment,
        )
        lines = done.stdout
    except subprocess.TimeoutExpired as error:
        lines = (error.stdout or b"").decode()
    for line in lines.splitlines():
        yield json.loads(line)


def _dead(first: int, count: int, options: argparse.Namespace) -> dict[str, Any]:
    answer = (
        f"programs {first} to {first + count - 1}: the process died, or took more than "
        f"{options.timeout:.0f} s"
    )
    meshes = SETS[first // BATCH % len(SETS)]
    return {"count": count, "meshes": _named(meshes), "wrong": [{"answer": answer, "script": ""}]}


def _work(options: argparse.Namespace) -> None:
    """The child: a line of JSON for each batch."""
    warnings.simplefilter("ignore")
    spmd.simulate(8)
    spmd.config.program_cache = False
    first, count = options.worker, options.count
    for start in range(first, first + count, BATCH):
        meshes = SETS[start // BATCH % len(SETS)]
        seeds = range(start, min(start + BATCH, first + count))
        programs = [draw_program(seed, meshes=meshes, num_steps=options.steps) for seed in seeds]
        wrong = [
            {"answer": answer, "script": program.script()}
            for program, answer in _disagreements(programs)
        ]
        print(
            json.dumps({"count": len(programs), "meshes": _named(meshes), "wrong": wrong}),
            flush=True,
        )


def _disagreements(programs: list[Program]) -> Iterator[tuple[Program, str]]:
    expected = [on_cpu(program) for program in programs]
    assert all(results is not None for results in expected), "what is drawn runs on the CPU"
    try:
        answers = check_together(programs, expected)  # type: ignore[arg-type]
    except Exception as error:  # in a barrier that all share
        answers = [check_alone(program) for program in programs]
        if not any(answers):
            answers[0] = f"only together with the {len(programs) - 1} after it: {error}"
    for program, answer in zip(programs, answers, strict=True):
        if answer is not None:
            yield _smaller(program, answer)


def _smaller(program: Program, answer: str) -> tuple[Program, str]:
    """The program shrunk, if it disagrees by itself, too."""
    alone = check_alone(program)
    if alone is None:
        return program, f"program {program.seed}, not by itself: {answer}"
    kind = alone.split(":")[0]

    def fails(shorter: Program) -> bool:
        again = check_alone(shorter)
        # The same error, or also another wrong value.
        return again is not None and (
            again.split(":")[0] == kind or ("Error" not in kind and "Error" not in again)
        )

    smaller = shrunk(program, fails)
    return smaller, f"program {program.seed}: {check_alone(smaller) or answer}"


if __name__ == "__main__":
    main()

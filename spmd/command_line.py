"""The command line of `python -m spmd` and `spmd-run`, parsed before torch and jax are imported,
which takes seconds: a wrong one is answered at once."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

_PROGRAM = "python -m spmd"

_RUN = """Runs a script written for PyTorch/XLA, or for any device "xla", as
`python script.py` does: sys.argv, __main__ and the exit status are the same. `import torch_xla`
gives this library's names (docs/from-torch-xla.md), accelerate and transformers take the device
(docs/frameworks.md), and a folder next to the script that is called spmd does not hide the library.
What follows the script is its own."""

_EXAMPLES = """examples:
  {prog} train.py --batch-size 32
  {prog} --devices 8 train.py      8 simulated CPU devices
  {prog} -m package.train --epochs 1
"""

_PLAN = """Plans the training step of a script: memory, operations, collectives and time of each
device. The script runs as by `run`, unmodified, and nothing is computed: what it reads is ones. Its
second step is planned."""

_PLAN_EXAMPLES = """examples:
  {prog} --target v5p:4x8x8 train.py --device=xla      for 256 chips
  {prog} --target h100:8 --json -m package.train > plan.json
"""

_LAUNCH = """Runs a script as several processes on this machine, each as
`python -m spmd run --initialize`: all record the same step, and each program runs on the devices of
all. The first process has the terminal, the others a file each. When one fails, the rest are ended
within 10 s and its last lines are printed. On several machines use torchrun, srun or mpirun with
`python -m spmd run --initialize train.py` (docs/processes.md)."""

_LAUNCH_EXAMPLES = """examples:
  {prog} --processes 2 --devices 4 train.py    two processes of 4 simulated CPU devices or 4 GPUs
  {prog} --processes 2 --debug-single-process --devices 4 train.py    one with all 8, to debug
"""

_WITH_VALUE = ("--devices", "--processes", "--logs", "--target")


def parse(arguments: Sequence[str], prog: str = _PROGRAM) -> argparse.Namespace:
    """Returns the command and its options; of a command that runs a script `of_program`, the
    script's own arguments, too. Exits with a message where they are wrong.

    prog: "spmd-run": the arguments are those of `run`.
    """
    # before argparse, which would take options of the script for its own
    if prog != _PROGRAM:
        return _of_script("run", arguments, prog)
    if arguments and arguments[0] in _OF_SCRIPTS:
        return _of_script(arguments[0], arguments[1:], f"{prog} {arguments[0]}")
    parser = argparse.ArgumentParser(
        prog=prog, description="Runs scripts, traces them, and says where ops are lowered."
    )
    commands = parser.add_subparsers(dest="command")
    commands.add_parser(
        "run", help="run a script, of PyTorch/XLA's too, on the device xla", add_help=False
    )
    commands.add_parser(
        "plan", help="plan a script's training step: memory, collectives, time", add_help=False
    )
    commands.add_parser(
        "launch", help="run a script as several processes on this machine", add_help=False
    )
    commands.add_parser(
        "doctor", help="versions, devices, cache, limits, and what clashes on this machine"
    )
    where = commands.add_parser("where", help="where an op is lowered, per overload")
    where.add_argument("op", help="aten.gelu, aten.add.Tensor, mylib.op")
    profile = commands.add_parser(
        "profile", help="trace a process that has called spmd.profiler.start_server"
    )
    profile.add_argument("address", help="host:port of it")
    profile.add_argument("folder", help="for the files, which open in Perfetto and TensorBoard")
    profile.add_argument("--seconds", type=float, default=1.0, help="of the trace (default: 1)")
    constants = commands.add_parser(
        "calibrate", help="measure the constants of this device for the times of plans"
    )
    constants.add_argument(
        "--file", type=Path, help="to write (default: that of spmd.config.calibration_file)"
    )
    named = arguments[0] if arguments and arguments[0] not in commands.choices else ""
    names = Path(__file__).with_name("missing.tsv").read_text().splitlines()
    if f"{named}\tit is spmd.{named}" in names:
        parser.error(f"spmd.{named} is a function: call it in Python, as in docs/api.md")
    return _parsed(parser, arguments, "command")


def _parsed(
    parser: argparse.ArgumentParser, arguments: Sequence[str], needed: str, shown: str = ""
) -> argparse.Namespace:
    """Parses arguments; an unknown one is named before the one that is missing."""
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if getattr(parsed, needed) is None:
        parser.error(f"the following arguments are required: {shown or needed}")
    return parsed


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits arguments behind a script's name (or `-m` and a module's): the library's, the
    script's."""
    count = 0
    while count < len(arguments) and arguments[count].startswith("-") and arguments[count] != "-m":
        count += 2 if arguments[count] in _WITH_VALUE else 1
    count += 2 if arguments[count : count + 1] == ["-m"] else 1
    return [*arguments[:count]], [*arguments[count:]]


def _of_script(command: str, arguments: Sequence[str], prog: str) -> argparse.Namespace:
    """Parses options, then the script, whose arguments are its own."""
    options, words, examples = _OF_SCRIPTS[command]
    usage = f"{prog} {options} (script | -m module) [args...]"
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog, usage, words, examples.format(prog=prog), formatter_class=layout, allow_abbrev=False
    )
    parser.add_argument(
        "-m", dest="module", action="store_true", help="run a module, as `python -m` does"
    )
    parser.add_argument(
        "program", metavar="script", nargs="?", help="the script, or with -m the module"
    )
    _ADD_OPTIONS[command](parser)
    ours, of_program = split(arguments)
    parsed = _parsed(parser, ours, "program", "script")
    if not parsed.module and not os.path.isfile(parsed.program):
        parser.error(f"there is no script {parsed.program!r} in {os.getcwd()}")
    for name in ("devices", "processes"):
        value = getattr(parsed, name, None)
        if value is not None and value < 1:
            parser.error(f"--{name}: expected 1 or more, got {value}")
    parsed.command, parsed.of_program = command, of_program
    return parsed


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--devices", type=int, metavar="N", help="simulate N devices on the CPU (spmd.simulate)"
    )
    parser.add_argument(
        "--initialize",
        action="store_true",
        help="join the processes that torchrun, srun, ... have started first",
    )


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target", metavar="DEVICES", help='"v5p:4x8x8", "h100:8", "cpu:8" (default: those here)'
    )
    parser.add_argument(
        "--devices", type=int, metavar="N", help="simulate N (default: as many as the target has)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the plan as JSON, and nothing else, on stdout"
    )


def _add_launch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--processes", type=int, default=2, metavar="N", help="their number (default 2)"
    )
    parser.add_argument(
        "--devices",
        type=int,
        metavar="K",
        help="devices of each: simulated ones on the CPU, or GPUs",
    )
    parser.add_argument(
        "--logs",
        type=Path,
        metavar="DIR",
        help="for the output of all but the first (default: new)",
    )
    parser.add_argument(
        "--debug-single-process",
        action="store_true",
        help="run the script here, with the devices of all processes",
    )


# Usage, words and examples of the commands that run a script.
_OF_SCRIPTS = {
    "run": ("[--devices N] [--initialize]", _RUN, _EXAMPLES),
    "plan": ("[--target DEVICES] [--devices N] [--json]", _PLAN, _PLAN_EXAMPLES),
    "launch": (
        "[--processes N] [--devices K] [--logs DIR] [--debug-single-process]",
        _LAUNCH,
        _LAUNCH_EXAMPLES,
    ),
}
_ADD_OPTIONS = {"run": _add_run, "plan": _add_plan, "launch": _add_launch}

# The package is imported before its `__main__`: by `python -m spmd` while "-m" stands for the
# program, whose name is then left of the arguments as Python got them.
if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].removeprefix("-m") == "spmd":
    parse(sys.argv[1:])
elif os.path.basename(sys.argv[0] if sys.argv else "") == "spmd-run":
    parse(sys.argv[1:], "spmd-run")

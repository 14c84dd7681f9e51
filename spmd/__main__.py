"""The library from a shell: `python -m spmd run script.py`, `launch`, `doctor`,
`profile host:port folder`, ..."""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from .core import topology
from .jobs.frameworks.choice import use
from .jobs.launching import installation, local_processes
from .names.compat import script
from .tensors.launch import initialize
from .tensors.simulated import simulate
from .tools.debug import catalog
from .tools.planning.clock import calibration_file
from .tools.planning.script_plan import plan_script
from .tools.profiler import capture, summary
from .tools.profiler.calibration import calibrate

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


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m spmd",
        description="Runs scripts, traces them, and says where ops are lowered.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
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
    arguments = sys.argv[1:] if arguments is None else arguments
    of_scripts = {"run": _run, "plan": _plan, "launch": _launch}
    # before argparse, which would take options of the script for its own
    if arguments and arguments[0] in of_scripts:
        return of_scripts[arguments[0]](arguments[1:], f"python -m spmd {arguments[0]}")
    named = arguments[0] if arguments and arguments[0] not in commands.choices else ""
    if named.isidentifier() and callable(getattr(sys.modules["spmd"], named, None)):
        parser.error(f"spmd.{named} is a function: call it in Python, as in docs/api.md")
    parsed = parser.parse_args(arguments)
    if parsed.command == "profile":
        return _profile(parsed.address, parsed.folder, parsed.seconds)
    if parsed.command == "doctor":
        return installation.report()
    if parsed.command == "calibrate":
        return _calibrate(parsed.file)
    return _where(parsed.op)


def run() -> int:
    """The console script `spmd-run`: `python -m spmd run` from anywhere, whatever the current
    folder holds."""
    return _run(sys.argv[1:], "spmd-run")


def _parser(prog: str, options: str, words: str, examples: str) -> argparse.ArgumentParser:
    """The parser of a command that runs a script: options, then the script, whose arguments are its
    own."""
    usage = f"{prog} {options} (script | -m module) [args...]"
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog, usage, words, examples.format(prog=prog), formatter_class=layout, allow_abbrev=False
    )
    parser.add_argument(
        "-m", dest="module", action="store_true", help="run a module, as `python -m` does"
    )
    parser.add_argument("program", metavar="script", help="the script, or with -m the module")
    return parser


def _parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """Returns the options and the script of a command line, and the script's own arguments."""
    ours, of_program = script.split(arguments)
    parsed = parser.parse_args(ours)
    if not parsed.module and not os.path.isfile(parsed.program):
        parser.error(f"there is no script {parsed.program!r} in {os.getcwd()}")
    for name in ("devices", "processes"):
        value = getattr(parsed, name, None)
        if value is not None and value < 1:
            parser.error(f"--{name}: expected 1 or more, got {value}")
    return parsed, of_program


def _run(arguments: list[str], prog: str) -> int:
    parser = _parser(prog, "[--devices N] [--initialize]", _RUN, _EXAMPLES)
    parser.add_argument(
        "--devices", type=int, metavar="N", help="simulate N devices on the CPU (spmd.simulate)"
    )
    parser.add_argument(
        "--initialize",
        action="store_true",
        help="join the processes that torchrun, srun, ... have started first",
    )
    parsed, of_program = _parse(parser, arguments)
    if parsed.initialize:
        initialize(local_device_count=parsed.devices)
    elif parsed.devices is not None:
        simulate(parsed.devices)
    use()
    return script.run(parsed.program, of_program, is_module=parsed.module)


def _plan(arguments: list[str], prog: str) -> int:
    parser = _parser(prog, "[--target DEVICES] [--devices N] [--json]", _PLAN, _PLAN_EXAMPLES)
    parser.add_argument(
        "--target", metavar="DEVICES", help='"v5p:4x8x8", "h100:8", "cpu:8" (default: those here)'
    )
    parser.add_argument(
        "--devices", type=int, metavar="N", help="simulate N (default: as many as the target has)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the plan as JSON, and nothing else, on stdout"
    )
    parsed, of_program = _parse(parser, arguments)
    out = os.fdopen(os.dup(1), "w") if parsed.json else sys.stdout
    if parsed.json:
        os.dup2(2, 1)  # what the script prints, and what its processes print
    run_script = partial(script.run, parsed.program, of_program, is_module=parsed.module)
    try:
        if parsed.devices or parsed.target:
            simulate(parsed.devices or topology.num_devices(parsed.target))
        use()
        result = plan_script(run_script, parsed.program, parsed.target)
    except ValueError as error:
        sys.exit(str(error))
    print(result.to_json() if parsed.json else result, file=out, flush=True)
    return 0


def _profile(address: str, folder: str, seconds: float) -> int:
    try:
        path = capture(address, folder, seconds)
    except (ConnectionError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(summary(path))
    print(f"written to {path}: open *.trace.json.gz in https://ui.perfetto.dev")
    return 0


def _calibrate(file: Path | None) -> int:
    try:
        for name, value in calibrate(file).items():
            print(f"{name:12} {value:.4g}")
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"written to {file or calibration_file()}: plans for this kind of device read it")
    return 0


def _launch(arguments: list[str], prog: str) -> int:
    options = "[--processes N] [--devices K] [--logs DIR] [--debug-single-process]"
    parser = _parser(prog, options, _LAUNCH, _LAUNCH_EXAMPLES)
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
    parsed, of_program = _parse(parser, arguments)
    as_module = ["-m"] if parsed.module else []
    if parsed.debug_single_process:
        devices = ["--devices", str(parsed.processes * parsed.devices)] if parsed.devices else []
        return _run([*devices, *as_module, parsed.program, *of_program], prog)
    logs = parsed.logs or Path(tempfile.mkdtemp(prefix="spmd-launch-"))
    command = [
        sys.executable,
        "-m",
        "spmd",
        "run",
        "--initialize",
        *as_module,
        parsed.program,
        *of_program,
    ]
    return local_processes.run(command, parsed.processes, logs, devices=parsed.devices)


def _where(op: str) -> int:
    try:
        places = catalog.find(op)
    except LookupError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(map(str, places)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

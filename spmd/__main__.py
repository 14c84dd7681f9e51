"""The library from a shell: `python -m spmd run script.py`, `launch`, `doctor`,
`profile host:port folder`, ..."""

import os
import sys
import tempfile
from argparse import Namespace
from functools import partial
from pathlib import Path

from . import command_line
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


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns the exit status."""
    return _execute(command_line.parse(sys.argv[1:] if arguments is None else arguments))


def run() -> int:
    """The console script `spmd-run`: `python -m spmd run` from anywhere, whatever the current
    folder holds."""
    return _execute(command_line.parse(sys.argv[1:], "spmd-run"))


def _execute(parsed: Namespace) -> int:
    if parsed.command == "run":
        return _run(parsed)
    if parsed.command == "plan":
        return _plan(parsed)
    if parsed.command == "launch":
        return _launch(parsed)
    if parsed.command == "profile":
        return _profile(parsed.address, parsed.folder, parsed.seconds)
    if parsed.command == "doctor":
        return installation.report()
    if parsed.command == "calibrate":
        return _calibrate(parsed.file)
    return _where(parsed.op)


def _run(parsed: Namespace) -> int:
    if parsed.initialize:
        initialize(local_device_count=parsed.devices)
    elif parsed.devices is not None:
        simulate(parsed.devices)
    use()
    return script.run(parsed.program, parsed.of_program, is_module=parsed.module)


def _plan(parsed: Namespace) -> int:
    out = os.fdopen(os.dup(1), "w") if parsed.json else sys.stdout
    if parsed.json:
        os.dup2(2, 1)  # what the script prints, and what its processes print
    run_script = partial(script.run, parsed.program, parsed.of_program, is_module=parsed.module)
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


def _launch(parsed: Namespace) -> int:
    as_module = ["-m"] if parsed.module else []
    if parsed.debug_single_process:
        devices = ["--devices", str(parsed.processes * parsed.devices)] if parsed.devices else []
        single = ["run", *devices, *as_module, parsed.program, *parsed.of_program]
        return main(single)
    logs = parsed.logs or Path(tempfile.mkdtemp(prefix="spmd-launch-"))
    command = [
        sys.executable,
        "-m",
        "spmd",
        "run",
        "--initialize",
        *as_module,
        parsed.program,
        *parsed.of_program,
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

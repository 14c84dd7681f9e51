"""The library from a shell: `python -m spmd run script.py`, `python -m spmd profile host:port folder`, ..."""

import argparse
import os
import sys
from pathlib import Path

from .compat import script
from .core.debug import catalog
from .core.pjrt.devices import simulate
from .frameworks.choice import use
from .profiler import capture, summary

_RUN = """Runs a script written for PyTorch/XLA, or for any device "xla", as `python script.py` does: sys.argv, __main__
and the exit status are the same. `import torch_xla` gives this library's names (docs/from-torch-xla.md), accelerate and
transformers take the device (docs/frameworks.md), and a folder beside the script that is called spmd does not hide the
library. What follows the script is its own."""

_EXAMPLES = """examples:
  {prog} train.py --batch-size 32
  {prog} --devices 8 train.py      8 simulated CPU devices
  {prog} -m package.train --epochs 1
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m spmd", description="Runs scripts, traces them, and says where ops are lowered."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="run a script, of PyTorch/XLA's too, on the device xla", add_help=False)
    where = commands.add_parser("where", help="where an op is lowered, per overload")
    where.add_argument("op", help="aten.gelu, aten.add.Tensor, mylib.op")
    profile = commands.add_parser("profile", help="trace a process that has called spmd.profiler.start_server")
    profile.add_argument("address", help="host:port of it")
    profile.add_argument("folder", help="for the files, which open in Perfetto and TensorBoard")
    profile.add_argument("--seconds", type=float, default=1.0, help="of the trace (default: 1)")
    ops = commands.add_parser("ops", help="write docs/ops.md; needs a checkout")
    ops.add_argument("--check", action="store_true", help="write nothing; fail where the file is out of date")
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["run"]:  # before argparse, which would take options of the script for its own
        return _run(arguments[1:], "python -m spmd run")
    given = parser.parse_args(arguments)
    if given.command == "profile":
        return _profile(given.address, given.folder, given.seconds)
    return _where(given.op) if given.command == "where" else _ops(check=given.check)


def run() -> int:
    """The console script `spmd-run`: `python -m spmd run` from anywhere, whatever the current folder holds."""
    return _run(sys.argv[1:], "spmd-run")


def _run(arguments: list[str], prog: str) -> int:
    usage = f"{prog} [--devices N] (script | -m module) [args...]"
    layout, examples = argparse.RawDescriptionHelpFormatter, _EXAMPLES.format(prog=prog)
    parser = argparse.ArgumentParser(prog, usage, _RUN, examples, formatter_class=layout, allow_abbrev=False)
    parser.add_argument("--devices", type=int, metavar="N", help="simulate N devices on the CPU (spmd.simulate)")
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, as `python -m` does")
    parser.add_argument("program", metavar="script", help="the script, or with -m the module")
    ours, of_program = script.split(arguments)
    given = parser.parse_args(ours)
    if not given.module and not os.path.isfile(given.program):
        parser.error(f"there is no script {given.program!r} in {os.getcwd()}")
    if given.devices is not None:
        if given.devices < 1:
            parser.error(f"--devices: expected 1 or more, got {given.devices}")
        simulate(given.devices)
    use()
    return script.run(given.program, of_program, is_module=given.module)


def _profile(address: str, folder: str, seconds: float) -> int:
    try:
        path = capture(address, folder, seconds)
    except (ConnectionError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(summary(path))
    print(f"written to {path}: open *.trace.json.gz in https://ui.perfetto.dev")
    return 0


def _where(op: str) -> int:
    try:
        places = catalog.find(op)
    except LookupError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(map(str, places)))
    return 0


def _ops(*, check: bool) -> int:
    page, tests = catalog.ROOT / "docs" / "ops.md", catalog.ROOT / "tests"
    if not tests.is_dir():
        print(
            f"python -m spmd ops: no tests next to {Path(*catalog.ROOT.parts[-1:])}; run it in a checkout",
            file=sys.stderr,
        )
        return 1
    text = catalog.document(tests)
    if check:
        is_same = page.exists() and page.read_text() == text
        print("docs/ops.md is up to date" if is_same else "docs/ops.md is out of date: run python -m spmd ops")
        return 0 if is_same else 1
    page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

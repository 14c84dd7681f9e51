"""Questions about the library from a shell: `python -m spmd where aten.gelu`, `python -m spmd ops`."""

import argparse
import sys
from pathlib import Path

from .core.debug import catalog


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m spmd", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    where = commands.add_parser("where", help="where an op is lowered, per overload")
    where.add_argument("op", help="aten.gelu, aten.add.Tensor, mylib.op")
    ops = commands.add_parser("ops", help="write docs/ops.md; needs a checkout")
    ops.add_argument("--check", action="store_true", help="write nothing; fail where the file is out of date")
    given = parser.parse_args(arguments)
    return _where(given.op) if given.command == "where" else _ops(check=given.check)


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

"""The core in an hour: the stops of docs/core-in-an-hour.md, how long they take, and how much code
that is."""

import ast
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from size import num_statements

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/core-in-an-hour.md"
MOST = 2_240  # statements
MINUTES = 60


class Stop(NamedTuple):
    path: Path
    function: str
    minutes: int


def stops(text: str) -> list[Stop]:
    """The stops of a text, in its order."""
    rows = re.findall(r"^- \*\*Stop (\d+)\*\* \((\d+) min\): `(\S+)`, `([\w.]+)`\.", text, re.M)
    assert [int(number) for number, *_ in rows] == list(range(1, len(rows) + 1))
    return [Stop(ROOT / path, function, int(minutes)) for _, minutes, path, function in rows]


def functions(text: str) -> set[str]:
    """The names of a file's functions and, behind their class, methods."""
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{each.name}"
                for each in node.body
                if isinstance(each, ast.FunctionDef)
            }
    return names


def test_it_is_an_hour() -> None:
    """The stops take an hour; those of a step, up to PJRT and the compiler, are no more code than
    promised."""
    text = PAGE.read_text()
    assert sum(stop.minutes for stop in stops(text)) == MINUTES
    of_a_step = [stop.path for stop in stops(text.partition("\n## Trip 6")[0])]
    assert len(set(of_a_step)) == len(of_a_step) > 10
    assert sum(num_statements(ast.parse(path.read_text())) for path in of_a_step) <= MOST
    assert (of_a_step[0].name, of_a_step[-1].name) == ("call.py", "lower.py")


def test_each_is_there() -> None:
    """A stop's file begins with its duty and has the function."""
    for path, function, _ in stops(PAGE.read_text()):
        text = path.read_text()
        assert ast.get_docstring(ast.parse(text)), path
        assert function in functions(text), f"{path.relative_to(ROOT)} has no {function}"


def program() -> str:
    block = re.search(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert block is not None
    return block[1]


def entered(text: str) -> dict[int, list[tuple[str, str]]]:
    """The (file, function) that each trip of a program enters; a comment in a statement says which
    trip it is."""
    found: dict[int, set[tuple[str, str]]] = defaultdict(set)
    lines, names = text.splitlines(), {"__name__": "__main__"}

    def profile(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            found[trip].add((frame.f_code.co_filename, frame.f_code.co_qualname))

    for statement in ast.parse(text).body:
        marked = re.search(
            r"# trip (\d)", "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
        )
        trip = int(marked[1]) if marked else 0
        code = compile(ast.Module([statement], []), "tour.py", "exec")
        sys.setprofile(profile)
        try:
            exec(code, names)
        finally:
            sys.setprofile(None)
    return {trip: sorted(functions) for trip, functions in found.items()}


def test_each_is_entered() -> None:
    """A debugger stops at each stop's function on its trip, or on a later one."""
    # In a process of its own, as another test may have met the same ops.
    environment = dict(
        os.environ, PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'tests'}", SPMD_PROGRAM_CACHE="0"
    )
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    trips = json.loads(done.stdout.splitlines()[-1])
    for section in PAGE.read_text().split("\n## Trip ")[1:]:
        here_or_later = [
            tuple(each) for trip, found in trips.items() if trip >= section[0] for each in found
        ]
        rows = re.findall(r"^- \*\*Stop \d+\*\* \(\d+ min\): `(\S+)`, `([\w.]+)`\.", section, re.M)
        assert (
            rows
            and [row for row in rows if (str(ROOT / row[0]), row[1]) not in here_or_later] == []
        )


def test_architecture_has_every_folder() -> None:
    """Each folder of spmd is in a table of docs/architecture.md, and each folder there is one."""
    named = set(
        re.findall(
            r"^\| `((?:spmd|core|fsdp)[\w/]*)/` \|",
            (ROOT / "docs/architecture.md").read_text(),
            re.M,
        )
    )
    folders = {
        path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("spmd/**/__init__.py")
    }
    folders = {
        name.removeprefix("spmd/") if name.startswith("spmd/core/") else name for name in folders
    }
    assert named == (folders | {"fsdp"}) - {"spmd", "spmd/core", "spmd/ops/kernels"}


def test_architecture_has_every_decision() -> None:
    linked = re.findall(
        r"\]\(decisions/([\w-]+)\.md\)",
        (ROOT / "docs/architecture.md").read_text().rpartition("\n## ")[2],
    )
    assert sorted(linked) == sorted(path.stem for path in (ROOT / "docs/decisions").glob("*.md"))


if __name__ == "__main__":
    print(json.dumps(entered(program())))

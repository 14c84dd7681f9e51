"""Each test that `faults.tsv` names as the guard of a fault exists."""

import ast
from pathlib import Path

from support import ROOT

_LINES = Path(__file__).with_name("faults.tsv").read_text().splitlines()
GUARDS = [tuple(line.split("\t")) for line in _LINES if line[0] != "#"]


def _tests(file: Path) -> set[str]:
    """The tests of a file, by class and name, as pytest collects them."""
    bodies = {"": ast.parse(file.read_text()).body}
    bodies |= {f"{node.name}::": node.body for node in bodies[""] if isinstance(node, ast.ClassDef)}
    functions = (
        (owner, node)
        for owner, body in bodies.items()
        for node in body
        if isinstance(node, ast.FunctionDef)
    )
    return {f"{owner}{node.name}" for owner, node in functions if node.name.startswith("test")}


def test_guards() -> None:
    mistakes = (ROOT / "tests/spmd/mistakes.txt").read_text().splitlines()
    for fault, guard in GUARDS:
        file, _, name = guard.partition("::")
        name, _, row = name.partition("[")
        assert name in _tests(ROOT / file), (fault, guard)
        assert not row or f"## {row[:-1]}" in mistakes, (fault, guard)


def test_each_fault_has_one() -> None:
    assert {fault for fault, _ in GUARDS} >= {
        f"{group}{number}" for group in "ABC" for number in range(1, 10)
    }

"""The core's two doors: tests/doors.tsv lists each name with the packages that take it.

python tests/test_doors.py    # writes the list anew
"""

import ast
import inspect
from pathlib import Path

from spmd import core
from spmd.core import extend

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests/doors.tsv"


def table() -> str:
    takers: dict[tuple[str, str], set[str]] = {
        (door.__name__, alias.asname): set()
        for door in (core, extend)
        for node in ast.parse(inspect.getsource(door)).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname and not alias.asname.startswith("_")
    }
    for path in (*ROOT.glob("spmd/**/*.py"), *ROOT.glob("fsdp/**/*.py")):
        folders = path.relative_to(ROOT).parts[:-1]
        if folders[:2] == ("spmd", "core"):
            continue
        package = folders[1] if len(folders) > 1 else folders[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                base = folders[: len(folders) - node.level + 1] if node.level else ()
                module = ".".join([*base, *([node.module] if node.module else [])])
                for alias in node.names:
                    if (module, alias.name) in takers:
                        takers[module, alias.name].add(package)
    rows = (f"{door}\t{name}\t{' '.join(sorted(packages))}\n" for (door, name), packages in sorted(takers.items()))
    return "".join(rows)


def test_takers_are_listed() -> None:
    assert table() == TABLE.read_text(), "run python tests/test_doors.py"


def test_each_name_is_taken() -> None:
    """A name that nothing takes leaves the door."""
    assert [row for row in TABLE.read_text().splitlines() if not row.split("\t")[2]] == []


if __name__ == "__main__":
    TABLE.write_text(table())

"""The core in an hour: the files that docs/architecture.md lists for a first reading, and how much that is."""

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST = 2_500
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def listed() -> list[Path]:
    """The files of the table, in its order."""
    section = re.search(r"^## The core in an hour$(.*?)^## ", (ROOT / "docs/architecture.md").read_text(), re.M | re.S)
    assert section is not None
    rows = re.findall(r"^\| (\d+) \| `(\S+)` \|", section[1], re.M)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    return [ROOT / "spmd/core" / name for _, name in rows]


def code_lines(text: str) -> int:
    """The number of lines that hold code: no comments, docstrings and empty lines."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        is_scope = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if is_scope and ast.get_docstring(node) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def test_counting() -> None:
    assert code_lines('"""Of two\nlines."""\n\nx = [\n    1,\n]  # a comment\n# another\n') == 3


def test_it_is_an_hour() -> None:
    """The list is no longer than promised, begins at a sharding and ends at PJRT."""
    files = listed()
    assert len(set(files)) == len(files) > 10
    assert sum(code_lines(path.read_text()) for path in files) <= MOST
    assert (files[0].name, files[-1].name) == ("value.py", "executables.py")


def test_each_begins_with_its_duty() -> None:
    for path in listed():
        assert ast.get_docstring(ast.parse(path.read_text())), path

"""Thirty breakages of rules, passes and wrappers, drawn by a seed; `make test` must notice as many
as `make test-all`.

    python tests/mutants.py --draw > tests/baseline/mutants.tsv  draws them; done once, before tests
                                                                 were cut
    python tests/mutants.py                                      all, a line for each
    python tests/mutants.py 3 17                                 some
    python tests/mutants.py --near 3 17                          by the tests of their files'
                                                                 folders alone
    python tests/mutants.py --groups "core:1of2 core:2of2" 3     by these groups of tests/run.sh
                                                                 alone

A breakage changes one operator, condition, constant or call of one function. Each third of them is
drawn from one of `PLACES`: a file by chance, of its functions one, of that one's kinds of breakages
one, so that a long file counts no more than a short one. It is applied by its syntax in a copy of
this tree, and is reported as gone where the function no longer holds it; a like one then takes its
row. Outcomes: red (by `make test`, first by the tests of the file's folder), red in test-all,
green. The last column of the table is the outcome when `make test` was last cut: a test that fails,
or green, as of three that change no result.
"""

import argparse
import ast
import copy
import itertools
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests/baseline/mutants.tsv"
SEED, NUMBER = 18, 30
# XLA generates simple code, as in tests/run.sh.
SIMPLE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
PLACES = {
    "rule": ["spmd/ops"],
    "pass": ["spmd/core/passes", "spmd/core/programs", "spmd/core/record"],
    "wrapper": ["fsdp", "spmd"],
}
_SWAPPED = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The breakages of one expression or statement, each as a name and what stands instead."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _SWAPPED:
            yield "comparison", _with(node, ops=[_SWAPPED[type(op)]()])
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in _SWAPPED:
            yield "operator", _with(node, op=_SWAPPED[type(op)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", operand
        case ast.IfExp(test=test):
            yield "condition", _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "constant", ast.Constant(value + 1)
        case ast.Call(args=[first, second, *rest]) if not any(
            isinstance(a, ast.Starred) for a in (first, second)
        ):
            yield "arguments", _with(node, args=[second, first, *rest])
        case ast.Expr(value=ast.Call()):
            yield "no call", ast.Pass()


def _with(node: ast.AST, **fields: object) -> ast.AST:
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """The outermost functions of a file, and the methods of its classes, by their qualified
    names."""
    for node in getattr(tree, "body", []):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield f"{prefix}{node.name}", node


def places(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The parts of a function that decide its result: no annotation, no text of an error."""
    waiting: list[ast.AST] = list(reversed(function.body))
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr)):
            continue
        yield node
        hidden = ("annotation", "returns", "decorator_list", "format_spec")
        fields = [value for name, value in ast.iter_fields(node) if name not in hidden]
        children = [
            part for value in fields for part in (value if isinstance(value, list) else [value])
        ]
        waiting += reversed([child for child in children if isinstance(child, ast.AST)])


def breakages(source: str) -> dict[str, list[tuple[str, str, str, int]]]:
    """By function: the name of each breakage, the text it changes, the text instead, and which of
    equal texts it is."""
    found: dict[str, list[tuple[str, str, str, int]]] = {}
    for name, function in functions(ast.parse(source)):
        seen: dict[str, int] = {}
        for node in places(function):
            text = ast.get_source_segment(source, node)
            if text is None or "\n" in text or "\t" in text:
                continue
            options = list(changes(node))
            if not options:
                continue
            which = seen[text] = seen.get(text, -1) + 1
            for kind, changed in options:
                found.setdefault(name, []).append(
                    (kind, text, ast.unparse(ast.fix_missing_locations(changed)), which)
                )
    return found


def draw() -> Iterator[str]:
    """The rows of the table: place, file, function, kind, text, text instead, which of equal
    texts."""
    chance = random.Random(SEED)
    for place, folders in PLACES.items():
        drawn: set[tuple[str, str]] = set()
        files = sorted(
            file.relative_to(ROOT).as_posix()
            for folder in folders
            for file in (
                (ROOT / folder).glob("*.py") if folder == "spmd" else (ROOT / folder).rglob("*.py")
            )
        )
        while len(drawn) < NUMBER // len(PLACES):
            file = chance.choice(files)
            by_function = breakages((ROOT / file).read_text())
            if not by_function:
                continue
            function = chance.choice(sorted(by_function))
            kind = chance.choice(sorted({row[0] for row in by_function[function]}))
            row = chance.choice([row for row in by_function[function] if row[0] == kind])
            if (file, function) not in drawn:
                drawn.add((file, function))
                yield "\t".join((place, file, function, *map(str, row)))


def apply(tree: Path, row: list[str]) -> bool:
    """Breaks a copy of this tree; False where the function no longer holds the text."""
    _, file, name, _, text, instead, which, *_ = row
    path = tree / file
    source = path.read_text() if path.exists() else ""
    data = source.encode()  # columns count bytes
    starts = [0, *itertools.accumulate(map(len, data.splitlines(keepends=True)))]
    syntax, seen = _syntax(ast.parse(text).body[0]), -1
    for function in (function for found, function in functions(ast.parse(source)) if found == name):
        for node in places(function):
            if _syntax(node) == syntax and any(changes(node)):
                seen += 1
                if seen == int(which):
                    broken = (instead if isinstance(node, ast.stmt) else f"({instead})").encode()
                    first, last = starts[node.lineno - 1], starts[node.end_lineno - 1]
                    path.write_bytes(
                        data[: first + node.col_offset]
                        + broken
                        + data[last + node.end_col_offset :]
                    )
                    return True
    return False


def _syntax(node: ast.AST) -> str:
    """A breakage's text without its format; that of a statement is that of its expression."""
    return ast.dump(node.value if isinstance(node, ast.Expr) else node)


def _run(tree: Path, *command: str, **environment: str) -> bool:
    environment |= {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "PYTHONPATH": str(tree)}
    return (
        subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, check=False
        ).returncode
        == 0
    )


def near(tree: Path, file: str) -> list[str]:
    """The tests of a file: first those named like it, then those of its folder."""
    named = sorted(tree.glob(f"tests/**/test_*{Path(file).stem.strip('_')}*.py"))
    folder = (
        tree / "tests" / Path(file).parent.relative_to("spmd" if file.startswith("spmd/") else ".")
    )
    while not folder.is_dir():
        folder = folder.parent
    return [*map(str, named), str(folder if folder != tree / "tests" else folder / "spmd")]


def is_near_green(tree: Path, file: str) -> bool:
    """Runs those tests of `make test` that are near the file: most breakages end here, after
    seconds."""
    paths = ["tests/test_tour.py", *near(tree, file)]
    return _run(
        tree, sys.executable, "-m", "pytest", "-q", "-x", "--quick", *paths, XLA_FLAGS=SIMPLE
    )


def is_green(tree: Path, groups: str, *, quick: bool) -> bool:
    """Runs the tests of a copy, until the first fails."""
    return _run(
        tree, "bash", "tests/run.sh", *([] if quick else ["--all"]), "-x", TEST_GROUPS=groups
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--near", action="store_true", help="only the tests of the file's folder")
    parser.add_argument("--groups", default="", help="of tests/run.sh, for `make test` alone")
    parser.add_argument("numbers", nargs="*", type=int)
    asked = parser.parse_args()
    if asked.draw:
        print(*draw(), sep="\n")
        return
    rows = [line.split("\t") for line in TABLE.read_text().splitlines()]
    for number in asked.numbers or range(len(rows)):
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder) / "tree"
            shutil.copytree(
                ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "out", "__pycache__")
            )
            if not apply(tree, rows[number]):
                outcome = "gone"
            elif not is_near_green(tree, rows[number][1]):
                outcome = "red"
            elif asked.near:
                outcome = "green nearby"
            elif not is_green(tree, asked.groups, quick=True):
                outcome = "red"
            elif asked.groups:
                outcome = "green in these groups"
            else:
                outcome = "green" if is_green(tree, "", quick=False) else "red in test-all"
        print(number, outcome, *rows[number], sep="\t", flush=True)


if __name__ == "__main__":
    main()

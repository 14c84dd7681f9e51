"""The statements of each package of a checkout, its names and its sentences.

    python tests/size.py [CHECKOUT] [--json]

A statement is an `ast.stmt` that is no docstring: how a line is packed does not change their
number. Names are the targets of assignments, loops, comprehensions and `with`, and arguments.
"""

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_LIBRARY = {"mesh", "tensors", "rules", "loops", "manual"}
_EMPTY = frozenset(
    (
        "made",
        "found",
        "one",
        "place",
        "given",
        "own",
        "there",
        "before",
        "behind",
        "here",
        "known",
        "again",
        "left",
        "rest",
        "what",
    )
)
_NOUNLESS = frozenset(
    (
        "taken",
        "kept",
        "chosen",
        "said",
        "others",
        "other",
        "each",
        "wanted",
        "at",
        "now",
        "held",
        "asked",
        "both",
        "these",
        "those",
        "such",
        "ones",
        "told",
        "seen",
        "gone",
    )
)
_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def sources(root: Path) -> Iterator[tuple[str, ast.Module]]:
    """The package and the tree of each file of spmd and fsdp."""
    for folder in ("spmd", "fsdp"):
        for path in sorted((root / folder).rglob("*.py")):
            yield _package(path.relative_to(root).parts), ast.parse(path.read_text())


def _package(parts: tuple[str, ...]) -> str:
    if parts[0] == "fsdp":
        return "fsdp"
    if parts[1] == "ops":
        return "op rules"
    return "library" if len(parts) == 2 or parts[1] in _LIBRARY else parts[1]


def num_statements(tree: ast.Module) -> int:
    """The statements of a file, without docstrings."""
    docstrings = sum(
        isinstance(node, _SCOPES) and _docstring(node) is not None for node in ast.walk(tree)
    )
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree)) - docstrings


def _docstring(node: ast.AST) -> str | None:
    return ast.get_docstring(node) if isinstance(node, _SCOPES) else None


def statements(root: Path) -> Counter[str]:
    """The statements of each package."""
    sizes: Counter[str] = Counter()
    for package, tree in sources(root):
        sizes[package] += num_statements(tree)
    return sizes


def figures(root: Path) -> dict[str, object]:
    """All that is printed, by name."""
    nodes = [node for _, tree in sources(root) for node in ast.walk(tree)]
    names = [
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    names = [
        name.strip("_")
        for name in (*names, *(node.arg for node in nodes if isinstance(node, ast.arg)))
    ]
    prose = " ".join(_docstring(node) or "" for node in nodes)
    words = [word.lower() for word in re.findall(r"[A-Za-z_']+", prose)]
    sizes = statements(root)

    def rate(count: int, total: list[str]) -> float:
        return round(1000 * count / max(1, len(total)), 1)

    return {
        "statements": dict(sizes.most_common()) | {"all": sizes.total()},
        "empty names in 1,000 bound": rate(sum(name in _EMPTY for name in names), names),
        "names without a noun in 1,000 bound": rate(
            sum(name in _NOUNLESS for name in names), names
        ),
        "words of docstrings": len(words),
        "'that' in 1,000 words": rate(words.count("that"), words),
        "'whose', 'those', 'which' in 1,000 words": rate(
            sum(word in ("whose", "those", "which") for word in words), words
        ),
        "'of' in 1,000 words": rate(words.count("of"), words),
        "';' in 1,000 words": rate(prose.count(";"), words),
    }


def main(arguments: list[str]) -> None:
    root = Path(next((word for word in arguments if not word.startswith("-")), "."))
    values = figures(root.resolve())
    if "--json" in arguments:
        print(json.dumps(values))
    else:
        for name, value in values.items():
            text = (
                ", ".join(f"{k} {v:,}" for k, v in value.items())
                if isinstance(value, dict)
                else value
            )
            print(f"{name}: {text}")


if __name__ == "__main__":
    main(sys.argv[1:])

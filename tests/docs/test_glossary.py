"""The field's words: the glossary names each class of the graph's folders, and words in a private sense are gone."""

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = (ROOT / "docs/glossary.md").read_text()
CODE = sorted(path for folder in ("spmd", "fsdp", "recipes") for path in (ROOT / folder).rglob("*.py"))
PROSE = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# A word in a private sense: how it is found in prose, what says the same, and the places where it is something else.
PRIVATE = {
    r"turns?(?! (on|off|into|round|it|them))": "iteration, trip count",
    r"lies?|laid|lays?": "is sharded, is placed; sharding, layout",
    r"barriers?": "sync",
    r"rolled|rolls|rolling": "scanned",
    r"pieces?": "shard, chunk, subgraph",
    r"(reads?|is|are|kept|gathered|it|them) whole(?! (number|step|model|graph|program|batch|tensor|value|mesh))": (
        "unsharded, replicated"
    ),
    r"cells?": "storage",
    r"Leaf|leaf|leaves behind": "device data, input",
    r"Pick|Entry": "tuple element, op spec",
    r"beside": "peeled; next to",
    r"lifted|lifting": "scalar argument",
    r"alike": "isomorphic, equal",
    r"moving (ops?|positions?|views?|writes?|inputs?)": "dynamic start",
    r"grow(s|n|ing)?": "dynamic dim",
    r"birth|born": "initialization",
    r"anew": "again",
    r"who|whoever|nobody": "the caller; passive voice",
    r"told|tells|tell|asked|asks": "passed, requested, reported",
    r"verdict": "sharding check",
    r"ledger": "compile log",
    r"hosted": "host-computed",
    r"dear|sensible": "exceeds the budget",
    r"in reach( of)?": "reachable",
    r"riddles?|cous?ins?": "plain words",
}
# Places where the word has its plain or the field's meaning: (a part of the line, the word).
FIELD = (
    r"optimization[_ -]?barrier|dist\.barrier|\.barrier\(\)|barrier\(\)|collective barrier",
    r"unrolled|torch\.roll|aten\.roll|`roll`",
    r"(LSTM|GRU|RNN|lstm|gru|rnn)\w*[ _-]?[Cc]ells?|cells? of (a|the) (notebook|table)|closure cells?",
    r"leaf (tensor|module|Variable)|pytree leaf",
)
# Names of torch, JAX and Python.
THEIRS = re.compile(
    r"^(is_leaf|tree_leaves|force_leaf_modules|cell_contents|\w*optimization_barrier_?|_?(aten)?_\w*(lstm|gru)_cell\w*)$"
)
BEGINNINGS = re.compile(r"(What|Whether|Who|Whoever|Those|That which|Where|How)\b")
MOST_EXCEPTIONS = 40


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings, comments, messages and the text of documents, by line; in code spans only identifiers count less."""
    text = path.read_text()
    if path.suffix == ".md":
        is_code = False
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("```"):
                is_code = not is_code
            elif not is_code:
                yield number, re.sub(r"`[^`]*`", "", line)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], re.sub(r"`[^`]*`", "", token.string)
        elif token.type == tokenize.STRING and " " in token.string:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, re.sub(r"`[^`]*`", "", line)


@functools.cache
def found() -> list[str]:
    """Every place of a private word."""
    places = []
    words = {re.compile(rf"(?<![\w.-])({word})(?![\w-])"): instead for word, instead in PRIVATE.items()}
    field = re.compile("|".join(FIELD))
    for path in [*CODE, *PROSE]:
        if path.name in ("glossary.md", "ops.md"):
            continue
        for number, line in prose(path):
            for word, instead in words.items():
                for match in word.finditer(field.sub("", line)):
                    places.append(f"{path.relative_to(ROOT)}:{number}: {match[0]!r} -> {instead}: {line.strip()[:90]}")
    return places


def identifiers(path: Path) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


class TestGlossary:
    """`docs/glossary.md` is the list of this library's words."""

    @pytest.mark.parametrize("folder", ["passes"])
    def test_names_each_class(self, folder: str) -> None:
        classes = [
            node.name
            for path in (ROOT / "spmd/core" / folder).rglob("*.py")
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        ]
        assert classes
        assert [name for name in classes if f"`{name}`" not in GLOSSARY] == []


class TestWords:
    """A reader finds a place by the word he knows from torch and JAX."""

    def test_prose(self) -> None:
        assert len(found()) <= MOST_EXCEPTIONS, "\n".join(found())

    def test_identifiers(self) -> None:
        private = re.compile(
            r"(^|_)(turns?|lies?|laid|rolled|barriers?|leaf|leaves|cells?|alike|born|birth|verdict|ledger|told|asked)(_|$)"
        )
        places = [
            f"{path.relative_to(ROOT)}:{number}: {name}"
            for path in CODE
            for number, name in identifiers(path)
            if private.search(name) and not THEIRS.search(name)
        ]
        assert len(places) <= MOST_EXCEPTIONS, "\n".join(places)

    def test_docstrings_begin_with_a_noun_or_a_verb(self) -> None:
        places = []
        for path in CODE:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    text = ast.get_docstring(node)
                    if text and BEGINNINGS.match(text):
                        places.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}")
        assert places == []

    def test_file_names(self) -> None:
        """Each once in the packages, but for `__init__`."""
        names = [path.name for path in CODE if path.parts[len(ROOT.parts)] != "recipes" and path.name != "__init__.py"]
        assert sorted({name for name in names if names.count(name) > 1}) == []

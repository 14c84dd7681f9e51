"""The glossary names each class of the passes; a file's name is there once."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = (ROOT / "docs/glossary.md").read_text()
CODE = sorted(
    path for folder in ("spmd", "fsdp", "recipes") for path in (ROOT / folder).rglob("*.py")
)


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


class TestNames:
    """A reader finds a file by its name."""

    def test_file_names(self) -> None:
        """Each once in the packages, but for `__init__`."""
        names = [
            path.name
            for path in CODE
            if path.parts[len(ROOT.parts)] != "recipes" and path.name != "__init__.py"
        ]
        assert sorted({name for name in names if names.count(name) > 1}) == []

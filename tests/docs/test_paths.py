"""A file that a page names is there, by its path from the root, from `spmd` or a package in it, or
from `tests`."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
NAMED = re.compile(r"`((?:\w+/)+\w+\.py)\b")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_is_there(page: Path) -> None:
    packages = ("core", "jobs", "names", "steps", "tools")
    bases = [
        ROOT,
        ROOT / "spmd",
        *(ROOT / "spmd" / package for package in packages),
        ROOT / "tests",
    ]
    named = set(NAMED.findall(page.read_text()))
    assert [
        path for path in sorted(named) if not any((base / path).is_file() for base in bases)
    ] == []

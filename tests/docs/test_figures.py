"""The README prints no figure that docs/benchmarks.md does not have, and its table of recipes leaves none out."""

import re
from pathlib import Path

import torch

from recipes import text

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_figures() -> None:
    measured = README.partition("\n## Measured\n")[2].partition("\n## ")[0]
    figures = set(re.findall(r"(?<![\w.])\d[\d,.]*\d(?![\w:])", measured))
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text()
    assert {"0.93", "0.999", "299"} <= figures
    assert {one for one in figures if not re.search(rf"(?<![\d.]){re.escape(one)}(?![\d])", benchmarks)} == set()


def test_marks_of_recipes() -> None:
    rows = re.findall(r"^\| `(recipes/\w+\.py)` \| (\w?) ?(\w?) ?\|", README, re.MULTILINE)
    assert len(rows) > 10
    for name, *marks in rows:
        source = (ROOT / name).read_text()
        assert ("p" in marks) == ('"--target"' in source or "add_place_flags(" in source), name
        assert ("l" in marks) == ('"loss.png"' in source), name


def test_flags_are_the_same() -> None:
    """The first name of a size is one word for all recipes; a flag of several words has hyphens."""
    for path in sorted((ROOT / "recipes").glob("*.py")):
        flags = re.findall(r'add_argument\(\s*"(--\w[\w-]*)"', path.read_text())
        assert [flag for flag in flags if "_" in flag or flag in ("--batch-size", "--num-epochs")] == [], path


def test_samples_have_no_control_codes() -> None:
    assert text.decode(torch.tensor([*b"a\x1b[2J\tb\x07\n"])) == "a\ufffd[2J\tb\ufffd\n"


def test_recipes() -> None:
    programs = {path.name for path in (ROOT / "recipes").glob("*.py") if 'name__ == "__main__"' in path.read_text()}
    assert {name for name in programs if f"`recipes/{name}`" not in README} == set()
    assert {path.name for path in (ROOT / "docker").iterdir() if f"docker/{path.name}`" not in README} == set()

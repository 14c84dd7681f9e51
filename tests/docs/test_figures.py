"""Figures of the README and of docs/benchmarks.md are those that are kept, and the list of recipes
leaves none out."""

import json
import re
from pathlib import Path

import pytest
import torch

from recipes import text
from recipes.benchmarks import page, results
from recipes.benchmarks.sections import SECTIONS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
RECIPES = (ROOT / "docs" / "recipes.md").read_text()


class TestKept:
    """docs/results/ has the figures of every section, and nothing else is shown."""

    def test_page(self) -> None:
        """It says of each section what has changed since its runs, so that a change of code can
        change it."""
        expected = page.filled("benchmarks.md.jinja")
        assert page.PAGE.read_text() == expected, (
            "run python -m recipes.benchmarks.bench_all --page"
        )

    def test_readme(self) -> None:
        assert page.readme() == README, "run python -m recipes.benchmarks.bench_all --page"

    @pytest.mark.parametrize("name", SECTIONS)
    def test_sections(self, name: str) -> None:
        runs = results.runs_of(name)
        assert [run["command"].partition("recipes.benchmarks.")[2] for run in runs] == [
            *SECTIONS[name].commands
        ]
        assert all(
            run[fact]
            for run in runs
            for fact in ("commit", "date", "machine", "versions", "tables")
        )
        assert f'section("{name}")' in (ROOT / "docs/site/benchmarks.md.jinja").read_text()

    def test_no_file_is_left_over(self) -> None:
        charts = {f"{name}.svg" for name, section in SECTIONS.items() if section.charted}
        expected = {f"{name}.json" for name in SECTIONS} | charts | {"race-plans.json"}
        assert {path.name for path in results.FOLDER.iterdir()} == expected

    def test_numbers_of_the_readme(self) -> None:
        """Each measured number occurs in the kept figures."""
        measured = README.partition("<!-- make bench-all")[2].partition("<!-- to here")[0]
        sizes = {"12", "256", "768", "9.6"}
        plain = re.sub(r"`[^`]*`|\bv5p:\S+", "", measured)
        figures = set(re.findall(r"(?<![\w.:])\d[\d,.]*\d(?![\w:])", plain)) - sizes
        kept = json.dumps(
            [(run, page.tables_of(name, run)) for name in SECTIONS for run in results.runs_of(name)]
        )
        assert len(figures) >= 5
        assert {
            figure
            for figure in figures
            if not re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", kept)
        } == set()


TARGET = re.compile(r"\b(v4|v5e|v5p|v6e|tpu7x|a100|h100):\d")


class TestPlanned:
    """A table of plans says in its heading that nothing ran."""

    @pytest.mark.parametrize(
        "name", [name for name, section in SECTIONS.items() if section.is_planned]
    )
    def test_sections(self, name: str) -> None:
        tables = [table for run in results.runs_of(name) for table in page.tables_of(name, run)]
        assert tables and all(table["title"].startswith("Planned, not run") for table in tables)

    def test_figures_of_a_target_are_plans(self) -> None:
        """A section whose figures name a TPU slice is planned, and those of other sections ran on
        what is here."""
        for name, section in SECTIONS.items():
            kept = json.dumps([run["tables"] for run in results.runs_of(name)])
            assert section.is_planned or TARGET.search(kept) is None, name

    @pytest.mark.parametrize(
        "path", ["README.md", "docs/planning.md", "docs/memory.md", "docs/fsdp.md"]
    )
    def test_pages(self, path: str) -> None:
        """A row with a target and a figure in the next cells stands below such a heading."""
        text = (ROOT / path).read_text()
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            head, _, *rows = table.splitlines()
            figures = [
                row for row in rows if TARGET.search(row) and re.search(r"\| [\d.,]+ \|", row)
            ]
            is_of_plans = (
                bool(figures) or re.search(r"\| plan \|", head) or TARGET.search(head) is not None
            )
            assert not is_of_plans or "planned, not run" in head or "seconds" in head, head

    def test_a_row_that_is_worse(self) -> None:
        """No row is left out because it is worse than JAX's: the README has the largest model."""
        measured = README.partition("<!-- make bench-all")[2].partition("<!-- to here")[0]
        assert "Llama-70B" in measured.partition("planned, not run")[2]


class TestAge:
    """A section is old where code has changed, not where its words have."""

    def test_code_and_words(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(results, "ROOT", tmp_path)
        path = tmp_path / "a.py"
        path.write_text('"""Words."""\n\n\ndef f():\n    """More."""\n    return 1\n')
        results.code_hash.cache_clear()
        before = results.code_hash("a.py")
        path.write_text('"""Other\nwords."""\n# why\ndef f():\n    return (\n        1\n    )\n')
        results.code_hash.cache_clear()
        assert results.code_hash("a.py") == before
        path.write_text('"""Words."""\n\n\ndef f():\n    """More."""\n    return 2\n')
        results.code_hash.cache_clear()
        assert results.code_hash("a.py") != before


def test_marks_of_recipes() -> None:
    rows = re.findall(r"^\| `(recipes/\w+\.py)` \| (\w?) ?(\w?) ?\|", RECIPES, re.MULTILINE)
    assert len(rows) > 10
    for name, *marks in rows:
        source = (ROOT / name).read_text()
        assert ("p" in marks) == ('"--target"' in source or "add_place_flags(" in source), name
        assert ("l" in marks) == ('"loss.png"' in source), name


def test_flags_are_the_same() -> None:
    """The first name of a size is one word for all recipes; a flag of several words has hyphens."""
    for path in sorted((ROOT / "recipes").glob("*.py")):
        flags = re.findall(r'add_argument\(\s*"(--\w[\w-]*)"', path.read_text())
        assert [
            flag for flag in flags if "_" in flag or flag in ("--batch-size", "--num-epochs")
        ] == [], path


def test_samples_have_no_control_codes() -> None:
    assert text.decode(torch.tensor([*b"a\x1b[2J\tb\x07\n"])) == "a\ufffd[2J\tb\ufffd\n"


def test_recipes() -> None:
    programs = {
        path.name
        for path in (ROOT / "recipes").glob("*.py")
        if 'name__ == "__main__"' in path.read_text()
    }
    assert {name for name in programs if f"`recipes/{name}`" not in RECIPES} == set()
    assert {
        path.name for path in (ROOT / "docker").iterdir() if f"docker/{path.name}`" not in RECIPES
    } == set()

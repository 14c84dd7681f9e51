"""The README can be read in five minutes, and its pictures are there and drawn by the tree."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import matplotlib
import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "site" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestSize:
    """One page: at most 120 lines, an example of at most 12 lines."""

    def test_lines(self) -> None:
        assert len(README.splitlines()) <= 120

    def test_example(self) -> None:
        (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
        assert len([line for line in block.splitlines() if line.strip()]) <= 12


class TestPictures:
    def test_each_is_there(self) -> None:
        names = re.findall(r"!\[[^]]*\]\(([^)]+)\)|src(?:set)?=\"([^\"]+)\"", README)
        paths = ["".join(pair) for pair in names]
        assert len(paths) >= 10
        assert [path for path in paths if not (ROOT / path).exists()] == []

    def test_gallery(self) -> None:
        """Each recipe of the gallery draws its picture, and no other picture is in its folder."""
        gallery = script("gallery")
        assert {path.stem for path in gallery.FOLDER.iterdir()} == set(gallery.RECIPES)
        assert all(f"](docs/pictures/recipes/{name}.png) [" in README for name in gallery.RECIPES)

    def test_front(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The picture at the top is drawn from a step that runs: rows of eight devices, a loss that
        falls."""
        front = script("front")
        weight, rows, losses = front.run()
        assert front.rows_of(weight[5]) == "[128:256]" and front.rows_of(rows[5]) == "[32:64]"
        assert losses[-1] < losses[0] / 10
        with matplotlib.rc_context():
            monkeypatch.setattr(front, "run", lambda: (weight, rows, losses))
            assert [path.exists() for path in front.main(tmp_path)] == [True, True]


class TestSite:
    """The site's first page has the README's picture and tables, and a search word is in a heading
    of the page that answers."""

    def test_home(self) -> None:
        home = script("home")
        page = home.on_page_markdown((ROOT / "docs/index.md").read_text())
        assert "<!--" not in page.replace("<!-- make bench-all", "").replace("<!-- to here -->", "")
        assert "pip install " in page and "| You need | torch-spmd |" in page
        assert "planned, not run" in page and "measured on one H200" in page
        links = re.findall(r"\]\((?!https?:)([^)#]+)", page)
        assert {"pictures/front-light.png", "pictures/front-dark.png"} <= {*links}
        assert [link for link in links if not (ROOT / "docs" / link).exists()] == []

    @pytest.mark.parametrize(
        ("word", "page"),
        [
            ("HSDP", "fsdp"),
            ("fp8", "low-precision"),
            ("quantization", "low-precision"),
            ("wandb", "frameworks"),
            ("Hugging Face", "frameworks"),
        ],
    )
    def test_searched(self, word: str, page: str) -> None:
        headings = re.findall(r"^#+ .*", (ROOT / f"docs/{page}.md").read_text(), re.MULTILINE)
        assert any(word.lower() in heading.lower() for heading in headings)

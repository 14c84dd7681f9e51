"""The pictures in the docs are those that the library draws now."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


draw, diagrams = _script("draw"), _script("diagrams")


@pytest.mark.parametrize("page", draw.pages(), ids=lambda page: page.name)
def test_current(page: Path) -> None:
    found = dict(draw.drawn(page))
    assert found
    for path, svg in found.items():
        assert path.exists() and path.read_text() == svg, (
            f"{path.name}: python tests/docs/draw.py draws it anew"
        )


def test_no_picture_is_left_over() -> None:
    shown = {path for page in draw.pages() for path, _ in draw.drawn(page)}
    assert set(draw.ROOT.glob("docs/pictures/*.svg")) == shown


class TestDiagrams:
    """The diagrams follow the folders and the stages of a step."""

    @pytest.mark.parametrize("name", diagrams.DIAGRAMS)
    def test_current(self, name: str) -> None:
        drawn = diagrams.DIAGRAMS[name]()
        assert (diagrams.DRAWINGS / name).read_text() == drawn, (
            f"{name}: python tests/docs/diagrams.py draws it anew"
        )

    def test_no_drawing_is_left_over(self) -> None:
        pages = "".join(page.read_text() for page in draw.ROOT.glob("docs/**/*.md"))
        assert [
            path.name
            for path in diagrams.DRAWINGS.glob("*.svg")
            if f"drawings/{path.name})" not in pages
        ] == []

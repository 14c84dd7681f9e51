"""The pictures in the docs are those that the library draws now."""

import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("draw", Path(__file__).with_name("draw.py"))
assert _spec is not None and _spec.loader is not None
draw = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(draw)


@pytest.mark.parametrize("page", draw.pages(), ids=lambda page: page.name)
def test_current(page: Path) -> None:
    found = dict(draw.drawn(page))
    assert found
    for path, svg in found.items():
        assert path.exists() and path.read_text() == svg, f"{path.name}: python tests/docs/draw.py draws it anew"


def test_no_picture_is_left_over() -> None:
    shown = {path for page in draw.pages() for path, _ in draw.drawn(page)}
    assert set(draw.ROOT.glob("docs/pictures/*.svg")) == shown

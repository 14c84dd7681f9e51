"""The pictures of the docs, drawn anew by the pages' own blocks: `python tests/docs/draw.py` after
a change of how they look. `test_drawn.py` proves that they are current."""

import contextlib
import gc
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import spmd
from spmd.core.programs import cache

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(
    r"^```python\n(.*?)^```\n(?:\n!\[[^\]]*\]\(((?:docs/)?pictures/\w+\.svg)\))?", re.M | re.S
)


def drawn(page: Path) -> Iterator[tuple[Path, str]]:
    """Each picture that stands behind a block of a page, and the SVG of the `picture` that the
    block leaves."""
    cache.clear_cache()  # the page tells what its own blocks compile, and it has run before
    namespace: dict[str, object] = {"__name__": "__main__"}
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        block, name = "\n" * text.count("\n", 0, found.start(1)) + found[1], found[2]
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block, str(page), "exec"), namespace)
        if name:
            made = namespace["picture"]
            assert isinstance(made, spmd.tools.show.pictures.Picture)
            yield page.parent / name, made.svg()
    namespace.clear()
    gc.collect()
    cache.clear_cache()


def pages() -> list[Path]:
    """The pages that show pictures which the library drew."""
    every = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    return [
        page for page in every if re.search(r"\]\((?:docs/)?pictures/\w+\.svg\)", page.read_text())
    ]


if __name__ == "__main__":
    for page in pages():
        for path, svg in drawn(page):
            path.write_text(svg)
            print(path.relative_to(ROOT))

"""The first page of the site: a hook of mkdocs, which fills the marks of docs/index.md with parts
of the README."""

import re
from pathlib import Path
from typing import Any

README = Path(__file__).resolve().parents[2] / "README.md"
_MARK = re.compile(r"<!-- README: (.+) -->")
_PICTURE = re.compile(
    r'<picture>.*?srcset="docs/(?P<dark>[^"]+)".*?alt="(?P<alt>[^"]+)" src="docs/(?P<light>[^"]+)"',
    re.DOTALL,
)


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Called by mkdocs with the text of each page."""
    return _MARK.sub(lambda mark: part(mark[1]), markdown)


def part(name: str) -> str:
    """The README's "picture", or its section of this heading, with links as docs/ has them."""
    text = README.read_text()
    if name == "picture":
        picture = _PICTURE.search(text)
        assert picture is not None
        # The theme shows the picture of its palette.
        return "\n".join(
            f"![{picture['alt']}]({picture[scheme]}#only-{scheme})" for scheme in ("light", "dark")
        )
    section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    return f"## {name}\n{section.replace('](docs/', '](')}"

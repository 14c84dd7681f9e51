"""The notebooks of docs/notebooks as pages of the site: a hook of mkdocs, which makes Markdown of
each."""

import json
import re
from html import escape
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_NOTEBOOK = re.compile(r"\.ipynb(?=[)#]|$)")
_TABLE = re.compile(r"\S {3}|\N{BOX DRAWINGS LIGHT HORIZONTAL}")  # a line of one
_COLUMNS = 96  # of a page


def on_config(config: MkDocsConfig) -> None:
    """Names the pages in the navigation, which mkdocs.yml has as notebooks."""
    config.nav = _pages(config.nav)


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Adds a page for each notebook. The notebook stays, as a file to download."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        content = page_of(json.loads(file.content_string), file.name + ".ipynb")
        files.append(File.generated(config, _NOTEBOOK.sub(".md", file.src_uri), content=content))


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Links to a notebook are links to its page here; on a code host they are those to the
    notebook."""
    return _NOTEBOOK.sub(".md", markdown)


def page_of(notebook: dict[str, Any], name: str) -> str:
    """Returns a notebook as Markdown. name: the file, for the link below the title's cell."""
    title, *cells = notebook["cells"]
    parts = [
        "".join(title["source"]),
        f'<p><a href="{name}" download>Download this notebook</a></p>',
    ]
    for cell in cells:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        if outputs := [_html(output) for output in cell.get("outputs", ())]:
            parts.append(f'<div class="result no-copy">{"".join(outputs)}</div>')
    return "\n\n".join([*parts, ""])


def _html(output: dict[str, Any]) -> str:
    data = output.get("data", {"text/plain": output.get("text", "")})
    for kind in ("image/svg+xml", "text/html"):
        if kind in data:
            return "".join(data[kind])
    lines = [line.rstrip() for line in "".join(data["text/plain"]).rstrip().splitlines()]
    # A browser wraps sentences; a table is made smaller until it fits.
    widest = max((len(line) for line in lines if _TABLE.search(line)), default=0)
    scale = min(1, _COLUMNS / max(widest, 1))
    text = "\n".join(
        escape(line)
        if _TABLE.search(line)
        else f'<span style="white-space: pre-wrap">{escape(line)}</span>'
        for line in lines
    )
    style = f"background: none; font-size: {0.85 * scale:.3f}em"
    return f'<pre><code style="{style}">{text}</code></pre>'


def _pages(nav: Any) -> Any:
    if isinstance(nav, str):
        return _NOTEBOOK.sub(".md", nav)
    return (
        {name: _pages(part) for name, part in nav.items()}
        if isinstance(nav, dict)
        else [*map(_pages, nav)]
    )

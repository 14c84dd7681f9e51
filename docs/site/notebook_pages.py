"""The notebooks of docs/notebooks as pages of the site: a hook of mkdocs, which makes Markdown of
each."""

import json
import re
from html import escape
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_NOTEBOOK = re.compile(r"\.ipynb(?=[)#]|$)")


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
    text = "".join(data["text/plain"]).rstrip()
    # A browser wraps sentences, and no table.
    is_prose = (
        "\N{BOX DRAWINGS LIGHT HORIZONTAL}" not in text and max(map(len, text.splitlines())) > 100
    )
    wrap = "; white-space: pre-wrap" if is_prose else ""
    return f'<pre><code style="background: none{wrap}">{escape(text)}</code></pre>'


def _pages(nav: Any) -> Any:
    if isinstance(nav, str):
        return _NOTEBOOK.sub(".md", nav)
    return (
        {name: _pages(part) for name, part in nav.items()}
        if isinstance(nav, dict)
        else [*map(_pages, nav)]
    )

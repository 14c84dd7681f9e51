"""llms.txt (llmstxt.org): the pages of the documentation, each with its first sentence.

`python docs/site/llms.py`.
"""

import json
import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
SITE = "https://OWNER.github.io/torch-spmd"
FILE = ROOT / "llms.txt"


class _Names(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name functions of extensions."""


_Names.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def first_sentence(page: str) -> str:
    """The first sentence below a page's title, without marks of emphasis and links."""
    paragraphs = page.split("\n\n")
    texts = (
        text for text in paragraphs[1:] if not text.startswith(("#", "```", "    ", "|", "!", "-"))
    )
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(next(texts, "").split())).replace(
        "**", ""
    )
    return re.split(r"(?<=[.:]) (?=[A-Z`])", text)[0].rstrip(":")


def text_of(path: Path) -> str:
    """A page; of a notebook its text, without the code."""
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def llms() -> str:
    """The text of the file."""
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), _Names)
    lines = [
        f"# {config['site_name']}",
        "",
        f"> {first_sentence((ROOT / 'docs/index.md').read_text())}",
    ]
    for part in config["nav"]:
        for heading, pages in part.items():
            lines += ["", f"## {heading}", ""]
            for name in pages:
                page = text_of(ROOT / "docs" / name)
                title = page.partition("\n")[0].removeprefix("# ")
                lines.append(
                    f"- [{title}]({SITE}/{name.rpartition('.')[0]}.html): {first_sentence(page)}"
                )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    FILE.write_text(llms())
    sys.exit(0)

"""Docstrings on the site, for griffe, which reads them: examples as code blocks, and links to the
code."""

import re
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[2]
_EXAMPLE = re.compile(r"(?:^ *>>> .*\n?(?:^ *\S.*\n?)*)+", re.MULTILINE)


class Fences(griffe.Extension):
    """Puts each example, from `>>>` to the next empty line, into a block, and a link to the code
    after each docstring.

    source: what the links begin with.
    """

    def __init__(self, source: str) -> None:
        self.source = source

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe with each object that it has read."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            text = griffe.Docstring(obj.docstring.value).value
            obj.docstring.value = _EXAMPLE.sub(
                lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text
            )
        if obj.docstring is not None and (obj.is_class or obj.is_function):
            path = Path(str(obj.filepath)).relative_to(ROOT).as_posix()
            lines = f"#L{obj.lineno}-L{obj.endlineno}"
            obj.docstring.value += f"\n\n[{path}]({self.source}{path}{lines})"

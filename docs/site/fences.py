"""The examples of docstrings as code blocks on the documentation site: an extension of griffe, which reads them."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^ *>>> .*\n?(?:^ *\S.*\n?)*)+", re.MULTILINE)


class Fences(griffe.Extension):
    """Puts each example, from `>>>` to the next empty line, into a block."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe with each object that it has read."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            text = griffe.Docstring(obj.docstring.value).value
            obj.docstring.value = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)

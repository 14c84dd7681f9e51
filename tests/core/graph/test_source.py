"""The user's line: that of the nearest frame outside torch, this library, and what shows a value in a notebook."""

from pathlib import Path
from typing import Any

import torch

import spmd


def test_a_notebook_shows_a_result() -> None:
    file = Path(torch.__file__).parents[1] / "IPython" / "lib" / "pretty.py"
    scope: dict[str, Any] = {}
    exec(compile("def pretty(value):\n    return repr(value)\n", str(file), "exec"), scope)
    shown = torch.full((3, 5), 2.0, device="xla").erfinv()
    scope["pretty"](shown)  # the cell
    line = spmd.metrics.compiles()[-1].line
    assert "test_source.py" in line and line.endswith('scope["pretty"](shown)  # the cell')

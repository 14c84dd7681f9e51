"""The user's line: that of the nearest frame outside torch, this library, and what shows a value in
a notebook."""

import sys
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import torch

import spmd
from spmd.core.graph.source import Line, user_line


def test_a_notebook_shows_a_result() -> None:
    file = Path(torch.__file__).parents[1] / "IPython" / "lib" / "pretty.py"
    scope: dict[str, Any] = {}
    exec(compile("def pretty(value):\n    return repr(value)\n", str(file), "exec"), scope)
    shown = torch.full((3, 5), 2.0, device="xla").erfinv()
    scope["pretty"](shown)  # the cell
    line = spmd.metrics.compiles()[-1].line
    assert "test_source.py" in line and line.endswith('scope["pretty"](shown)  # the cell')


def test_equal_code_of_two_files() -> None:
    lines = []
    for name in ("one.py", "two.py"):
        scope: dict[str, Any] = {}
        exec(compile("def step(x):\n    return x + 1\n", name, "exec"), scope)
        lines.append(str(Line(scope["step"].__code__, 4)))
    assert lines == ["one.py:2 in step", "two.py:2 in step"]


def test_code_without_a_hash() -> None:
    """Dynamo's has dicts among its constants."""

    def call() -> Line:
        return user_line()

    code = call.__code__
    line = FunctionType(code.replace(co_consts=(*code.co_consts, {})), globals())()
    assert isinstance(hash(line.code), int)
    assert "test_source.py" in str(line)


def test_a_cell_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's cell is a file of the kernel's, with a hash for a name."""
    names = {"/tmp/ipykernel_7/123.py": ("Cell", "In[3]")}
    cell, other = (compile("pass", name, "exec") for name in (*names, "train.py"))
    assert Line(cell, 2).short() == "123.py:1"
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=names.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert (Line(cell, 2).short(), str(Line(cell, 2))) == ("In[3]:1", "In[3]:1 in <module>")
    assert Line(other, 2).short() == "train.py:1"
    # imported, not running
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert Line(cell, 2).short() == "123.py:1"

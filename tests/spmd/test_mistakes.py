"""Calls that a newcomer gets wrong: each answer says what came, what was expected and what to write, at his line.

The list is `mistakes.txt`. A new row runs here with its code, its answer, and the frame in which the error ends.
"""

import linecache
import re
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fsdp
import spmd
from spmd.core.base import messages

_ROWS = [
    (block.splitlines()[0], block.splitlines()[1:])
    for block in re.split(r"(?m)^## ", Path(__file__).with_name("mistakes.txt").read_text())[1:]
]


def _answer(name: str, code: str) -> tuple[str, str]:
    """The error, else the first warning of a piece of code, and the file of the traceback's last frame."""
    scope = {
        **{"torch": torch, "nn": nn, "F": F, "np": np, "spmd": spmd, "fsdp": fsdp, "P": spmd.P},
        "mesh": spmd.Mesh(range(8), (8,), ("data",)),
        "grid": spmd.Mesh(range(8), (2, 4), ("data", "model")),
        "x": torch.ones(8, 16).to("xla"),
        "model": nn.Linear(16, 8).to("xla"),
    }
    file = f"<mistake: {name}>"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(compile(code, file, "exec"), scope)
        except Exception as error:
            return f"{type(error).__name__}: {error}", traceback.extract_tb(error.__traceback__)[-1].filename
    said = [f"{one.category.__name__}: {one.message}" for one in caught if issubclass(one.category, UserWarning)]
    return next(iter(said), "no error"), file


@pytest.mark.parametrize(("name", "lines"), _ROWS, ids=[name for name, _ in _ROWS])
def test_answer(
    name: str, lines: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    messages.forget()
    spmd.mesh.notes._note.cache_clear()
    spmd.mesh.notes.note_whole.cache_clear()
    code = "\n".join(line for line in lines if not line.startswith("# "))
    says = [line.removeprefix("# says: ") for line in lines if line.startswith("# says: ")]  # a build of torch each
    answer, file = _answer(name, code)
    printed = capsys.readouterr().err
    answer = " ".join((printed if answer == "no error" and printed else answer).split())
    assert any(line in answer for line in says), (answer, says)
    assert "# ends elsewhere" in lines or file == f"<mistake: {name}>", file

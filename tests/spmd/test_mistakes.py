"""Calls that a newcomer gets wrong: each answer says what came, what was expected and what to
write, at his line.

The list is `mistakes.txt`. A new row runs here with its code, its answer, and the frame in which
the error ends.
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

_LIBRARY = tuple(str(Path(package.__file__).parent) for package in (spmd, fsdp))
_ROWS = [
    (block.splitlines()[0], block.splitlines()[1:])
    for block in re.split(r"(?m)^## ", Path(__file__).with_name("mistakes.txt").read_text())[1:]
]


def _answer(name: str, code: str) -> tuple[str, list[str]]:
    """The error, else the first warning of a piece of code, and the files of the traceback's
    frames."""
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
            frames = traceback.extract_tb(error.__traceback__)
            return f"{type(error).__name__}: {error}", [frame.filename for frame in frames]
    said = [
        f"{one.category.__name__}: {one.message}"
        for one in caught
        if issubclass(one.category, UserWarning)
    ]
    return next(iter(said), "no error"), [file]


@pytest.mark.parametrize(("name", "lines"), _ROWS, ids=[name for name, _ in _ROWS])
def test_answer(
    name: str, lines: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    messages.forget()
    for note in (spmd.mesh.notes.say_once, spmd.mesh.notes.note_idle, spmd.mesh.notes.note_whole):
        note.cache_clear()
    code = "\n".join(line for line in lines if not line.startswith("# "))
    # a build of torch each
    says = [line.removeprefix("# says: ") for line in lines if line.startswith("# says: ")]
    answer, files = _answer(name, code)
    printed = capsys.readouterr().err
    answer = " ".join((printed if answer == "no error" and printed else answer).split())
    assert any(line in answer for line in says), (answer, says)
    assert "# ends elsewhere" in lines or files[-1] == f"<mistake: {name}>", files
    assert sum(file.startswith(_LIBRARY) for file in files) <= 4, files


def test_frames_inside_the_library_are_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "spmd.shard_map(lambda a: a @ a, mesh=mesh, in_specs=P('data'), out_specs=P('data'))(x)"
    _, files = _answer("filtered", code)
    monkeypatch.setattr(spmd.config, "traceback_filtering", False)
    _, all_files = _answer("filtered", code)
    assert files[-2:] != all_files[-2:] and files[-1] == "<mistake: filtered>"
    assert set(files) < set(all_files) and len(all_files) > 2 * len(files)

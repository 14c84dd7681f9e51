"""docs/torch-xla-names.md: the table of the drop-in as a page, with how the arguments of each name
differ."""

import re
import subprocess
import sys

import pytest
from support import ROOT

from spmd.names.compat.torch_xla_names import HINTS, NAMES, Row

sys.path.insert(0, str(ROOT / "tests/docs"))

import torch_xla_page


def test_as_made() -> None:
    command = [sys.executable, "tests/docs/torch_xla_page.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_has_each_name_once() -> None:
    text = torch_xla_page.PAGE.read_text()
    names = re.findall(r"^\| `([\w*]+)[(`]", text, re.M)
    assert len(names) == sum(map(len, NAMES.values())) + len(HINTS)
    assert re.findall(r"^## (\S+)", text, re.M) == [*NAMES]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (Row("spmd:sync", None, {}, {}, None), ["`spmd.sync`"]),
        (Row("torch.distributed:", None, {}, {}, None), ["`torch.distributed`"]),
        (Row("", 3, {}, {}, "x=1"), ["`3`"]),
        (
            Row("spmd:sync", None, {}, {"wait": True}, "devices=()"),
            ["`spmd.sync`", "`wait=True`", "without `devices`"],
        ),
        (
            Row("spmd:place_to_host", None, {"t": "tensor"}, {}, None),
            ["`spmd.place_to_host`", "`t` is `tensor`"],
        ),
    ],
)
def test_words_of_a_row(row: Row, words: list[str]) -> None:
    assert [*torch_xla_page._here(row)] == words

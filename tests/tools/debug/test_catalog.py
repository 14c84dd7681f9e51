"""`python -m spmd where`, and the page of all ops."""

import re
import subprocess
import sys

import pytest
import torch

import spmd  # noqa: F401
from spmd.__main__ import main
from spmd.tools.debug import catalog

# The torch that `make install` takes and that docs/ops.md names.
PAGE_VERSION = "2.13"


class TestWhere:
    """File and line of a rule per overload, or how else the op gets there."""

    @pytest.mark.parametrize(
        ("op", "expected"),
        [
            ("aten.gelu", r"^aten.gelu.default: rule  spmd/ops/activation.py:\d+$"),
            ("gelu", r"^aten.gelu.default: rule "),
            ("aten.add.Tensor", r"^aten.add.Tensor: rule  spmd/ops/pointwise.py:\d+$"),
            ("aten.add_.Tensor", r"^aten.add_.Tensor: derived  spmd/ops/pointwise.py:\d+$"),
            ("aten.nonzero", r"^aten.nonzero.default: host  spmd/core/record/calls/copies.py:\d+$"),
            ("aten.special_airy_ai", r"^aten.special_airy_ai.default: host$"),
            ("aten._foreach_add", r"^aten._foreach_add.List: derived"),
            ("aten.linear", r"^aten.linear.default: (decomposition|rule)"),
            ("aten._philox_uniform_", r"^aten._philox_uniform_.default: none"),
            (
                "aten.copy_.default",
                r"^aten.copy_.default: special  spmd/core/record/calls/copies.py:\d+$",
            ),
        ],
    )
    def test_places(self, op, expected, capsys):
        assert main(["where", op]) == 0
        assert re.search(expected, capsys.readouterr().out, re.MULTILINE)

    def test_the_line_is_the_rules_own(self):
        (place,) = catalog.find("aten.gelu.default")
        lines = (catalog.ROOT / place.path).read_text().splitlines()
        assert any("gelu" in line for line in lines[place.line - 1 : place.line + 3])

    @pytest.mark.parametrize("op", ["aten.gelou", "nolib.op", "aten.add.Nothing"])
    def test_unknown(self, op, capsys):
        assert main(["where", op]) == 1
        assert f"torch knows no op '{op}'" in capsys.readouterr().err


class TestPage:
    """docs/ops.md says what the code does with the torch that it names."""

    @pytest.mark.skipif(
        not torch.__version__.startswith(f"{PAGE_VERSION}."),
        reason=(
            f"other ops, decompositions and dtypes than torch {PAGE_VERSION}, of which the page is"
        ),
    )
    def test_up_to_date(self):
        # A process of its own: other tests of this one register rules and make them wrong on
        # purpose.
        command = [sys.executable, "tests/docs/ops_page.py", "--check"]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=catalog.ROOT, check=False
        )
        assert done.returncode == 0, done.stderr

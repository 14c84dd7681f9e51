"""Marks over an axis that an op cannot use: a finding of a plan and words in the compile log, and
no advice to undo."""

import pytest
import torch
from torch.nn import functional as F

import spmd
from spmd import P


@pytest.fixture
def mesh() -> spmd.Mesh:
    return spmd.Mesh(range(8), (2, 4), ("data", "other"))


def findings(plan: spmd.Plan) -> list[str]:
    return [str(finding) for finding in plan.findings if finding.kind == "unused axis"]


class TestFindings:
    """What is computed on all devices, or gathered, by op, axis and number of devices."""

    def test_attention_of_a_length_that_the_axis_does_not_divide(self, mesh: spmd.Mesh) -> None:
        def step(q: torch.Tensor) -> torch.Tensor:
            q = spmd.mark_sharding(q.to("xla"), mesh, P("data", None, "other", None))
            return F.scaled_dot_product_attention(q, q, q)

        uneven, even = (
            spmd.plan(step, torch.empty(2, 1, length, 8, device="meta")) for length in (521, 520)
        )
        (found,) = findings(uneven)
        assert (
            "attention over 'other' is computed on all 4 devices (they do not divide 521 rows)"
            in found
        )
        assert not findings(even)

    @pytest.mark.parametrize("spec", [P("data"), P(("data", "other"))])
    def test_experts(self, mesh: spmd.Mesh, spec: P) -> None:
        def step(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            rows = spmd.mark_sharding(rows.to("xla"), mesh, P(*spec, None))
            weights = spmd.mark_sharding(weights.to("xla"), mesh, P("other", None, None))
            return torch._grouped_mm(rows, weights, ends.to("xla"))

        half = {"device": "meta", "dtype": torch.bfloat16}
        ends = torch.empty(8, dtype=torch.int32, device="meta")
        (found,) = findings(
            spmd.plan(step, torch.empty(64, 16, **half), torch.empty(8, 16, 16, **half), ends)
        )
        if spec == P("data"):
            assert (
                "grouped_mm over 'other' is computed on all 4 devices, with the weights of "
                "all groups"
            ) in found
        else:
            assert "grouped_mm gathers the weights of all groups over 'other'" in found

    def test_a_stack_of_stages(self, mesh: spmd.Mesh) -> None:
        def step(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            weights = spmd.mark_sharding(weights.to("xla"), mesh, P("other", None, None))
            x = x.to("xla")  # with a carry the layers would be the stages of a pipeline
            return spmd.scan(lambda carry, weight: ((), (x @ weight).tanh()), (), weights)[1]

        plan = spmd.plan(
            step, torch.empty(8, 64, device="meta"), torch.empty(8, 64, 64, device="meta")
        )
        (found,) = findings(plan)
        assert (
            "the stack [8, 64, 64] of a scan is gathered over 'other', as each iteration "
            "reads one row"
        ) in found


class TestRowsInAPythonLoop:
    """A stack whose split dim is read row by row, by layers that differ, is no pipeline: a line,
    and no advice to split its rows further."""

    @staticmethod
    def read(mesh: spmd.Mesh, x: torch.Tensor, weights: torch.Tensor, rows: int) -> torch.Tensor:
        weights = spmd.mark_sharding(weights.to("xla"), mesh, P("other", None, None))
        x = spmd.mark_sharding(x.to("xla"), mesh, P("data", None))
        for i in range(rows):
            x = (x @ weights[i]).tanh() if i % 3 else (x @ weights[i]).sin().tanh()
        return x.sum()

    def test_finding(self, mesh: spmd.Mesh) -> None:
        shapes = (64, 512), (8, 512, 512)
        plan = spmd.plan(
            self.read, mesh, *(torch.empty(shape, device="meta") for shape in shapes), 8
        )
        (found,) = findings(plan)
        assert "rows of [8, 512, 512] are split 4 ways over 'other' and read one by one" in found
        assert "each device computes with all 8; P(None, 'other', None) splits each row" in found
        moves = [finding.move for finding in plan.findings if finding.move is not None]
        assert moves and not [move for move in moves if "('other', 'data')" in move.mark]

    @pytest.mark.parametrize(("rows", "lines"), [(8, 1), (7, 0), (1, 0)])
    def test_line(
        self, rows: int, lines: int, mesh: spmd.Mesh, capsys: pytest.CaptureFixture[str]
    ) -> None:
        x, weights = torch.randn(8, 16), torch.randn(8, 16, 16) / 4
        total = self.read(mesh, x, weights, rows)
        for i in range(rows):
            x = (x @ weights[i]).tanh() if i % 3 else (x @ weights[i]).sin().tanh()
        torch.testing.assert_close(total.cpu(), x.sum(), rtol=1e-5, atol=1e-5)
        assert (
            capsys.readouterr().err.count("read one by one: each device computes with all 8")
            == lines
        )

    def test_a_list_of_its_rows(self, mesh: spmd.Mesh, capsys: pytest.CaptureFixture[str]) -> None:
        weights = spmd.mark_sharding(torch.ones(4, 3).to("xla"), mesh, P("other", None))
        assert sum(row.sum() for row in weights).item() == 12
        assert "leave that dim whole" in capsys.readouterr().err


class TestWords:
    """The same sentence in the compile log; findings that do not undo the mark."""

    def test_the_compile_log_says_it(self, mesh: spmd.Mesh) -> None:
        q = spmd.mark_sharding(
            torch.randn(2, 1, 521, 8).to("xla"), mesh, P("data", None, "other", None)
        )
        F.scaled_dot_product_attention(q, q, q).sum().item()
        record = spmd.metrics.compiles()[-1]
        assert "attention over 'other' is computed on all 4 devices" in str(record)
        assert "test_unused_axes.py" in record.unused_axes[0]

    @pytest.mark.parametrize("check", [False, True])
    def test_the_mark_is_not_to_be_undone(self, mesh: spmd.Mesh, check: bool) -> None:
        def step(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            weights = spmd.mark_sharding(weights.to("xla"), mesh, P("other", None, None))
            x = x.to("xla")
            return spmd.scan(lambda carry, weight: ((), (x @ weight).tanh()), (), weights)[1]

        shapes = (8, 1024), (8, 1024, 1024)
        plan = spmd.plan(
            step, *(torch.empty(shape, device="meta") for shape in shapes), check_marks=check
        )
        moves = [finding.move for finding in plan.findings if finding.move is not None]
        assert findings(plan) and moves
        assert not [move for move in moves if "P(None" in move.mark]

"""Every op of torch's database in the sweep's quick form: two samples, forward and backward,
against CPU."""

import warnings

import pytest
import torch
from sweep import sweep
from sweep.expected import EXPECTED_FAILURES, IS_OF_THIS_TORCH, VERSIONS


@pytest.mark.parametrize("name", sorted(sweep.OPS))
def test_op(name: str, request: pytest.FixtureRequest) -> None:
    """Values, dtypes, shapes and gradients as on CPU."""
    if name in EXPECTED_FAILURES:
        request.applymarker(pytest.mark.xfail(reason=EXPECTED_FAILURES[name], strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of deprecated ops
        result = sweep.run_op(sweep.OPS[name])
    assert result.outcome in (sweep.LOWERED, sweep.HOST), (
        f"{result.outcome}: {result.message}{VERSIONS}"
    )


@pytest.mark.parametrize("name", ["sin", "nn.functional.dropout3d", "svd_lowrank"])
def test_wrong_results_are_told(name: str) -> None:
    """Draws that differ on CPU excuse no other numbers than theirs, and nothing where there are
    none."""
    op = sweep.OPS[name]
    sample = next(op.sample_inputs("cpu", torch.float32, requires_grad=False))
    case = sweep.Case("sample", sample, sweep._compute)
    expected = sweep._compute(op, sample, "cpu", 0)
    sweep._check(
        op,
        case,
        [result.to("xla") for result in sweep._compute(op, sample, "cpu", 1)],
        expected,
        False,
    )
    with pytest.raises(AssertionError):
        sweep._check(op, case, [(result + 100).to("xla") for result in expected], expected, False)


@pytest.mark.skipif(not IS_OF_THIS_TORCH, reason=f"another database{VERSIONS}")
def test_expected_failures_are_ops() -> None:
    """The list names only ops that the database has."""
    assert set(EXPECTED_FAILURES) <= set(sweep.OPS)

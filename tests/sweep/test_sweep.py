"""Every op of torch's database in the sweep's quick form: two samples, forward and backward, against CPU."""

import warnings

import pytest
from sweep import sweep
from sweep.expected import EXPECTED_FAILURES


@pytest.mark.parametrize("name", sorted(sweep.OPS))
def test_op(name: str, request: pytest.FixtureRequest) -> None:
    """Values, dtypes, shapes and gradients as on CPU."""
    if name in EXPECTED_FAILURES:
        request.applymarker(pytest.mark.xfail(reason=EXPECTED_FAILURES[name], strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of deprecated ops
        result = sweep.run_op(sweep.OPS[name])
    assert result.outcome in (sweep.LOWERED, sweep.HOST), f"{result.outcome}: {result.message}"


def test_expected_failures_are_ops() -> None:
    """The list names only ops that the database has."""
    assert set(EXPECTED_FAILURES) <= set(sweep.OPS)

"""A selection of `variants.py` that takes little time: what need not be compiled for every op, the
rest for some.

The errors of all ops are tried; the other forms with one sample, of every fifteenth op that has the
form. The command tries the whole.
"""

import warnings

import pytest
from sweep import sweep, variants
from sweep.expected import IS_OF_THIS_TORCH, VERSIONS
from sweep.expected_variants import EXPECTED_VARIANTS

# Which of them; others are as good.
_OFFSET, _STEP = 3, 15


def _has(form: str, name: str) -> bool:
    op = sweep.OPS[name]
    return {
        "inplace": op.inplace_variant is not None,
        "method": op.method_variant is not None,
        "out": op.supports_out,
        "error": op.error_inputs_func is not None,
        "noncontiguous": True,
    }[form]


def _selection() -> list[tuple[str, str]]:
    chosen = []
    for form in variants.FORMS:
        names = [name for name in sorted(sweep.OPS) if _has(form, name)]
        chosen += [(name, form) for name in (names if form == "error" else names[_OFFSET::_STEP])]
    return chosen


@pytest.mark.parametrize(("name", "form"), _selection())
def test_form(name: str, form: str, request: pytest.FixtureRequest) -> None:
    """Values, gradients, errors and what autograd says as on CPU."""
    if (name, form) in EXPECTED_VARIANTS:
        request.applymarker(pytest.mark.xfail(reason=EXPECTED_VARIANTS[name, form], strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of deprecated ops
        result = variants.run_form(name, form, samples=1)
    assert result.is_right, f"{result.outcome}: {result.message}{VERSIONS}"


@pytest.mark.parametrize("form", ["inplace", "out"])
def test_a_raise_is_no_result(form: str) -> None:
    """A refusal by one device alone is told, whichever it is."""
    op = sweep.OPS["sin"]
    case = next(variants.FORMS[form](op))
    expected = case.compute(op, case.sample, "cpu", 0)
    actual = case.compute(op, case.sample, "xla", 0)
    sweep._check(op, case, actual, expected, False)
    for pair in (
        (actual, [variants.Raised("RuntimeError", "no")]),
        ([variants.Raised("RuntimeError", "no")], expected),
    ):
        with pytest.raises(AssertionError):
            sweep._check(op, case, *pair, False)


@pytest.mark.skipif(not IS_OF_THIS_TORCH, reason=f"another database{VERSIONS}")
def test_expected_failures_are_ops() -> None:
    """The table names only ops and forms that there are."""
    assert {name for name, _ in EXPECTED_VARIANTS} <= set(sweep.OPS)
    assert {form for _, form in EXPECTED_VARIANTS} <= set(variants.FORMS)

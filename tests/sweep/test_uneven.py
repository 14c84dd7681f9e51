"""Every rule over dims that the devices do not divide, with poisoned padding, against the CPU; and
none is left out."""

import itertools
import warnings

import pytest
import torch
from sweep import sweep, uneven
from sweep.command import HOST, LOWERED
from sweep.expected import EXPECTED_FAILURES
from sweep.uneven_calls import ALONE, CALLS

import spmd
from spmd.core.record.lowerings import Call
from spmd.ops import RULES

# What even dims get wrong, too, stands in EXPECTED_FAILURES.
REFUSED = {
    ("aten._grouped_mm.default"): (
        "rows that the axis does not divide are an error of the partition rule"
    ),
    "aten.baddbmm.dtype": "its call is an error on even dims, too",
}
NAMES = sorted(sweep.OPS.keys() - EXPECTED_FAILURES.keys())


@pytest.mark.parametrize("name", NAMES)
def test_op(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of deprecated ops
        result = uneven.run_op(sweep.OPS[name])
    assert result.outcome in (LOWERED, HOST), f"{result.outcome}: {result.message}"


@pytest.mark.parametrize("name", CALLS)
def test_call(name: str, request: pytest.FixtureRequest) -> None:
    if name in REFUSED:
        request.applymarker(pytest.mark.xfail(reason=REFUSED[name], strict=True))
    result = uneven.run_call(name)
    assert result.outcome in (LOWERED, HOST), f"{result.outcome}: {result.message}"


@pytest.mark.long
def test_every_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule is elementwise, reads no element, or is reached by a case.

    Nothing is compiled here.
    """
    reached = set()

    def rule(call: Call) -> object:
        reached.add(str(call.overload))
        return call.foreign or RULES[call.overload]

    monkeypatch.setattr(Call, "rule", property(rule))
    results: list[object] = []
    for name in NAMES:
        op = sweep.OPS[name]
        dtype = sweep.usual_dtype(op)
        gradient = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for sample in itertools.islice(
                op.sample_inputs("cpu", dtype, requires_grad=gradient), 2
            ):
                results += sweep._compute(op, sample, "xla", 0)
        if len(results) > 200 or name == NAMES[-1]:
            spmd.get_stablehlo(
                [
                    one
                    for one in results
                    if isinstance(one, torch.Tensor) and one.device.type == "xla"
                ]
            )
            results.clear()
    needed = {
        str(overload)
        for overload, rule in RULES.items()
        # Other tests of this process register rules of their own.
        if rule.promote is None and rule.function.__module__.startswith("spmd.")
    }
    missing = sorted(needed - reached - CALLS.keys() - ALONE)
    assert not missing, f"rules without a case in uneven_calls.py: {missing}"
    assert not (CALLS.keys() | ALONE) - {str(overload) for overload in RULES}, "no rules"

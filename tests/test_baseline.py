"""Each test of the baseline is one, or is covered, and what `tests/selected.py` names are tests."""

from baseline.check import collected, faults


def test_nothing_is_lost() -> None:
    assert faults(collected()) == []

"""The guards of the tree name the faults of tests/planted.py."""

import pytest
from planted import FAULTS, LINT, unnoticed


@pytest.mark.long
def test_each_fault_is_named() -> None:
    assert [*unnoticed()] == []


def test_a_blind_guard_is_found() -> None:
    """A fault that is none goes unnoticed."""
    blind = FAULTS[0]._replace(file="spmd/core/base/dtypes.py", text="NUMBER = 1\n")
    assert blind.guard == LINT and len([*unnoticed((blind,))]) == 1

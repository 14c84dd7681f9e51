"""The quick forms of the sweeps over torch's modules, optimizers and list ops: a few inputs of each
against CPU."""

from types import ModuleType

import pytest
from sweep import foreach, modules, optimizers, schedulers
from sweep.command import ERROR, UNTRIED, WRONG
from sweep.expected import VERSIONS

TRIED: list[tuple[ModuleType, str, str, int]] = [
    *((modules, name, way, 1) for name in modules.NAMES for way in ("train", "habits")),
    *((optimizers, name, way, 2) for name in optimizers.NAMES for way in ("steps", "errors")),
    *((schedulers, name, way, 1) for name in schedulers.NAMES for way in ("SGD", "fused")),
    *((foreach, name, "float32", 4) for name in foreach.OPS),
]


def _mark(sweep: ModuleType, name: str, way: str, count: int) -> object:
    reason = sweep.EXPECTED.get((name, way))
    marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
    return pytest.param(
        sweep, name, way, count, marks=marks, id=f"{sweep.__name__.split('.')[-1]}-{name}-{way}"
    )


@pytest.mark.parametrize(("sweep", "name", "way", "count"), [_mark(*each) for each in TRIED])
def test_like_cpu(sweep: ModuleType, name: str, way: str, count: int) -> None:
    """Values, gradients, state, dtypes and classes of errors as on CPU; no program after an
    optimizer's third step."""
    result = sweep.run_named(name, way, count)
    if result.outcome == UNTRIED:
        assert sweep is schedulers, "every module, optimizer and list op has something to try"
    assert result.outcome not in (ERROR, WRONG), f"{result.outcome}: {result.message}{VERSIONS}"


def test_expected_failures_are_tried() -> None:
    """The lists name only what the databases have."""
    for sweep, names in (
        (modules, modules.NAMES),
        (optimizers, optimizers.NAMES),
        (foreach, foreach.OPS),
        (schedulers, schedulers.NAMES),
    ):
        assert {name for name, _ in sweep.EXPECTED} <= set(names)


def test_every_scheduler_is_tried() -> None:
    """torch has no other."""
    assert schedulers.all_schedulers() == set(schedulers.NAMES)

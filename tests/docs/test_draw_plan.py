"""The picture of a plan in docs/planning.md is the one that its figures give now."""

import importlib.util
from pathlib import Path

import spmd

_spec = importlib.util.spec_from_file_location(
    "draw_plan", Path(__file__).with_name("draw_plan.py")
)
assert _spec is not None and _spec.loader is not None
draw_plan = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(draw_plan)


def test_current() -> None:
    plan = spmd.Plan.from_json(draw_plan.FIGURES.read_text())
    assert plan.fits and plan.memory and len(plan.terms) > 1
    assert draw_plan.PICTURE.read_text() == draw_plan.drawn(plan), (
        "python tests/docs/draw_plan.py draws it anew"
    )

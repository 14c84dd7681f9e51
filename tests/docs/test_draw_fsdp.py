"""The picture of docs/fsdp.md is the one that its script draws, of a schedule in which units are
freed."""

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "draw_fsdp", Path(__file__).with_name("draw_fsdp.py")
)
assert _spec is not None and _spec.loader is not None
draw_fsdp = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(draw_fsdp)


def test_current() -> None:
    assert draw_fsdp.DRAWING.read_text() == draw_fsdp.fsdp(), (
        "python tests/docs/draw_fsdp.py draws it"
    )


def test_schedule() -> None:
    """Two gathers of a block and one of the root, two units at once, one reduction each."""
    events = draw_fsdp.schedule(5)
    kinds = [[event.kind for event in events if event.unit == unit] for unit in range(6)]
    assert [unit.count("gather") for unit in kinds] == [2] * 5 + [1]
    assert {unit.count("reduce") for unit in kinds} == {1}
    assert max(draw_fsdp.num_unsharded(events, slot, 5) for slot in range(20)) == 2

"""The points that packages join: without them the core runs, and its log has cause, seconds and the
user's line."""

import pytest
import torch

import spmd
from spmd.core.programs import cache, program
from spmd.core.record import op_watch
from spmd.core.record.calls import fallback
from spmd.core.run import executables, host_reads, prepare, syncs

POINTS = [
    *(
        (cache, name)
        for name in ("before_compiling", "before_making", "while_compiling", "after_compiling")
    ),
    *((executables, name) for name in ("before_run", "before_recorded_run", "on_launch")),
    (fallback, "after_fallback"),
    (host_reads, "after_read"),
    (prepare, "after_pass"),
    (syncs, "after_wait"),
    (op_watch, "after_own_op"),
]


def test_nothing_joined(monkeypatch: pytest.MonkeyPatch, mesh8: spmd.Mesh) -> None:
    torch.ones(1, device="xla")  # packages join at the first use
    for module, name in POINTS:
        assert getattr(module, name) is not None
        monkeypatch.setattr(module, name, [])
    for name, reader in vars(program.Readers()).items():
        monkeypatch.setattr(program.PROGRAM_READERS, name, reader)

    def step(length: int) -> torch.Tensor:
        x = spmd.mark_sharding(torch.ones(length, 3, device="xla"), mesh8, ("fsdp", None))
        y = (x @ torch.ones(3, 5, device="xla")).sin().sum()
        spmd.sync(wait=True)
        return y

    for length in (8, 16):
        torch.testing.assert_close(step(length).cpu(), torch.tensor(3.0).sin() * 5 * length)
    record = spmd.metrics.compiles()[-1]
    assert record.cause.startswith("another graph than before, of ") and record.seconds > 0
    assert "test_points.py" in record.line and record.flops > 0 and record.traffic == ()

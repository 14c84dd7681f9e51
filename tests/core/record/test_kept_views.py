"""Views that are kept after a barrier: what they hold, and what they do not."""

import jax
import pytest
import torch

import spmd


class TestKeptViews:
    """A view that is kept keeps its base, and nothing of the step that made it."""

    @pytest.mark.parametrize("mode", ["all", "needed"])
    def test_inputs_of_the_step_are_freed(self, mode: str) -> None:
        def live() -> int:
            return sum(array.shape == (257, 67) for array in jax.live_arrays())

        before = spmd.config.sync_on_read
        spmd.config.sync_on_read = mode
        try:
            kept = []
            for i in range(6):
                x = torch.full((257, 67), float(i)).to("xla")
                y = x * 2
                row = y.t()[3]
                y.add_(row.sum())
                kept.append(row)
                assert row[0].item() == i * 2 + 257 * i * 2
                if mode == "all":
                    spmd.sync()
            del x, y, row
            assert live() == len(kept)
        finally:
            spmd.config.sync_on_read = before

    def test_what_a_written_base_held_is_freed(self) -> None:
        def live() -> int:
            return sum(array.shape == (263, 61) for array in jax.live_arrays())

        x = torch.ones(263, 61).to("xla")
        y = x * 2
        y.copy_(torch.zeros(263, 61))
        spmd.sync()
        del x
        assert live() == 0 and y.sum().item() == 0

    def test_in_turns_that_nobody_syncs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def live() -> int:
            return sum(array.shape == (269, 59) for array in jax.live_arrays())

        # In steps as long as other tests' no loop is looked for.
        monkeypatch.setattr(spmd.core.base.pace.pace, "longest", 0)
        spmd.sync()
        kept = []
        x = torch.zeros(269, 59).to("xla")
        iterations = spmd.metrics.counter("loop_iterations")
        for _ in range(300):
            x = (x + 1) * 1
            for _ in range(20):
                x = x * 1
            kept = [*kept[-2:], x[5]]
            assert kept[-1].shape == (59,)
            kept[-1] + 1
        assert spmd.metrics.counter("loop_iterations") > iterations
        spmd.core.base.in_flight.wait()  # a program that runs still holds what it makes
        assert live() < 12
        assert kept[-1][0].item() == 300

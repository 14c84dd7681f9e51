"""Earlier runs of a process decide nothing about a compiled function: it is recorded and replayed
all the same."""

import torch
from torch import Tensor

import spmd
from spmd.core.base import counters
from spmd.core.base.pace import pace


def known(mask: Tensor, length: int) -> Tensor:
    """Returns the mask with zeros up to a length."""
    return torch.nn.functional.pad(mask, (0, length - mask.shape[1]))


class TestHistory:
    """A recorded call after lazy calls of the same code."""

    def test_a_list_that_has_grown_before(self) -> None:
        """Lazily the host computes lists of integers that grow; a recorded call has them in its
        program."""
        before = counters.counter("host_ops")
        mask = torch.ones(2, 3, dtype=torch.bool, device="xla")
        weight = torch.randn(16, device="xla")
        for _ in range(10):
            mask = torch.cat([mask, mask.new_ones(2, 1)], dim=1)
            (known(mask, 20).sum(1)[:, None] * weight).sum().item()
        assert counters.counter("host_ops") > before
        counts = torch.ones(2, 4, dtype=torch.long, device="xla")

        def step(x: Tensor) -> Tensor:
            counts.add_(known(counts, 20)[:, :4])
            return (known(counts, 20).sum(1)[:, None] * x).sum()

        compiled = spmd.compile(step)
        found = [compiled(torch.ones(1, device="xla")).item() for _ in range(5)]
        assert found == [16, 32, 64, 128, 256]
        assert (compiled.num_recorded, compiled.num_replayed) == (1, 4), compiled.explain()

    def test_a_loop_without_syncs_before(self) -> None:
        """The iterations of such a loop run as programs of their own; those inside a recorded call
        do not."""
        x, weight = torch.randn(8, 8, device="xla"), torch.randn(8, 8, device="xla")

        def layers(x: Tensor) -> Tensor:
            for _ in range(6):
                x = torch.tanh(x @ weight) + torch.sigmoid(x) * 0.5
            return x

        def repeated(x: Tensor) -> Tensor:
            for _ in range(5):
                x = layers(x)
            return x

        before = counters.counter("loop_iterations")
        y = x
        for _ in range(100):
            y = layers(y)
        y.sum().item()
        assert counters.counter("loop_iterations") > before and pace.early
        expected = repeated(x).cpu()
        compiled, before = spmd.compile(repeated), counters.counter("loop_iterations")
        for _ in range(3):
            runs = counters.counter("runs")
            torch.testing.assert_close(compiled(x).cpu(), expected)
        assert counters.counter("loop_iterations") == before
        assert counters.counter("runs") - runs == 1
        assert compiled.num_replayed == 2, compiled.explain()

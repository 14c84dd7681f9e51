"""Factories whose numbers torch rounds in ways of its own, against CPU."""

import pytest
import torch
from support import Batch

import spmd


class TestIntegers:
    """torch drops the fractions of the ends first, counts linspace from both, and drops those of the results."""

    ENDS = ((0, 9), (50, 1), (4.3, -3.0), (-2.9, 7.9), (1, 1))

    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
    def test_linspace(self, dtype: torch.dtype) -> None:
        ends = [(start, end) for start, end in self.ENDS if dtype.is_signed or min(start, end) >= 0]
        for steps in (0, 1, 2, 7, 50):
            for start, end in ends:
                expected = torch.linspace(start, end, steps, dtype=dtype)
                first, last = torch.tensor(start).to("xla"), torch.tensor(end).to("xla")
                for made in (
                    torch.linspace(start, end, steps, dtype=dtype, device="xla"),
                    torch.linspace(first, last, steps, dtype=dtype, device="xla"),
                    torch.linspace(first, end, steps, dtype=dtype, device="xla"),
                    torch.linspace(start, last, steps, dtype=dtype, device="xla"),
                ):
                    assert torch.equal(made.cpu(), expected), (start, end, steps)

    def test_arange(self) -> None:
        for arguments in ((2.1, -2.9, -1.0), (-2.9, 3.1, 1), (0, 10, 3)):
            expected = torch.arange(*arguments, dtype=torch.int64)
            assert torch.equal(torch.arange(*arguments, dtype=torch.int64, device="xla").cpu(), expected)

    @pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64, torch.bfloat16], ids=str)
    def test_logspace(self, dtype: torch.dtype) -> None:
        for arguments in ((0, 1.2, 2), (1, 3, 5), (0, 4, 9, 2.0)):
            expected = torch.logspace(*arguments, dtype=dtype)
            assert torch.equal(torch.logspace(*arguments, dtype=dtype, device="xla").cpu(), expected)

    def test_partitioned(self, mesh8: spmd.Mesh) -> None:
        made = spmd.mark_sharding(torch.linspace(4.3, -3, 48, dtype=torch.int64, device="xla"), mesh8, ("fsdp",))
        assert torch.equal(made.cpu(), torch.linspace(4.3, -3, 48, dtype=torch.int64))


class TestFloats:
    """Ends may be tensors."""

    def test_linspace(self) -> None:
        batch = Batch()
        for steps in (1, 2, 9):

            def run(start: torch.Tensor, end: torch.Tensor, steps: int = steps) -> torch.Tensor:
                return torch.linspace(start, end, steps, device=start.device)

            batch.case(f"{steps} steps", run, torch.tensor(0.3), torch.tensor(-7.1), gradient=False)
        batch.check()


class TestHostMade:
    """Few numbers that torch computes with views or kernels of its own."""

    def test_like_cpu(self) -> None:
        for make in (
            lambda **place: torch.fft.fftfreq(7, 0.5, **place), lambda **place: torch.fft.fftfreq(6, **place),
            lambda **place: torch.fft.rfftfreq(7, **place), lambda **place: torch.kaiser_window(5, **place),
            lambda **place: torch.kaiser_window(5, False, **place),
            lambda **place: torch.kaiser_window(5, True, 3.0, **place),
        ):  # fmt: skip
            assert torch.equal(make(device="xla").cpu(), make())
        assert torch.ops.aten.range(0, 3, device="xla").tolist() == [0.0, 1.0, 2.0, 3.0]

    def test_of_tensors(self) -> None:
        x, n = torch.tensor(2.5).to("xla"), torch.tensor(3).to("xla")
        assert torch.tensor([x, n]).tolist() == [2.5, 3.0]
        made = torch.tensor([[x, 1.0], [2, n]], device="xla")
        assert made.device.type == "xla" and made.tolist() == [[2.5, 1.0], [2.0, 3.0]]

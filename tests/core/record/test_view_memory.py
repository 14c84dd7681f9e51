"""Views that see memory otherwise than row by row: other orders, other dtypes, `as_strided`."""

import pytest
import torch
from support import check


class TestMemoryFormats:
    """A base that is not row-major is viewed and written by its own memory order."""

    def test_channels_last(self) -> None:
        def program(device: str) -> list[torch.Tensor]:
            base = (
                torch.arange(48.0)
                .view(2, 3, 2, 4)
                .to(device)
                .contiguous(memory_format=torch.channels_last)
            )
            view = base.permute(0, 2, 3, 1)
            flat = view.view(-1)
            flat[3:9].add_(100)
            strided = base.as_strided((4, 3), (3, 1), 2)
            return [base, view, flat, strided]

        for actual, expected in zip(program("xla"), program("cpu"), strict=True):
            check(actual, expected)
            assert actual.stride() == expected.stride()

    def test_dtype_views(self) -> None:
        base = torch.tensor([1.0, -2.0, 0.5])
        assert base.to("xla").view(torch.int32).tolist() == base.view(torch.int32).tolist()
        moved = base.to("xla")
        moved.view(torch.int32)[0] = 0
        assert moved.tolist() == [0.0, -2.0, 0.5]
        pairs = torch.arange(4, dtype=torch.int32)
        assert pairs.to("xla").view(torch.int64).tolist() == pairs.view(torch.int64).tolist()
        assert pairs.to("xla").view(torch.int16).tolist() == pairs.view(torch.int16).tolist()

    def test_dtype_views_in_a_row(self) -> None:
        def program(device: str) -> list[torch.Tensor]:
            base = torch.arange(6).to(device)
            base.view(torch.int32).add_(3)
            base.view(torch.int16)[::3].mul_(-2)
            z = torch.complex(torch.arange(2.0), -torch.arange(2.0)).to(device)
            z.view(torch.float32)[1:].mul_(2)
            flags = torch.tensor([True, False, True]).to(device)
            flags.view(torch.uint8)[1] = 1
            nothing = torch.zeros(0, 4, dtype=torch.int64).to(device)
            none = [nothing.view(dtype) for dtype in (torch.int16, torch.float32, torch.complex128)]
            return [
                base,
                base.view(torch.uint8),
                z,
                z.view(torch.float64),
                flags,
                *(view + 0 for view in none),
            ]

        for actual, expected in zip(program("xla"), program("cpu"), strict=True):
            check(actual, expected)


class TestAsStridedStaysInMemory:
    """as_strided reaches every element of the memory behind a tensor, and none beyond it."""

    @pytest.mark.parametrize(
        ("size", "stride", "offset"), [((2, 2), (1, 20), 0), ((2, 2), (1, 2), 13), ((17,), (1,), 0)]
    )
    def test_beyond_is_refused(self, size, stride, offset) -> None:
        for device in ("cpu", "xla"):
            x = torch.ones(4, 4, device=device)
            with pytest.raises(RuntimeError, match="are out of bounds for storage of size 64"):
                x.as_strided(size, stride, offset)
            with pytest.raises(RuntimeError, match="are out of bounds for storage of size 64"):
                x.as_strided_scatter(torch.ones(size, device=device), size, stride, offset)

    def test_scatter_between_the_elements_of_a_view(self) -> None:
        def run(device: str) -> torch.Tensor:
            x = torch.arange(12.0, device=device).view(6, 2)[:, 1]
            return x.as_strided_scatter(-torch.ones(2, 2, device=device), (2, 2), (3, 1), 2)

        check(run("xla"), run("cpu"))


class TestNothing:
    """A view without elements is read like every other."""

    def test_real_part(self) -> None:
        for shape in ((0,), (0, 3), (3, 0)):
            expected = torch.ones(shape, dtype=torch.complex64).real
            read = torch.ones(shape, dtype=torch.complex64, device="xla").real.cpu()
            assert (read.shape, read.dtype) == (expected.shape, expected.dtype)

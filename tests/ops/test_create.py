"""Factories whose numbers torch rounds in ways of its own, against CPU."""

from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from support import Batch, check

import spmd


class TestDevices:
    """A factory without a tensor among its arguments makes one where it says."""

    @pytest.mark.parametrize(
        "make",
        [
            lambda device: torch.eye(3, device=device),
            lambda device: torch.eye(2, 3, device=device),
            lambda device: torch.tril_indices(3, 3, device=device),
            lambda device: torch.hann_window(4, device=device),
            lambda device: torch.logspace(0, 1, 3, device=device),
            lambda device: torch.randperm(4, device=device) * 0,
        ],
    )
    def test_device(self, make: Callable[[str], torch.Tensor]) -> None:
        assert make("xla").device.type == "xla"
        check(make("xla"), make("cpu"))


class TestIntegers:
    """torch drops the fractions of the ends first, counts linspace from both, and drops those of
    the results."""

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
            assert torch.equal(
                torch.arange(*arguments, dtype=torch.int64, device="xla").cpu(), expected
            )

    @pytest.mark.parametrize(
        "dtype", [torch.int64, torch.float32, torch.float64, torch.bfloat16], ids=str
    )
    def test_logspace(self, dtype: torch.dtype) -> None:
        for arguments in ((0, 1.2, 2), (1, 3, 5), (0, 4, 9, 2.0)):
            expected = torch.logspace(*arguments, dtype=dtype)
            assert torch.equal(
                torch.logspace(*arguments, dtype=dtype, device="xla").cpu(), expected
            )

    def test_partitioned(self, mesh8: spmd.Mesh) -> None:
        made = spmd.mark_sharding(
            torch.linspace(4.3, -3, 48, dtype=torch.int64, device="xla"), mesh8, ("fsdp",)
        )
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
            lambda **place: torch.fft.fftfreq(7, 0.5, **place),
            lambda **place: torch.fft.fftfreq(6, **place),
            lambda **place: torch.fft.rfftfreq(7, **place),
            lambda **place: torch.kaiser_window(5, **place),
            lambda **place: torch.kaiser_window(5, False, **place),
            lambda **place: torch.kaiser_window(5, True, 3.0, **place),
        ):
            assert torch.equal(make(device="xla").cpu(), make())
        assert torch.ops.aten.range(0, 3, device="xla").tolist() == [0.0, 1.0, 2.0, 3.0]

    def test_of_tensors(self) -> None:
        x, n = torch.tensor(2.5).to("xla"), torch.tensor(3).to("xla")
        assert torch.tensor([x, n]).tolist() == [2.5, 3.0]
        made = torch.tensor([[x, 1.0], [2, n]], device="xla")
        assert made.device.type == "xla" and made.tolist() == [[2.5, 1.0], [2.0, 3.0]]


class TestNumbers:
    """Python numbers where torch takes them: complex ends, unsigned numbers past the signed ones, a
    number to copy."""

    MOST = 2**64 - 1

    def test_complex_linspace(self) -> None:
        for ends in ((0, 1j), (1 - 1j, 2), (0.5j, 0.5j)):
            made, expected = (torch.linspace(*ends, 3, device=device) for device in ("xla", "cpu"))
            check(made, expected)
        with pytest.raises(RuntimeError, match="can't be safely cast"):
            torch.linspace(0, 1j, 3, dtype=torch.float32, device="xla")

    def test_unsigned(self) -> None:
        x = torch.tensor([2**63 + 5, 1, self.MOST], dtype=torch.uint64)
        for function in (
            lambda x: x == 2**63 + 5,
            lambda x: x != self.MOST,
            lambda x: x.clone().fill_(self.MOST),
            lambda x: torch.full((2,), 2**63, dtype=torch.uint64, device=x.device),
            lambda x: x.float() + 2**63,
            lambda x: x.float() > 2**63 + 1,
            lambda x: torch.ones_like(x).float().fill_(2**63),
        ):
            check(function(x.to("xla")), function(x))
        assert x.to("xla")[2].item() == self.MOST

    def test_copied(self) -> None:
        for number in (1.5, 3, True):
            for dtype in (torch.float64, torch.int32, torch.bool):
                made, expected = (
                    torch.zeros(3, 2, dtype=dtype, device=device)[:, 1].copy_(number)
                    for device in ("xla", "cpu")
                )
                check(made, expected)


class TestWholeNumbers:
    """Floats as integers: narrow and unsigned dtypes take the low bits, as torch's conversions do
    on every device; past int32 and int64 stands their nearest number, as on GPUs. CPUs differ from
    each other there."""

    def test_wrapped(self) -> None:
        x = torch.tensor([-1.5, -0.5, 300.0, -200.7, 70000.2, 254.9])
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64):
            # from integers, which is exact everywhere
            whole = torch.tensor([-1, 0, 300, -200, 70000, 254]).to(dtype)
            for given in (x, x.double()):
                check(given.to("xla").to(dtype), whole)

    def test_nearest(self) -> None:
        x = torch.tensor([1e30, -1e30, torch.inf, -torch.inf, torch.nan]).to("xla")
        for dtype in (torch.int32, torch.int64):
            limits = torch.iinfo(dtype)
            assert x.to(dtype).tolist() == [limits.max, limits.min, limits.max, limits.min, 0]


class TestCopiesOfViews:
    """The `_copy` form of every view, which `torch.func.functionalize` makes of it."""

    VIEWS: ClassVar[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
        "slice": lambda x: x[1:, ::2], "select": lambda x: x[1],
        "split": lambda x: torch.cat(x.split(2), 1), "unbind": lambda x: torch.stack(x.unbind(1)),
        "chunk": lambda x: x.chunk(3, 1)[2], "t": lambda x: x.t(),
        "sizes": lambda x: x.split([1, 3])[1], "permute": lambda x: x.permute(1, 0),
        "view": lambda x: x.view(-1), "expand": lambda x: x[:, None].expand(4, 2, 6),
        "squeeze": lambda x: x[:1].squeeze(), "unsqueeze": lambda x: x.unsqueeze(1),
        "diagonal": lambda x: x.diagonal(1), "detach": lambda x: x.detach(),
        "unfold": lambda x: x.unfold(1, 3, 2),
        "as_strided": lambda x: x.as_strided((2, 2), (1, 6), 3),
        "real": lambda x: torch.view_as_real(x * 1j),
        "complex": lambda x: torch.view_as_complex(x.view(4, 3, 2)),
        "transpose": lambda x: x.transpose(0, 1), "reshape": lambda x: x.t().reshape(3, 8),
        "alias": lambda x: x[...], "bytes": lambda x: x.view(torch.int32),
        "movedim": lambda x: x.movedim(0, 1),
        "conj": lambda x: (x * 1j).conj() * 1,
    }  # fmt: skip

    # Copies, and what has one place in memory twice.
    NOT_WRITTEN = ("split", "unbind", "reshape", "conj", "real", "detach", "expand", "unfold")

    def test_functionalize(self) -> None:
        batch, x = Batch(), torch.randn(4, 6)
        for name, view in self.VIEWS.items():
            whole = torch.func.functionalize(
                lambda x, view=view: view(x).clone(), remove="mutations_and_views"
            )
            batch.case(name, whole, x, gradient=False)

            def write(x, view=view):
                x = x.clone()
                view(x).mul_(2)
                return x

            if name not in self.NOT_WRITTEN:
                batch.case(f"{name}, written", torch.func.functionalize(write), x, gradient=False)
        batch.check()

    @pytest.mark.filterwarnings("ignore:_aminmax is deprecated")  # torch 2.15 says so
    def test_by_name(self) -> None:
        batch, x = Batch(), torch.randn(4, 6)
        aten = torch.ops.aten
        for name, function in {
            "slice": lambda x: aten.slice_copy.Tensor(x, 1, 1, 5, 2),
            "split": lambda x: aten.split_copy.Tensor(x, 3, 1),
            "detach": lambda x: aten.detach_copy(x),
            "_reshape": lambda x: aten._reshape_copy(x, [3, 8]),
            "_lazy_clone": lambda x: aten._lazy_clone(x),
            "_reshape_alias": lambda x: aten._reshape_alias_copy(x, [6, 4], [4, 1]),
            "_aminmax": lambda x: [*aten._aminmax(x), *aten._aminmax.dim(x, 1, True)],
            "select": lambda x: aten.select_copy.int(x, 1, -1),
            "_conj": lambda x: aten._conj_copy(x * 1j),
            "_neg_view": lambda x: aten._neg_view_copy(x),
            "lift_fresh": lambda x: aten.lift_fresh_copy(x),
        }.items():
            batch.case(name, function, x, gradient=False)
        batch.check()
        out = torch.empty(0, device="xla")
        assert aten.slice_copy.Tensor_out(x.to("xla"), 0, 1, 3, out=out) is out
        check(out, x[1:3])


class TestBytes:
    """The same bytes as another dtype, the smallest numbers and NaN's bits among them."""

    @pytest.mark.parametrize(
        "dtype", [torch.complex64, torch.complex128, torch.float32, torch.int16], ids=str
    )
    def test_seen_and_written(self, dtype: torch.dtype) -> None:
        x = torch.randint(0, 256, (3, 32), dtype=torch.uint8)
        x[0] = 0
        x[0, ::8] = 1
        for device in ("cpu", "xla"):
            y = x.clone().to(device)
            view = y.view(dtype)
            assert torch.equal(view.view(torch.uint8).cpu(), x)
            view[1].copy_(view[0].clone())
            assert torch.equal(y.cpu()[1], x[0])
        assert torch.equal(x.to("xla").view(dtype).cpu().view(torch.uint8), x)

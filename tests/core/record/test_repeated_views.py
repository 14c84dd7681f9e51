"""Views that show memory more than once, and writes through them, against torch on CPU."""

import pytest
import torch
from support import Batch, check

import spmd


def rows_of_an_expanded_row(x, v):
    y = x * 1
    wide = y[0].expand(3, 4)
    wide[0].mul_(v[0])
    wide[2, 1:].add_(v[1, :3])
    wide.narrow(0, 1, 1).squeeze(0)[::2].sub_(v[2, :2])
    return y * wide.sum(0)


def windows(x, v):
    y = (x * 1).view(-1)
    overlapping = y.unfold(0, 3, 2)
    overlapping[0].mul_(v[0, :3])
    overlapping[:, 2][::2].add_(v[:, 0])
    overlapping.t()[1, 3].mul_(v[3, 3])
    return y * y


def strided_windows(x, v):
    y = x * 1
    overlapping = y.as_strided((5, 4), (3, 2), 1)
    overlapping[1].mul_(v[1])
    overlapping[3:, 1:3].select(1, 1).add_(v[0, :2])
    overlapping.transpose(0, 1)[2].copy_(v[:5, 2])
    return y * y + overlapping.sum()


def windows_of_columns(x, v):
    y = x * 1
    overlapping = y.t().unfold(1, 4, 2).unfold(0, 2, 1)
    overlapping[1, 1, :, 1].mul_(v[0])
    overlapping[2, 0].add_(v[:4, :2])
    return y * y


def broadcast_and_filled(x, v):
    y = x * 1
    wide = torch.broadcast_to(y[:, :1], (8, 3))
    wide[:, 2].copy_(v[:, 1])
    y.as_strided((2, 3), (1, 1), 5)[1].fill_(0.5)
    return y * wide.sum(1, keepdim=True)


def marked(x, v):
    y = x * 1
    wide = y.t()[0].expand(2, 8)
    if x.device.type == "xla":
        mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
        spmd.mark_sharding(wide, mesh, (None, "fsdp"))
        spmd.mark_sharding(y, mesh, ("fsdp", None))
    wide[0].mul_(v[:, 0])
    return wide[1] * y.sum(1)


REPEATED = [
    rows_of_an_expanded_row,
    windows,
    strided_windows,
    windows_of_columns,
    broadcast_and_filled,
    marked,
]


class TestRepeatedMemory:
    """A write into a part of a view that shows memory more than once reaches all that show it."""

    @pytest.mark.parametrize("axis", [None, "fsdp"], ids=["whole", "sharded"])
    def test_values_and_gradients(self, mesh8: spmd.Mesh, axis: str | None) -> None:
        batch = Batch(mesh=mesh8 if axis else None, axis=axis)
        for program in REPEATED:
            batch.case(program.__name__, program, torch.randn(8, 4), torch.randn(8, 4))
        batch.check()

    def test_every_view_sees_it(self) -> None:
        def program(device: str) -> list[torch.Tensor]:
            base = torch.zeros(6).to(device)
            wide, overlapping = base.expand(2, 6), base.unfold(0, 3, 1)
            wide[0].fill_(1)
            overlapping[1].copy_(torch.tensor([2.0, 3.0, 4.0]))
            before = overlapping.clone()
            overlapping[2:].select(1, 1)[0] = 9
            torch._foreach_add_([wide[1, :2], overlapping[3]], 10)
            torch.mul(overlapping[0], 2, out=wide[0][3:])
            overlapping[1:].fill_(-1)
            wide.view(2, 3, 2)[:, 1].zero_()
            return [base, wide, overlapping, before]

        for actual, expected in zip(program("xla"), program("cpu"), strict=True):
            check(actual, expected)

    def test_shown_otherwise_than_stored(self) -> None:
        """Parts of complex numbers, conjugates, negatives and other dtypes, by their places in
        memory."""

        def program(device: str) -> list[torch.Tensor]:
            z = torch.complex(torch.arange(6.0), torch.arange(6.0) + 10).to(device)
            z.expand(2, 6).imag[0].mul_(3)
            z.expand(2, 6).conj()[0, 1:3].fill_(1 + 2j)
            z.conj().as_strided((2,), (2,), 1).add_(5j)
            torch.view_as_real(z).as_strided((2, 2), (3, 1), 1)[1].neg_()
            i = torch.arange(5).to(device)
            i.view(torch.int32).unfold(0, 4, 2)[1].fill_(7)
            i[:4].view(torch.int16).as_strided((2, 2), (5, 0), 3)[:, 0].add_(2)
            return [
                z,
                z.conj().as_strided((2,), (3,), 1).resolve_conj(),
                i,
                i.view(torch.int16).as_strided((3,), (6,)),
            ]

        for actual, expected in zip(program("xla"), program("cpu"), strict=True):
            check(actual, expected)

"""Views and writes through them, values and gradients, against torch on CPU."""

from collections.abc import Callable

import pytest
import torch
from support import Batch, check

import spmd

Program = Callable[..., torch.Tensor]


def slice_rows(x, v):
    y = x * 1
    y[2:5] = v[:3] * 2
    return y


def slice_add(x, v):
    y = x * 1
    y[1:4].add_(v[1:4]).mul_(3)
    return y * x


def slice_columns(x, v):
    y = x * 1
    y[:, 1:3].mul_(v[:, 1:3])
    return y.sin()


def strided_slice(x, v):
    y = x * 1
    y[::2].mul_(v[1::2])
    y[1::3, ::2] = 7
    return y * y


def transposed(x, v):
    y = x * 1
    y.t().mul_(v.t())
    return y * x


def transposed_row(x, v):
    y = x * 1
    y.t()[1].mul_(v[:, 0])
    return y * y


def selected(x, v):
    y = x * 1
    y[3].mul_(v[0])
    y[-1] = v[2]
    return y * y


def selected_twice(x, v):
    y = x * 1
    y[3][2].mul_(v[0, 0])
    return y * y


def diagonal(x, v):
    y = x * 1
    y.diagonal().mul_(v[:4, 0])
    y.diagonal(-1).add_(v[0, 1])
    y.diagonal(1)[1:].mul_(v[0, 2])
    return y * y


def diagonal_of_three(x, v):
    y = (x * 1).view(2, 4, 4)
    y.diagonal(0, 1, 2).mul_(v[:2])
    y.diagonal(1, -1, 0).add_(v[:4, :1])
    return y * y


def unsqueezed(x, v):
    y = x * 1
    y.unsqueeze(1)[:, 0].mul_(v)
    y.unsqueeze(-1).squeeze(-1)[0] = v[5]
    return y * y


def chained(x, v):
    y = x * 1
    y[1:7].t()[1:3][:, ::2].view_as(v[:3, :2].t().contiguous()).mul_(v[:3, :2].t())
    return y * y


def reshaped(x, v):
    y = x * 1
    y.view(4, 8)[1].mul_(v.reshape(-1)[:8])
    y.view(-1)[5:9] += 1
    y.flatten().unflatten(0, (2, 16))[:, 3].mul_(2)
    return y * y


def permuted(x, v):
    y = (x * 1).view(2, 4, 4)
    y.permute(2, 0, 1)[1].mul_(v[:2])
    y.movedim(0, -1)[0, 0] = v[0, :2]
    return y * y


def expanded(x, v):
    y = x * 1
    wide = y[:1].expand(8, 4)
    y[:1].mul_(v[:1])
    return wide * x + y


def expanded_dim(x, v):
    return (x[:, None].expand(8, 3, 4) * v[:, None]).sum(1) * x


def split_parts(x, v):
    y = x * 1
    first, second, third = y.split(3)
    return torch.cat([third * v[6:], second, first]) * y


def split_sizes(x, v):
    y = x * 1
    first, second = y.split_with_sizes([1, 3], dim=1)
    return torch.cat([second * first, y], 1) * v[:, :1]


def unbind_parts(x, v):
    y = x * 1
    columns = y.unbind(1)
    return columns[0] * columns[1] + columns[3]


def chunk_parts(x, v):
    y = x * 1
    first, second, third = y.chunk(3, dim=0)
    return torch.cat([first, second * v[:3], third])


def as_strided_read(x, v):
    return x.as_strided((4, 3), (5, 2), 1) * v[:4, :3]


def as_strided_write(x, v):
    y = x * 1
    y.as_strided((3, 2), (8, 2), 1).mul_(v[:3, :2])
    return y * y


def as_strided_overlap(x, v):
    return x.as_strided((6, 4), (2, 3)) * v[:6]


def two_views_of_one_base(x, v):
    y = x * 1
    rows, columns = y[1:6], y.t()[1:3]
    rows.mul_(v[:5])
    columns.add_(v[:, :2].t())
    rows.mul_(2)
    return rows.sum(0) + columns.sum(1).sum() + y


def write_after_read(x, v):
    y = x * 1
    view = y[2:4]
    before = view + 1
    y.mul_(v)
    after = view + 1
    view.add_(3)
    return torch.cat([before, after, view, y])


def read_before_and_after_the_base_changes(x, v):
    y = x * 1
    row = y[0]
    kept = row.clone()
    y[0] = v[1]
    return kept * row


def view_of_intermediate_in_function(x, v):
    y = torch.zeros_like(x)
    for row in range(8):
        y[row] = x[row] * v[row] + (y[row - 1] if row else 0)
    return y


def write_a_reduction(x, v):
    y = torch.zeros(8, 4, device=x.device)
    y[:, 0] = x.sum(1)
    y[0, :] += v.sum(0)
    return y * x


def masked_and_indexed(x, v):
    y = x * 1
    y[y > 0] = 2.5
    y[torch.tensor([0, 2], device=x.device)] = v[:2]
    return y * x


def narrow_and_select(x, v):
    y = x * 1
    y.narrow(1, 1, 2).select(0, 2).copy_(v[0, :2])
    return y * x


def fill_views(x, v):
    y = x * 1
    y[1].zero_()
    y[:, 2].fill_(3)
    y[4:6, :2] = 0
    return y * v


def copy_between_views(x, v):
    y = x * 1
    y[0:2].copy_(y[4:6])
    y.t()[0].copy_(v[:, 3])
    return y * x


def overlapping_shift(x, v):
    y = x * 1
    y[1:] = y[:-1].clone() * v[1:]
    return y


def real_and_imaginary(x, v):
    z = torch.view_as_complex((x * 1).view(8, 2, 2))
    torch.view_as_real(z)[..., 0].mul_(v[:, :2])
    return torch.view_as_real(z * z)


WRITES = [
    slice_rows, slice_add, slice_columns, strided_slice, transposed, transposed_row, selected,
    selected_twice, diagonal, diagonal_of_three, unsqueezed, chained, reshaped, permuted, expanded,
    expanded_dim, split_parts, split_sizes, unbind_parts, chunk_parts, as_strided_read,
    as_strided_write, as_strided_overlap, two_views_of_one_base, write_after_read,
    read_before_and_after_the_base_changes, view_of_intermediate_in_function, write_a_reduction,
    masked_and_indexed, narrow_and_select, fill_views, copy_between_views, overlapping_shift,
    real_and_imaginary,
]  # fmt: skip


class TestGradients:
    """Gradients through in-place writes on slices, transposed, selected and other views equal
    torch's."""

    @pytest.mark.parametrize("axis", [None, "fsdp"], ids=["whole", "sharded"])
    def test_writes_through_views(self, mesh8: spmd.Mesh, axis: str | None) -> None:
        batch = Batch(mesh=mesh8 if axis else None, axis=axis)
        for program in WRITES:
            batch.case(program.__name__, program, torch.randn(8, 4), torch.randn(8, 4))
        batch.check()

    def test_across_a_barrier(self) -> None:
        """A view taken before a barrier reads and writes its base after it; the graph of autograd
        goes on."""

        def program(
            x: torch.Tensor, barrier: Callable[[], None]
        ) -> tuple[torch.Tensor, torch.Tensor]:
            leaf = x.clone().requires_grad_()
            y = leaf * 1
            row, columns = y[1], y.t()[2:]
            barrier()
            row.mul_(2)
            barrier()
            columns.mul_(y.t()[:2] * 1)
            barrier()
            y[0].add_(row)
            barrier()
            (y * y).sum().backward()
            barrier()
            return y, leaf.grad

        x = torch.randn(4, 4)
        for actual, expected in zip(
            program(x.to("xla"), spmd.sync), program(x, lambda: None), strict=True
        ):
            check(actual, expected)

    def test_torch_says_no_where_it_says_no_on_cpu(self) -> None:
        for device in ("cpu", "xla"):
            leaf = torch.zeros(3, device=device, requires_grad=True)
            with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
                leaf[1:].add_(1)
            with pytest.raises(
                RuntimeError, match=r"Output 0 of Unbind.* is a view and is being modified inplace"
            ):
                (leaf * 1).unbind()[0].add_(1)
            z = leaf * 2
            squared = z * z
            z.add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                squared.sum().backward()


class TestAliasing:
    """A write through any alias is seen through every other one."""

    def run(self, program: Callable[[str], list[torch.Tensor]]) -> None:
        for actual, expected in zip(program("xla"), program("cpu"), strict=True):
            check(actual, expected)

    def test_two_views_of_one_base(self) -> None:
        def program(device: str) -> list[torch.Tensor]:
            base = torch.arange(12.0).to(device).view(3, 4)
            row, column, everything = base[1], base[:, 1], base.view(-1)
            row.add_(10)
            column.mul_(2)
            everything[5] = -1
            return [base, row, column, everything]

        self.run(program)

    def test_data_and_detach_share(self) -> None:
        def program(device: str) -> list[torch.Tensor]:
            leaf = torch.ones(4, device=device, requires_grad=True)
            detached, data = leaf.detach(), leaf.data
            data.mul_(3)
            detached[1] = 7
            with torch.no_grad():
                leaf.add_(1)
            return [leaf, detached, data]

        self.run(program)

    def test_setting_data(self) -> None:
        def program(device: str) -> list[torch.Tensor]:
            leaf = torch.ones(4, device=device, requires_grad=True)
            other = torch.arange(4.0, device=device)
            leaf.data = other
            other.add_(1)
            leaf.data[0] = 9
            (leaf * leaf).sum().backward()
            return [leaf, other, leaf.grad]

        self.run(program)

    def test_copy_from_cpu_into_a_view(self) -> None:
        def program(device: str) -> list[torch.Tensor]:
            base = torch.zeros(3, 4, device=device)
            base.t()[1].copy_(torch.tensor([1.0, 2.0, 3.0]))
            base[0].copy_(torch.arange(4))  # another dtype
            base[1:].copy_(torch.tensor(5.0))  # broadcast
            base[:, ::2] = torch.full((3, 2), 8.0)
            return [base]

        self.run(program)

    def test_copy_from_cpu_takes_a_snapshot(self) -> None:
        source = torch.ones(3)
        target = torch.zeros(3, device="xla").copy_(source)
        moved = source.to("xla")
        source.zero_()
        assert target.tolist() == moved.tolist() == [1, 1, 1]

    def test_writing_a_view_into_its_own_base(self) -> None:
        def program(device: str) -> list[torch.Tensor]:
            base = torch.arange(6.0, device=device).view(2, 3)
            base += base[0].clone()
            base[1] += base.sum()
            base.t().copy_(base.t() * 2)
            base[0].add_(base[1])
            return [base]

        self.run(program)

    def test_reading_views_in_host_copies(self) -> None:
        def program(device: str) -> list[torch.Tensor]:
            base = torch.arange(24.0, device=device).view(2, 3, 4)
            return [base, base[1], base[:, 1], base[..., 2], base.transpose(0, 2), base[0, ::2, 1:]]

        self.run(program)

    def test_views_keep_torchs_strides(self) -> None:
        def shapes(device: str) -> list[tuple[object, ...]]:
            base = torch.zeros(2, 3, 4, device=device)
            views = [
                base.mT,
                base[1],
                base[:, ::2],
                base.diagonal(),
                base.expand(5, 2, 3, 4),
                base[..., None],
            ]
            views += [
                base.permute(2, 0, 1) * 2,
                torch.empty_like(base.mT),
                base.mT.clone(),
                base.mT.contiguous(),
            ]
            return [
                (view.shape, view.stride(), view.storage_offset(), view.is_contiguous())
                for view in views
            ]

        assert shapes("xla") == shapes("cpu")

    def test_is_base(self) -> None:
        base = torch.zeros(4, device="xla")
        assert base[1:]._base is base and base[1:]._is_view()

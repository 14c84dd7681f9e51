"""Living views of a tensor that changes its shape in place, written and differentiated afterwards,
against the CPU."""

from collections.abc import Callable

import pytest
import torch
from support import DEVICE, check

Program = Callable[[torch.Tensor], list[torch.Tensor]]

# In-place ops that change the shape, or only the strides, of a tensor of shape [4, 4].
CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "unsqueeze_ first": lambda t: t.unsqueeze_(0),
    "unsqueeze_ last": lambda t: t.unsqueeze_(-1),
    "squeeze_": lambda t: t.squeeze_(),
    "t_": lambda t: t.t_(),
    "transpose_": lambda t: t.transpose_(0, 1),
    "swapaxes_": lambda t: t.swapaxes_(0, 1),
    "swapdims_": lambda t: t.swapdims_(0, 1),
    "as_strided_": lambda t: t.as_strided_((2, 8), (1, 2)),
}


def weighted(*tensors: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient tells every element from every other."""
    parts = [
        t * torch.arange(1.0, t.numel() + 1, device=t.device).reshape(t.shape) for t in tensors
    ]
    return sum(part.square().sum() for part in parts)


def agrees(program: Program) -> None:
    """Asserts that what a program of a leaf returns, and the leaf's gradient where it has one, are
    those of the CPU."""
    results = []
    for device in ("cpu", DEVICE):
        x = torch.arange(16.0).reshape(4, 4).sin().to(device).requires_grad_()
        returned = program(x)
        results.append([*returned, *([] if x.grad is None else [x.grad])])
    expected, actual = results
    assert len(expected) == len(actual)
    for one, other in zip(actual, expected, strict=True):
        check(one, other)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
class TestInPlace:
    """A write through base or view reaches the same elements after either has changed its shape by
    an op."""

    def test_base(self, change):
        def program(x):
            y = x * 1
            part, row = y[1:3, 1:], y.mT[1]
            change(y)
            part.mul_(x[1:3, 1:])
            row.add_(part.sum())
            weighted(part, row, y).backward()
            return [part, row, y]

        agrees(program)

    def test_view(self, change):
        def program(x):
            y = x * 1
            other, part = y[1:3], y[:]
            change(part)
            part.mul_(part.detach() + 2)
            other.mul_(3)
            weighted(part, other, y).backward()
            return [part, other, y]

        agrees(program)

    def test_nothing_written(self, change):
        def program(x):
            y = x * 1
            part, of_view = y[1:3], y[:]
            change(of_view)
            change(y)
            weighted(part, of_view, y).backward()
            return [part, of_view, y]

        agrees(program)

    def test_chained(self, change):
        def program(x):
            y = x * 1
            written = change(y[:]).mul_(2)
            weighted(written, y).backward()
            return [written, y]

        agrees(program)


def shorter(y):
    y.data = torch.ones(3, device=y.device)


def other_rank(y):
    y.data = torch.arange(24.0, device=y.device).reshape(2, 3, 4)


def other_strides(y):
    y.data = torch.arange(16.0, device=y.device).reshape(4, 4).t()


def other_dtype(y):
    y.data = torch.ones(4, 4, dtype=torch.float64, device=y.device)


@pytest.mark.parametrize("change", [shorter, other_rank, other_strides, other_dtype])
class TestData:
    """`.data =` leaves the views where they were; a write to them afterwards does not ask for the
    base's new shape."""

    def test_gradient_of_before(self, change):
        def program(x):
            y = x * 1
            part = y.mT[1:3]
            change(y)
            weighted(part).backward()
            return [part, y]

        agrees(program)

    def test_written_before(self, change):
        def program(x):
            y = x * 1
            part = y.mT
            with torch.no_grad():
                part.sub_(-1)
            change(y)
            return [part, part.sin(), part[1] * 2, y]

        agrees(program)

    def test_written_after(self, change):
        def program(x):
            y = x * 1
            part = y.mT
            change(y)
            with torch.no_grad():
                part.mul_(2)
            part[1:].mul_(3)
            return [part, part.sin(), y]

        agrees(program)


def test_other_strides_and_a_write():
    def program(x):
        y = x * 1
        part = y[1:3]
        with torch.no_grad():
            part.mul_(2)
        other_strides(y)
        weighted(part, y).backward()
        return [part, y]

    agrees(program)


def test_view_takes_other_data():
    def program(x):
        y = x * 1
        part = y[:2]
        shorter(part)
        part.mul_(2)
        weighted(part, y).backward()
        return [part, y]

    agrees(program)


def test_base_loses_a_dim():
    def program(x):
        y = x[:, None] * 1
        part = y[1:3, 0]
        y.squeeze_(1)
        part.mul_(3)
        y.mul_(x)
        weighted(part, y).backward()
        return [part, y]

    agrees(program)


def test_twice():
    def program(x):
        y = x * 1
        part = y[1:3]
        y.unsqueeze_(0)
        later = y[:, 1]
        y.transpose_(0, 2)
        later.mul_(2)
        part.mul_(3)
        y.data = y.detach() * 2
        weighted(part, later, y).backward()
        return [part, later, y]

    agrees(program)


def test_view_that_several_share_still_refuses_writes():
    for device in ("cpu", DEVICE):
        x = torch.ones(4, 4, device=device, requires_grad=True)
        y = x * 1
        first, _ = y.split(2)
        y.unsqueeze_(0)
        with pytest.raises(RuntimeError, match="a view and is being modified inplace"):
            first.mul_(2)


def test_view_that_keeps_its_gradient_is_refused():
    x = torch.ones(4, 4, device=DEVICE, requires_grad=True)
    y = x * 1
    part = y[1:]
    part.retain_grad()
    with pytest.raises(
        RuntimeError, match=r"keeps its gradient: on xla, call retain_grad\(\) after"
    ):
        y.unsqueeze_(0)
    y = x * 1
    part = y[1:]
    y.unsqueeze_(0)
    part.retain_grad()
    part.sum().backward()
    check(part.grad, torch.ones(3, 4))


def test_beyond_the_memory_is_refused():
    x = torch.ones(4, 4, device=DEVICE, requires_grad=True)
    y = x * 1
    part = y[1:]
    shorter(y)
    with torch.no_grad():
        part.mul_(2)
    check(part * 1, torch.full((3, 4), 2.0))
    with pytest.raises(RuntimeError, match="out of bounds for storage of size 12"):
        y.as_strided((4, 4), (4, 1))
    with pytest.raises(RuntimeError, match="out of bounds for storage of size 12"):
        y.as_strided((3, 4), (4, 1), 4).cpu()


def test_views_that_died_are_forgotten():
    y = torch.ones(4, 4, device=DEVICE, requires_grad=True)
    for _ in range(100):
        y[1:]
    assert len(y._storage.views) <= 8

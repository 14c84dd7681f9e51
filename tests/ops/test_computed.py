"""Masks that are computed from positions: made block by block, never as a whole, with the same
attention."""

from collections.abc import Callable, Iterator

import pytest
import torch
from support import check
from torch import Tensor
from torch.nn import functional as F

import spmd
from spmd.core.programs import cache
from spmd.ops import attention
from spmd.ops.kernels import flash

LENGTH = 24
INFINITY = float("inf")


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    cache.clear_cache()
    monkeypatch.setattr(attention, "LONG", 1)
    monkeypatch.setattr(flash, "BLOCK", (8, 7))
    yield
    cache.clear_cache()


def positions(device: torch.device) -> tuple[Tensor, Tensor]:
    places = torch.arange(LENGTH, device=device)
    return places[:, None], places[None]


def window(device: torch.device) -> Tensor:
    row, column = positions(device)
    return ((column <= row) & (column > row - 5))[None, None]


def packed(device: torch.device) -> Tensor:
    """Documents of a packed sequence, and causality: boolean, per sequence of the batch."""
    row, column = positions(device)
    document = torch.arange(LENGTH, device=device)[None] // torch.tensor([[5], [9]], device=device)
    return (column <= row)[None, None] & (document[:, None, :, None] == document[:, None, None, :])


def slopes(device: torch.device) -> Tensor:
    """ALiBi: additive, per head, and what lies ahead is forbidden."""
    row, column = positions(device)
    steep = torch.tensor([0.5, 0.25], device=device)[:, None, None]
    return torch.where(column <= row, (column - row) * steep, -INFINITY)[None]


def hugging_face(device: torch.device) -> Tensor:
    """The additive mask of its models of before: filled, triangular, in four dims, expanded to the
    batch."""
    filled = torch.full((LENGTH, LENGTH), -1e4, device=device)
    triangle = torch.triu(filled, diagonal=1)
    row, column = positions(device)
    return (triangle * (column > row))[None, None].expand(2, 1, LENGTH, LENGTH)


MASKS: dict[str, Callable[[torch.device], Tensor]] = {
    "window": window,
    "packed": packed,
    "slopes": slopes,
    "Hugging Face": hugging_face,
}


def attend(mask: Callable[[torch.device], Tensor], operands: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in operands]
    made = F.scaled_dot_product_attention(*leaves, mask(leaves[0].device))
    return [made.detach(), *torch.autograd.grad(made.sin().sum(), leaves)]


@pytest.mark.parametrize("name", MASKS)
class TestComputed:
    """The values and gradients of torch on CPU, from a program that holds no length x length."""

    def test_against_cpu(self, name: str) -> None:
        operands = [torch.randn(2, 2, LENGTH, 8) for _ in range(3)]
        made = attend(MASKS[name], [x.to("xla") for x in operands])
        for one, other in zip(made, attend(MASKS[name], operands), strict=True):
            check(one, other)

    def test_nothing_of_the_whole(self, name: str) -> None:
        operands = [torch.randn(2, 2, LENGTH, 8).to("xla") for _ in range(3)]
        made = attend(MASKS[name], operands)
        spmd.sync()
        program = cache.last_program()
        assert program is not None and f"{LENGTH},{LENGTH}]" not in program.executable.as_text()
        assert len(made) == 4


def test_data_is_cut() -> None:
    """A mask that came as data, beside one that is computed: blocks are taken of the one and made
    of the other."""
    keep, operands = (
        torch.rand(LENGTH, LENGTH) > 0.3,
        [torch.randn(2, 2, LENGTH, 8) for _ in range(3)],
    )
    keep[:, 0] = True

    def mask(device: torch.device) -> Tensor:
        return window(device) & keep.to(device) | (torch.arange(LENGTH, device=device) == 0)

    for one, other in zip(
        attend(mask, [x.to("xla") for x in operands]), attend(mask, operands), strict=True
    ):
        check(one, other)

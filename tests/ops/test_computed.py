"""Masks that are computed from positions: made block by block, never as a whole, with the same
attention."""

from collections.abc import Callable, Iterator
from typing import Any

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


def rows_in_vain(device: torch.device) -> Tensor:
    """A mask that leaves some rows, and some blocks of rows, nothing."""
    row, column = positions(device)
    return (column < row - 3) & (row // 6 != 2)


MORE: dict[str, Callable[[torch.device], Tensor]] = {
    "documents": lambda device: torch.eq(*(at // 7 for at in positions(device))),
    "chunks": lambda device: (
        torch.eq(*(at // 9 for at in positions(device))) & torch.ge(*positions(device))
    ),
    "prefix": lambda device: (positions(device)[1] < 10) | torch.ge(*positions(device)),
    "dilated": lambda device: (
        (torch.sub(*positions(device)) % 3 == 0) & torch.ge(*positions(device))
    ),
    "rows in vain": rows_in_vain,
    "padded keys": lambda device: (positions(device)[1] < 17).expand(LENGTH, LENGTH),
    "of heads": lambda device: (
        torch.sub(*positions(device))[None].abs()
        < torch.arange(1, 3, device=device)[:, None, None] * 4
    )[None],
}


class TestBlocks:
    """Blocks that a mask leaves empty are not computed, those that it leaves whole have no mask."""

    @pytest.mark.parametrize("is_grouped", [False, True])
    @pytest.mark.parametrize("name", MORE)
    def test_against_cpu(self, name: str, is_grouped: bool) -> None:
        q, k, v = (torch.randn(2, 2, LENGTH, 8) for _ in range(3))
        operands = [q, k[:, :1].clone(), v[:, :1].clone()] if is_grouped else [q, k, v]

        def outcome(device: str) -> list[Tensor]:
            leaves = [x.to(device).detach().requires_grad_() for x in operands]
            mask = MORE[name](leaves[0].device)
            made = F.scaled_dot_product_attention(*leaves, mask, enable_gqa=is_grouped)
            return [made.detach(), *torch.autograd.grad(made.sin().sum(), leaves)]

        for one, other in zip(outcome("xla"), outcome("cpu"), strict=True):
            check(one, other)

    def test_fewer_operations(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of 16 blocks a window computes 7, documents 4, causality 10."""
        monkeypatch.setattr(flash, "BLOCK", (16, 16))
        at = lambda device: torch.arange(64, device=device)  # noqa: E731
        masks: dict[str, Callable[[torch.device], Tensor]] = {
            "all": lambda device: at(device)[:, None] >= at(device)[None] * 0,
            "causal": lambda device: at(device)[:, None] >= at(device),
            "window": lambda device: (
                (at(device)[:, None] >= at(device)) & (at(device)[:, None] - at(device) < 16)
            ),
            "documents": lambda device: at(device)[:, None] // 16 == at(device) // 16,
        }
        flops = {}
        for name, mask in masks.items():

            def step(q: Tensor, mask: Callable[..., Tensor] = mask) -> Tensor:
                return F.scaled_dot_product_attention(q, q, q, mask(q.device))

            flops[name] = spmd.plan(step, torch.empty(1, 1, 64, 256, device="meta")).flops
        assert flops["causal"] < 0.65 * flops["all"]
        assert flops["window"] < 0.46 * flops["all"]
        assert flops["documents"] < 0.28 * flops["all"]

    def test_numbers_of_a_mask(self) -> None:
        """A program for each of a few widths of a window, then one for all others."""
        operands = [torch.randn(2, 2, LENGTH, 8) for _ in range(3)]

        def of(width: int, device: str) -> Tensor:
            row, column = positions(torch.device(device))
            mask = (column <= row) & (row - column < width)
            return F.scaled_dot_product_attention(*(x.to(device) for x in operands), mask)

        counts = []
        for width in (2, 5, 3, 9, 14, 11, 20, 2):
            before = spmd.metrics.num_compiles()
            check(of(width, "xla"), of(width, "cpu"))
            counts.append(spmd.metrics.num_compiles() - before)
        assert counts == [1, 1, 1, 1, 1, 0, 0, 0]

    def test_a_mask_that_exists(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its positions are known from the attention that read it first, until it is written."""
        equations: list[bool] = []
        masking_of = attention.masking_of

        def noted(*arguments: Any) -> Any:
            equations.append((result := masking_of(*arguments))[0].equations is not None)
            return result

        monkeypatch.setattr(attention, "masking_of", noted)
        q, mask = torch.randn(1, 1, LENGTH, 8), window(torch.device("cpu"))
        on_xla, of_xla = q.to("xla"), window(torch.device("xla"))
        for factor in (1, 2):
            made = F.scaled_dot_product_attention(on_xla * factor, on_xla, on_xla, of_xla)
            check(made, F.scaled_dot_product_attention(q * factor, q, q, mask))
            assert equations == [True]
            equations.clear()
        for tensor in (mask, of_xla):
            tensor[..., 1] = False
        made = F.scaled_dot_product_attention(on_xla * 3, on_xla, on_xla, of_xla)
        check(made, F.scaled_dot_product_attention(q * 3, q, q, mask))
        assert equations == [False]

    def test_a_mask_that_is_written(self) -> None:
        operands = [torch.randn(1, 1, LENGTH, 8) for _ in range(3)]
        results = []
        for device in ("xla", "cpu"):
            row, column = positions(torch.device(device))
            mask, moved = column <= row, [x.to(device) for x in operands]
            first = F.scaled_dot_product_attention(*moved, mask)
            mask &= row - column < 4
            results.append((first, F.scaled_dot_product_attention(*moved, mask)))
        for one, other in zip(*results, strict=True):
            check(one, other)

    def test_blocks_of_data_that_are_hidden(self) -> None:
        """Ids that are data: no block of another document is computed, forward or backward, so that
        what is no number there is seen nowhere."""
        ids = torch.arange(LENGTH) // 8
        operands = [torch.randn(1, 2, LENGTH, 8) for _ in range(3)]
        clean = [x.clone().requires_grad_() for x in operands]
        expected = F.scaled_dot_product_attention(*clean, ids[:, None] == ids)
        grads = torch.autograd.grad(expected[:, :, 8:].sin().sum(), clean)
        for x in operands[1:]:
            x[:, :, :8] = torch.nan
        of_xla, leaves = ids.to("xla"), [x.to("xla").requires_grad_() for x in operands]
        spmd.sync()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flash, "BLOCK", (8, 8))
            made = F.scaled_dot_product_attention(*leaves, of_xla[:, None] == of_xla)
            found = torch.autograd.grad(made[:, :, 8:].sin().sum(), leaves)
            check(made[:, :, 8:], expected[:, :, 8:])
            for one, other in zip(found, grads, strict=True):
                check(one[:, :, 8:], other[:, :, 8:])

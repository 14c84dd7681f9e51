"""Cross entropy of a linear layer's outputs in pieces: against torch on CPU, sharded by target and
class, and what it holds in memory."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support import check
from torch.nn import functional as F

import spmd
from spmd.core.programs import cache
from spmd.ops import linear_cross_entropy as ops

WIDTH = 16


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pieces of so few classes that some dozens make several; what was compiled for them is
    forgotten."""
    cache.clear_cache()
    monkeypatch.setattr(ops, "FEWEST", 8)
    monkeypatch.setattr(ops, "WIDTH", 4)
    yield
    cache.clear_cache()


@pytest.fixture
def mesh() -> spmd.Mesh:
    return spmd.Mesh(range(8), (4, 2), ("data", "tensor"))


def plain(
    input: Any,
    layer: Any,
    target: Any,
    *,
    linear_bias: Any = None,
    reduction: str = "mean",
    **how: Any,
) -> Any:
    """The loss as a user would write it, in float32 at least."""
    logits = F.linear(input, layer, linear_bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, -2)
    loss = F.cross_entropy(logits, target.flatten(), reduction=reduction, **how)
    return loss.view(target.shape) if reduction == "none" else loss


def operands(
    classes: int, dtype: torch.dtype
) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """(input, linear weight and bias), targets, class weights.

    Some targets are ignored, a whole row of them too.
    """
    target = torch.randint(0, classes, (8, 6))
    target[0, 1] = target[3] = -100
    shapes = (8, 6, WIDTH), (classes, WIDTH), (classes,)
    return [torch.randn(shape).to(dtype) for shape in shapes], target, torch.rand(classes).double()


def both(
    function: Any, layer: list[torch.Tensor], target: Any, bias: bool, **how: Any
) -> list[torch.Tensor]:
    """The loss and the gradients of input, weight and, where there is one, bias."""
    leaves = [x.requires_grad_() for x in layer[: 2 + bias]]
    loss = function(*leaves[:2], target, linear_bias=leaves[2] if bias else None, **how)
    return [loss.detach(), *torch.autograd.grad((loss * 1.5).sum(), leaves)]


SETTINGS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum, smooth, weights": {"reduction": "sum", "label_smoothing": 0.1, "weighted": True},
    "none, weights": {"reduction": "none", "weighted": True},
    "another index ignored, smooth": {"ignore_index": 3, "label_smoothing": 0.2},
}


class TestNumbers:
    """Values and gradients of every setting, the number of classes a multiple of the piece or
    not."""

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    @pytest.mark.parametrize(("classes", "bias"), [(48, False), (37, True)])
    @pytest.mark.parametrize("name", SETTINGS)
    def test_against_cpu(self, name: str, classes: int, bias: bool, dtype: torch.dtype) -> None:
        layer, target, weight = operands(classes, dtype)
        how = dict(SETTINGS[name])
        if how.get("ignore_index"):
            target.clamp_(0)
        weight = (
            weight.to(torch.promote_types(dtype, torch.float32))
            if how.pop("weighted", False)
            else None
        )
        expected = both(plain, [x.clone() for x in layer], target, bias, weight=weight, **how)
        device = None if weight is None else weight.to("xla")
        moved = [x.to("xla") for x in layer]
        made = both(
            spmd.linear_cross_entropy,
            moved,
            target.to("xla"),
            bias,
            weight=device,
            max_bytes=1,
            **how,
        )
        for one, other in zip(made, expected, strict=True):
            check(one, other)

    def test_one_row(self) -> None:
        input, weight = torch.randn(WIDTH), torch.randn(20, WIDTH)
        made = spmd.linear_cross_entropy(
            input.to("xla"), weight.to("xla"), torch.tensor(3).to("xla"), max_bytes=1
        )
        check(made, F.cross_entropy(F.linear(input, weight), torch.tensor(3)))

    def test_all_ignored(self) -> None:
        layer, target, _ = operands(20, torch.float32)
        target.fill_(-100)
        expected = both(plain, [x.clone() for x in layer], target, True)
        made = both(
            spmd.linear_cross_entropy,
            [x.to("xla") for x in layer],
            target.to("xla"),
            True,
            max_bytes=1,
        )
        for one, other in zip(made, expected, strict=True):
            check(one, other)

    def test_large_logits(self) -> None:
        """No overflow, and as exact as from the logits themselves."""
        layer, target, _ = operands(40, torch.float64)
        layer[0] *= 1000
        expected = both(plain, [x.clone() for x in layer], target, False)
        made = both(
            spmd.linear_cross_entropy,
            [x.to("xla") for x in layer],
            target.to("xla"),
            False,
            max_bytes=1,
        )
        for one, other in zip(made, expected, strict=True):
            check(one, other)

    def test_second_derivative(self) -> None:
        layer, target, _ = operands(20, torch.float64)

        def second(
            function: Any, x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor
        ) -> torch.Tensor:
            x.requires_grad_()
            (first,) = torch.autograd.grad(function(x, weight, target), x, create_graph=True)
            return torch.autograd.grad((first * first).sum(), x)[0]

        expected = second(plain, *(x.clone() for x in layer[:2]), target)
        check(
            second(spmd.linear_cross_entropy, *(x.to("xla") for x in layer[:2]), target.to("xla")),
            expected,
        )

    def test_on_cpu(self) -> None:
        layer, target, _ = operands(20, torch.float32)
        expected = both(plain, [x.clone() for x in layer], target, True, reduction="none")
        made = both(spmd.linear_cross_entropy, layer, target, True, reduction="none")
        for one, other in zip(made, expected, strict=True):
            torch.testing.assert_close(one, other)


class TestSharded:
    """Targets over one axis, classes over another: each device its own, one sum at the end."""

    @pytest.mark.parametrize("classes", [48, 37])
    @pytest.mark.parametrize("by_class", ["tensor", None])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_numbers(
        self, mesh: spmd.Mesh, classes: int, by_class: str | None, dtype: torch.dtype
    ) -> None:
        layer, target, _ = operands(classes, dtype)
        how = {"label_smoothing": 0.1, "max_bytes": 1}
        expected = both(plain, [x.clone() for x in layer], target, True, label_smoothing=0.1)
        specs = ("data", None, None), (by_class, None), (by_class,), ("data", None)
        *moved, goals = (
            spmd.mark_sharding(x.to("xla"), mesh, s)
            for x, s in zip((*layer, target), specs, strict=True)
        )
        spmd.sync()
        made = both(spmd.linear_cross_entropy, moved, goals, True, **how)
        spmd.sync()
        if by_class is None:
            assert set(spmd.metrics.compiles()[-1].collectives) == {"all-reduce"}
        for one, other in zip(made, expected, strict=True):
            check(one, other)

    def test_no_logits_move(self, mesh: spmd.Mesh) -> None:
        """Between devices go sums alone: nothing of targets x classes, and no weight."""
        layer, target, _ = operands(48, torch.float32)
        specs = ("data", None, None), ("tensor", None), ("tensor",), ("data", None)
        *moved, goals = (
            spmd.mark_sharding(x.to("xla"), mesh, s)
            for x, s in zip((*layer, target), specs, strict=True)
        )
        spmd.sync()
        made = both(spmd.linear_cross_entropy, moved, goals, False, max_bytes=1)
        spmd.sync()
        assert set(spmd.metrics.compiles()[-1].collectives) == {"all-reduce"}
        assert len(made) == 3


class TestMemory:
    """The memory of a program besides arguments and results: a piece of the logits, not the
    logits."""

    TOKENS, CLASSES = 512, 32_768

    def temporary_bytes(self, function: Any, **how: Any) -> int:
        x = torch.randn(self.TOKENS, WIDTH).to("xla").requires_grad_()
        weight = torch.randn(self.CLASSES, WIDTH).to("xla").requires_grad_()
        target = torch.randint(0, self.CLASSES, (self.TOKENS,)).to("xla")
        spmd.sync()
        function(x, weight, target, **how).backward()
        spmd.sync()
        return spmd.metrics.compiles()[-1].temp_bytes

    def test_a_piece(self) -> None:
        whole = self.TOKENS * self.CLASSES * 4
        layer = self.CLASSES * WIDTH * 4
        assert self.temporary_bytes(plain) > whole
        assert whole / 4 + 4 * layer < whole / 2
        assert (
            self.temporary_bytes(spmd.linear_cross_entropy, max_bytes=whole // 16)
            < whole / 4 + 4 * layer
        )


class TestRefused:
    """An error says what is not supported, with what to do instead."""

    def test_probabilities(self) -> None:
        x, weight = torch.ones(2, 4, device="xla"), torch.ones(5, 4, device="xla")
        with pytest.raises(
            ValueError, match=r"probabilities.*use torch\.nn\.functional\.cross_entropy"
        ):
            spmd.linear_cross_entropy(x, weight, torch.ones(2, 5, device="xla"))

    def test_many_outputs(self) -> None:
        x, weight = torch.ones(2, 4, device="xla"), torch.ones(5, 3, 4, device="xla")
        with pytest.raises(ValueError, match=r"expected linear_weight \[classes, in_features\]"):
            spmd.linear_cross_entropy(x, weight, torch.ones(2, 3, device="xla").long())

    def test_reduction(self) -> None:
        x, weight = torch.ones(2, 4, device="xla"), torch.ones(5, 4, device="xla")
        with pytest.raises(ValueError, match="'none', 'mean' or 'sum', got 'average'"):
            spmd.linear_cross_entropy(
                x, weight, torch.tensor([1, 2]).to("xla"), reduction="average"
            )

    def test_shapes(self) -> None:
        x, weight = torch.ones(2, 4, device="xla"), torch.ones(5, 4, device="xla")
        with pytest.raises(RuntimeError, match="size mismatch"):
            spmd.linear_cross_entropy(x, weight, torch.tensor([1, 2, 3]).to("xla"))

    def test_class_out_of_range(self) -> None:
        x, weight = torch.ones(2, 4, device="xla"), torch.ones(5, 4, device="xla")
        with pytest.raises(IndexError):
            spmd.linear_cross_entropy(x, weight, torch.tensor([1, 5]).to("xla"))

    def test_class_out_of_range_on_the_device(self) -> None:
        x, weight = torch.ones(2, 4, device="xla"), torch.ones(5, 4, device="xla")
        target = torch.tensor([1, 4]).to("xla") + 1
        assert spmd.linear_cross_entropy(x, weight, target, reduction="none").isnan().tolist() == [
            False,
            True,
        ]

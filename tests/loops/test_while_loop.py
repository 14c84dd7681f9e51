"""`spmd.while_loop`: turns that the data decide."""

from typing import Any

import pytest
import torch
from support import check
from torch import nn

import spmd


def newton(x: torch.Tensor, error: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    better = (x + 2 / x) / 2
    return better, (better - x).abs().amax()


class TestValues:
    """Those of the plain loop."""

    def test_against_the_plain_loop(self, mesh8: spmd.Mesh) -> None:
        start = torch.linspace(1, 4, 8)
        expected = spmd.while_loop(
            lambda x, error: error > 1e-3, newton, (start, torch.tensor(1.0))
        )
        for mesh in (None, mesh8):
            x = start.to("xla")
            if mesh is not None:
                spmd.mark_sharding(x, mesh, ("fsdp",))
            made = spmd.while_loop(
                lambda x, error: error > 1e-3, newton, (x, torch.tensor(1.0).to("xla"))
            )
            for ours, theirs in zip(made, expected, strict=True):
                check(ours, theirs)

    def test_no_turn(self) -> None:
        x = torch.ones(2, device="xla")
        (same,) = spmd.while_loop(lambda x: (x > 1).all(), lambda x: (x + 1,), (x,))
        assert same.tolist() == [1.0, 1.0]

    def test_trees_and_numbers(self) -> None:
        state = {"x": torch.ones(2, device="xla"), "step": 2}
        made, count = spmd.while_loop(
            lambda s, n: n < 3,
            lambda s, n: ({"x": s["x"] * s["step"], "step": 2}, n + 1),
            (state, torch.tensor(0).to("xla")),
        )
        assert made["x"].tolist() == [8.0, 8.0] and made["step"] == 2 and count.item() == 3

    def test_what_the_body_writes_outside(self) -> None:
        total = torch.zeros(2, device="xla")

        def body(n: torch.Tensor) -> tuple[torch.Tensor]:
            total.add_(n)
            return (n + 1,)

        spmd.while_loop(lambda n: n < 4, body, (torch.tensor(1.0).to("xla"),))
        assert total.tolist() == [6.0, 6.0]

    def test_draws_differ_from_turn_to_turn(self) -> None:
        def body(n: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            drawn = torch.rand(8, device="xla")
            return n + 1, torch.where(torch.arange(3, device="xla")[:, None] == n, drawn, seen)

        def run() -> torch.Tensor:
            torch.manual_seed(4)
            start = torch.tensor(0).to("xla"), torch.zeros(3, 8, device="xla")
            return spmd.while_loop(lambda n, _: n < 3, body, start)[1].cpu()

        one, other = run(), run()
        assert one.unique().numel() == 24
        check(one, other)

    def test_inside_a_scan(self) -> None:
        def iteration(carry: torch.Tensor, row: torch.Tensor) -> Any:
            (carry,) = spmd.while_loop(lambda c: c.sum() < row, lambda c: (c * 2,), (carry,))
            return carry, carry

        rows = torch.tensor([3.0, 20.0])
        expected = spmd.scan(iteration, torch.ones(2), rows)
        for ours, theirs in zip(
            spmd.scan(iteration, torch.ones(2, device="xla"), rows.to("xla")), expected, strict=True
        ):
            check(ours, theirs)


class TestRefusals:
    """Requests without a meaning in a loop of unknown length."""

    def test_a_gradient(self) -> None:
        layer, x = nn.Linear(2, 2).to("xla"), torch.ones(2, device="xla")
        (made,) = spmd.while_loop(lambda x: x.sum() > 1e9, lambda x: (layer(x),), (x,))
        check(made, torch.ones(2))
        with pytest.raises(NotImplementedError, match=r"has no gradient.*torch\.no_grad\(\)"):
            made.sum().backward()
        with torch.no_grad():
            (made,) = spmd.while_loop(lambda x: x.sum() > 1e9, lambda x: (layer(x),), (x,))
        assert not made.requires_grad

    @pytest.mark.parametrize("condition", [lambda x: x, lambda x: x > 0, lambda x: True])
    def test_a_condition_that_is_none(self, condition: Any) -> None:
        with pytest.raises(
            TypeError, match="cond_fn must return a bool tensor of one element on xla"
        ):
            spmd.while_loop(condition, lambda x: (x,), (torch.ones(2, device="xla"),))

    def test_a_carry_that_changes(self) -> None:
        with pytest.raises(
            ValueError, match=r"goes in as float32\[2\] and comes out as float32\[4\]"
        ):
            spmd.while_loop(
                lambda x: x.sum() < 9,
                lambda x: (torch.cat([x, x]),),
                (torch.ones(2, device="xla"),),
            )

    def test_what_is_no_tuple(self) -> None:
        with pytest.raises(TypeError, match="carried_inputs must be a tuple or list"):
            spmd.while_loop(lambda x: x.sum() < 9, lambda x: (x,), torch.ones(2, device="xla"))  # type: ignore[arg-type]


class TestInPlace:
    """The carry is the body's own; the condition writes nothing."""

    @pytest.mark.parametrize("device", ["cpu", "xla"])
    def test_the_carry(self, device: str) -> None:
        def body(count: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            count += 1
            total[1:].add_(count)
            return count, total

        start = torch.tensor(0).to(device), torch.zeros(3).to(device)
        count, total = spmd.while_loop(lambda count, total: count < 4, body, start)
        assert (count.item(), total.tolist()) == (4, [0.0, 10.0, 10.0])
        assert (start[0].item(), start[1].tolist()) == (0, [0.0, 0.0, 0.0])

    def test_the_condition(self) -> None:
        with pytest.raises(NotImplementedError, match="cond_fn writes in place; do so in body_fn"):
            spmd.while_loop(
                lambda n: n.add_(1) < 4, lambda n: (n + 1,), (torch.zeros((), device="xla"),)
            )


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_what_is_no_function_is_named(device: str) -> None:
    x = torch.zeros(3).to(device)
    with pytest.raises(TypeError, match=r"spmd\.while_loop: cond_fn must be a function, got 1"):
        spmd.while_loop(1, 2, (x,))
    with pytest.raises(TypeError, match=r"spmd\.scan: fn must be a function, got 1000"):
        spmd.scan(1000, x, x)
    with pytest.raises(TypeError, match=r"spmd\.cond: true_fn must be a function, got 1"):
        spmd.cond(x.sum() > 0, 1, 2, (x,))
    with pytest.raises(
        TypeError, match=r"spmd\.cond: operands must be a tuple or list, got Tensor|XlaTensor"
    ):
        spmd.cond(x.sum() > 0, torch.sin, torch.cos, x)

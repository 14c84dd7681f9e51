"""`spmd.cond`: a branch that the data choose, and its gradient."""

from typing import Any

import pytest
import torch
from support import check
from torch import nn

import spmd


class TestValues:
    """Those of the branch that Python would take."""

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_values_and_gradients(self, sign: float, mesh8: spmd.Mesh) -> None:
        results = []
        for device, mesh in (("cpu", None), ("xla", None), ("xla", mesh8)):
            torch.manual_seed(0)
            one, other = nn.Linear(4, 4).to(device), nn.Linear(4, 4).to(device)
            x = (torch.arange(32.0).reshape(8, 4) * sign / 32).to(device).requires_grad_()
            if mesh is not None:
                spmd.mark_sharding(x, mesh, ("fsdp", None))
            scale = x.mean() * 3  # a tensor with a history that both close over
            y, count = spmd.cond(
                x.sum() > 0,
                lambda x, one=one, scale=scale: (
                    torch.tanh(one(x)) * scale,
                    torch.ones((), device=x.device),
                ),
                lambda x, other=other, scale=scale: (
                    other(x) + scale,
                    torch.zeros((), device=x.device),
                ),
                (x,),
            )
            y.square().sum().backward()
            zero = torch.zeros(4, 4)
            grads = [
                zero if layer.weight.grad is None else layer.weight.grad.cpu()
                for layer in (one, other)
            ]
            results.append([y.detach(), count, x.grad, *grads])
        expected = results[0]
        for made in results[1:]:
            for ours, theirs in zip(made, expected, strict=True):
                check(ours, theirs)

    def test_a_python_bool(self) -> None:
        x = torch.ones(2, device="xla")
        assert spmd.cond(True, lambda x: x + 1, lambda x: x, (x,)).tolist() == [2.0, 2.0]

    @pytest.mark.parametrize("taken", [True, False])
    def test_what_a_branch_writes_outside(self, taken: bool) -> None:
        total = torch.zeros(2, device="xla")

        def add(x: torch.Tensor) -> torch.Tensor:
            total.add_(x)
            return x

        x = torch.ones(2, device="xla")
        spmd.cond((x.sum() > 0) == taken, add, lambda x: x, (x,))
        assert total.tolist() == [float(taken)] * 2

    def test_inside_a_scan_with_gradients(self) -> None:
        def iteration(carry: torch.Tensor, row: torch.Tensor) -> Any:
            carry = spmd.cond(row.sum() > 0, lambda c, r: c * r, lambda c, r: c - r, (carry, row))
            return carry, None

        results = []
        for device in ("xla", "cpu"):
            x, rows = (
                torch.ones(2).to(device).requires_grad_(),
                torch.tensor([[1.0, 2.0], [-3.0, 1.0]]).to(device),
            )
            rows.requires_grad_()
            spmd.scan(iteration, x, rows)[0].square().sum().backward()
            results.append([x.grad, rows.grad])
        for ours, theirs in zip(*results, strict=True):
            check(ours, theirs)

    def test_dropout_in_a_branch(self) -> None:
        x = torch.ones(64, device="xla", requires_grad=True)
        y = spmd.cond(x.sum() > 0, lambda x: nn.functional.dropout(x, 0.5), lambda x: x, (x,))
        y.sum().backward()
        # the same mask in backward, which computes the branch again
        check(x.grad, y.detach().cpu())


class TestRefusals:
    """Each says what was expected and what came."""

    def test_branches_that_differ(self) -> None:
        x = torch.ones(2, device="xla")
        with pytest.raises(ValueError, match="the branches must return the same"):
            spmd.cond(x.sum() > 0, lambda x: x, lambda x: x.sum(), (x,))

    def test_a_pred_that_is_no_bool(self) -> None:
        x = torch.ones(2, device="xla")
        with pytest.raises(
            TypeError, match=r"pred must be a bool tensor of one element, got torch\.float32"
        ):
            spmd.cond(x.sum(), lambda x: x, lambda x: x, (x,))

    def test_a_gradient_of_the_gradient(self) -> None:
        x = torch.ones(2, device="xla", requires_grad=True)
        y = spmd.cond(x.sum() > 0, lambda x: x * x, lambda x: x, (x,))
        with pytest.raises(NotImplementedError, match="has no second derivative"):
            torch.autograd.grad(y.sum(), x, create_graph=True)

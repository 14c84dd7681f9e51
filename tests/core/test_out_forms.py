"""Forms that write where they are told: `out=`, and in-place ops that change a tensor's shape."""

import pytest
import torch
from support import check

X = "xla"


class TestOut:
    """`out=` computes the op and fills the given tensor, resized where it does not fit."""

    def test_writes_into_the_tensor_and_its_aliases(self) -> None:
        out = torch.zeros(2, 3, device=X)
        alias = out.view(-1)
        made = torch.add(torch.ones(2, 3, device=X), 2, out=out)
        assert made is out
        check(alias, torch.full((6,), 3.0))

    def test_an_empty_tensor_is_resized(self) -> None:
        out = torch.empty(0, device=X)
        torch.mul(torch.arange(4.0, device=X), 2, out=out)
        check(out, torch.arange(4.0) * 2)

    def test_a_second_tensor_of_another_shape_is_not_taken_for_the_first(self) -> None:
        x = torch.arange(4.0, device=X)
        torch.exp(x, out=torch.empty(4, device=X))
        other = torch.ones(2, 2, device=X)
        with pytest.warns(UserWarning, match="resized"):
            torch.exp(x, out=other)
        check(other, torch.arange(4.0).exp())

    def test_a_result_that_cannot_be_cast_is_refused(self) -> None:
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.add(torch.ones(2, device=X), 1.5, out=torch.zeros(2, dtype=torch.int64, device=X))

    def test_several_results(self) -> None:
        values, indices = torch.empty(0, device=X), torch.empty(0, dtype=torch.int64, device=X)
        torch.sort(torch.tensor([3.0, 1.0, 2.0]).to(X), out=(values, indices))
        check(values, torch.tensor([1.0, 2.0, 3.0]))
        check(indices, torch.tensor([1, 2, 0]))

    def test_factories(self) -> None:
        out = torch.empty(0, device=X)
        torch.eye(3, out=out)
        check(out, torch.eye(3))


class TestInPlaceShapes:
    """unsqueeze_ and its kin: the same tensor object, a new shape, the old memory."""

    def test_shapes_strides_and_memory(self) -> None:
        x = torch.arange(6.0).reshape(2, 3).to(X)
        alias = x.view(-1)
        for change in (
            lambda t: t.unsqueeze_(1),
            lambda t: t.transpose_(0, 2),
            lambda t: t.squeeze_(1),
            lambda t: t.t_(),
        ):
            assert change(x) is x
        assert x.shape == (2, 3)
        x.t_().add_(1)
        assert x.stride() == (1, 3)
        check(alias, torch.arange(6.0) + 1)

    def test_gradients(self) -> None:
        def run(leaf: torch.Tensor) -> torch.Tensor:
            y = leaf * 2
            y.unsqueeze_(0)
            y.mul_(torch.arange(3.0, device=leaf.device))
            y.sum().backward()
            return leaf.grad

        check(run(torch.ones(2, 3).to(X).requires_grad_()), run(torch.ones(2, 3, requires_grad=True)))

    def test_resize_keeps_elements_in_order(self) -> None:
        x = torch.arange(6.0).to(X)
        check(x.resize_(2, 2), torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
        check(x.resize_(6)[:4], torch.arange(4.0))

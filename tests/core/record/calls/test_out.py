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

    def test_a_list_of_results(self) -> None:
        x = torch.arange(6.0).reshape(3, 2)
        out = [torch.empty(0, device=X) for _ in range(3)]
        torch.unbind_copy(x.to(X), out=out)
        for one, other in zip(out, x, strict=True):
            check(one, other)

    @pytest.mark.parametrize("inference", [False, True])
    def test_composite_forms_fill_it(self, inference: bool) -> None:
        """torch writes the Kronecker product and the rank into a reshaped `out`, which must not be
        a copy."""
        x, y = torch.rand(3, 5), torch.rand(2, 2)
        with torch.inference_mode(inference):
            for function in (
                lambda d, out: torch.kron(x.to(d), y.to(d), out=out(6, 10)),
                lambda d, out: torch.linalg.matrix_rank(x.to(d), out=out(dtype=torch.int64)),
                lambda d, out: torch.linalg.matrix_rank(
                    x.to(d), tol=torch.tensor(0.1, device=d), out=out()
                ),
            ):
                check(
                    *(
                        function(d, lambda *s, d=d, **k: torch.ones(s, device=d, **k))
                        for d in (X, "cpu")
                    )
                )

    def test_a_composite_form_has_no_gradient(self) -> None:
        with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
            torch.kron(
                torch.ones(2, 2, device=X, requires_grad=True),
                torch.ones(2, 2, device=X),
                out=torch.ones(4, 4, device=X),
            )

    def test_statistics_of_batch_norm(self) -> None:
        def run(d: str) -> list[torch.Tensor]:
            x = torch.arange(12.0).reshape(3, 4).to(d)
            running = [torch.zeros(4, device=d), torch.ones(4, device=d)]
            out = [torch.empty(0, device=d) for _ in range(3)]
            torch.ops.aten._native_batch_norm_legit.out(
                x,
                None,
                None,
                *running,
                True,
                0.1,
                1e-5,
                out=out[0],
                save_mean=out[1],
                save_invstd=out[2],
            )
            return out + running

        for one, other in zip(run(X), run("cpu"), strict=True):
            check(one, other)

    @pytest.mark.parametrize(
        ("function", "dtype"),
        [
            (
                lambda x, out: torch.gather(x, 0, torch.zeros_like(x, dtype=torch.int64), out=out),
                torch.float64,
            ),
            (lambda x, out: torch.mm(x, x, out=out), torch.float64),
            (lambda x, out: torch.abs(x, out=out), torch.float64),
            (lambda x, out: torch.all(x, dim=0, out=out), torch.float64),
            (
                lambda x, out: torch.max(
                    x, 0, out=(out, torch.empty(0, dtype=torch.int64, device=x.device))
                ),
                torch.float64,
            ),
            (lambda x, out: torch.linalg.inv(x, out=out), torch.float64),
            (lambda x, out: torch.cat([x, x], out=out), torch.int64),
            (lambda x, out: torch.sin(x, out=out), torch.float64),
            (lambda x, out: torch.cumsum(x, 0, out=out), torch.int64),
            (lambda x, out: torch.all(x, dim=0, out=out), torch.uint8),
            (lambda x, out: torch.maximum(x, x, out=out), torch.float64),
        ],
    )
    def test_dtypes_are_taken_as_on_cpu(self, function, dtype) -> None:
        """Which dtypes `out` may have is the op's own affair; sin takes a wider one, abs does
        not."""

        def run(d: str) -> torch.Tensor | type[Exception]:
            out = torch.empty(0, dtype=dtype, device=d)
            try:
                function((torch.eye(3) * 1.5).to(d), out)
            except (RuntimeError, TypeError) as error:
                return type(error)
            return out

        actual, expected = run(X), run("cpu")
        if isinstance(expected, torch.Tensor):
            assert isinstance(actual, torch.Tensor), actual
            assert actual.dtype == expected.dtype
            torch.testing.assert_close(actual.cpu(), expected, rtol=1e-6, atol=1e-6)
        else:
            assert actual is expected

    @pytest.mark.parametrize(
        "function",
        [
            lambda x, memory: torch.sin(x, out=memory[:1].expand(3)),
            lambda x, memory: torch.sin(memory[:3], out=memory[1:4]),
            lambda x, memory: torch.bernoulli(x, out=memory[:1].expand(3)),
            lambda x, memory: torch.take(
                memory, torch.tensor([0, 1, 2], device=x.device), out=memory[:3]
            ),
            lambda x, memory: torch.cat([memory, memory], out=memory),
        ],
    )
    def test_shared_memory_is_refused(self, function) -> None:
        for d in ("cpu", X):
            with pytest.raises(
                RuntimeError, match=r"unsupported operation: .* refers? to a single memory location"
            ):
                function(torch.ones(3, device=d), torch.ones(6, device=d))

    def test_the_operand_itself_may_be_it(self) -> None:
        x = torch.arange(3.0, device=X)
        check(torch.sin(x, out=x), torch.arange(3.0).sin())

    def test_numbers_from_a_range(self) -> None:
        """linspace and logspace have overloads of tensors, too."""
        for function in (torch.linspace, torch.logspace):
            out = torch.empty(0, device=X)
            assert function(-2.0, 1, 5, out=out) is out
            check(out, function(-2.0, 1, 5))

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

        check(
            run(torch.ones(2, 3).to(X).requires_grad_()), run(torch.ones(2, 3, requires_grad=True))
        )

    def test_resize_keeps_elements_in_order(self) -> None:
        x = torch.arange(6.0).to(X)
        check(x.resize_(2, 2), torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
        check(x.resize_(6)[:4], torch.arange(4.0))


FACTORIES = {
    "arange": lambda d, out: torch.arange(0, 4, out=out),
    "arange of a step": lambda d, out: torch.arange(1, 9, 2, out=out),
    "range": lambda d, out: torch.range(0, 3, out=out),
    "linspace": lambda d, out: torch.linspace(0, 3, 4, out=out),
    "logspace": lambda d, out: torch.logspace(0, 3, 4, out=out),
    "eye": lambda d, out: torch.eye(2, out=out),
    "full": lambda d, out: torch.full((2, 2), 7.0, out=out),
    "ones": lambda d, out: torch.ones(2, 2, out=out),
    "zeros": lambda d, out: torch.zeros(2, 2, out=out),
    "an op": lambda d, out: torch.add(torch.ones(2, 2, device=d), 1, out=out),
    "an op of another shape": lambda d, out: torch.add(torch.ones(2, device=d), 1, out=out),
}
VIEWS = {
    "a column off": lambda x: x[:, 1:],
    "transposed": lambda x: x[:, 1:].t(),
    "every second": lambda x: x.view(-1)[:8:2],
    "offset": lambda x: x.view(-1)[2:6],
}


@pytest.mark.filterwarnings(
    "ignore:An output with one or more elements was resized", "ignore:.*is resized to"
)
@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
class TestOutIsAView:
    """A view takes as many elements as it has, and what lies beside it stays; resized, it takes
    those that follow."""

    @pytest.mark.parametrize("view", VIEWS)
    @pytest.mark.parametrize("name", FACTORIES)
    def test_as_on_cpu(self, name: str, view: str) -> None:
        shown = []
        for device in ("cpu", X):
            x = torch.full((3, 3), 9.0, device=device)
            out = VIEWS[view](x if view in ("every second", "offset") else x[:2])
            made = FACTORIES[name](device, out)
            assert made is out
            shown.append((x.cpu(), out.cpu(), out.shape, out.stride(), out.storage_offset()))
        (x, out, *cpu), (actual, actual_out, *xla) = shown
        check(actual, x)
        check(actual_out, out)
        assert xla == cpu


class TestResize:
    """`resize_` keeps what is in memory, in its order, and lays out the tensor as it is told."""

    @pytest.mark.parametrize("size", [(2, 3, 2, 2), (1, 2, 3, 4), (2, 3, 4, 5)])
    @pytest.mark.parametrize("form", [None, torch.contiguous_format, torch.channels_last])
    def test_as_on_cpu(self, size: tuple[int, ...], form: torch.memory_format | None) -> None:
        for transposed in (False, True):
            made = []
            for device in ("cpu", X):
                x = torch.arange(120.0, device=device).reshape(2, 3, 4, 5)
                x = x.transpose(1, 2) if transposed else x
                x.resize_(size, memory_format=form)
                like = torch.empty(size, device=device).contiguous(
                    memory_format=form or torch.contiguous_format
                )
                y = torch.arange(120.0, device=device).resize_as_(
                    like, memory_format=torch.preserve_format
                )
                made.append((x.cpu(), x.stride(), y.cpu(), y.stride()))
            (x, strides, y, more), (actual, actual_strides, actual_y, actual_more) = made
            check(actual, x)
            check(actual_y, y)
            assert (actual_strides, actual_more) == (strides, more)

    def test_a_view_grows_over_what_follows_it(self) -> None:
        for device in ("cpu", X):
            x = torch.arange(6.0, device=device)
            x[1:3].resize_(4).fill_(7)
            check(x, torch.tensor([0.0, 7, 7, 7, 7, 5]))

    def test_preserving_needs_something_to_preserve(self) -> None:
        for device in ("cpu", X):
            with pytest.raises(RuntimeError, match=r"(?i)unsupported memory format"):
                torch.zeros(2, device=device).resize_(3, memory_format=torch.preserve_format)


class TestNothing:
    """A write of no elements is never refused as one place written twice."""

    def test_expanded(self) -> None:
        for device in ("cpu", X):
            assert torch.zeros(1, 0, device=device).expand(5, 0).add_(1).shape == (5, 0)
            assert torch.nonzero(torch.zeros(1, 0, device=device).expand(5, 0)).shape == (0, 2)
            assert torch.nonzero(torch.zeros(3, device=device)).shape == (0, 1)
